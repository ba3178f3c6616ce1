"""Kernels in C for tensors on CPU: a call and its backward cost about what copying the tensor twice costs.

The library beside this file is optional. It is built with the package where there is a C compiler, and calls torch's stable C symbols,
so that one build serves every Python and every torch from 2.10 on. PSEUDOGRAD_NATIVE=0 in the environment leaves it out.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...arguments import flushes_subnormals, rounded_to
from ...geometry import SHARES, Shape, Share, Sides, Turned, places
from ...rule import Call, Gradients, Wants
from ...torch_table.private import raw, without_torch_function
from .. import few_bits
from ..range_bits import (
    ABOVE,
    BELOW,
    CODE,
    DTYPES,
    MOST_DIMENSIONS,
    X_ALONE,
    Plan,
    are_bytes,
    is_about_a_range,
    passes,
    plan_between,
    plan_for,
    plan_of_inputs,
    serve,
    suits,
)
from ..residuals import INPUTS, Inputs, Kept
from ..table import CodedBetween, Kernel, Prepared, PreparedBetween, account, register
from .between import UNSURE, Between

LIBRARY = Path(__file__).with_name("_native.so")
_VERSION = 5  # of the operators and of what they read in their settings, as rules.h says it too
_OLDEST = (2, 10)
_LEVELS = ("plain C", "AVX2", "AVX-512")
NO_MIN, NO_MAX = 1 << 11, 1 << 12  # as operators.c reads them beside a plan
OF_MIN, OF_MAX = 6, 7  # kinds of a plan: what a tensor of bounds gets


class _Operators:
    """Those of operators.c by name, each looked up when it is first asked for: a tenth of a millisecond."""

    def __getattr__(self, name: str) -> Any:
        found = raw(getattr(torch.ops.pseudograd_native, name).default)
        setattr(self, name, found)
        return found


def _load() -> tuple[str, str, Any]:
    """(state, why, the operators). It never raises: without the library all else works as before."""
    if os.environ.get("PSEUDOGRAD_NATIVE", "") == "0":
        return "not active", "turned off by PSEUDOGRAD_NATIVE=0", None
    if tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) < _OLDEST:
        return "not active", f"torch {torch.__version__} is older than 2.10, the first with stable C symbols", None
    if not LIBRARY.exists():
        why = "not part of this build: install a wheel for this platform, or from source with gcc or clang"
        return "not active", why, None
    try:
        torch.ops.load_library(LIBRARY)
    except OSError as error:
        return "not active", f"the library does not load: {error}", None
    operators = _Operators()
    version = _version_of(operators)
    if version != _VERSION:
        is_built = f"the library was built from other sources: its version is {version}, this package needs {_VERSION}"
        return "not active", f"{is_built}. Install pseudograd again, or run python setup.py build_ext --inplace", None
    return "active", _LEVELS[operators.choose(len(_LEVELS) - 1)], operators


def _version_of(operators: Any) -> int:
    """Asked before all else, because no other operator may be what it was; 1 for those that could not tell."""
    try:
        return int(operators.version())
    except AttributeError:
        return 1


_state, _why, operators = _load()


def status() -> dict[str, str]:
    return {"state": _state, "why": _why}


account("native", status)


# Kinds of a plan, beside the one of range_bits.py, for what is in no code: how far x is outside, and the slopes of a step.
_TURNED = 1
_KIND_OF_CURVE: dict[Shape, int] = {"tent": 2, "witch": 3, "cusp": 4}


def _width_of_what_turns(call: Call) -> float | None:
    """Of a rule that passes what leads back, and turns what leads outward by the distance of x; None for others."""
    for side in call.places or ():
        for factor in side if isinstance(side, Share) else ():
            if isinstance(factor, Turned):
                turned = places(_turning(factor), "closed", call.maximize)
                return factor.width if call.places == turned else None
    return None


def _turning(factor: Turned) -> Sides:
    return Share(factor, 1.0), Share(1.0, factor)


def _plan(call: Call, low: float | None, high: float | None, dtype: torch.dtype) -> Plan | None:
    """How the operators compute the call between two numbers from x; None where they cannot."""
    flushes = flushes_subnormals()
    plan = plan_for(call, low, high, dtype, flushes)
    return _plan_of_what_turns(call, low, high, dtype, flushes) if plan is None else plan


@lru_cache(maxsize=4096)
def _plan_of_what_turns(
    call: Call, low: float | None, high: float | None, dtype: torch.dtype, flushes: bool
) -> Plan | None:
    """`flushes` is there to be remembered by. The steps of the formula, rounded as there; the span is for `_prepare` alone."""
    width = _width_of_what_turns(call)
    if width is None or dtype not in DTYPES or low is None or high is None:
        return None
    span = rounded_to(rounded_to(high, dtype) - rounded_to(low, dtype), dtype)
    scale = rounded_to(rounded_to(width, dtype) * span, dtype)
    if not 0 < scale < math.inf:  # nor is the span
        return None
    return Plan(_TURNED, *((ABOVE, BELOW) if call.maximize else (BELOW, ABOVE)), (Share(scale, span),))


def settings_of(plan: Plan, low: float | None, high: float | None, dtype: torch.dtype, packed: int = 0) -> Tensor:
    """A plan between two numbers as the operators read it: numbers in a tensor, which torch hands over in less time."""
    low = -math.inf if low is None else math.copysign(rounded_to(low, dtype), low)
    high = math.inf if high is None else math.copysign(rounded_to(high, dtype), high)
    return _settings(low, high, plan.packed | packed, *plan.numbers, math.copysign(1.0, low), math.copysign(1.0, high))


@lru_cache(maxsize=4096)
def _settings(*numbers: float) -> Tensor:
    """The last two are the signs of the bounds, because 0.0 is found where -0.0 is asked for."""
    return settings_of_numbers(numbers[:-2])


def settings_of_numbers(numbers: tuple[float, ...]) -> Tensor:
    """What operators read."""
    with without_torch_function():
        return torch.tensor(numbers, dtype=torch.float64, device="cpu")


def _encode(call: Call, inputs: Inputs, wants: Wants) -> tuple[Tensor, Kept] | None:
    x, low, high = inputs
    plan = plan_of_inputs(call, inputs)
    assert plan is not None  # the residual has asked
    if isinstance(low, Tensor):
        y, code, order = operators.encode_between(x, low, high, settings_of(plan, None, None, x.dtype))
        if order & UNSURE:
            y, order = call.primitive.forward(x, low, high), order ^ UNSURE
    else:
        y, code, order = operators.encode(x, settings_of(plan, low, high, x.dtype))
    return y, [code, order, plan]


def _encode_in_place(call: Call, inputs: Inputs, wants: Wants) -> Kept | None:
    x, low, high = inputs
    plan = plan_for(call, low, high, x.dtype, flushes_subnormals())
    assert plan is not None
    code, order = operators.encode_(x, settings_of(plan, low, high, x.dtype))
    return [code, order, plan]


def _pull_code(grad: Tensor, kept: Kept, wants: Wants, call: Call) -> Gradients | None:
    code, order, plan = kept
    if not are_bytes(code):
        return None
    return operators.pull_code(grad, code, settings_of(plan, None, None, grad.dtype), order), None, None


def _are_served(grad: Tensor, x: Tensor) -> bool:
    """A hook of saved tensors may have changed the dtype of x."""
    return x.dtype in DTYPES and grad.dtype is x.dtype and grad.dim() <= MOST_DIMENSIONS


def _pull_inputs(grad: Tensor, kept: Kept, wants: Wants, call: Call) -> Gradients | None:
    x, low, high = kept
    if not _are_served(grad, x):
        return None
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        return _pull_between_tensors(grad, kept, wants, call)
    plan = _plan(call, low, high, x.dtype)
    if plan is None:
        return None
    return operators.pull_x(grad, x, settings_of(plan, low, high, x.dtype)), None, None


def _pass(grad: Tensor, kept: Kept, wants: Wants, call: Call) -> Gradients | None:
    if not (wants[1] or wants[2]):
        return grad, None, None
    return _pull_between_tensors(grad, kept, wants, call) if _are_served(grad, kept[0]) else None


def _pull_between_tensors(grad: Tensor, kept: Kept, wants: Wants, call: Call) -> Gradients | None:
    x, low, high = kept
    columns = _columns_between(call, kept)
    if columns is None:
        return None
    tensors = x, x if low is None else low, x if high is None else high
    found = [operators.pull_bounds(grad, *tensors, column) if want else None for column, want in zip(columns, wants)]  # noqa: B905
    return tuple(found)


def _columns_between(call: Call, inputs: Inputs | Kept) -> tuple[Tensor, Tensor, Tensor] | None:
    """For x, min and max, of which each is a tensor or absent: the settings by which `pull_bounds` computes what it gets."""
    x, low, high = inputs
    for bound in (low, high):
        if not (bound is None or (isinstance(bound, Tensor) and bound.dtype is x.dtype)):
            return None
    return _of_each(call, low is not None, high is not None, x.dtype, flushes_subnormals())


@lru_cache(maxsize=4096)
def _of_each(
    call: Call, has_min: bool, has_max: bool, dtype: torch.dtype, flushes: bool
) -> tuple[Tensor, Tensor, Tensor] | None:
    """`flushes` is there to be remembered by."""
    plan = plan_between(call, has_min, has_max, dtype, flushes)
    if plan is None:
        return None
    absent = (0 if has_min else NO_MIN) | (0 if has_max else NO_MAX)
    at_edge = 0.0 if call.rule.ignores_edge else 1.0 - SHARES[str(call.edge)]
    of_min, of_max = (
        settings_of(Plan(kind, has_min, shares=(Share(at_edge, at_edge),)), None, None, dtype, absent)
        for kind in (OF_MIN, OF_MAX)
    )
    return settings_of(plan, None, None, dtype, absent), of_min, of_max


def _prepare_between(call: Call, inputs: Inputs) -> PreparedBetween | None:
    if not is_about_a_range(call):
        return None
    columns, (x, low, high) = _columns_between(call, inputs), inputs
    if columns is None or (low is None and high is None):
        return None
    plan = plan_between(call, low is not None, high is not None, x.dtype, flushes_subnormals())
    if plan is None or any(number and abs(number) < LEAST_NORMAL for number in _numbers_in(call, plan, None, None)):
        return None
    between = Between(operators, call, inputs, low is not None, high is not None)
    own = tuple(column for column, is_there in zip(columns, between.there, strict=True) if is_there)
    settings = settings_of(plan, None, None, x.dtype)

    def coded(wants: Wants) -> CodedBetween | None:
        if wants != X_ALONE:  # nor of x and one bound
            return None
        return CodedBetween(between.encode(settings), operators.pull_code, (settings, None, None), plan, CODE)

    return between.prepared(own, coded)


def _clamp_between_tensors(call: Call, inputs: Inputs) -> Tensor | None:
    """torch.clamp between tensors: its loop is slow for one number per channel."""
    x, low, high = inputs
    if not (isinstance(low, Tensor) and isinstance(high, Tensor)):
        return None
    y: Tensor = operators.clamp_between(x, low, high)
    return y if y.shape == x.shape else None


def _pull_slope(grad: Tensor, kept: Kept, wants: Wants, call: Call) -> Gradients | None:
    x, _ = kept
    if not _are_served(grad, x):
        return None
    curve = call.rule.curve(**call.parameters)  # type: ignore[misc]  # it serves no other
    farthest = math.sqrt(torch.finfo(torch.float64 if x.dtype is torch.float64 else torch.float32).max) / 8
    plan = Plan(_KIND_OF_CURVE[curve.shape], 0, shares=(Share(curve.scale, curve.height),))
    return operators.pull_x(grad, x, _settings(0.0, farthest, plan.packed, *plan.numbers, 1.0, 1.0)), None


in_a_tensor = lru_cache(maxsize=256)(settings_of_numbers)


def _encode_steps(call: Call, inputs: Inputs, wants: Wants) -> tuple[Tensor, Kept] | None:
    x, steps = inputs[0], few_bits.steps_of(call, inputs)
    if steps.thresholds:
        planes = operators.steps(x, in_a_tensor(steps.thresholds))
    elif steps.interval is not None:
        planes = operators.inside(x, in_a_tensor(tuple(map(float, steps.interval))))
    else:
        return None
    return call.primitive.forward(*inputs), [planes, tuple(x.shape), x.stride(), steps.slopes]


def _pull_steps(grad: Tensor, kept: Kept, wants: Wants, call: Call) -> Gradients | None:
    planes, shape, strides, slopes = kept
    if grad.dtype not in DTYPES or not are_bytes(planes):
        return None
    if grad.stride() != strides:
        grad = torch.empty_strided(shape, strides, dtype=grad.dtype).copy_(grad)
    return operators.slopes(grad, planes, in_a_tensor(slopes)), *[None] * (len(wants) - 1)


LEAST_NORMAL = 2.0**-126  # of float32: a smaller number is rounded as the processor is told at the time


def _prepare(call: Call, low: float | None, high: float | None, dtype: torch.dtype) -> Prepared | None:
    plan = _plan(call, low, high, dtype)
    if plan is None or any(number and abs(number) < LEAST_NORMAL for number in _numbers_in(call, plan, low, high)):
        return None
    return Prepared(
        operators.clamp,
        operators.pull_x,
        operators.encode,
        operators.pull_code,
        settings_of(plan, low, high, dtype),
        call,
        plan,
        low,
        high,
        has_zero=low == 0 or high == 0,
        passes=passes(call) and not call.keeps(X_ALONE),
        residual=CODE,
        keeps_code=False,  # the table knows
    )


def _numbers_in(call: Call, plan: Plan, low: float | None, high: float | None) -> Iterator[float]:
    """Before they are rounded, and after it."""
    yield from (number for number in (low, high) if number is not None)
    yield from plan.numbers
    for side in call.places or ():
        for factor in side if isinstance(side, Share) else (side,):
            yield factor.width if isinstance(factor, Turned) else factor


def _reads_x(call: Call) -> bool:
    return is_about_a_range(call) and not passes(call) and (suits(call) or _width_of_what_turns(call) is not None)


def _has_curve(call: Call) -> bool:
    curve = call.rule.curve
    return curve is not None and curve(**call.parameters).shape in _KIND_OF_CURVE


if operators is not None:
    serve("cpu", between_tensors=True)
    _how: dict[str, Any] = {"device": "cpu", "priority": 30}
    register(
        Kernel("native", CODE, suits, _pull_code, _encode, _encode_in_place, **_how),
        Kernel(
            "native",
            INPUTS,
            _reads_x,
            _pull_inputs,
            prepare=_prepare,
            prepare_between=_prepare_between,
            value=_clamp_between_tensors,
            **_how,
        ),
        Kernel("native", INPUTS, lambda call: is_about_a_range(call) and passes(call), _pass, prepare=_prepare, **_how),
        Kernel("native", INPUTS, _has_curve, _pull_slope, **_how),
        Kernel("native", few_bits.FEW_BITS, few_bits.suits, _pull_steps, _encode_steps, **_how),
    )
