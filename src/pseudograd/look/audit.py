"""Audit any function: compare its backward with the derivative of its values."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..arguments import as_number
from ..errors import must
from ..notebook import to_html
from ..testing.measure.behaviour import gradient_of, list_writes
from ..testing.measure.gradients import gradient_by_backward
from ..testing.measure.numeric import narrow_dtype_of, values
from . import audit_answers
from .audit_figure import draw
from .audit_record import Answer, AuditRecord
from .gradient import FIX_RANDOM, checked_function, in_dtype, name_of, on_copy
from .measure import measure, regions_of, shares_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Function = Callable[[Tensor], Tensor]
_FEWEST_POINTS = 33
_FEWEST_NUMBERS = 4096  # of float64, between two neighbouring points: a numeric derivative needs them
_SMALLEST_X = 1e-290  # smaller numbers of float64 have fewer digits


@dataclass(frozen=True)
class Audit(AuditRecord):
    """The backward of a function beside its derivative: the result of `audit`. print() shows it."""

    def plot(self) -> Figure:
        """Draw the values above, and dL/dx for both signs of grad below, with the derivative and the kinds of the regions.

        Returns: a matplotlib figure of its own; nothing is shown. Raises: ImportError without matplotlib.
        """
        return draw(self)

    def _repr_html_(self) -> str:
        return to_html(str(self), self.plot)


def audit(
    f: object,
    low: float,
    high: float,
    *,
    points: int = 601,
    at: Sequence[float] = (),
) -> Audit:
    """Compare the backward of `f` from `low` to `high` with the derivative of its values, for both signs of grad.

    Forward:  f is called on float64 tensors, or on float32 tensors if it refuses these, again and again; it must give the same values for
        the same x. x is never changed.
    Backward: the report divides the range into regions: the gradient is the derivative (exact), both are 0 (flat), only the gradient is 0
        (cut), only the derivative is 0 (pseudo), or they differ (biased). It also has the gradient at every kink and jump; whether the
        gradient is linear in grad and element-wise; NaN and infinity; narrower dtypes; double backward, forward mode and vmap; and the
        rule of pseudograd that does the same in all of this, if there is one. The derivative is measured from the values alone, and
        "0" means 0 to the accuracy of this measurement. A region that is narrower than the distance of two points may be missed.

    Args:
        f: a function of one tensor, a module, or an autograd.Function or its `apply`. With more arguments: lambda x: f(x, -1, 1).
        low, high: the range of x to look at; finite numbers.
        points: the number of evenly spaced points, at least 33. Kinks and jumps are found between them, too.
        at: further x to look at.
    Returns: a record. print() shows it, `.plot()` draws it, `.to_json()` is plain data; `regions`, `kinks`, `rule` and the rest are fields.
    Raises: TypeError if f cannot be called or returns no floating-point tensor; ValueError if f returns another shape, other values for
        the same x, or nothing that depends on x; if f computes in half precision, whose steps hide the derivative; if low is not below
        high; if points are too few.
    Example:
        >>> import pseudograd as pg
        >>> result = pg.audit(lambda x: pg.clamp(x, -1, 1, rule="zero"), -3, 3)
        >>> result.rule
        'clamp(x, -1, 1, rule="zero", edge="closed")'
        >>> result.kinks[0].low, result.kinks[0].positive
        (-1.0, Side(kind='kink', least=1.0, most=1.0))
    Source: new in pseudograd; the comparison with a numeric derivative is that of torch.autograd.gradcheck.
    """
    low, high, points = _check_range(low, high, points)
    at = [_check_finite("at", value) for value in at]
    with torch.inference_mode(False), torch.enable_grad():
        x = torch.linspace(low, high, points, dtype=torch.float64)
        dtype = _widest_dtype(f, x)
        function = _function_in(f, dtype)
        call = on_copy(function, dtype)
        _check_values(call, x)
        element_wise = audit_answers.answer_element_wise(call, x)
        m = measure(call, low, high, points, at)
        regions = regions_of(m)
        if element_wise.word == "yes":
            narrow = audit_answers.answer_dtypes(lambda dtype: on_copy(_function_in(f, dtype), dtype), call, m)
        else:  # gradients of every size would be tried at once
            narrow = dict.fromkeys(audit_answers.NARROW, Answer("not measured", None, element_wise.detail))
        if dtype is torch.float32:
            narrow["float32"] = Answer("refuses float64, so all of this is measured in float32")
        rule, note = None, element_wise.detail
        if element_wise.word == "yes":
            rule, note = audit_answers.name_rule(call, m, narrow, dtype)
        return Audit(
            name_of(f),
            low,
            high,
            len(m.x),
            regions,
            shares_of(regions),
            curves=m.curves,
            rule=rule,
            rule_note=note,
            writes=list_writes(function, m.x.to(dtype)),
            linear=audit_answers.answer_linear(call, m),
            element_wise=element_wise,
            not_finite=audit_answers.measure_special_x(call),
            **audit_answers.answer_transforms(call, m),
            **narrow,
            **audit_answers.answer_infinite_grad(call, m),
        )


def _check_range(low: object, high: object, points: object) -> tuple[float, float, int]:
    low, high = _check_finite("low", low), _check_finite("high", high)
    if not low < high:
        raise ValueError(f"audit: low must be below high, got low={low!r} and high={high!r}. Swap them.")
    if isinstance(points, bool) or not isinstance(points, int):
        raise TypeError(must("audit", "points", "be an integer", points))
    if points < _FEWEST_POINTS:
        raise ValueError(must("audit", "points", f"be at least {_FEWEST_POINTS}", points))
    largest = max(abs(low), abs(high), _SMALLEST_X)
    requirement = ""
    if not math.isfinite(high - low):
        requirement, remedy = "be a finite distance apart", "Look at a part of it"
    elif high - low < _FEWEST_NUMBERS * torch.finfo(torch.float64).eps * largest * points:
        requirement = f"hold {_FEWEST_NUMBERS} numbers of float64 between two of {points} points"
        remedy = "Widen the range, or look nearer to 0"
    if requirement:
        raise ValueError(must("audit", "low and high", requirement, (low, high), remedy))
    return low, high, points


def _check_finite(argument: str, value: object) -> float:
    value = as_number(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(must("audit", argument, "be a number", value))
    if not math.isfinite(value):
        raise ValueError(must("audit", argument, "be finite", value))
    return float(value)


def _function_in(f: object, dtype: torch.dtype) -> Function:
    """f for x in this dtype. Raises TypeError for what is no function."""
    return in_dtype(checked_function("audit", "f", f, "a function, a module or an autograd.Function"), dtype)


def _widest_dtype(f: object, x: Tensor) -> torch.dtype:
    """float64, or float32 if f takes it and refuses float64."""
    for dtype in (torch.float64, torch.float32):
        with contextlib.suppress(Exception):
            _function_in(f, dtype)(x.to(dtype, copy=True))
            return dtype
    return torch.float64


def _check_values(f: Function, x: Tensor) -> None:
    """Raise our error if an audit cannot measure this function at x."""
    leaf = x.clone().requires_grad_()
    try:
        y = f(leaf)
        again = f(x)
    except Exception as error:
        remedy = "Give a function of x alone, such as lambda x: f(x, -1, 1)"
        raise ValueError(
            f"audit: f must take one float64 tensor, got {audit_answers.write_error(error)}. {remedy}."
        ) from error
    if not isinstance(y, Tensor) or not y.is_floating_point():
        raise TypeError(must("audit", "f", "return one floating-point tensor", y))
    if y.shape != x.shape:
        remedy = "Look at it along a line: lambda t: torch.stack([f(x + s * direction) for s in t])"
        remedy = remedy if y.dim() == 0 else audit_answers.ALONG_A_LINE
        raise ValueError(must("audit", "f", f"return one number for each of the {x.numel()} numbers in x", y, remedy))
    if not torch.equal(y.detach().nan_to_num(), again.detach().nan_to_num()):
        raise ValueError(must("audit", "f", "return the same values for the same x", y, FIX_RANDOM))
    first, second = (
        gradient_by_backward(f, (x,), torch.ones_like(y))[0] if y.requires_grad else None for _ in range(2)
    )
    if first is None or second is None:
        remedy = "It detaches x, or makes integers or booleans of it"
        got = "values from which no gradient leads back to x"
        raise ValueError(f"audit: f must be differentiable, got {got}. {remedy}.")
    if not torch.equal(first.nan_to_num(), second.nan_to_num()):
        raise ValueError(must("audit", "f", "give the same gradient for the same x", first, "Fix what is random in it"))
    for measured in (lambda at: values(f, at), lambda at: gradient_of(f, at, 1.0)):
        narrow = narrow_dtype_of(measured, x)
        if narrow is not None:
            got, name = "steps that hide its derivative", str(narrow).removeprefix("torch.")
            remedy = f"Leave out the cast to {name}: the report has a line for {name}"
            raise ValueError(f"audit: f must not compute in {name}, got {got}. {remedy}.")
