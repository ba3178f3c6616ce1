"""A gradient that no optimiser steps is a finding where that is a mistake, and none where it is meant."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.context import Diagnosis

from .checks import codes
from .trainers import steps

X, Y = torch.randn(16, 8), torch.randint(3, (16,))
Steps = Callable[[str], Diagnosis]  # a training, with a line that mends it; "" without


def paste(mend: str, **names: object) -> None:
    """In a function of its own: of one that calls exec, nobody can read the variables."""
    exec(mend, {"torch": torch, "nn": nn, **names})


class Stack(nn.Module):
    """Layers and gains in plain containers."""

    def __init__(self, mend: str = "") -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)
        self.blocks = [nn.Linear(8, 8), nn.Linear(8, 8)]
        self.gains = {"a": nn.Parameter(torch.ones(8)), "b": nn.Parameter(torch.ones(8))}
        paste(mend, self=self)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.last(self.first(x) * self.gains["a"] * self.gains["b"])


class Inherited(Stack):
    pass


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


@torch.no_grad()
def average_in(average: nn.Module, net: nn.Module) -> None:
    for mean, parameter in zip(average.parameters(), net.parameters(), strict=True):
        mean.lerp_(parameter, 0.1)


def sgd(*parts: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD([parameter for part in parts for parameter in part.parameters()], 0.1)


def train(net: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor], mend: str = "") -> Diagnosis:
    paste(mend, net=net, optimizer=optimizer)
    return steps(None, loss, 4, optimizer)


def error(net: Callable[[Tensor], Tensor]) -> Tensor:
    return functional.cross_entropy(net(X), Y)


# --- mistakes ------------------------------------------------------------------------------------------


def _made_in_the_loss(mend: str) -> Diagnosis:
    net = mlp()

    def loss() -> Tensor:
        scale = nn.Parameter(torch.ones(()))
        return functional.cross_entropy(net(X) * scale, Y)

    return train(net, sgd(net), loss)


def _layers_in_a_list(mend: str) -> Diagnosis:
    net = Inherited(f"{mend}\nself.gains = nn.ParameterDict(self.gains)")
    return train(net, sgd(net), lambda: error(net))


def _parameters_in_a_dict(mend: str) -> Diagnosis:
    net = Stack(f"{mend}\nself.blocks = nn.ModuleList(self.blocks)")
    return train(net, sgd(net), lambda: error(net))


class Late(nn.Module):
    def __init__(self, mend: str = "") -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), None
        paste(mend, self=self)

    def forward(self, x: Tensor) -> Tensor:
        if self.last is None:
            self.last = nn.Linear(8, 3)
        return self.last(self.first(x))


class LateByName(Late):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.last is None:
            self.grow(x.shape[1])
        return self.last(x)

    def grow(self, size: int) -> None:
        setattr(self, "last", nn.Linear(size, 3))  # noqa: B010


def _made_by_forward(mend: str) -> Diagnosis:
    net = Late(mend)
    return train(net, sgd(net), lambda: error(net))


def _made_by_a_method_of_forward(mend: str) -> Diagnosis:
    net = LateByName()
    paste(mend, net=net, x=X)
    return train(net, sgd(net), lambda: error(net))


def _its_moving_average_is_given(mend: str) -> Diagnosis:
    net = mlp()
    average = copy.deepcopy(net)
    optimizer = sgd(average)
    paste(mend, optimizer=optimizer, net=net)
    with diagnose() as d:
        for _ in range(4):
            optimizer.zero_grad()
            error(net).backward()
            optimizer.step()
            average_in(average, net)
    return d


def _a_parameter_of_the_loss(mend: str) -> Diagnosis:
    net, log_variance = mlp(), nn.Parameter(torch.zeros(()))
    optimizer = sgd(net)
    paste(mend, optimizer=optimizer, log_variance=log_variance)
    return train(net, optimizer, lambda: error(net) * torch.exp(-log_variance) + log_variance)


def _the_last_weight_is_left_out(mend: str) -> Diagnosis:
    net = mlp()
    optimizer = torch.optim.SGD([parameter for parameter in net.parameters() if parameter is not net[4].weight], 0.1)
    return train(net, optimizer, lambda: error(net), mend)


def _unfrozen_later(mend: str) -> Diagnosis:
    net = mlp()
    net[0].requires_grad_(False)
    optimizer = torch.optim.SGD([parameter for parameter in net.parameters() if parameter.requires_grad], 0.1)
    paste(mend, net=net, optimizer=optimizer)
    with diagnose(net) as d:
        for step in range(6):
            if step == 3:
                net[0].requires_grad_(True)
            optimizer.zero_grad()
            error(net).backward()
            optimizer.step()
    return d


def _everything_is_frozen(mend: str) -> Diagnosis:
    net, head = mlp(), nn.Linear(3, 3)
    optimizer, beside = sgd(net), sgd(head)
    net.requires_grad_(False)
    paste(mend, net=net, optimizer=optimizer)
    with diagnose() as d:
        for _ in range(4):
            beside.zero_grad()
            error(lambda x: head(net(x))).backward()
            optimizer.step()
            beside.step()
    return d


class Adapted(nn.Module):
    """A frozen layer with a low-rank adapter."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def _adapted_later(mend: str) -> Diagnosis:
    net = mlp()
    optimizer = sgd(net)
    net[0] = Adapted(net[0])
    return train(net, optimizer, lambda: error(net), mend)


def _in_a_closure(mend: str) -> Diagnosis:
    net, scale = mlp(), nn.Parameter(torch.ones(()))
    optimizer = torch.optim.LBFGS([*net.parameters(), *([scale] if mend else [])], max_iter=2)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(X) * scale, Y)
        loss.backward()
        return loss

    with diagnose() as d:
        optimizer.step(closure)
        optimizer.step(closure)
    return d


MISTAKES: dict[Steps, str] = {
    _made_in_the_loss: "scale = nn.Parameter",
    _layers_in_a_list: "self.blocks = [",
    _parameters_in_a_dict: "self.gains = {",
    _made_by_forward: "self.last = nn.Linear(8, 3)",
    _made_by_a_method_of_forward: 'setattr(self, "last", nn.Linear(size, 3))',
    _its_moving_average_is_given: "optimizer = sgd(average)",
    _a_parameter_of_the_loss: "optimizer.step()",
    _the_last_weight_is_left_out: "optimizer.step()",
    _unfrozen_later: "optimizer = ",
    _everything_is_frozen: "optimizer.step()",
    _adapted_later: "optimizer.step()",
    _in_a_closure: "optimizer = torch.optim.LBFGS",
}


@pytest.mark.filterwarnings("ignore:Converting a tensor")  # LBFGS of torch 2.8 does
@pytest.mark.parametrize("training", MISTAKES, ids=lambda training: training.__name__)
def test_a_mistake_has_a_finding_at_its_line_and_a_mend(training: Steps) -> None:
    torch.manual_seed(0)
    d = training("")
    (finding,) = d.findings
    assert (codes(d), finding.number, d.calm) == (["unused"], "PG212", [])
    assert finding.expression.startswith(MISTAKES[training])
    if training is _made_in_the_loss:  # whose line has to be moved
        assert '{"params": [scale]}' in finding.next_step
    else:
        mended = training(finding.next_step)
        assert [finding for finding in mended.findings if finding.code == "unused"] == []


# --- on purpose ----------------------------------------------------------------------------------------


def _the_other_half_of_a_gan() -> Diagnosis:
    maker, critic = mlp(), nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    return train(maker, sgd(maker), lambda: -critic(maker(X)).mean())


def _an_optimiser_outside() -> Diagnosis:
    net, head = mlp(), nn.Linear(3, 3)
    outside = sgd(head)
    d = train(net, sgd(net), lambda: error(lambda x: head(net(x))))
    outside.step()
    return d


def _a_head_alone_is_tuned() -> Diagnosis:
    net = mlp()
    return train(net, sgd(net[4]), lambda: error(net))


def _the_first_layer_is_left_alone() -> Diagnosis:
    net = nn.Sequential(nn.Linear(8, 8), mlp())
    return train(net, sgd(net[1]), lambda: error(net))


def _steps_by_hand() -> Diagnosis:
    net, scale = mlp(), nn.Parameter(torch.ones(()))
    optimizer = sgd(net)
    with diagnose(net) as d:
        for _ in range(4):
            optimizer.zero_grad()
            functional.cross_entropy(net(X) * scale, Y).backward()
            optimizer.step()
            grad, scale.grad = scale.grad, None
            assert grad is not None
            with torch.no_grad():
                scale.sub_(0.1 * grad)
    return d


def _attacked() -> Diagnosis:
    net = mlp()

    def loss() -> Tensor:
        noise = nn.Parameter(torch.zeros_like(X))
        functional.cross_entropy(net(X + noise), Y).backward()
        assert noise.grad is not None
        return functional.cross_entropy(net(X + 0.1 * noise.grad.sign()), Y)

    return train(net, sgd(net), loss)


def _moved_as_an_average() -> Diagnosis:
    net = mlp()
    average, optimizer = copy.deepcopy(net), sgd(net)
    with diagnose() as d:
        for _ in range(4):
            optimizer.zero_grad()
            (error(net) + error(average)).backward()
            optimizer.step()
            average_in(average, net)
    return d


def _hidden_in_a_list() -> Diagnosis:
    class Net(Stack):
        def __init__(self) -> None:
            super().__init__("self.blocks, self.gains = [], {'a': 1.0, 'b': 1.0}")
            self.eyes = [nn.Sequential(nn.Linear(3, 8), nn.Tanh())]

    net = Net()
    return train(net, sgd(net), lambda: net.eyes[0](net(X)).square().mean())


def _phases() -> Diagnosis:
    first, second = mlp(), nn.Linear(3, 3)
    optimisers = [sgd(first), sgd(second)]
    with diagnose() as d:
        for step in range(6):
            error(lambda x: second(first(x))).backward()
            optimisers[step // 4].step()
            optimisers[step // 4].zero_grad()
    return d


MEANT = (
    *(_the_other_half_of_a_gan, _an_optimiser_outside, _a_head_alone_is_tuned, _the_first_layer_is_left_alone),
    *(_steps_by_hand, _attacked, _moved_as_an_average, _hidden_in_a_list, _phases),
)


@pytest.mark.parametrize("training", MEANT, ids=lambda training: training.__name__)
def test_what_is_meant_has_no_finding(training: Callable[[], Diagnosis]) -> None:
    torch.manual_seed(0)
    assert codes(training()) == []
