"""Backward kernels from a handful of ATen calls: no compiler, any device.

On CPU every ATen kernel that touches a bool costs several copies, and a float kernel about one. So these use float kernels that
compare inside: threshold_backward(g, p, t) is 0 where p <= t, and g elsewhere, also where p is NaN. (hardtanh_backward would do both
bounds at once, but where x is NaN it gives 0 in its vector loop and g in the remainder.)
Equal to the formulas on every (x, grad), except that subnormal grads may pass where the processor was told to flush them to zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..arguments import flushes_subnormals, rounded_to
from ..geometry import ALL, INWARD, NOTHING, Side
from ..rule import Call, Gradients, Wants
from . import few_bits, range_bits
from .residuals import INPUTS, Kept
from .table import Kernel, account, register

_threshold_backward = torch.ops.aten.threshold_backward.default
_threshold_backward_out = torch.ops.aten.threshold_backward.grad_input

_SMALLEST = {  # subnormal
    torch.float16: 2.0**-24,
    torch.bfloat16: 2.0**-133,
    torch.float32: 2.0**-149,
    torch.float64: 2.0**-1074,
}
# What still counts as a number where subnormals are flushed to zero. float16 is computed in float32, where all of its numbers are normal.
_SMALLEST_NORMAL = {**{dtype: torch.finfo(dtype).tiny for dtype in _SMALLEST}, torch.float16: _SMALLEST[torch.float16]}
_OUTWARD = {dtype: -smallest for dtype, smallest in _SMALLEST.items()}
_OUTWARD_OF_NORMALS = {dtype: -smallest for dtype, smallest in _SMALLEST_NORMAL.items()}


def _outward(dtype: torch.dtype) -> float:
    """The largest sign(x - y) * grad that counts as "points outward": the negative number next to 0."""
    return (_OUTWARD_OF_NORMALS if flushes_subnormals() else _OUTWARD)[dtype]


@lru_cache(maxsize=1024)
def _neighbour(value: float, dtype: torch.dtype, up: bool, flushes: bool) -> float:
    """The next number of `dtype` above or below `value`; the next normal one where subnormals count as zero.

    Numbers are between eps / 2 and eps apart, relative to the larger; so a step of 0.625 eps is rounded to the next one, also down from
    a power of two, where they are twice as dense below.
    """
    value, info = rounded_to(value, dtype), torch.finfo(dtype)
    step = max(0.625 * info.eps * abs(value), info.tiny if flushes else _SMALLEST[dtype])
    return rounded_to(value + step if up else value - step, dtype)


def _just_outside(low: float | None, high: float | None, dtype: torch.dtype) -> tuple[float | None, float | None]:
    """Bounds that a strict comparison excludes exactly where the closed range ends."""
    flushes = flushes_subnormals()
    return (
        None if low is None else _neighbour(low, dtype, False, flushes),
        None if high is None else _neighbour(high, dtype, True, flushes),
    )


def _between(grad: Tensor, x: Tensor, low: float | None, high: float | None) -> Tensor:
    """grad where low < x < high, and where x is NaN; else 0. One allocation: a fresh tensor costs more than a pass over it."""
    if high is None:
        return _threshold_backward(grad, x, low)
    found = -x
    _threshold_backward_out(grad, found, -high, grad_input=found)
    return found if low is None else _threshold_backward_out(found, x, low, grad_input=found)


def _bounds(low: Any, high: Any, dtype: torch.dtype) -> tuple[float | None, float | None]:
    return (None if low is None else rounded_to(low, dtype), None if high is None else rounded_to(high, dtype))


def _only_inside(grad: Tensor, kept: Kept, wants: Wants, call: Call) -> Gradients | None:
    x, low, high = kept
    if not _are_finite_numbers(x, low, high):
        return None
    low, high = _bounds(low, high, x.dtype)
    if _at_the_bounds(call) == ALL:
        low, high = _just_outside(low, high, x.dtype)
    return _between(grad, x, low, high), None, None


def _only_inward(grad: Tensor, kept: Kept, wants: Wants, call: Call) -> Gradients | None:
    x, low, high = kept
    if wants[1] or wants[2] or not _are_of_one_dtype(x, low, high):
        return None
    return _inward_of(grad, x, low, high, call), None, None


def _inward_of(grad: Tensor, x: Tensor, low: object, high: object, call: Call) -> Tensor:
    """grad where grad * sign(x - y) does not point outward. sign first: the bare product underflows."""
    outward = call.primitive.forward(x, low, high)
    torch.sub(x, outward, out=outward).sign_().mul_(grad)
    return _threshold_backward_out(grad, outward, _outward(x.dtype), grad_input=outward)


def _only_inward_but_at_the_bounds(grad: Tensor, kept: Kept, wants: Wants, call: Call) -> Gradients | None:
    """As `_only_inward`, and 0 where x is at a bound: where |x - bound| <= 0."""
    x, low, high = kept
    if not _are_finite_numbers(x, low, high):
        return None
    if low == 0 and high is None:  # relu: x - y is min(x, 0)
        outward = torch.clamp_max(x, 0.0).sign_().mul_(grad)
        grad_x = _threshold_backward_out(grad, outward, _outward(x.dtype), grad_input=outward)
    else:
        grad_x = _inward_of(grad, x, low, high, call)
    for bound in _bounds(low, high, x.dtype):
        if bound is not None:
            distance = torch.abs(x) if bound == 0 else torch.sub(x, bound).abs_()
            _threshold_backward_out(grad_x, distance, 0.0, grad_input=grad_x)
    return grad_x, None, None


def _one_outward(grad: Tensor, kept: Kept, wants: Wants, call: Call) -> Gradients | None:
    """sign(x - y) outside, where the other addend is 0; grad inside, where sign(y - x) is 0."""
    x, low, high = kept
    if not _are_finite_numbers(x, low, high):
        return None
    towards = call.primitive.forward(x, low, high)
    towards.sub_(x).sign_()
    inside = _between(grad, x, *_just_outside(*_bounds(low, high, x.dtype), x.dtype))
    return torch.sub(inside, towards, out=towards), None, None


def _are_of_one_dtype(x: Tensor, low: object, high: object) -> bool:
    """Numbers, or tensors that do not change the dtype of the result."""
    dtype = x.dtype
    return dtype in _SMALLEST and getattr(low, "dtype", dtype) is getattr(high, "dtype", dtype) is dtype


def _are_finite_numbers(x: Tensor, low: Any, high: Any) -> bool:
    """And not crossed, which only a rewritten call can bring: the formulas know that x is then replaced by max."""
    if x.dtype not in _SMALLEST:
        return False
    for bound in (low, high):
        if not (bound is None or isinstance(bound, (float, int))):
            return False
    low = high if low is None else low
    high = low if high is None else high
    return -math.inf < low <= high < math.inf


def _at_the_bounds(call: Call) -> Side | None:
    """What x gets at either bound, if that is one share; None also of a call that is about no range."""
    if not range_bits.is_about_a_range(call) or call.places is None or call.places.at_min != call.places.at_max:
        return None
    return call.places.at_min


def _gives(below: Side, above: Side, *at: Side) -> Callable[[Call], bool]:
    """Of calls that give these shares on both sides, and one of `at` at the bounds."""
    return lambda call: _at_the_bounds(call) in at and (call.places or ())[:2] == (below, above)


for _serves, _backward in (
    (_gives(NOTHING, NOTHING, ALL, NOTHING), _only_inside),
    (_gives(*INWARD, ALL), _only_inward),
    (_gives(*INWARD, NOTHING), _only_inward_but_at_the_bounds),
    (_gives(-1.0, 1.0, ALL), _one_outward),
):
    register(Kernel("portable", INPUTS, _serves, _backward, priority=20))
register(Kernel("portable", few_bits.FEW_BITS, few_bits.suits, few_bits.backward, priority=20))
account("portable", lambda: {"state": "active", "why": "a handful of ATen calls"})
