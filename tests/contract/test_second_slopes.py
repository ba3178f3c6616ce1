"""Second derivatives at single points, by hand: which branch a zero grad, an edge and a full width take."""

from typing import Any

import pytest
import torch

import pseudograd as pg

UP = {"rule": "inward", "maximize": True}
PROJECTED = {"rule": "zero", "edge": "inward"}
# (x, grad, options of clamp(x, -1, 1), d grad_x / d x, d grad_x / d grad); None: not asked.
POINTS: list[tuple[float, float, dict[str, Any], float | None, float]] = [
    # 0 takes the branch that passes: only a grad that leads further out is blocked.
    *((x, 0.0, how, 0, 1) for x in (-2.0, 2.0) for how in ({"rule": "inward"}, {"rule": "leaky_inward"}, UP)),
    *((x, 0.0, {"rule": "elastic"}, 0, 1) for x in (-2.0, 2.0)),
    *((x, grad, PROJECTED, 0, slope) for x in (-1.0, 1.0) for grad, slope in ((0.0, 1), (x, 1), (-x, 0))),
    # elastic is full from one width on: at exactly that distance the share is the constant 1 already.
    *((x, -x, {"rule": "elastic"}, 0, -1) for x in (-3.0, 3.0)),
    *((x, -4 * x / 3, {"rule": "elastic"}, 1.5, -0.625) for x in (-2.25, 2.25)),
    # inverting takes the formula's other branch where grad is 0, `else`: grad * (x - min) / (max - min).
    *((x, 0.0, {"rule": "inverting"}, None, share) for x, share in ((-1.0, 0.0), (-0.5, 0.25), (1.0, 1.0), (3.0, 2.0))),
]


def test_the_branch_taken() -> None:
    for x, grad, how, of_x, of_grad in POINTS:
        leaf, arriving = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (x, grad))
        (first,) = torch.autograd.grad(pg.clamp(leaf, -1, 1, **how), leaf, arriving, create_graph=True)
        second = torch.autograd.grad(first, (leaf, arriving), allow_unused=True, materialize_grads=True)
        assert second[1].item() == of_grad, (x, grad, how)
        assert of_x is None or second[0].item() == of_x, (x, grad, how)


def test_inverting_where_x_is_nan_and_grad_infinite_has_no_slope_in_its_bounds() -> None:
    """grad passes as it is, and the second derivative does not depend on the bounds."""
    x, low, high = (torch.tensor(value, requires_grad=True) for value in (torch.nan, -1.0, 1.0))
    arriving = torch.tensor(torch.inf, requires_grad=True)
    (first,) = torch.autograd.grad(pg.clamp(x, low, high, rule="inverting"), x, arriving, create_graph=True)
    assert first.item() == torch.inf
    of_bounds = torch.autograd.grad(first, (low, high), allow_unused=True, materialize_grads=True)
    assert [value.item() for value in of_bounds] == [0, 0]


@pytest.mark.parametrize(("grad", "slope"), [(0.5, 1.0), (-0.5, 1.0), (0.25, 1.0), (0.75, 0.0), (-0.75, 0.0)])
def test_a_grad_at_the_limit_of_clip_grad_still_passes(grad: float, slope: float) -> None:
    x, arriving = (torch.tensor(value, requires_grad=True) for value in (1.0, grad))
    (first,) = torch.autograd.grad(pg.clip_grad(x, 0.5), x, arriving, create_graph=True)
    assert torch.autograd.grad(first, arriving)[0].item() == slope
