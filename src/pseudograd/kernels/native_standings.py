"""The C kernels of rules that say of each place what x and its bounds get: from a code, or from x itself.

The operators are those of `__init__`; a plan of this kind in their settings makes them ask for places.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from ..arguments import rounded_to
from ..geometry import Standings
from ..rule import BOUNDED, Call, Gradients, Wants
from . import range_bits
from .native import LEAST_NORMAL, NO_MAX, NO_MIN, operators, settings_of_numbers
from .native.between import UNSURE, WITH_Y, Between
from .residuals import INPUTS, Inputs, Kept
from .standings import MAX, MIN, STANDING, Plan, X, columns_of, plan_between, plan_of, stands_of, suits
from .table import CodedBetween, Kernel, Prepared, PreparedBetween, register

_KIND = 5  # as rules.h has it
_ONE_PLACE = 14  # bits of a set


def _settings(plan: Plan, column: int, low: float | None = None, high: float | None = None, absent: int = 0) -> Tensor:
    """As operators.c reads it. The slopes are those of x, min or max; with none of them a code is made and no more."""
    low = -math.inf if low is None else low
    high = math.inf if high is None else high
    return _remembered(plan, column, low, high, absent, math.copysign(1.0, low), math.copysign(1.0, high))


@lru_cache(maxsize=4096)
def _remembered(plan: Plan, column: int, low: float, high: float, absent: int, *signs: float) -> Tensor:
    """The signs of the bounds are there because 0.0 is found where -0.0 is asked for."""
    slopes = plan.slopes[column] or ()
    sets = sum(its << _ONE_PLACE * plane for plane, its in enumerate(plan.sets))
    packed = plan.planes | _KIND << 8 | absent
    return settings_of_numbers((low, high, packed, float(sets), *slopes, *[0.0] * (8 - len(slopes))))


def _absent(low: object, high: object) -> int:
    return (NO_MIN if low is None else 0) | (NO_MAX if high is None else 0)


def _rounded(bound: float | None, dtype: torch.dtype) -> float | None:
    return None if bound is None else math.copysign(rounded_to(bound, dtype), bound)


# --- a code -----------------------------------------------------------------------------------------------------------


def _encode(call: Call, inputs: Inputs, wants: Wants) -> tuple[Tensor, Kept] | None:
    x, (low, high, _standings) = inputs[0], stands_of(call, inputs)
    plan = plan_between(call.rule.stands(*inputs[1:]), wants, x.dtype)  # type: ignore[misc]  # the residual has asked
    assert plan is not None
    if not (isinstance(low, Tensor) or isinstance(high, Tensor)):
        y, code, order = operators.encode(x, _settings(plan, X, _rounded(low, x.dtype), _rounded(high, x.dtype)))
        return y, [code, order, plan]
    has_y = WITH_Y if call.primitive.inputs == BOUNDED else 0  # not of fmin and fmax, which see a NaN otherwise
    settings = _settings(plan, X, absent=_absent(low, high) | has_y)
    y, code, order = operators.encode_between(x, x if low is None else low, x if high is None else high, settings)
    if order & UNSURE or not has_y:
        y, order = call.primitive.forward(*inputs), order & ~UNSURE
    return y, [code, order, plan]


def _encode_in_place(call: Call, inputs: Inputs, wants: Wants) -> Kept | None:
    x, (low, high, _) = inputs[0], stands_of(call, inputs)
    plan = plan_between(stands_of(call, inputs), wants, x.dtype)
    if plan is None or isinstance(low, Tensor) or isinstance(high, Tensor):
        return None
    code, order = operators.encode_(x, _settings(plan, X, _rounded(low, x.dtype), _rounded(high, x.dtype)))
    return [code, order, plan]


def _pull_code(grad: Tensor, kept: Kept, wants: Wants, call: Call) -> Gradients | None:
    code, order, plan = kept
    if grad.dtype not in range_bits.DTYPES or not range_bits.are_bytes(code):
        return None
    columns = columns_of(wants, plan.slopes[MIN] is not None)
    found: list[Tensor | None] = [None] * len(wants)
    for place, column in enumerate(columns):
        if wants[place]:
            found[place] = operators.pull_code(grad, code, _settings(plan, column), order)
    return tuple(found)


# --- from x itself ----------------------------------------------------------------------------------------------------


def _pull_inputs(grad: Tensor, kept: Kept, wants: Wants, call: Call) -> Gradients | None:
    x, dtype = kept[0], kept[0].dtype
    if grad.dtype is not dtype or grad.dim() > range_bits.MOST_DIMENSIONS:
        return None
    stands = stands_of(call, tuple(kept))
    low, high, _ = stands
    plan = plan_between(stands, wants, dtype)
    if plan is None:
        return None
    found: list[Tensor | None] = [None] * len(wants)
    if not (isinstance(low, Tensor) or isinstance(high, Tensor)):
        found[0] = operators.pull_x(grad, x, _settings(plan, X, _rounded(low, dtype), _rounded(high, dtype)))
        return tuple(found)
    bounds, absent = (x if low is None else low, x if high is None else high), _absent(low, high)
    for place, column in enumerate(columns_of(wants, low is not None)):
        if wants[place]:
            found[place] = operators.pull_bounds(grad, x, *bounds, _settings(plan, column, absent=absent))
    return tuple(found)


def _prepare(call: Call, low: Any, high: Any, dtype: torch.dtype) -> Prepared | None:
    wants = (True, False, False)
    if call.primitive.inputs != BOUNDED or isinstance(low, Tensor) or isinstance(high, Tensor):
        return None
    plan = plan_between(stands_of(call, (None, low, high)), wants, dtype)
    if plan is None or any(number and abs(number) < LEAST_NORMAL for number in (low, high)):
        return None
    settings = _settings(plan, X, _rounded(low, dtype), _rounded(high, dtype))
    return Prepared(
        *(operators.clamp, operators.pull_x, operators.encode, operators.pull_code),
        settings=settings,
        call=call,
        plan=plan,
        low=low,
        high=high,
        has_zero=low == 0 or high == 0,
        passes=False,
        residual=STANDING,
        keeps_code=False,  # the table knows
    )


def _prepare_between(call: Call, inputs: Inputs) -> PreparedBetween | None:
    x, stands = inputs[0], stands_of(call, inputs)
    low, high, standings = stands
    there = tuple(isinstance(value, Tensor) for value in inputs)
    plan = plan_between(stands, there, x.dtype)
    if plan is None or not (isinstance(low, Tensor) or isinstance(high, Tensor)):
        return None
    between = Between(operators, call, inputs, low is not None, high is not None)
    absent = _absent(low, high)
    who = [one for one, is_there in zip(columns_of(inputs, low is not None), there, strict=True) if is_there]
    return between.prepared(
        tuple(_settings(plan, column, absent=absent) for column in who),
        partial(_coded, between, standings, who, absent),
    )


def _coded(between: Between, standings: Standings, who: list[int], absent: int, wants: Wants) -> CodedBetween:
    wanted = {column for column, want in zip(who, wants, strict=True) if want}
    plan = plan_of(standings, (X in wanted, MIN in wanted, MAX in wanted))
    columns = tuple(_settings(plan, column) if column in wanted else None for column in who)
    encode = between.encode(_settings(plan, X, absent=absent | between.has_y))
    return CodedBetween(encode, operators.pull_code, columns, plan, STANDING)


if operators is not None:
    _how: dict[str, Any] = {"device": "cpu", "priority": 30}
    register(
        Kernel("native", STANDING, suits, _pull_code, _encode, _encode_in_place, **_how),
        Kernel("native", INPUTS, suits, _pull_inputs, prepare=_prepare, prepare_between=_prepare_between, **_how),
    )
