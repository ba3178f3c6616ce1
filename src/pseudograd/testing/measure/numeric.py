"""The derivative of an element-wise function from its values alone, in float64: slopes with their error, kinks and jumps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

Function = Callable[[Tensor], Tensor]
Number = TypeVar("Number", float, Tensor)

_EPS = torch.finfo(torch.float64).eps
# A decimal is short if the next one with as many digits is further away than so many widths of the bracket.
_WIDTHS_OF_SHORT = 30
STEEP = 1e-4  # two slopes whose relative difference is above this show a kink or a jump of the gradient
_MANY_JUMPS = 16
_SMOOTH_SHARE = 0.9  # of the points count as smooth; the others may have a step or a kink beside them
_MOST_ROUNDING = 64  # epsilons: a function that is off by more computes in a narrower dtype than it returns
_SHARES = (0.37, 0.73, 1.3, 2.6, 5.9)  # units in the last place; none is a multiple of another
_HALVINGS = 70  # of a bracket, until two neighbouring numbers are left
# After these the change of a smooth function is a sixty-fourth, and the change at a break is still whole.
_FIRST_HALVINGS = 6


class Slope(NamedTuple):
    """The derivative at each x, and how far it may be off."""

    value: Tensor
    error: Tensor


class Breaks(NamedTuple):
    """The places where a function is not smooth.

    low, high: the ends of a bracket around each place, equal if the place is known.
    left, right: the slopes beside the bracket.
    is_jump: the value jumps; otherwise the function has a kink.
    is_cusp: the slope grows towards the kink, as the slope of sqrt grows towards 0.
    """

    low: Tensor
    high: Tensor
    left: Tensor
    right: Tensor
    is_jump: Tensor
    is_cusp: Tensor


def values(f: Function, x: Tensor) -> Tensor:
    """f(x) in float64, not recorded."""
    with torch.no_grad():
        return f(x.clone()).detach().double()


def _evaluate(f: Function, *points: Tensor) -> tuple[Tensor, ...]:
    """f at several tensors of points, in one call."""
    return f(torch.cat(points)).detach().double().split([len(x) for x in points])


def smallest_distance(eps: float, low: Number, high: Number) -> Number:
    """The smallest distance of two points that shows a slope: 256 numbers of the dtype lie between them, and a smooth function changes
    by more than rounding.
    """
    return eps**0.5 * (high - low) + 256 * eps * max(abs(low), abs(high))


def resolution_of(f: Function, x: Tensor) -> float:
    """The epsilon of the dtype that f returns. If f computes in a narrower dtype: its rounding error, as a share of its values."""
    gaps = x.diff()
    # Random points, because steps of f are often at the given points.
    shares = torch.rand(len(gaps), dtype=x.dtype, generator=torch.Generator())
    x = x[:-1] + shares * gaps
    y = f(x.clone()).detach()
    eps = torch.finfo(y.dtype).eps
    y = y.double()
    slope = torch.gradient(y, spacing=(x,))[0].nan_to_num(0.0, 0.0, 0.0)
    is_moving = slope != 0  # where y is constant, no rounding shows
    if not is_moving.any():
        return eps
    size = (y.abs() + (x * slope).abs()).nan_to_num(0.0, 0.0, 0.0)
    size = size.clamp(min=size.median())
    step, share = torch.finfo(torch.float32).eps, math.inf
    while step > eps:
        last_share = share
        relative = second_differences(f, x, torch.minimum(step * x.abs(), gaps / 32)) / size
        share = relative.nan_to_num(0.0, 0.0, 0.0)[is_moving].quantile(_SMOOTH_SHARE).item()
        if share > last_share / 16:  # a smooth function changes less than this over a sixteenth of the step
            break
        step /= 16
    return share if _MOST_ROUNDING * eps < share < math.inf else eps


def second_differences(f: Function, x: Tensor, step: Tensor) -> Tensor:
    """The largest |f(x + h) - 2 f(x) + f(x - h)| for a few h near `step`. With a tiny step, this is the rounding of f."""
    steps = [share * step for share in _SHARES]
    y, *beside = _evaluate(f, x, *(x + h for h in steps), *(x - h for h in steps))
    right, left = torch.stack(beside[: len(steps)]), torch.stack(beside[len(steps) :])
    return (right - 2 * y + left).abs().nan_to_num(0.0, 0.0, 0.0).amax(0)


def rounding_of(f: Function, x: Tensor, eps: float) -> Tensor:
    """The error that rounding may give f(x): the rounding of the result, and of each step of its computation."""
    return second_differences(f, x, eps * x.abs())


def slope_of(f: Function, x: Tensor, step: Tensor, eps: float) -> Slope:
    """The slope by central differences. Its error has two parts: the difference between two steps, and the rounding of f.

    If f computes in a narrow dtype the step is long, perhaps too long for a curve that bends much. So shorter steps are tried too.
    """
    rounding = rounding_of(f, x, eps)
    best = _slope_over(f, x, step, eps, rounding)
    for share in (0.25, 0.0625) if eps > _MOST_ROUNDING * _EPS else ():
        other = _slope_over(f, x, share * step, eps, rounding)
        is_better = other.error < best.error
        best = Slope(*(torch.where(is_better, new, old) for new, old in zip(other, best, strict=True)))
    return best


def _slope_over(f: Function, x: Tensor, step: Tensor, eps: float, rounding: Tensor) -> Slope:
    wide, narrow = _central_slope(f, x, step), _central_slope(f, x, step / 2)
    slope = (4 * narrow - wide) / 3
    rounding = torch.maximum(eps * _size(x, f(x), slope), rounding)
    return Slope(slope, 0.5 * (wide - narrow).abs() + 4 * rounding / step)


def _size(x: Tensor, y: Tensor, slope: Tensor) -> Tensor:
    """The size of the numbers that f may round: of y, and of x."""
    return 1e-6 + y.abs() + (x * slope).abs().nan_to_num(0.0, 0.0, 0.0)


def _central_slope(f: Function, x: Tensor, step: Tensor) -> Tensor:
    up, down = x + step, x - step
    y_up, y_down = _evaluate(f, up, down)
    return (y_up - y_down) / (up - down)


def slopes_agree(right: Number, left: Number) -> Number:
    """Do two one-sided slopes show the same derivative, to the accuracy of a small step?"""
    return abs(right - left) < 1e-3 * (1 + abs(right))


# --- kinks and jumps ------------------------------------------------------------------------------------------------


def breaks(f: Function, x: Tensor, eps: float) -> Breaks:
    """The kinks and jumps of f at and between the points `x`, which are sorted; at most one for each pair of neighbours.

    Each gap between two points is halved again and again, towards the half in which the slope changes more.
    """
    near = smallest_distance(eps, x[0], x[-1])
    low, high = x[:-1], x[1:]
    bend = _bend(f, low, high)
    change_before, halvings = torch.zeros_like(low), 0
    while halvings < _HALVINGS and ((high - low) > near).any():
        middle = low + (high - low) / 2
        step = (high - low) / 32
        y_low, y_after_low, y_before, y_middle, y_after, y_before_high, y_high = _evaluate(
            f, low, low + step, middle - step, middle, middle + step, high - step, high
        )
        # The slopes beside low, middle and high.
        after_low, after = (y_after_low - y_low) / step, (y_after - y_middle) / step
        before, before_high = (y_middle - y_before) / step, (y_high - y_before_high) / step
        first = _slope_change(low, y_low, after_low, middle, y_middle, before, bend)
        second = _slope_change(middle, y_middle, after, high, y_high, before_high, bend)
        around = (after - before - bend * step).abs().nan_to_num()
        is_around, is_first = around > first + second, first > second  # neither half shows a break at the middle
        low, high = (
            torch.where(is_around, middle - step, torch.where(is_first, low, middle)),
            torch.where(is_around, middle + step, torch.where(is_first, middle, high)),
        )
        change = torch.maximum(torch.maximum(first, second), around)
        if halvings == 0:
            change_before = change
        elif halvings == _FIRST_HALVINGS:
            keep = change > change_before / 16
            low, high, bend = low[keep], high[keep], bend[keep]
        halvings += 1
    # A break exactly at a point is in neither of the gaps beside it.
    return _classify_breaks(f, torch.cat([low, x]), torch.cat([high, x]), near, eps)


def _bend(f: Function, low: Tensor, high: Tensor) -> Tensor:
    """How fast the slope of a smooth f changes in each gap: the median of what the gap and its two neighbours show."""
    step = (high - low) / 32
    y_low, y_high, after, before = _evaluate(f, low, high, low + step, high - step)
    bends = (((y_high - before) - (after - y_low)) / step / (high - low)).nan_to_num(0.0, 0.0, 0.0)
    around = torch.cat([bends[:1], bends, bends[-1:]])
    return torch.stack([around[:-2], bends, around[2:]]).median(0).values


def _slope_change(
    low: Tensor, y_low: Tensor, after: Tensor, high: Tensor, y_high: Tensor, before: Tensor, bend: Tensor
) -> Tensor:
    """How much more the slope changes from low to high than that of a smooth f. after, before: the slopes beside low and high."""
    mean = (y_high - y_low) / torch.where(high > low, high - low, 1.0)
    at_the_ends = (before - after - bend * (high - low)).abs()
    return (at_the_ends + 2 * (mean - (after + before) / 2).abs()).nan_to_num(0.0, 0.0, 0.0)


def _classify_breaks(f: Function, low: Tensor, high: Tensor, near: Tensor, eps: float) -> Breaks:
    """Tell jumps from kinks, with the slopes on both sides of each bracket. Leave out brackets where f is smooth. Narrow the bracket of a
    jump to two neighbouring numbers.
    """
    before, after = _evaluate(f, low - near, high + near)
    left, right = _slope_outside(f, low, -near), _slope_outside(f, high, near)
    size = 1 + left.abs() + right.abs()
    rounding_beside = rounding_of(f, low - near, eps) + rounding_of(f, high + near, eps)
    sizes = _size(low, before, left) + _size(high, after, right)
    rounding = 16 * torch.maximum(eps * sizes, rounding_beside)
    is_jump = (after - before).abs() > 4 * near * size + rounding
    # The slope of a smooth function changes four times as much over four times the distance.
    further = (_slope_outside(f, high, 4 * near) - _slope_outside(f, low, -4 * near)).abs()
    change = (right - left).abs()
    keep = is_jump | ((change > STEEP * size + rounding / near) & (change > further / 2))
    is_cusp = change > 1.1 * further
    low, high, left, right, is_jump, is_cusp = (part[keep] for part in (low, high, left, right, is_jump, is_cusp))
    if is_jump.any():
        bracket = narrow_brackets(f, low[is_jump] - near, high[is_jump] + near)
        low, high = low.masked_scatter(is_jump, bracket[0]), high.masked_scatter(is_jump, bracket[1])
        at_low, at_high = _evaluate(f, low, high)
        # Between two neighbouring numbers a jump is whole. A steep slope changes the value less.
        is_jump &= ~((at_high - at_low).abs() < (after - before)[keep].abs() / 4)
    order = low.argsort()
    return Breaks(*(part[order] for part in (low, high, left, right, is_jump, is_cusp & ~is_jump)))


def _slope_outside(f: Function, x: Tensor, distance: Tensor) -> Tensor:
    """The slope between x + distance and x + 2 * distance."""
    far, near = _evaluate(f, x + 2 * distance, x + distance)
    return (far - near) / distance


def narrow_brackets(f: Function, low: Tensor, high: Tensor, halvings: int = _HALVINGS) -> tuple[Tensor, Tensor]:
    """Brackets around a jump of f, halved towards the half that changes more, until neighbouring numbers are left."""
    at_low, at_high = f(low), f(high)
    for _ in range(halvings):
        middle = low + (high - low) / 2
        if ((middle == low) | (middle == high)).all():
            break
        at_middle = f(middle)
        is_first = (at_middle - at_low).abs().nan_to_num() > (at_high - at_middle).abs().nan_to_num()
        low, at_low = torch.where(is_first, low, middle), torch.where(is_first, at_low, at_middle)
        high, at_high = torch.where(is_first, middle, high), torch.where(is_first, at_middle, at_high)
    return low, high


def jumps_of(f: Function, x: Tensor, eps: float = _EPS) -> tuple[Tensor, Tensor]:
    """Pairs of neighbouring numbers between which f jumps: at most one for each gap of the sorted `x`.

    eps: the resolution of f. A change by rounding is no jump.
    """
    low, high = x[:-1], x[1:]
    change_before = torch.zeros_like(low)
    for halvings in (0, _FIRST_HALVINGS, _HALVINGS):  # most brackets are left out at once
        if len(low):
            low, high = narrow_brackets(f, low, high, halvings)
            at_low, at_high = f(low), f(high)
            change = (at_high - at_low).abs().nan_to_num()
            keep = change > STEEP * torch.maximum(at_low.abs(), at_high.abs()).nan_to_num()
            keep &= change > change_before / 16
            low, high, change_before = low[keep], high[keep], change[keep]
    if len(low):
        # At this distance from the jump, no second difference reaches across it.
        room = sum(_SHARES) * eps * torch.maximum(low.abs(), high.abs())
        rounding = torch.maximum(rounding_of(f, low - room, eps), rounding_of(f, high + room, eps))
        size = f(x).abs().nan_to_num(0.0, 0.0, 0.0).quantile(_SMOOTH_SHARE)
        keep = change_before > 16 * torch.maximum(rounding, eps * size)
        low, high = low[keep], high[keep]
    return low, high


def narrow_dtype_of(f: Function, x: Tensor) -> torch.dtype | None:
    """The half precision in which f computes, or None. An f in half precision has many jumps, most from one number of this dtype to
    the next.
    """
    beside = x * (1 - 2.0**-8)  # about as far as the next number
    low, high = jumps_of(f, torch.cat([x, beside[beside >= x[0]]]).unique())
    if len(low) < _MANY_JUMPS:
        return None
    y_low, y_high = f(low), f(high)
    room = torch.finfo(torch.float32).eps * low.abs()  # f may round to float32 first
    for dtype in (torch.float16, torch.bfloat16):
        is_next_x = (low - room).to(dtype) != (high + room).to(dtype)
        is_next_y = (y_high - y_low).abs() <= torch.finfo(dtype).eps * torch.maximum(y_low.abs(), y_high.abs())
        is_next_y &= (y_low.to(dtype) == y_low) & (y_high.to(dtype) == y_high)
        if (is_next_x | is_next_y).double().mean() > _SMOOTH_SHARE:
            return dtype
    return None


def short_decimal(low: float, high: float, size: float, eps: float = 0.0) -> float:
    """The number that a program has between low and high: the shortest decimal within a few floats, if it has few digits.

    size: the size of x.
    eps: the resolution of f. The resolution of the narrowest dtype in which low and high differ is used if it is larger.
    """
    room = 4 * max(eps, _resolution_between(low, high)) * max(abs(low), abs(high), min(size, 1.0))
    start, end = low - room, high + room
    if start <= 0 <= end:
        return 0.0
    middle = low + (high - low) / 2
    for digits in range(1, 18):
        number = float(f"{middle:.{digits}g}")
        if start <= number <= end:
            is_short = 10.0 ** (math.floor(math.log10(abs(middle))) - digits + 1) > _WIDTHS_OF_SHORT * (end - start)
            return number if is_short else simplest(low, high)
    return simplest(low, high)


def _resolution_between(low: float, high: float) -> float:
    """The epsilon of the narrowest dtype in which low and high differ, if they are neighbours in float64. Few neighbours do by chance."""
    pair = torch.tensor([low, high], dtype=torch.float64)
    if math.nextafter(low, high) == high:
        for dtype in (torch.float16, torch.float32):
            if pair[0].to(dtype) != pair[1].to(dtype):
                return torch.finfo(dtype).eps
    return _EPS


def simplest(low: float, high: float) -> float:
    """The number from low to high with the fewest decimals; of tiny numbers, with the fewest digits."""
    middle = low + (high - low) / 2
    for number in (
        *(round(middle, decimals) for decimals in range(18)),
        *(float(f"{middle:.{n}g}") for n in range(1, 18)),
    ):
        if low <= number <= high:
            return number + 0.0
    return low
