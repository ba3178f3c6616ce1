"""Check that the row of a rule for a range, which says what x gets in each region, agrees with its formula."""

import torch
from torch import Tensor

from ... import formula
from ...arguments import rounded
from ...geometry import Reversal, Side, Slope, slope_times
from ...kernels import bits
from ...ops.bounds import unify_bounds
from ...rule import Call
from ..measure.inputs import Inputs, random_pairs, special_pairs
from .cases import Case
from .equality import assert_same_values


def check_sides(case: Case, dtype: torch.dtype) -> None:
    """For special and for random grads, the formula of a rule for a range and its row give x the same numbers."""
    call = case.call()
    if not call.is_about_range:
        return
    for sample in case.samples():
        for make_pair in (special_pairs, random_pairs):
            inputs, grad = make_pair(sample.build(dtype), dtype)
            inputs = (inputs[0], *unify_bounds(*inputs))
            (gradient, *_) = formula.pull(grad, list(inputs), wants=bits.X_ALONE, call=call)
            expected = row_gradient(call, inputs, grad)
            assert_same_values(gradient, expected, f"{sample.name}, sides", x=inputs[0], grad=grad)


def row_gradient(call: Call, inputs: Inputs, grad: Tensor) -> Tensor:
    """The gradient of x as the row says it: `Call.pieces` has what x, min and max get in each region."""
    x, low, high = inputs
    pieces = call.pieces
    assert pieces is not None
    y = call.primitive.forward(x, low, high)
    low, high = (None if bound is None else rounded(bound, y) for bound in (low, high))
    nowhere = torch.zeros_like(x, dtype=torch.bool)
    at_min, at_max = (nowhere if bound is None else (x == y) & (x == bound) for bound in (low, high))
    result = grad
    if pieces.at_min.x == pieces.at_max.x:  # if min equals max, x is at both: apply their common slope once
        at_max = at_max & ~at_min
    for mask, shares in (
        (x < y, pieces.below),  # the clamp raised x
        (x > y, pieces.above),
        (at_min, pieces.at_min),
        (at_max, pieces.at_max),
    ):
        assert isinstance(shares.x, tuple)
        result = torch.where(mask, _times_side(shares.x, result, call, (x, low, high)), result)
    return result


def _times_side(side: Side, grad: Tensor, call: Call, inputs: Inputs) -> Tensor:
    if isinstance(side, Slope) and Reversal in map(type, side):
        positive, negative = (
            _reverse(factor, grad, *inputs)
            if isinstance(factor, Reversal)
            else slope_times(Slope(factor, factor), grad)
            for factor in side
        )
        return torch.where(grad > 0, positive, torch.where(grad < 0, negative, grad))
    return slope_times(bits.round_side(side, call, grad.dtype), grad)


def _reverse(reversal: Reversal, grad: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    """-grad * min(1, distance / (width * (max - min))), each step rounded; 0 where width * (max - min) is not positive and finite."""
    span = rounded(high - low, grad)
    scale = rounded(rounded(reversal.width, grad) * span, grad) + torch.zeros_like(grad)
    share = torch.where(x > high, x - high, low - x) / scale
    share = torch.where((scale > 0) & (scale < torch.inf), torch.where(share < 1, share, 1.0), 0.0)
    return torch.where(share > 0, -grad, 0.0) * share
