"""Does the geometry in a rule's row say what its formula gives?"""

from typing import Any

import torch
from torch import Tensor

from ... import formula
from ...arguments import rounded
from ...geometry import Share, Side, Turned, shared
from ...kernels import range_bits
from ...ops.bounds import of_one_kind
from ...rule import Call
from ..measure.inputs import random_pairs, special_pairs
from .cases import Case
from .equality import assert_same_values


def check_sides(case: Case, dtype: torch.dtype) -> None:
    """Of a rule for a range, x gets at every place what its row says, for special and random grads: no unit in the last place less."""
    call = case.call()
    if not range_bits.is_about_a_range(call):
        return
    for sample in case.samples():
        for pairs in (special_pairs, random_pairs):
            inputs, grad = pairs(sample.build(dtype), dtype)
            inputs = (inputs[0], *of_one_kind(*inputs))
            (found, *_) = formula.pull(grad, list(inputs), range_bits.X_ALONE, call)
            expected = by_the_row(call, inputs, grad)
            assert_same_values(found, expected, f"{sample.name}, sides", x=inputs[0], grad=grad)


def by_the_row(call: Call, inputs: tuple[Any, ...], grad: Tensor) -> Tensor:
    """What x gets by `Call.places` alone."""
    x, low, high = inputs
    assert call.places is not None
    y = call.primitive.forward(x, low, high)
    low, high = (None if bound is None else rounded(bound, y) for bound in (low, high))
    nowhere = torch.zeros_like(x, dtype=torch.bool)
    at_min, at_max = (nowhere if bound is None else (x == y) & (x == bound) for bound in (low, high))
    found = grad
    for there, side in zip((x < y, x > y, at_min, at_max), call.places, strict=True):
        # At both bounds at once x gets what is left by either; what is the same for both is taken once.
        once = there & ~at_min if there is at_max and call.places.at_min == side else there
        found = torch.where(once, _part(side, found, call, (x, low, high)), found)
    return found


def _part(side: Side, grad: Tensor, call: Call, inputs: tuple[Any, ...]) -> Tensor:
    if isinstance(side, Share) and any(isinstance(factor, Turned) for factor in side):
        ways = [_turned(f, grad, *inputs) if isinstance(f, Turned) else shared(Share(f, f), grad) for f in side]
        return torch.where(grad > 0, ways[0], torch.where(grad < 0, ways[1], grad))
    return shared(range_bits.share_in(range_bits.dtype_of_factors(call, grad.dtype), side), grad)


def _turned(turned: Turned, grad: Tensor, x: Tensor, low: Any, high: Any) -> Tensor:
    """-grad * min(1, distance / (width * (max - min))), each step rounded; 0 where that range is not positive and finite."""
    span = rounded(high - low, grad)
    scale = rounded(rounded(turned.width, grad) * span, grad) + torch.zeros_like(grad)
    share = torch.where(x > high, x - high, low - x) / scale
    share = torch.where((scale > 0) & (scale < torch.inf), torch.where(share < 1, share, 1.0), 0.0)
    return torch.where(share > 0, -grad, 0.0) * share
