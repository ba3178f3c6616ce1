"""Facts that show over steps alone: a loss that does not follow the weights, rates of 0, and a gradient of rounding."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, PolynomialLR

from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.context import Diagnosis

from .checks import codes

X, Y = torch.randn(64, 8), torch.arange(64) % 2


def mlp(outputs: int = 2) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, outputs))


def train(
    loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer, schedule: LRScheduler | None = None, steps: int = 16
) -> Diagnosis:
    with diagnose() as d:
        for _ in range(steps):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
            if schedule is not None:
                schedule.step()
    return d


def error(net: nn.Module, x: Tensor = X) -> Callable[[], Tensor]:
    return lambda: functional.cross_entropy(net(x).float(), Y)


def _one_autocast(is_mended: bool) -> Diagnosis:
    net = mlp()
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=not is_mended):
        return train(error(net), torch.optim.SGD(net.parameters(), 0.5))


def _one_autocast_of_batches(is_mended: bool) -> Diagnosis:
    net = mlp()
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=not is_mended):
        return train(lambda: error(net, torch.randn(64, 8))(), torch.optim.SGD(net.parameters(), 0.5), steps=6)


def _one_graph(is_mended: bool) -> Diagnosis:
    net = nn.Linear(8, 1)
    optimizer, loss = torch.optim.SGD(net.parameters(), 0.1), (net(X) - 1).square().mean()
    with diagnose() as d:
        for _ in range(16):
            optimizer.zero_grad()
            if is_mended:
                loss = (net(X) - 1).square().mean()
            loss.backward(retain_graph=True)
            optimizer.step()
    return d


def _outputs_alike(is_mended: bool) -> Diagnosis:
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), 0.5, weight_decay=0.1)
    return train(error(net, X if is_mended else X[:1].expand(64, 8)), optimizer, steps=32)


def _rate_0(is_mended: bool) -> Diagnosis:
    net = mlp()
    return train(error(net), torch.optim.Adam(net.parameters(), lr=1e-3 if is_mended else 0.0))


def scheduled(schedule: Callable[[torch.optim.Optimizer], LRScheduler]) -> Diagnosis:
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    return train(error(net), optimizer, schedule(optimizer))


def _schedule_from_0(is_mended: bool) -> Diagnosis:
    return scheduled(lambda optimizer: LambdaLR(optimizer, lambda epoch: epoch / 100 if is_mended else epoch // 100))


def _schedule_that_ends(is_mended: bool) -> Diagnosis:
    return scheduled(lambda optimizer: PolynomialLR(optimizer, 16 if is_mended else 5))


def _divided_by_its_largest(is_mended: bool) -> Diagnosis:
    gate, layer = nn.Linear(8, 1, bias=False), nn.Linear(8, 2)

    def loss() -> Tensor:
        weight = gate(X).sigmoid()
        weight = weight if is_mended else weight / weight.abs().amax(-1, keepdim=True)
        return functional.cross_entropy(layer(X) * weight, Y)

    return train(loss, torch.optim.Adam([*gate.parameters(), *layer.parameters()], 1e-2))


def _divided_by_itself(is_mended: bool) -> Diagnosis:
    gate, experts = nn.Linear(8, 4, bias=False), nn.Linear(8, 8)

    def loss() -> Tensor:
        weight, at = gate(X).softmax(-1).topk(1, -1)
        if not is_mended:
            weight = weight / weight.sum(-1, keepdim=True)
        chosen = experts(X).view(-1, 4, 2).gather(1, at[..., None].expand(-1, -1, 2))[:, 0]
        return functional.cross_entropy(chosen * weight, Y)

    return train(loss, torch.optim.Adam([*gate.parameters(), *experts.parameters()], 1e-3))


FAULTS: dict[Callable[[bool], Diagnosis], tuple[str, str]] = {
    _one_autocast: ("flat", "cache_enabled=False"),
    _one_autocast_of_batches: ("flat", "cache_enabled=False"),
    _one_graph: ("flat", "loss = (net(X) - 1).square().mean()"),
    _outputs_alike: ("flat", "Print what each layer"),
    _rate_0: ("stalled", 'for group in optimizer.param_groups: group["lr"] = 1e-3'),
    _schedule_from_0: ("stalled", 'group["lr"] = group["initial_lr"]'),
    _schedule_that_ends: ("stalled", 'group["lr"] = group["initial_lr"]'),
    _divided_by_its_largest: ("vanish", "weight  # in place of weight / weight.abs().amax(-1, keepdim=True)"),
    _divided_by_itself: ("vanish", "weight  # in place of weight / weight.sum(-1, keepdim=True)"),
}


@pytest.mark.parametrize("steps", FAULTS, ids=lambda steps: steps.__name__)
def test_a_fact_over_steps_is_one_finding_and_gone_with_its_mend(steps: Callable[[bool], Diagnosis]) -> None:
    torch.manual_seed(0)
    d, (code, next_step) = steps(False), FAULTS[steps]
    (finding,) = d.findings
    assert (codes(d), next_step in finding.next_step) == ([code], True)
    assert finding.where.rpartition("/")[2].startswith("test_flat.py")
    assert codes(steps(True)) == []


# --- on purpose ----------------------------------------------------------------------------------------


def _surrogate() -> Diagnosis:
    """The value of exp(x - x.detach()) is 1 whatever the weights are."""
    net = mlp()

    def loss() -> Tensor:
        chosen = net(X).log_softmax(-1).gather(1, Y[:, None])[:, 0]
        return -(torch.exp(chosen - chosen.detach()) * torch.linspace(1, 2, 64)).mean()

    return train(loss, torch.optim.Adam(net.parameters(), 1e-2))


def _a_new_head() -> Diagnosis:
    net = mlp()
    for parameter in net[2].parameters():
        nn.init.zeros_(parameter)
    return train(error(net), torch.optim.Adam(net.parameters(), 1e-4))


def _casts_of_each_step() -> Diagnosis:
    net = mlp()

    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return error(net)()

    return train(loss, torch.optim.SGD(net.parameters(), 0.1))


def _one_autocast_of_two_updates() -> Diagnosis:
    """The second update of a step goes over the graph of the first, as the generator of a GAN may."""
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with diagnose() as d:
        for _ in range(6):
            with torch.autocast("cpu", torch.bfloat16):
                loss = error(net, torch.randn(64, 8))()
                for _ in range(2):
                    optimizer.zero_grad()
                    loss.backward(retain_graph=True)
                    optimizer.step()
    return d


def _a_warm_up_and_a_schedule_to_0() -> Diagnosis:
    return scheduled(lambda optimizer: LambdaLR(optimizer, lambda epoch: max(0.0, min(epoch / 4, (14 - epoch) / 4))))


@pytest.mark.parametrize(
    "steps",
    [_surrogate, _a_new_head, _casts_of_each_step, _one_autocast_of_two_updates, _a_warm_up_and_a_schedule_to_0],
    ids=lambda steps: steps.__name__,
)
def test_what_is_meant_over_steps_has_no_finding(steps: Callable[[], Diagnosis]) -> None:
    torch.manual_seed(0)
    assert codes(steps()) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_loss_whose_gradient_is_rounding_alone_is_not_flat(seed: int) -> None:
    """One unit of four is left, and a vector of norm 1 with one entry is 1, whatever the weights are."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer, _ = torch.optim.Adam(net.parameters(), 1e-2), torch.randn(24, 8)

    def loss() -> Tensor:
        z = functional.relu(net(torch.randn(24, 8)) - 0.3)
        return (z / z.norm(dim=1, keepdim=True).clamp(min=1e-8) - 0.5).square().mean()

    assert "flat" not in codes(train(loss, optimizer, steps=30))
