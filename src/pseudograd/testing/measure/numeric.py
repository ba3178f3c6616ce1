"""The derivative of an element-wise function from its values alone, in float64: slopes with their error, kinks and jumps."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

Function = Callable[[Tensor], Tensor]
Number = TypeVar("Number", float, Tensor)

STEEP = 1e-4  # by how much two slopes must differ, relative to them, to be a kink or a jump of the gradient
_LEVELS = 70  # halvings of a bracket until two neighbouring numbers are left
_EARLY = 6  # halvings after which a smooth change is a sixty-fourth of what it was, and a break all of it


class Slope(NamedTuple):
    """The derivative at each x, and how far it may be off."""

    value: Tensor
    error: Tensor


class Breaks(NamedTuple):
    """Where a function is not smooth: brackets `low` to `high`, of width 0 where x itself is known, and the slopes beside them.

    is_jump: its value jumps; otherwise it has a kink.
    """

    low: Tensor
    high: Tensor
    left: Tensor
    right: Tensor
    is_jump: Tensor


def values(f: Function, x: Tensor) -> Tensor:
    """f(x) in float64, not recorded."""
    with torch.no_grad():
        return f(x.clone()).detach().double()


def _values_at(f: Function, *points: Tensor) -> tuple[Tensor, ...]:
    """f at several tensors of points, in one call."""
    return values(f, torch.cat(points)).split([len(x) for x in points])


def nearest(eps: float, low: Number, high: Number) -> Number:
    """Between two points: what is smooth changes little over it, and rounding less; and its 256 numbers show a slope."""
    return eps**0.5 * (high - low) + 256 * eps * max(abs(low), abs(high))


def resolution_of(f: Function, x: Tensor) -> float:
    """The unit in the last place of the dtype that f computes in, relative to its values."""
    with torch.no_grad():
        return torch.finfo(f(x.clone()).dtype).eps


def slope_of(f: Function, x: Tensor, step: Tensor, eps: float) -> Slope:
    """Central differences at two steps: the better of the two, and their difference beside the rounding of f as the error."""
    wide, narrow = _central(f, x, step), _central(f, x, step / 2)
    rounding = 4 * eps * (1e-6 + values(f, x).abs()) / step
    return Slope((4 * narrow - wide) / 3, 0.5 * (wide - narrow).abs() + rounding)


def _central(f: Function, x: Tensor, step: Tensor) -> Tensor:
    up, down = x + step, x - step
    y_up, y_down = _values_at(f, up, down)
    return (y_up - y_down) / (up - down)


def agree(right: Number, left: Number) -> Number:
    """Do two one-sided slopes show the same derivative, to the accuracy of a small step?"""
    return abs(right - left) < 1e-3 * (1 + abs(right))


# --- where it is not smooth -----------------------------------------------------------------------------------------


def breaks(f: Function, x: Tensor, eps: float) -> Breaks:
    """The kinks and jumps of f at and between the points `x`, which are sorted; at most one for each pair of neighbours.

    Cells are halved towards the half in which the slope changes more, so what stays is where it changes at once.
    """
    near = nearest(eps, x[0], x[-1])
    low, high = x[:-1], x[1:]
    bend = _bend(f, low, high)
    change_before, level = torch.zeros_like(low), 0
    while level < _LEVELS and ((high - low) > near).any():
        middle = low + (high - low) / 2
        step = (high - low) / 32
        y_low, y_middle, y_high, *beside = _values_at(
            f, low, middle, high, low + step, middle - step, middle + step, high - step
        )
        after_low, before, after, before_high = (
            (y_far - y_near) / step
            for y_near, y_far in (
                (y_low, beside[0]),
                (beside[1], y_middle),
                (y_middle, beside[2]),
                (beside[3], y_high),
            )
        )
        first = _change(low, y_low, after_low, middle, y_middle, before, bend)
        second = _change(middle, y_middle, after, high, y_high, before_high, bend)
        around = (after - before - bend * step).abs().nan_to_num()
        is_around, is_first = around > first + second, first > second  # around the middle it may show in neither half
        low, high = (
            torch.where(is_around, middle - step, torch.where(is_first, low, middle)),
            torch.where(is_around, middle + step, torch.where(is_first, middle, high)),
        )
        change = torch.maximum(torch.maximum(first, second), around)
        if level == 0:
            change_before = change
        elif level == _EARLY:
            keep = change > change_before / 16
            low, high, bend = low[keep], high[keep], bend[keep]
        level += 1
    # A break exactly at a point is in neither of its cells.
    return _classify_breaks(f, torch.cat([low, x]), torch.cat([high, x]), near, eps)


def _bend(f: Function, low: Tensor, high: Tensor) -> Tensor:
    """How fast the slope changes in each cell, where it is smooth: the middle one of what the cell and its two neighbours show."""
    step = (high - low) / 32
    y_low, y_high, after, before = _values_at(f, low, high, low + step, high - step)
    bends = (((y_high - before) - (after - y_low)) / step / (high - low)).nan_to_num(0.0, 0.0, 0.0)
    around = torch.cat([bends[:1], bends, bends[-1:]])
    return torch.stack([around[:-2], bends, around[2:]]).median(0).values


def _change(
    low: Tensor, y_low: Tensor, after: Tensor, high: Tensor, y_high: Tensor, before: Tensor, bend: Tensor
) -> Tensor:
    """How much the slope changes from low to high beyond what is smooth: seen at the ends, and in the mean between them."""
    mean = (y_high - y_low) / torch.where(high > low, high - low, 1.0)
    at_the_ends = (before - after - bend * (high - low)).abs()
    return (at_the_ends + 2 * (mean - (after + before) / 2).abs()).nan_to_num(0.0, 0.0, 0.0)


def _classify_breaks(f: Function, low: Tensor, high: Tensor, near: Tensor, eps: float) -> Breaks:
    """Jumps, narrowed to neighbouring numbers; kinks; what was smooth after all is left out. Slopes are those beyond the bracket."""
    before, after = _values_at(f, low - near, high + near)
    left, right = _outside(f, low, -near), _outside(f, high, near)
    size = 1 + left.abs() + right.abs()
    rounding = 16 * eps * (before.abs() + after.abs())
    is_jump = (after - before).abs() > 4 * near * size + rounding
    # What is smooth changes four times as much over four times the distance.
    further = (_outside(f, high, 4 * near) - _outside(f, low, -4 * near)).abs()
    change = (right - left).abs()
    keep = is_jump | ((change > STEEP * size + rounding / near) & (change > further / 2))
    low, high, left, right, is_jump = (part[keep] for part in (low, high, left, right, is_jump))
    if is_jump.any():
        bracket = narrowed(lambda at: values(f, at), low[is_jump] - near, high[is_jump] + near)
        low, high = low.masked_scatter(is_jump, bracket[0]), high.masked_scatter(is_jump, bracket[1])
    order = low.argsort()
    return Breaks(*(part[order] for part in (low, high, left, right, is_jump)))


def _outside(f: Function, x: Tensor, distance: Tensor) -> Tensor:
    """The slope between x + distance and x + 2 * distance."""
    far, near = _values_at(f, x + 2 * distance, x + distance)
    return (far - near) / distance


def narrowed(f: Function, low: Tensor, high: Tensor, levels: int = _LEVELS) -> tuple[Tensor, Tensor]:
    """Brackets around a jump of f, halved towards the half that changes more, until neighbouring numbers are left."""
    at_low, at_high = f(low), f(high)
    for _ in range(levels):
        middle = low + (high - low) / 2
        if ((middle == low) | (middle == high)).all():
            break
        at_middle = f(middle)
        is_first = (at_middle - at_low).abs().nan_to_num() > (at_high - at_middle).abs().nan_to_num()
        low, at_low = torch.where(is_first, low, middle), torch.where(is_first, at_low, at_middle)
        high, at_high = torch.where(is_first, middle, high), torch.where(is_first, at_middle, at_high)
    return low, high


def jumps_of(f: Function, x: Tensor) -> tuple[Tensor, Tensor]:
    """Between which two neighbouring numbers f jumps, one pair for each cell of the sorted `x` that has a jump."""
    low, high = x[:-1], x[1:]
    change_before = torch.zeros_like(low)
    for levels in (0, _EARLY, _LEVELS):  # most brackets are left out at once
        if len(low):
            low, high = narrowed(f, low, high, levels)
            at_low, at_high = f(low), f(high)
            change = (at_high - at_low).abs().nan_to_num()
            keep = change > STEEP * torch.maximum(at_low.abs(), at_high.abs()).nan_to_num()
            keep &= change > change_before / 16
            low, high, change_before = low[keep], high[keep], change[keep]
    return low, high


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
