"""Facts that show over steps alone: a loss that does not follow the weights, rates of 0, and a gradient of rounding."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, PolynomialLR  # noqa: F401

from pseudograd.diagnosis import diagnose  # noqa: F401
from pseudograd.diagnosis.context import Diagnosis

from . import trainers
from .checks import codes, define, programs_in

X, Y = torch.randn(64, 8), torch.arange(64) % 2


def mlp(outputs: int = 2) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, outputs))


def train(
    loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer, schedule: LRScheduler | None = None, steps: int = 16
) -> Diagnosis:
    return trainers.steps(None, loss, steps, optimizer, schedule.step if schedule else lambda: None)


def error(net: nn.Module, x: Tensor = X) -> Callable[[], Tensor]:
    return lambda: functional.cross_entropy(net(x).float(), Y)


def scheduled(schedule: Callable[[torch.optim.Optimizer], LRScheduler]) -> Diagnosis:
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    return train(error(net), optimizer, schedule(optimizer))


# Each returns its diagnosis. The expected code and the next step stand behind the name.
FAULTS = programs_in("""
# one autocast; flat; cache_enabled=False
net = mlp()
with torch.autocast("cpu", torch.bfloat16, cache_enabled=not is_mended):
    return train(error(net), torch.optim.SGD(net.parameters(), 0.5))

# one graph; flat; loss = (net(X) - 1).square().mean()
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

# outputs alike; flat; Print what each layer
net = mlp()
optimizer = torch.optim.SGD(net.parameters(), 0.5, weight_decay=0.1)
return train(error(net, X if is_mended else X[:1].expand(64, 8)), optimizer, steps=32)

# rate 0; stalled; Give these steps a rate above 0
net = mlp()
return train(error(net), torch.optim.Adam(net.parameters(), lr=1e-3 if is_mended else 0.0))

# schedule that ends; stalled; a rate above 0
return scheduled(lambda optimizer: PolynomialLR(optimizer, 16 if is_mended else 5))

# divided by itself; vanish; weight  # in place of weight / weight.sum(-1, keepdim=True)
gate, experts = nn.Linear(8, 4, bias=False), nn.Linear(8, 8)
def loss():
    weight, at = gate(X).softmax(-1).topk(1, -1)
    if not is_mended:
        weight = weight / weight.sum(-1, keepdim=True)
    chosen = experts(X).view(-1, 4, 2).gather(1, at[..., None].expand(-1, -1, 2))[:, 0]
    return functional.cross_entropy(chosen * weight, Y)
return train(loss, torch.optim.Adam([*gate.parameters(), *experts.parameters()], 1e-3))
""")


@pytest.mark.parametrize("name", FAULTS)
def test_a_fact_over_steps_is_one_finding_and_gone_with_its_mend(name: str, tmp_path: Path) -> None:
    steps, (_, code, next_step) = (
        define(FAULTS[name], tmp_path / "fault.py", "is_mended", **globals()),
        name.split("; "),
    )
    d = steps(False)
    (finding,) = d.findings
    assert (codes(d), next_step in finding.next_step) == ([code], True)
    assert finding.where != "?"
    assert codes(steps(True)) == []


# The value of exp(x - x.detach()) is 1 whatever the weights are. The second update of a step goes over the graph of the first.
MEANT = programs_in("""
# a surrogate
net = mlp()
def loss():
    chosen = net(X).log_softmax(-1).gather(1, Y[:, None])[:, 0]
    return -(torch.exp(chosen - chosen.detach()) * torch.linspace(1, 2, 64)).mean()
return train(loss, torch.optim.Adam(net.parameters(), 1e-2))

# a new head
net = mlp()
for parameter in net[2].parameters():
    nn.init.zeros_(parameter)
return train(error(net), torch.optim.Adam(net.parameters(), 1e-4))

# casts of each step
net = mlp()
def loss():
    with torch.autocast("cpu", torch.bfloat16):
        return error(net)()
return train(loss, torch.optim.SGD(net.parameters(), 0.1))

# one autocast of two updates
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

# a warm-up and a schedule to 0
return scheduled(lambda optimizer: LambdaLR(optimizer, lambda epoch: max(0.0, min(epoch / 4, (14 - epoch) / 4))))
""")


@pytest.mark.parametrize("name", MEANT)
def test_what_is_meant_over_steps_has_no_finding(name: str, tmp_path: Path) -> None:
    assert codes(define(MEANT[name], tmp_path / "meant.py", "", **globals())()) == []


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
