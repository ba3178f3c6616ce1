"""Tensor bounds get the true gradient, and at the edge the share that x does not get."""

import itertools

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.rule import OPS

from ..choices import folded

EDGES, NAMES = OPS["clamp"].edges, list(OPS["clamp"].rules)
# x, min, max: inside, below, above, at min, at max, both, crossed on each side and at either bound, one point from both sides.
CASES = torch.tensor(
    [
        (0.0, -2.0, 2.0, -1.0, 1.0, 0.5, 0.0, -3.0, 3.0, 1.0, -1.0, 0.0, 1.0),
        (*[-1.0] * 5, 0.5, *[1.0] * 5, 0.5, 0.5),
        (*[1.0] * 5, 0.5, *[-1.0] * 5, 0.5, 0.5),
    ]
).T


def _gradients(x: Tensor, low: Tensor, high: Tensor, grad: Tensor, **how: object) -> tuple[Tensor, ...]:
    leaves = [t.clone().requires_grad_() for t in (x, low, high)]
    return torch.autograd.grad(pg.clamp(*leaves, **how), leaves, grad)


@folded
@pytest.mark.parametrize("maximize", [False, True], ids=["descent", "ascent"])
@pytest.mark.parametrize("value", [1.5, -1.5])
@pytest.mark.parametrize("edge", EDGES)
def test_zero_loses_nothing_and_counts_nothing_twice(edge: str, value: float, maximize: bool) -> None:
    grad = torch.full((len(CASES),), value)
    parts = _gradients(*CASES.T, grad, rule="zero", edge=edge, maximize=maximize)
    assert torch.equal(sum(parts), grad)


@pytest.mark.parametrize("rule", NAMES)
def test_what_was_replaced_goes_to_the_bound_that_replaced_it(rule: str) -> None:
    _, to_min, to_max = _gradients(*CASES.T, torch.ones(len(CASES)), rule=rule, edge="closed")
    assert to_min.tolist() == [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]
    assert to_max.tolist() == [0, 0, 1, 0, 0, 0, 1, 1, 1, 1, 0, 0, 1]


@pytest.mark.parametrize(
    ("grad", "to_x", "to_min", "to_max"),
    [(1.0, [0, 1, 0], [1, 0, 1], [0, 0, 0]), (-1.0, [-1, 0, 0], [0, 0, -1], [0, -1, 0])],
)
def test_projected_blocks_at_the_bound_what_points_out(grad: float, to_x: list, to_min: list, to_max: list) -> None:
    """At min, at max, and at both (where everything points out)."""
    rows = CASES[[3, 4, 5]]
    parts = _gradients(*rows.T, torch.full((3,), grad), rule="inward", edge="inward")
    assert [part.tolist() for part in parts] == [to_x, to_min, to_max]


@folded
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("rule", ["zero", "inward", "identity"])
def test_an_integer_x_gets_nothing_and_its_float_bounds_keep_theirs(rule: str, edge: str) -> None:
    x = torch.tensor([-3, 0, 3])
    low, high = torch.tensor(-1.5, requires_grad=True), torch.tensor(1.5, requires_grad=True)
    y = pg.clamp(x, low, high, rule=rule, edge=edge)
    assert torch.equal(y, torch.clamp(x, low, high))
    y.backward(torch.tensor([1.0, 10.0, 100.0]))
    assert (low.grad, high.grad) == (torch.tensor(1.0), torch.tensor(100.0))


def test_only_who_asks_gets_a_gradient() -> None:
    x, low, high = (column.contiguous() for column in CASES.T)
    high = high.clone().requires_grad_()
    pg.clamp(x, low, high).sum().backward()
    assert high.grad is not None
    assert x.grad is None
    assert low.grad is None


@pytest.mark.parametrize("rule", NAMES)
def test_numbers_and_tensors_mean_the_same(rule: str) -> None:
    """A bound is the same bound as a number, as a 0-d tensor, and as one of each: to the last bit of the gradient."""
    grad = torch.tensor([1.3, -0.7]).repeat_interleave(64)
    x = torch.linspace(-3, 3, 64).repeat(2)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        lows, highs = ((value, torch.tensor(value, dtype=dtype)) for value in (-0.3, 0.7))
        gradients = [
            pg.gradient(lambda x, b=bounds: pg.clamp(x, *b, rule=rule), x.to(dtype), grad.to(dtype))
            for bounds in itertools.product(lows, highs)
        ]
        assert all(torch.equal(gradients[0], other) for other in gradients[1:]), dtype
