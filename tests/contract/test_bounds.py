"""Gradients to tensor bounds: true, whole, and at the edge what x does not get."""

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


@pytest.mark.parametrize("rule", ["zero", "inward", "sign", "leaky", "elastic"])
def test_at_the_edge_the_bound_gets_what_x_does_not(rule: str) -> None:
    at_the_edge = [3, 4, 5, 10]
    for edge, share in (("closed", 1.0), ("open", 0.0), ("half", 0.5)):
        parts = _gradients(*CASES.T, torch.ones(len(CASES)), rule=rule, edge=edge)
        to_x, to_min, to_max = (part[at_the_edge].tolist() for part in parts)
        rest = 1 - share
        assert to_x == [share] * 4
        assert to_min == [rest, 0, rest, 0]
        assert to_max == [0, rest, 0, rest]


@pytest.mark.parametrize(
    ("grad", "to_x", "to_min", "to_max"),
    [(1.0, [0, 1, 0], [1, 0, 1], [0, 0, 0]), (-1.0, [-1, 0, 0], [0, 0, -1], [0, -1, 0])],
)
def test_projected_blocks_at_the_bound_what_points_out(grad: float, to_x: list, to_min: list, to_max: list) -> None:
    """At min, at max, and at both (where everything points out)."""
    rows = CASES[[3, 4, 5]]
    parts = _gradients(*rows.T, torch.full((3,), grad), rule="inward", edge="inward")
    assert [part.tolist() for part in parts] == [to_x, to_min, to_max]


def test_identity_and_inverting_ignore_the_edge() -> None:
    grad = torch.linspace(-2, 2, len(CASES))
    for rule in ("identity", "inverting"):
        first = _gradients(*CASES.T, grad, rule=rule, edge="closed")
        for edge in EDGES[1:]:
            for a, b in zip(first, _gradients(*CASES.T, grad, rule=rule, edge=edge), strict=True):
                assert torch.equal(a, b)


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


def test_bounds_of_another_dtype_get_gradients_of_their_own() -> None:
    x = torch.tensor([-2.0, 0.0, 2.0], requires_grad=True)
    low = torch.tensor([-1.0, -1.0, -1.0], dtype=torch.float64, requires_grad=True)
    y = pg.clamp(x, low, None, rule="zero")
    assert y.dtype is torch.float64
    y.sum().backward()
    assert (x.grad.dtype, low.grad.dtype) == (torch.float32, torch.float64)
    assert (x.grad.tolist(), low.grad.tolist()) == ([0, 1, 1], [1, 0, 0])


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


@pytest.mark.usefixtures("table_as_it_was")
@pytest.mark.parametrize(("edge", "share"), [("closed", 1.0), ("open", 0.0), ("half", 0.5)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_a_users_rule_rules_outside_only(dtype: torch.dtype, edge: str, share: float) -> None:
    """Inside x gets grad, at the edge it shares with the bound; half precision arrives as single."""
    dtypes = set()

    @pg.register_rule("clamp", formula="grad * size", source="this test", is_linear=True)
    def resized(grad: Tensor, x: Tensor, y: Tensor, min: object, max: object, *, size: float = 0.25) -> Tensor:
        dtypes.update((grad.dtype, x.dtype, y.dtype))
        return grad * size

    x = torch.tensor([-3.0, -1.0, 0.5, 1.0, 3.0], dtype=dtype)
    low, high = (torch.full((5,), value, dtype=dtype) for value in (-1.0, 1.0))
    parts = _gradients(x, low, high, torch.full((5,), 2.0, dtype=dtype), rule="resized", edge=edge)
    rest = 2 - 2 * share
    assert parts[0].tolist() == [0.5, 2 * share, 2, 2 * share, 0.5]
    assert parts[1].tolist() == [2, rest, 0, 0, 0]
    assert parts[2].tolist() == [0, 0, 0, rest, 2]
    assert dtypes == {torch.float32}
