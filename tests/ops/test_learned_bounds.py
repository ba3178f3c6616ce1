"""Learned clipping: the gradient to bounds is the difference quotient of the true forward, computed by torch.clamp alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import pseudograd as pg

from ..choices import folded

STEP = 1e-6


def _quotient(x: Tensor, low: Tensor, high: Tensor, weight: Tensor, which: int) -> Tensor:
    """Central differences of sum(weight * torch.clamp(x, low, high)) in one bound, element by element."""
    bounds = [low, high]
    found = torch.zeros_like(bounds[which])
    for position in range(found.numel()):
        values = []
        for step in (STEP, -STEP):
            moved = [bound.clone() for bound in bounds]
            moved[which].reshape(-1)[position] += step
            values.append((weight * torch.clamp(x, *moved)).sum())
        found.reshape(-1)[position] = (values[0] - values[1]) / (2 * STEP)
    return found


SHAPES = {
    "scalar": (),
    "per row": (3, 1),
    "per column": (5,),
    "per channel of an image": (2, 1, 1),
    "per element": (2, 3, 5),
}


@folded
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("edge", ["closed", "open", "half"])
def test_bounds_get_the_difference_quotient(shape: tuple[int, ...], sign: float, edge: str) -> None:
    """No x lies within a step of a bound, so the edge does not matter."""
    torch.manual_seed(1)
    x = 2 * torch.randn(2, 3, 5, dtype=torch.float64)
    low = (-0.5 - torch.rand(shape, dtype=torch.float64)).requires_grad_()
    high = (0.5 + torch.rand(shape, dtype=torch.float64)).requires_grad_()
    weight = sign * (0.1 + torch.rand(2, 3, 5, dtype=torch.float64))
    assert ((x - low).abs() > 2 * STEP).all()
    assert ((x - high).abs() > 2 * STEP).all()
    y = pg.clamp(x.requires_grad_(), low, high, rule="zero", edge=edge)
    _, to_low, to_high = torch.autograd.grad(y, (x, low, high), weight)
    plain = (x.detach(), low.detach(), high.detach(), weight)
    torch.testing.assert_close(to_low, _quotient(*plain, 0), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(to_high, _quotient(*plain, 1), rtol=1e-6, atol=1e-8)
    assert to_low.count_nonzero() > 0
    assert to_high.count_nonzero() > 0


@folded
@pytest.mark.parametrize("rule", ["zero", "identity", "inward", "leaky", "elastic", "inverting", "sign"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_every_rule_gives_the_bounds_their_true_gradient(rule: str, sign: float) -> None:
    """What a rule invents is for x; the bounds of every rule learn as they should."""
    x = torch.tensor([[-3.0, -0.25, 0.0, 0.5, 4.0], [-9.0, -1.0, 1.0, 2.0, 2.5]], dtype=torch.float64)
    low = torch.tensor([[-0.75], [-2.0]], dtype=torch.float64, requires_grad=True)
    high = torch.tensor([[0.75], [1.5]], dtype=torch.float64, requires_grad=True)
    weight = sign * torch.arange(1.0, 11.0, dtype=torch.float64).reshape(2, 5)
    to_low, to_high = torch.autograd.grad(pg.clamp(x, low, high, rule=rule), (low, high), weight)
    torch.testing.assert_close(to_low, _quotient(x, low.detach(), high.detach(), weight, 0), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(to_high, _quotient(x, low.detach(), high.detach(), weight, 1), rtol=1e-6, atol=1e-8)
    assert to_low.flatten().tolist() == [sign * 1, sign * 6]
    assert to_high.flatten().tolist() == [sign * 5, sign * 19]


@pytest.mark.parametrize(("edge", "to_x", "to_bound"), [("closed", 1.0, 0.0), ("open", 0.0, 1.0), ("half", 0.5, 0.5)])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_at_a_bound_the_edge_shares_grad_between_x_and_the_bound(
    edge: str, to_x: float, to_bound: float, sign: float
) -> None:
    """Each share is a one-sided slope or their mean; together they are the slope of moving both."""
    x = torch.tensor([-0.5, 0.75], requires_grad=True)
    low, high = (torch.tensor([value] * 2, requires_grad=True) for value in (-0.5, 0.75))
    y = pg.clamp(x, low, high, rule="zero", edge=edge)
    grads = torch.autograd.grad(y, (x, low, high), torch.full((2,), sign))
    assert grads[0].tolist() == [sign * to_x] * 2
    assert grads[1].tolist() == [sign * to_bound, 0]
    assert grads[2].tolist() == [0, sign * to_bound]


def test_a_bound_descends_to_the_loss_s_best_place() -> None:
    """PACT in small: with a price of 1.5 on its width, the bound ends where 2 * (3.5 - high) = 1.5."""
    x = torch.tensor([0.5, 1.5, 2.5, 3.5], dtype=torch.float64)
    high = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    for _ in range(300):
        error = (pg.clamp(x, 0.0, high, rule="zero", edge="open") - x).square().sum() + 1.5 * high
        (grad,) = torch.autograd.grad(error, high)
        high = (high - 0.1 * grad).detach().requires_grad_()
    assert high.item() == pytest.approx(2.75, abs=1e-9)
