"""Backward kernels from a handful of ATen calls: no compiler, any device.

On the CPU, an ATen kernel that reads or writes bools takes the time of several copies of the tensor; one with floats alone takes that of
about one copy. So the functions here call a float kernel that compares inside: threshold_backward(g, p, t) is 0 where p <= t, and g
elsewhere, also where p is NaN. (hardtanh_backward would do both bounds at once. But where x is NaN, it gives 0 in its vector loop and g in
the remainder.) The results equal those of the formulas, except that subnormal grads may pass if the processor flushes them to zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache

import torch
from torch import Tensor

from .. import formula
from ..arguments import flushes_subnormals, rounded_to
from ..geometry import ALL, INWARD, NOTHING, Constant, Side
from ..rule import Call, Gradients, Wants
from . import bits
from .residuals import INPUTS, Saved
from .table import Kernel, account, register

_threshold_backward = torch.ops.aten.threshold_backward.default
_threshold_backward_out = torch.ops.aten.threshold_backward.grad_input

_SMALLEST = {  # the smallest positive number, which is subnormal
    torch.float16: 2.0**-24,
    torch.bfloat16: 2.0**-133,
    torch.float32: 2.0**-149,
    torch.float64: 2.0**-1074,
}
# The smallest if subnormals are flushed to zero. float16 is computed in float32, where all its numbers are normal.
_SMALLEST_NORMAL = {**{dtype: torch.finfo(dtype).tiny for dtype in _SMALLEST}, torch.float16: _SMALLEST[torch.float16]}


def _largest_outward(dtype: torch.dtype) -> float:
    """The negative number next to 0: the largest value of sign(x - y) * grad for which a descent step moves x outward."""
    return -(_SMALLEST_NORMAL if flushes_subnormals() else _SMALLEST)[dtype]


@lru_cache(maxsize=1024)
def _neighbour(value: float, dtype: torch.dtype, up: bool, flushes: bool) -> float:
    """The next number of `dtype` above or below `value`; the next normal one if subnormals are flushed to zero.

    Neighbours are between eps / 2 and eps apart, relative to the larger one. So a step of 0.625 eps is rounded to one neighbour, also down
    from a power of two, below which numbers are twice as dense.
    """
    value, info = rounded_to(value, dtype), torch.finfo(dtype)
    step = max(0.625 * info.eps * abs(value), info.tiny if flushes else _SMALLEST[dtype])
    return rounded_to(value + step if up else value - step, dtype)


def _just_outside(low: float | None, high: float | None, dtype: torch.dtype) -> tuple[float | None, float | None]:
    """The numbers next to the range on its outside. x is strictly between them if it is in the range or at a bound."""
    flushes = flushes_subnormals()
    return (
        None if low is None else _neighbour(low, dtype, up=False, flushes=flushes),
        None if high is None else _neighbour(high, dtype, up=True, flushes=flushes),
    )


def _pass_between(grad: Tensor, x: Tensor, low: float | None, high: float | None) -> Tensor:
    """grad where low < x < high, and where x is NaN; else 0. It makes only one new tensor: to make one costs more than a pass over it."""
    if high is None:
        return _threshold_backward(grad, x, low)
    result = -x
    _threshold_backward_out(grad, result, -high, grad_input=result)
    return result if low is None else _threshold_backward_out(result, x, low, grad_input=result)


def _round_bounds(low: bits.Bound, high: bits.Bound, dtype: torch.dtype) -> tuple[bits.Bound, bits.Bound]:
    return (None if low is None else rounded_to(low, dtype), None if high is None else rounded_to(high, dtype))


def _pull_inside(grad: Tensor, saved: Saved, wants: Wants, call: Call) -> Gradients | None:
    x, low, high = saved
    if not _are_finite_numbers(x, low, high):
        return None
    low, high = _round_bounds(low, high, x.dtype)
    if call.pieces is not None and call.pieces.at_min.x == ALL:
        low, high = _just_outside(low, high, x.dtype)
    return _pass_between(grad, x, low, high), None, None


def _pull_inward(grad: Tensor, saved: Saved, wants: Wants, call: Call) -> Gradients | None:
    x, low, high = saved
    if wants[1] or wants[2] or not _are_of_one_dtype(x, low, high):
        return None
    return _grad_inward(grad, x, low, high, call), None, None


def _grad_inward(grad: Tensor, x: Tensor, low: object, high: object, call: Call) -> Tensor:
    """grad, or 0 where a descent step moves x outward. It reads sign(x - y) * grad, because (x - y) * grad could underflow."""
    outward = call.primitive.forward(x, low, high)
    torch.sub(x, outward, out=outward).sign_().mul_(grad)
    return _threshold_backward_out(grad, outward, _largest_outward(x.dtype), grad_input=outward)


def _pull_inward_off_bounds(grad: Tensor, saved: Saved, wants: Wants, call: Call) -> Gradients | None:
    """As `_pull_inward`, but 0 where x is at a bound, that is where |x - bound| <= 0."""
    x, low, high = saved
    if not _are_finite_numbers(x, low, high):
        return None
    if low == 0 and high is None:  # relu: x - y is min(x, 0)
        outward = torch.clamp_max(x, 0.0).sign_().mul_(grad)
        grad_x = _threshold_backward_out(grad, outward, _largest_outward(x.dtype), grad_input=outward)
    else:
        grad_x = _grad_inward(grad, x, low, high, call)
    for bound in _round_bounds(low, high, x.dtype):
        if bound is not None:
            distance = torch.abs(x) if bound == 0 else torch.sub(x, bound).abs_()
            _threshold_backward_out(grad_x, distance, 0.0, grad_input=grad_x)
    return grad_x, None, None


def _pull_sign_outside(grad: Tensor, saved: Saved, wants: Wants, call: Call) -> Gradients | None:
    """grad inside and sign(x - y) outside: the sum of two tensors that are 0 elsewhere."""
    x, low, high = saved
    if not _are_finite_numbers(x, low, high):
        return None
    towards = call.primitive.forward(x, low, high)
    towards.sub_(x).sign_()
    inside = _pass_between(grad, x, *_just_outside(*_round_bounds(low, high, x.dtype), x.dtype))
    return torch.sub(inside, towards, out=towards), None, None


def _are_of_one_dtype(x: Tensor, low: object, high: object) -> bool:
    """Is each bound None, a number, or a tensor of the dtype of x?"""
    dtype = x.dtype
    return dtype in _SMALLEST and getattr(low, "dtype", dtype) is getattr(high, "dtype", dtype) is dtype


def _are_finite_numbers(x: Tensor, *bounds: bits.Bound | Tensor) -> bool:
    """Is each bound None or a finite number, and are they not crossed? The formula computes rewritten calls with crossed bounds."""
    numbers = [bound for bound in bounds if isinstance(bound, (float, int))]
    if x.dtype not in _SMALLEST or len(numbers) + bounds.count(None) < len(bounds):
        return False
    return all(-math.inf < number < math.inf for number in numbers) and numbers == sorted(numbers)


def _match_slopes(below: Side, above: Side, *at_bounds: Side) -> Callable[[Call], bool]:
    """A `Kernel.serves` for calls about a range that have these slopes below and above it, and one of `at_bounds` at both bounds."""

    def serves(call: Call) -> bool:
        pieces = call.pieces
        if pieces is None or not call.is_about_range:
            return False
        return (pieces.below.x, pieces.above.x) == (below, above) and pieces.at_min.x == pieces.at_max.x in at_bounds

    return serves


def _pull_steps(grad: Tensor, saved: Saved, wants: Wants, call: Call) -> Gradients | None:
    """The formula of `bits`, chunk by chunk. The only new tensor of the size of x is grad_x, which has the memory order of x."""
    planes, order, code = saved
    if grad.dtype not in bits.DTYPES:
        return None
    ordered_grad = bits.in_memory_order(grad, order)
    grad_x = torch.empty(ordered_grad.shape, dtype=grad.dtype, device=grad.device)
    source = (ordered_grad if ordered_grad.is_contiguous() else grad_x.copy_(ordered_grad)).view(-1)
    flat = grad_x.view(-1)
    for chunk, slope in _slopes_by_chunk(planes, code, grad):
        torch.mul(source[chunk], slope, out=flat[chunk])
        if NOTHING in code.slopes[bits.X]:
            flat[chunk].masked_fill_(slope == 0, 0.0)
    return bits.in_own_order(grad_x, order), *[None] * (len(wants) - 1)


def _slopes_by_chunk(planes: Tensor, code: bits.Code, grad: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The slope of each element; float32 for half precision, because 1/6 should be rounded no further."""
    table = _slopes_of_four(code, torch.float64 if grad.dtype is torch.float64 else torch.float32, grad.device)
    # A hook of saved tensors may have changed the dtype of the planes.
    parts = planes.to(torch.uint8).reshape(code.planes, -1)
    for start in range(0, grad.numel(), bits.CHUNK):
        stop = min(start + bits.CHUNK, grad.numel())
        bytes_ = parts[:, start // 8 : -(-stop // 8)].int()
        low, high = bytes_[0] & 15, bytes_[0] >> 4
        for plane in range(1, len(parts)):
            low |= (bytes_[plane] & 15) << 4 * plane
            high |= bytes_[plane] >> 4 << 4 * plane
        index = torch.stack([low, high], dim=1).reshape(-1)
        yield slice(start, stop), table.index_select(0, index).reshape(-1)[: stop - start]


def _slopes_of_four(code: bits.Code, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The slopes of four neighbours by their bits. Entry k is for four neighbours whose bits in plane p are the bits 4p to 4p + 3 of k."""
    k = torch.arange(16**code.planes, device=device).unsqueeze(1)
    neighbour = torch.arange(4, device=device)
    codes = sum(((k >> (neighbour + 4 * plane)) & 1) << plane for plane in range(code.planes))
    slopes = [side.positive for side in code.slopes[bits.X]]  # type: ignore[union-attr]  # of steps, which are slopes of x
    return torch.tensor(slopes, dtype=dtype, device=device)[codes]


LEAST_BLOCKWISE = 2**22  # elements: the temporaries of a smaller x fit the processor's cache
PART_OF_A_THREAD = 2**15  # elements: torch does not split fewer among threads


def _pull_by_parts(grad: Tensor, saved: Saved, wants: Wants, call: Call) -> Gradients | None:
    """The formula on a part of x at a time, so that its temporaries stay in the cache."""
    x, *others = saved
    if x.numel() < LEAST_BLOCKWISE or x.dtype not in bits.DTYPES or grad.dtype is not x.dtype or grad.shape != x.shape:
        return None
    if any(isinstance(other, Tensor) for other in others) or bits.order_of(x) is None:
        return None
    grad_x = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
    laid_grad = grad if grad.stride() == x.stride() else grad_x.copy_(grad)
    flat_x, flat_grad, flat = (tensor.as_strided((x.numel(),), (1,)) for tensor in (x, laid_grad, grad_x))
    size = PART_OF_A_THREAD * torch.get_num_threads()
    for start in range(0, x.numel(), size):
        part = slice(start, start + size)
        gradient = formula.pull(flat_grad[part], [flat_x[part], *others], wants, call)[0]
        assert gradient is not None
        flat[part] = gradient
    return grad_x, *[None] * len(others)


# `_pull_sign_outside` starts one more operator than the formula. That pays only on the CPU, where operators that read bools are slow.
for _serves, _backward, _device in (
    (_match_slopes(NOTHING, NOTHING, ALL, NOTHING), _pull_inside, ""),
    (_match_slopes(*INWARD, ALL), _pull_inward, ""),
    (_match_slopes(*INWARD, NOTHING), _pull_inward_off_bounds, ""),
    (_match_slopes(Constant(-1.0), Constant(1.0), ALL), _pull_sign_outside, "cpu"),
):
    register(Kernel("portable", INPUTS, _serves, _backward, device=_device, priority=20))
BLOCKWISE = Kernel("portable", INPUTS, lambda call: call.rule.is_long, _pull_by_parts, device="cpu", priority=10)
register(BLOCKWISE)
register(Kernel("portable", bits.BITS, lambda call: call.rule.steps is not None, _pull_steps, priority=20))
account("portable", lambda: {"state": "active", "why": "a handful of ATen calls"})
