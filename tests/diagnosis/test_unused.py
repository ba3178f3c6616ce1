"""A gradient that no optimiser steps is a finding where that is a mistake, and none where it is meant."""

import copy  # noqa: F401
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.context import Diagnosis

from .checks import codes, define, programs_in
from .trainers import sgd, steps

X, Y = torch.randn(16, 8), torch.randint(3, (16,))


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


def train(net: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor], mend: str = "") -> Diagnosis:
    paste(mend, net=net, optimizer=optimizer)
    return steps(None, loss, 4, optimizer)


def error(net: Callable[[Tensor], Tensor]) -> Tensor:
    return functional.cross_entropy(net(X), Y)


def fit(net: nn.Module, mend: str = "", held: nn.Module | None = None) -> Diagnosis:
    """held: the part of the net that the optimiser holds."""
    return train(net, sgd(held or net), lambda: error(net), mend)


class Late(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), None

    def forward(self, x: Tensor) -> Tensor:
        if self.last is None:
            self.last = nn.Linear(8, 3)
        return self.last(self.first(x))


# Each returns its diagnosis. Behind the name stands what the expression of the finding begins with. mend: "" or the line that it advises.
MISTAKES = programs_in("""
# made in the loss; scale = nn.Parameter
net = mlp()
def loss():
    scale = nn.Parameter(torch.ones(()))
    return functional.cross_entropy(net(X) * scale, Y)
return train(net, sgd(net), loss)

# made in the loss, an embedding; nn.Embedding(3, 3)(Y)
net = mlp()
return train(net, sgd(net), lambda: functional.cross_entropy(net(X) + nn.Embedding(3, 3)(Y), Y))

# copies of clients; client = copy.deepcopy(server)
server = mlp()
optimizer = sgd(server)
with diagnose() as d:
    for turn in range(6):
        client = copy.deepcopy(server)
        optimizer = sgd(client) if mend else optimizer
        for step in range(3):
            optimizer.zero_grad()
            functional.cross_entropy(client(X), Y).backward()
            optimizer.step()
        server.load_state_dict(client.state_dict())
assert not mend or mend.startswith("Make an optimiser over client.parameters() each time, after this line: optimizer")
return d

# layers in a list; self.blocks = [
return fit(Inherited(f"{mend}\\nself.gains = nn.ParameterDict(self.gains)"))

# parameters in a dict; self.gains = {
return fit(Stack(f"{mend}\\nself.blocks = nn.ModuleList(self.blocks)"))

# made by forward; self.last = nn.Linear(8, 3)
net = Late()
paste(mend, net=net, x=X)
return train(net, sgd(net), lambda: error(net))

# its moving average is given; optimizer = sgd(average)
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

# a parameter of the loss; optimizer.step()
net, log_variance = mlp(), nn.Parameter(torch.zeros(()))
optimizer = sgd(net)
paste(mend, optimizer=optimizer, log_variance=log_variance)
return train(net, optimizer, lambda: error(net) * torch.exp(-log_variance) + log_variance)

# unfrozen later; optimizer =
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

# everything is frozen; optimizer.step()
net, head = mlp(), nn.Linear(3, 3)
optimizer, beside = sgd(net), sgd(head)
net.requires_grad_(False)
paste(mend, net=net, optimizer=optimizer)
return steps(None, lambda: error(lambda x: head(net(x))), 4, optimizer, beside.step)

# a new head under a frozen net; optimizer.step()
net = mlp()
optimizer = sgd(net)
net.requires_grad_(False)
net[4] = nn.Linear(8, 3)
assert not mend or "get_parameter('4.weight')" in mend
paste(mend, net=net, optimizer=optimizer)
return steps(None, lambda: error(net), 4, optimizer)

# in a closure; optimizer = torch.optim.LBFGS
net, scale = mlp(), nn.Parameter(torch.ones(()))
optimizer = torch.optim.LBFGS([*net.parameters(), *([scale] if mend else [])], max_iter=2)
def closure():
    optimizer.zero_grad()
    loss = functional.cross_entropy(net(X) * scale, Y)
    loss.backward()
    return loss
with diagnose() as d:
    optimizer.step(closure)
    optimizer.step(closure)
return d
""")


@pytest.mark.filterwarnings("ignore:Converting a tensor")  # LBFGS of torch 2.8 does
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_has_a_finding_at_its_line_and_a_mend(name: str, tmp_path: Path) -> None:
    training = define(MISTAKES[name], tmp_path / "mistake.py", "mend", **globals())
    d = training("")
    (finding,) = d.findings
    assert (codes(d), finding.number, d.calm) == (["unused"], "PG212", [])
    assert finding.expression.startswith(name.partition("; ")[2])
    if name.startswith("made in the loss"):  # whose line has to be moved
        assert f'{{"params": [{"parameter" if "embedding" in name else "scale"}]}}' in finding.next_step
    else:
        mended = training(finding.next_step)
        assert [finding for finding in mended.findings if finding.code == "unused"] == []


CRITIC = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
MEANT = programs_in("""
# the other half of a GAN
net = mlp()
return train(net, sgd(net), lambda: -CRITIC(net(X)).mean())

# an optimiser outside
net, head = mlp(), nn.Linear(3, 3)
outside = sgd(head)
d = train(net, sgd(net), lambda: error(lambda x: head(net(x))))
outside.step()
return d

# the first layer is left alone
net = nn.Sequential(nn.Linear(8, 8), mlp())
return fit(net, held=net[1])

# steps by hand
net, scale = mlp(), nn.Parameter(torch.ones(()))
def step_by_hand():
    grad, scale.grad = scale.grad, None
    with torch.no_grad():
        scale.sub_(0.1 * grad)
return steps(net, lambda: functional.cross_entropy(net(X) * scale, Y), 4, sgd(net), step_by_hand)

# attacked
net = mlp()
def loss():
    noise = nn.Parameter(torch.zeros_like(X))
    functional.cross_entropy(net(X + noise), Y).backward()
    return functional.cross_entropy(net(X + 0.1 * noise.grad.sign()), Y)
return train(net, sgd(net), loss)

# a multiplier
net, scale = mlp(), nn.Parameter(torch.ones(()))
optimizer = sgd(net)
with diagnose() as d:
    for step in range(6):
        optimizer.zero_grad()
        excess = net(X).square().mean() - 1
        (error(net) + scale * excess).backward()
        optimizer.step()
        scale = nn.Parameter((scale + 0.1 * excess).detach())
return d

# moved as an average
net = mlp()
average = copy.deepcopy(net)
return steps(None, lambda: error(net) + error(average), 4, sgd(net), lambda: average_in(average, net))

# behind a layer of torch that keeps its first weights
net, projection = mlp(), nn.Linear(3, 3)
return train(net, sgd(net), lambda: functional.cross_entropy(projection(net(X)), Y))

# hidden in a list
net = Stack("self.blocks, self.gains = [], {'a': 1.0, 'b': 1.0}")
net.eyes = [nn.Sequential(nn.Linear(3, 8), nn.Tanh())]
return train(net, sgd(net), lambda: net.eyes[0](net(X)).square().mean())

# phases
first, second = mlp(), nn.Linear(3, 3)
optimisers = [sgd(first), sgd(second)]
with diagnose() as d:
    for step in range(6):
        error(lambda x: second(first(x))).backward()
        optimisers[step // 4].step()
        optimisers[step // 4].zero_grad()
return d
""")


@pytest.mark.parametrize("name", MEANT)
def test_what_is_meant_has_no_finding(name: str, tmp_path: Path) -> None:
    assert codes(define(MEANT[name], tmp_path / "meant.py", "", **globals())()) == []


def _functional(mend: str = "") -> Diagnosis:
    """The weights of a functional call stand in a dict, and one of them is put there late."""
    torch.manual_seed(0)
    net = nn.Linear(8, 3)
    weights = {name: weight.detach().clone().requires_grad_() for name, weight in net.named_parameters()}
    opt = torch.optim.SGD(weights.values(), 0.1)
    with diagnose() as d:
        for step in range(8):
            if step == 2:
                weights["bias"] = nn.Parameter(torch.zeros(3))
                paste(mend, opt=opt, weights=weights)
            opt.zero_grad()
            functional.cross_entropy(torch.func.functional_call(net, weights, (X,)), Y).backward()
            opt.step()
    return d


def test_a_weight_that_a_functional_call_gets_late_is_unused() -> None:
    d = _functional()
    assert codes(d) == ["unused"]
    step = d.findings[0].next_step
    assert "after the line that makes it" in step
    assert codes(_functional(step.split("#")[0])) == []


def test_data_beside_a_weight_that_gets_a_gradient_is_meant() -> None:
    batch = {"scale": nn.Parameter(torch.ones(8)), "x": X.clone().requires_grad_()}
    net = nn.Linear(8, 3)
    optimizer = torch.optim.SGD([*net.parameters(), batch["scale"]], 0.1)
    d = steps(None, lambda: functional.cross_entropy(net(batch["x"] * batch["scale"]), Y), 8, optimizer)
    assert codes(d) == []
