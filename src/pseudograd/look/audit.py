"""Audit any function: what its backward does, beside the derivative of its values."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..arguments import as_number
from ..errors import must
from ..notebook import shown
from ..testing.measure.gradients import by_backward
from .audit_answers import (
    element_wise,
    in_half_precision,
    in_one_line,
    infinite,
    linear,
    not_finite,
    under_transforms,
)
from .audit_figure import draw
from .audit_lines import along_lines
from .audit_records import Answer, Audited
from .audit_text import text
from .measure import measure, regions_of, shares_of
from .what_is import name_measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Function = Callable[[Tensor], Tensor]
_FEWEST = 33
_NUMBERS = 4096  # of float64, in each cell: with fewer there are no differences to be taken
_LEAST = 1e-290  # below, numbers of float64 lose digits


@dataclass(frozen=True)
class Audit(Audited):
    """What the backward of a function does, beside its derivative. print() shows it; `audit` makes it."""

    def __str__(self) -> str:
        return text(self)

    def _repr_html_(self) -> str:
        return shown(str(self), self.plot)

    def plot(self) -> Figure:
        """Draw it: forward above; backward below, dL/dx for both signs of grad, with their kinds beside the true slope.

        Returns: a matplotlib figure of its own; nothing is shown. Raises: ImportError without matplotlib.
        """
        return draw(self)


def audit(
    f: object,
    low: float,
    high: float,
    *,
    points: int = 601,
    at: Sequence[float] = (),
    shape: Sequence[int] | None = None,
) -> Audit:
    """What the backward of `f` does from `low` to `high`, beside the derivative of its values, for both signs of grad.

    Forward:  f is called on float64 tensors, again and again; it must give the same values for the same x. x is never changed.
    Backward: regions where the gradient is the derivative (exact), where both are 0 (flat), where it is 0 alone (cut), where the
        derivative is (pseudo), and where they differ (biased); its value at every kink and jump; whether it is linear in grad and
        element-wise, what it does with NaN and infinity, in half precision, in double backward, forward mode and vmap; and which rule
        of pseudograd it equals in all of this, if any. The derivative is measured from the values alone. "0" means: to the accuracy of
        that measurement. What is narrower than the distance of two points may be missed.

    Args:
        f: a function of one tensor, a module, or an autograd.Function or its `apply`. With more arguments: lambda x: f(x, -1, 1).
        low, high: the range to look at, in the unit of x; finite numbers.
        points: how many evenly spaced points, at least 33; kinks and jumps are found between them.
        at: further x to look at.
        shape: of the x of an f that is not element-wise. It is then looked at along random lines, x running from about low to about
            high, with a random grad for each.
    Returns: a record. print() shows it, `.plot()` draws it, `.to_json()` is plain data; `regions`, `kinks`, `rule` and the rest are fields.
    Raises: TypeError if f cannot be called or returns no floating-point tensor; ValueError if it returns another shape, other values
        for the same x, or nothing that depends on x; if low is not below high; if points are too few.
    Example:
        >>> import pseudograd as pg
        >>> found = pg.audit(lambda x: pg.clamp(x, -1, 1, rule="zero"), -3, 3)
        >>> found.rule
        'clamp(x, -1, 1, rule="zero", edge="closed")'
        >>> found.kinks[0].low, found.kinks[0].positive
        (-1.0, Side(kind='kink', least=1.0, most=1.0))
    Source: new in pseudograd; the comparison with a numeric derivative is that of torch.autograd.gradcheck.
    """
    low, high, points = _checked_range(low, high, points)
    at = [_finite("at", value) for value in at]
    with torch.inference_mode(False), torch.enable_grad():
        call = _callable(f, torch.float64)
        if shape is not None:
            return _of_lines(f, call, low, high, points, at, tuple(shape))
        x = torch.linspace(low, high, points, dtype=torch.float64)
        _check_values(call, x, same_shape=True)
        return _of_one(f, call, low, high, points, at)


# --- checks ---------------------------------------------------------------------------------------------------------


def _checked_range(low: object, high: object, points: object) -> tuple[float, float, int]:
    low, high = _finite("low", low), _finite("high", high)
    if not low < high:
        raise ValueError(f"audit: low must be below high, got low={low!r} and high={high!r}. Swap them.")
    if isinstance(points, bool) or not isinstance(points, int):
        raise TypeError(must("audit", "points", "be an integer", points))
    if points < _FEWEST:
        raise ValueError(must("audit", "points", f"be at least {_FEWEST}", points))
    if not math.isfinite(high - low):
        raise ValueError(
            must("audit", "low and high", "be a finite distance apart", (low, high), "Look at a part of it")
        )
    largest = max(abs(low), abs(high), _LEAST)
    if high - low < _NUMBERS * torch.finfo(torch.float64).eps * largest * points:
        what = f"hold {_NUMBERS} numbers of float64 between two of {points} points"
        raise ValueError(must("audit", "low and high", what, (low, high), "Widen the range, or look nearer to 0"))
    return low, high, points


def _finite(argument: str, value: object) -> float:
    value = as_number(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(must("audit", argument, "be a number", value))
    if not math.isfinite(value):
        raise ValueError(must("audit", argument, "be finite", value))
    return float(value)


def _callable(f: object, dtype: torch.dtype) -> Function:
    """f as a function of x in this dtype; a copy of a module, for its parameters must have that dtype."""
    if inspect.isclass(f) and issubclass(f, torch.autograd.Function):
        f = f.apply
    if inspect.isclass(f) and issubclass(f, nn.Module):
        raise TypeError(
            must("audit", "f", "be a module that was made", f.__name__, f"Call it first: {f.__name__}(...)")
        )
    if not callable(f):
        raise TypeError(must("audit", "f", "be a function, a module or an autograd.Function", f))
    if isinstance(f, nn.Module):
        f = copy.deepcopy(f).to(dtype)
    return lambda x: f(x.clone())  # which f may change in place


def _check_values(f: Function, x: Tensor, same_shape: bool) -> Tensor:
    """Its values at x, if they are what an audit can work with."""
    leaf = x.clone().requires_grad_()
    try:
        y = f(leaf)
        again = f(x)
    except Exception as error:
        remedy = "Give a function of x alone, such as lambda x: f(x, -1, 1)"
        raise ValueError(f"audit: f must take one float64 tensor, got {in_one_line(error)}. {remedy}.") from error
    if not isinstance(y, Tensor) or not y.is_floating_point():
        raise TypeError(must("audit", "f", "return one floating-point tensor", y))
    if same_shape and y.shape != x.shape:
        remedy = "Give the shape of its x: shape=(...)"
        raise ValueError(must("audit", "f", f"return one number for each of the {x.numel()} numbers in x", y, remedy))
    if not torch.equal(y.detach().nan_to_num(), again.detach().nan_to_num()):
        remedy = "Fix what is random in it; a module in training mode needs eval()"
        raise ValueError(must("audit", "f", "return the same values for the same x", y, remedy))
    found, other = (by_backward(f, (x,), torch.ones_like(y))[0] if y.requires_grad else None for _ in range(2))
    if found is None or other is None:
        remedy = "It detaches x, or makes integers or booleans of it"
        raise ValueError(
            f"audit: f must be differentiable, got values from which no gradient leads back to x. {remedy}."
        )
    if not torch.equal(found.nan_to_num(), other.nan_to_num()):
        raise ValueError(must("audit", "f", "give the same gradient for the same x", found, "Fix what is random in it"))
    return y.detach()


# --- the audit ------------------------------------------------------------------------------------------------------


def _of_one(f: object, call: Function, low: float, high: float, points: int, at: Sequence[float]) -> Audit:
    """An element-wise function."""
    talk = element_wise(call, torch.linspace(low, high, points, dtype=torch.float64))
    measured = measure(call, low, high, points, at)
    regions = regions_of(measured)
    narrow = in_half_precision(lambda dtype: _callable(f, dtype), call, measured)
    underflows = [f"{dtype} {answer.detail}" for dtype, answer in narrow.items() if answer.word == "underflows"]
    rule, note = name_measured(call, measured, underflows)
    return Audit(
        name=_name_of(f),
        low=low,
        high=high,
        points=len(measured.x),
        lines=0,
        regions=regions,
        shares=shares_of(regions),
        rule=rule,
        rule_note=note,
        linear=linear(call, measured, call, measured.x),
        element_wise=talk,
        not_finite=not_finite(call),
        curves=measured.curves,
        **narrow,
        **under_transforms(call, measured),
        **infinite(call, measured),
    )


def _of_lines(
    f: object, call: Function, low: float, high: float, points: int, at: Sequence[float], shape: tuple[int, ...]
) -> Audit:
    """A function of whole tensors, along random lines; the first one is shown, and the checks are made on it."""
    if not shape or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in shape):
        raise ValueError(must("audit", "shape", "be the sizes of a tensor, each at least 1", shape))
    spread = torch.linspace(low, high, math.prod(shape), dtype=torch.float64).reshape(shape)
    y = _check_values(call, spread, same_shape=False)
    lines = along_lines(call, shape, y.shape, low, high)
    every = [measure(line, low, high, min(points, 121), at) for line in lines]
    regions = [regions_of(one) for one in every]
    unknown = Answer("not asked", None, "a function of one number is needed")
    first, line = every[0], lines[0]
    return Audit(
        name=_name_of(f),
        low=low,
        high=high,
        points=len(first.x),
        lines=len(lines),
        regions=regions[0],
        shares=shares_of([region for of_line in regions for region in of_line]),
        rule=None,
        rule_note="",
        linear=linear(line, first, call, spread),
        element_wise=unknown,
        float16=unknown,
        bfloat16=unknown,
        not_finite=(),
        curves=first.curves,
        infinite_grad=unknown,
        nan_grad=unknown,
        **under_transforms(line, first),
    )


def _name_of(f: Any) -> str:
    owner = getattr(f, "__self__", None)  # of a bound apply
    if inspect.isclass(owner) and issubclass(owner, torch.autograd.Function):
        return f"{owner.__name__}.{f.__name__}"
    return getattr(f, "__name__", "") or type(f).__name__
