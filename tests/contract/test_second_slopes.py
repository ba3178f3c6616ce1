"""Second derivatives at single points, by hand: which branch a zero grad, an edge and a full width take."""

import pytest
import torch

import pseudograd as pg


def _slopes(x: float, grad: float, **how: object) -> tuple[float, float]:
    """(d grad_x / d x, d grad_x / d grad) of clamp(x, -1, 1) at one point."""
    leaf, arriving = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (x, grad))
    (first,) = torch.autograd.grad(pg.clamp(leaf, -1, 1, **how), leaf, arriving, create_graph=True)
    by_x, by_grad = torch.autograd.grad(first, (leaf, arriving), allow_unused=True, materialize_grads=True)
    return by_x.item(), by_grad.item()


@pytest.mark.parametrize("x", [-2.0, 2.0])
@pytest.mark.parametrize(
    "how",
    [{"rule": "inward"}, {"rule": "leaky_inward"}, {"rule": "elastic"}, {"rule": "inward", "maximize": True}],
    ids=str,
)
def test_a_zero_grad_passes_so_its_derivative_is_one(x: float, how: dict[str, object]) -> None:
    """Only a strictly outward grad is blocked; 0 takes the branch that passes."""
    assert _slopes(x, 0.0, **how) == (0, 1)


@pytest.mark.parametrize("x", [-1.0, 1.0])
def test_a_zero_grad_passes_at_the_projected_edge(x: float) -> None:
    assert _slopes(x, 0.0, rule="zero", edge="inward") == (0, 1)
    assert _slopes(x, x, rule="zero", edge="inward") == (0, 1)
    assert _slopes(x, -x, rule="zero", edge="inward") == (0, 0)


@pytest.mark.parametrize("x", [-3.0, 3.0])
def test_elastic_is_full_from_one_width_on(x: float) -> None:
    """At exactly that distance the share is the constant 1 already."""
    assert _slopes(x, -x, rule="elastic") == (0, -1)
    assert _slopes(x * 0.75, -x, rule="elastic") == (abs(x) / 2, -0.625)


@pytest.mark.parametrize(("x", "share"), [(-1.0, 0.0), (-0.5, 0.25), (1.0, 1.0), (3.0, 2.0)])
def test_inverting_takes_the_room_below_where_grad_is_zero(x: float, share: float) -> None:
    """The formula's other branch, `else`: grad * (x - min) / (max - min)."""
    assert _slopes(x, 0.0, rule="inverting")[1] == share


def test_inverting_where_x_is_nan_and_grad_infinite_has_no_slope_in_its_bounds() -> None:
    """grad passes there as it is, and the bounds have no part in it."""
    x, low, high = (torch.tensor(value, requires_grad=True) for value in (torch.nan, -1.0, 1.0))
    arriving = torch.tensor(torch.inf, requires_grad=True)
    (first,) = torch.autograd.grad(pg.clamp(x, low, high, rule="inverting"), x, arriving, create_graph=True)
    assert first.item() == torch.inf
    by_bounds = torch.autograd.grad(first, (low, high), allow_unused=True, materialize_grads=True)
    assert [value.item() for value in by_bounds] == [0, 0]


@pytest.mark.parametrize(("grad", "slope"), [(0.5, 1.0), (-0.5, 1.0), (0.25, 1.0), (0.75, 0.0), (-0.75, 0.0)])
def test_a_grad_at_the_limit_of_clip_grad_still_passes(grad: float, slope: float) -> None:
    x, arriving = (torch.tensor(value, requires_grad=True) for value in (1.0, grad))
    (first,) = torch.autograd.grad(pg.clip_grad(x, 0.5), x, arriving, create_graph=True)
    assert torch.autograd.grad(first, arriving)[0].item() == slope
