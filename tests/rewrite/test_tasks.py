"""Override equals the explicit op: a ternary quantised network on digits and an attack on it, edited and overridden, to the last bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import pseudograd as pg
from pseudograd.rewrite.override import override
from pseudograd.rewrite.pin_edge import pin_edge
from pseudograd.torch_table.eras import ERAS

Clamp = Callable[[Tensor, float, float], Tensor]
Round = Callable[[Tensor], Tensor]


def digits() -> tuple[Tensor, Tensor]:
    data = pytest.importorskip("sklearn.datasets").load_digits()
    return torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)


class TernaryLinear(nn.Module):
    """Weights in {-1, 0, 1} times their mean magnitude, written as quantisation libraries write it."""

    def __init__(self, inputs: int, outputs: int, clamp: Clamp, round_: Round) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5)
        self.clamp, self.round = clamp, round_

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight.detach().abs().mean()
        u = self.weight / scale
        return functional.linear(x, self.clamp(self.round(u), -1.0, 1.0) * scale)


def rounded_straight_through(u: Tensor) -> Tensor:
    """Not what is under test: the same in both programs."""
    return u + (torch.floor(u.detach() + 0.5) - u.detach())


def train(clamp: Clamp, round_: Round = rounded_straight_through, steps: int = 40) -> list[float]:
    torch.manual_seed(0)
    x, target = digits()
    model = nn.Sequential(TernaryLinear(64, 48, clamp, round_), nn.ReLU(), TernaryLinear(48, 10, clamp, round_))
    optimiser, losses = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for step in range(steps):
        batch = slice(step % 10 * 100, step % 10 * 100 + 100)
        loss = functional.cross_entropy(model(x[batch]), target[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def attack(clamp: Clamp, steps: int = 20) -> Tensor:
    """Projected gradient descent on the pixels, the clamp in the graph, from the zero start: many pixels are exactly 0 or 1."""
    torch.manual_seed(1)
    x, target = digits()
    x, target = x[:100], target[:100]
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).requires_grad_(False)
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(steps):
        loss = -functional.cross_entropy(model(clamp(x + delta, 0.0, 1.0)), target)
        (grad,) = torch.autograd.grad(loss, delta)
        with torch.no_grad():
            delta -= 0.02 * grad.sign()
            delta.clamp_(-0.1, 0.1)
    return delta.detach()


@pytest.mark.parametrize("rule", ["zero", "identity", "inward"])
def test_ternary_training(rule: str) -> None:
    edited = train(lambda x, low, high: pg.clamp(x, low, high, rule=rule))
    with override(clamp=rule) as context:
        assert train(torch.clamp) == edited
    assert sum(site.calls for site in context.report().rewritten) == 80
    assert edited[-1] < edited[0]


def test_ternary_training_with_its_rounding_overridden_too() -> None:
    edited = train(lambda x, low, high: pg.clamp(x, low, high, rule="inward"), pg.round)
    with override(clamp="inward", round="identity"):
        assert train(torch.clamp, torch.round) == edited
    assert train(torch.clamp, torch.round) != edited


@pytest.mark.parametrize("rule", ["zero", "identity", "inward"])
def test_the_attack(rule: str) -> None:
    edited = attack(lambda x, low, high: pg.clamp(x, low, high, rule=rule))
    with override(clamp=rule):
        assert torch.equal(attack(torch.clamp), edited)


@pytest.mark.parametrize("era", ERAS)
def test_an_era_is_the_explicit_edge(era: str) -> None:
    edge = {"torch<=2.13": "closed", "torch>=2.14": "open"}[era]
    edited = train(lambda x, low, high: pg.clamp(x, low, high, rule="zero", edge=edge))
    attacked = attack(lambda x, low, high: pg.clamp(x, low, high, rule="zero", edge=edge))
    with pin_edge(era):
        assert train(torch.clamp) == edited
        assert torch.equal(attack(torch.clamp), attacked)


def test_the_eras_differ_here() -> None:
    with pin_edge("closed"):
        closed, closed_attack = train(torch.clamp), attack(torch.clamp)
    with pin_edge("open"):
        assert train(torch.clamp) != closed
        assert not torch.equal(attack(torch.clamp), closed_attack)
