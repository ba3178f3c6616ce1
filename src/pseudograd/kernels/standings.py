"""One to three bits per element instead of x and its bounds: for rules that say of each place what x and its bounds get (`Rule.stands`).

What is kept: planes of bits as in `codes`, one after the other; the order of x's memory; a plan. The bits of an element, the first plane's
the lowest, are its code; the plan says which places have which code, and the slopes of each code: what x, min and max get, as factors of
grad. A bound is a number, a tensor or absent, and bounds may be crossed or NaN. It is the one description of this, for the plain formulas
below and for every kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..arguments import rounded_to
from ..geometry import Split, Standings, Stands
from ..record import Record
from ..rule import BOUNDED, Call, Gradients, Wants
from . import range_bits
from .residuals import Inputs, Kept, Residual
from .table import register

X, MIN, MAX = range(3)  # who gets a slope; a place in a Split
_ALL = (1 << len(Standings._fields)) - 1
_BELOW, _AT_MIN, _INSIDE, _AT_MAX, _ABOVE, _BELOW_POINT, _AT_POINT, _ABOVE_POINT, *_, _NAN, _NAN_CROSSED = range(14)
_BETWEEN_NUMBERS = sum(1 << place for place in (_BELOW, _AT_MIN, _INSIDE, _AT_MAX, _ABOVE, _NAN))
_AT_A_NUMBER = sum(1 << place for place in (_BELOW_POINT, _AT_POINT, _ABOVE_POINT, _NAN))


class Plan(Record):
    """sets: for each plane the places that have its bit, as a number of 14 bits in the order of `Standings`.
    slopes: for x, min and max what each code gives; None for those that nobody asked for.
    """

    sets: tuple[int, ...]
    slopes: tuple[tuple[float, ...] | None, ...]

    @property
    def planes(self) -> int:
        return len(self.sets)


@lru_cache(maxsize=1024)
def plan_of(standings: Standings, wants: Wants, possible: int = _ALL) -> Plan:
    """With a code for each split that the wanted gradients tell apart, x inside having the first."""
    kept = [Split(*(share if want else 0.0 for share, want in zip(split, wants))) for split in standings]  # noqa: B905
    places = [place for place in (_INSIDE, *range(len(kept))) if possible >> place & 1]
    of_each = {split: code for code, split in enumerate(dict.fromkeys(kept[place] for place in places))}
    planes = max(1, (len(of_each) - 1).bit_length())
    splits = [*of_each, *[Split()] * (2**planes - len(of_each))]
    sets = tuple(
        sum(1 << place for place in range(len(kept)) if possible >> place & 1 and of_each[kept[place]] >> plane & 1)
        for plane in range(planes)
    )
    return Plan(sets, tuple(tuple(split[k] for split in splits) if want else None for k, want in enumerate(wants)))


# --- of a call --------------------------------------------------------------------------------------------------------


def stands_of(call: Call, inputs: Inputs) -> Stands:
    """Of a call that `suits`."""
    assert call.rule.stands is not None
    return call.rule.stands(*inputs[1:])


def suits(call: Call) -> bool:
    return call.rule.stands is not None and call.primitive.through is None


def columns_of(inputs: Sequence[object], has_min: bool) -> tuple[int, ...]:
    """Who each input of the call is: x, min and max, or x and the one bound of fmin and fmax."""
    return (X, MIN, MAX) if len(inputs) == len(BOUNDED) else (X, MIN if has_min else MAX)


def wants_of(stands: Stands, wants: Wants) -> Wants:
    """By who gets it."""
    wanted = {column for column, want in zip(columns_of(wants, stands.low is not None), wants) if want}  # noqa: B905  of one length
    return X in wanted, MIN in wanted, MAX in wanted


def plan_between(stands: Stands, wants: Wants, dtype: torch.dtype) -> Plan | None:
    """None between numbers that are NaN, crossed or out of range, and between a number and a tensor, where torch has to compute y."""
    low, high, standings = stands
    if dtype not in range_bits.DTYPES:
        return None
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        for bound in (low, high):
            if not (bound is None or (isinstance(bound, Tensor) and bound.dtype is dtype)):
                return None
        return plan_of(standings, wants_of(stands, wants))
    if not (range_bits.fits(low, dtype) and range_bits.fits(high, dtype)):
        return None
    low = -math.inf if low is None else rounded_to(low, dtype)
    high = math.inf if high is None else rounded_to(high, dtype)
    if not low <= high:
        return None
    return plan_of(standings, (True, False, False), _BETWEEN_NUMBERS if low < high else _AT_A_NUMBER)


def _serves(call: Call, inputs: Inputs, wants: Wants) -> bool:
    x, stands = inputs[0], stands_of(call, inputs)
    if (
        type(x) not in range_bits.PLAIN
        or x.device.type not in range_bits.devices_between_tensors
        or not range_bits.pays_for(x)
    ):
        return False
    for bound in (stands.low, stands.high):
        if isinstance(bound, Tensor) and not range_bits.broadcasts(bound, x):
            return False
    return plan_between(stands, wants, x.dtype) is not None


# --- the meaning of the residual, in plain ATen -----------------------------------------------------------------------


def _places(x: Tensor, low: Any, high: Any) -> list[Tensor]:
    """Where x stands at each of the places."""
    low = torch.full_like(x, -math.inf if low is None else low) if not isinstance(low, Tensor) else low
    high = torch.full_like(x, math.inf if high is None else high) if not isinstance(high, Tensor) else high
    below, at_min, at_max, above, known = x < low, x == low, x == high, x > high, x == x
    apart, one, crossed = low < high, low == high, low > high
    unknown = ~(apart | one | crossed)
    return [
        apart & below,
        apart & at_min,
        apart & known & ~(below | at_min | at_max | above),
        apart & at_max,
        apart & above,
        one & below,
        one & at_min,
        one & above,
        crossed & known,
        unknown & below,
        unknown & above,
        unknown & ~(below | above),
        (apart | one) & ~known,
        crossed & ~known,
    ]


def _encode(call: Call, inputs: Inputs, wants: Wants) -> tuple[Tensor, Kept]:
    x, stands = inputs[0], stands_of(call, inputs)
    plan, order = plan_between(stands, wants, x.dtype), range_bits.order_of(x)
    assert plan is not None
    assert order is not None
    y = call.primitive.forward(*inputs)
    rounded = [
        bound if bound is None or isinstance(bound, Tensor) else rounded_to(bound, x.dtype)
        for bound in (stands.low, stands.high)
    ]
    there = [are.expand(x.shape) for are in _places(x, *rounded)]
    planes = [
        range_bits.plane(
            range_bits.in_memory_order(torch.stack([there[at] for at in range(14) if its >> at & 1]).any(0), order)
        )
        for its in plan.sets
    ]
    return y, [torch.cat(planes), order, plan]


def _pull(grad: Tensor, kept: Kept, wants: Wants, call: Call) -> Gradients:
    code, order, plan = kept
    there = range_bits.in_memory_order(grad, order)
    planes = [range_bits.bits_in(plane, there.shape) for plane in code.to(torch.uint8).reshape(-1).chunk(plan.planes)]
    found: list[Tensor | None] = [None] * len(wants)
    for place, (column, want) in enumerate(zip(columns_of(wants, plan.slopes[MIN] is not None), wants, strict=True)):
        slopes = plan.slopes[column]
        if want and slopes is not None:
            found[place] = range_bits.in_own_order(_times_slopes(there, planes, slopes), order)
    return tuple(found)


def _times_slopes(grad: Tensor, planes: list[Tensor], slopes: tuple[float, ...]) -> Tensor:
    found = grad
    for slope in dict.fromkeys(slopes):
        if slope == 1.0:
            continue
        for code, its in enumerate(slopes):
            if its == slope:
                are = torch.stack([bits if code >> place & 1 else ~bits for place, bits in enumerate(planes)]).all(0)
                found = torch.where(are, grad * slope if slope else 0.0, found)
    return found


def _nbytes(call: Call, inputs: Inputs, wants: Wants) -> int:
    x = inputs[0]
    plan = plan_between(stands_of(call, inputs), wants, x.dtype)
    assert plan is not None
    return -(-x.numel() // 64) * 8 * plan.planes


STANDING: Residual = Residual("standing", _serves, _encode, _pull, _nbytes, suits, priority=15)
register(STANDING)
