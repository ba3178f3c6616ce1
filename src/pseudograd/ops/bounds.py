"""The clamp family: clamp, clamp_, lower_bound, upper_bound, relu, relu6, hardtanh.

All share the rules of `bound_rules`. The file has more than 300 lines because seven public functions have their docstrings here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed
from torch.compiler import is_compiling
from torch.nn import functional

from .. import engine
from ..arguments import (
    as_number,
    check_broadcast,
    check_device,
    check_tensor,
    flushes_subnormals,
    is_number,
    is_true,
    rounded_to,
)
from ..errors import must
from ..rule import BOUNDED, Call, EdgeAtBound, Op, Picture, RuleLike, Sample, call_for, register
from .bound_rules import ADAPTER, DEFAULT_RULE, EDGES, RULES, RULES_OF_ONE_BOUND, TRUE_RULE, Bound
from .samples import bounded, samples_of_bounds

__all__ = ["clamp", "clamp_", "hardtanh", "lower_bound", "relu", "relu6", "upper_bound"]

_NUMBER_OR_NONE = (float, int, type(None))
# How an op calls its min and its max.
_NAMES = {"lower_bound": ("bound", "max"), "upper_bound": ("min", "bound"), "hardtanh": ("min_val", "max_val")}


def _check_call(op: str, call: Call, x: Tensor, min: Bound, max: Bound) -> tuple[Bound, Bound]:
    """Check the arguments; number bounds that have passed are not checked again. Returns both bounds as numbers, or both as tensors."""
    if type(x) is Tensor and type(min) in _NUMBER_OR_NONE and type(max) in _NUMBER_OR_NONE and not is_compiling():
        arguments = (min, max, x.dtype)
        if arguments not in call.admitted:
            _check_all(op, call, x, min, max)
            # Not remembered: min=2e-310 and max=1e-310 are equal while subnormals are flushed, and an error otherwise.
            if min == max and flushes_subnormals():
                return min, max
            if len(call.admitted) > 1000:  # a program may change its bounds at every step
                call.admitted.clear()
            call.admitted.add(arguments)
        return min, max
    min, max = _python_number(min), _python_number(max)
    _check_all(op, call, x, min, max)
    _warn_of_ranks(op, call, x)
    return unify_bounds(x, min, max)


def _check_all(op: str, call: Call, x: Tensor, min: Bound, max: Bound) -> None:
    names = _NAMES.get(op, ("min", "max"))
    check_tensor(op, "x", x)
    if min is None and max is None:
        text = f"{op}: one of {' and '.join(names)} must be given, got None for both. Give at least one bound."
        raise ValueError(text)
    if call.rule.requires and (min is None or max is None):
        remedy = f"It uses the range max - min: give both bounds, or use rule={DEFAULT_RULE!r}"
        raise ValueError(must(op, "rule", "be one that works with a single bound", call.rule.name, remedy))
    for name, bound in zip(names, (min, max), strict=True):
        if isinstance(bound, Tensor):
            check_tensor(op, name, bound)
            check_broadcast(op, name, bound, x.shape, "x")
            check_device(op, name, bound, x.device, "x")
        elif bound is not None:
            _check_number(op, name, bound, x)
    if is_number(min) and is_number(max) and is_true(min > max):
        low, high = names
        got = f"{low}={min!r} and {high}={max!r}"
        raise ValueError(f"{op}: {low} must not exceed {high}, got {got}. Swap them or drop one.")


def _check_number(op: str, name: str, bound: object, x: Tensor) -> None:
    if not is_number(bound):
        raise TypeError(must(op, name, "be a number, a tensor or None", bound))
    if bound != bound:
        raise ValueError(must(op, name, "not be NaN", bound, "Use None for no bound"))
    is_checkable = x.is_floating_point() and not is_compiling() and abs(bound) != torch.inf
    if is_checkable and abs(rounded_to(bound, x.dtype)) == torch.inf:
        raise ValueError(must(op, name, f"fit {x.dtype}", bound, "Use None for no bound, or a wider dtype"))


def _warn_of_ranks(op: str, call: Call, x: Tensor) -> None:
    """Warn if several ranks share the parameter x: a rule that reads grad sees only the part of the gradient that its own rank has."""
    if call.is_linear or is_compiling() or not isinstance(x, torch.nn.Parameter):
        return
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        warnings.warn(
            f"{op}/{call.rule.name}: x is a parameter and {distributed.get_world_size()} ranks share it, so gradients of this rule do not "
            "add up over ranks. Use a rule that is linear in grad, or clip the parameter after each step.",
            stacklevel=5,
        )


@engine.unscriptable
def clamp(
    x: Tensor,
    min: Bound = None,
    max: Bound = None,
    *,
    rule: RuleLike = DEFAULT_RULE,
    edge: EdgeAtBound = "closed",
    maximize: bool = False,
) -> Tensor:
    """Clamp `x`. Outside the bounds, only gradients pass that lead back inside.

    Forward:  y = torch.clamp(x, min, max), bit for bit.
    Backward: `rule` decides grad_x outside the bounds, `edge` decides it at the bounds. The default rule passes grad inside the range.
        Outside, it passes grad if a descent step along grad leads back inside, and gives 0 otherwise: a pseudo-gradient.
        Saves x and tensor bounds, or one or two bits per element if the rule only asks on which side of two constants x is
        (docs/memory.md); "identity" saves nothing.
        Rules and edges that read grad, such as the default rule, are not linear in grad. Their gradients do not add up over losses,
        micro-batches or ranks that share x as a parameter (docs/understand.md has an example), and forward mode raises an error.
        torch.export keeps the values and drops every rule, with a warning if the program may be trained.

    Args:
        x: any shape, floating point; an integer x is clamped as torch does and gets no gradient.
        min, max: in the unit of x; number, tensor that broadcasts with x, or None for no bound. A tensor bound gets the gradient of
            the values that it replaced, summed to its shape. Where a tensor min exceeds max, y = max.
        rule: a name or a rule object; `pseudograd rules clamp` lists them.
        edge: what x gets exactly at a bound. "closed": grad (torch <= 2.13). "open": 0 (torch >= 2.14 with numbers). "half": 0.5 * grad
            (torch >= 2.14 with tensors). "inward": what the rule "inward" gives outside. "identity" and "inverting" ignore the edge.
        maximize: True for gradient ascent: computes -rule(-grad). No effect on rules that are linear in grad.
    Returns: shape, dtype and device of torch.clamp(x, min, max).
    Raises: ValueError if both bounds are None, a number bound is NaN or does not fit the dtype of x, min > max (numbers only: comparing
        tensors would force a device sync), a shape does not broadcast, or rule or edge is unknown; TypeError for complex tensors and
        for bounds that are no numbers; NotImplementedError in forward mode with a rule that is not linear in grad.
    Example:
        >>> x = torch.tensor([-2.0, 0.0, 2.0], requires_grad=True)
        >>> clamp(x, -1, 1).sum().backward(); x.grad
        tensor([0., 1., 1.])
    Source: ClampWithGrad, VQGAN+CLIP notebooks (K. Crowson, 2021, MIT); tensorflow-compression and lucid (2018) for the same rule.
    """
    y = engine.run_prepared("clamp", x, rule, edge, maximize, min, max)
    return _run_unprepared(CLAMP, x, min, max, rule, edge, maximize) if y is None else y


def _run_op(op: Op, x: Tensor, low: Bound, high: Bound, rule: RuleLike, edge: EdgeAtBound, maximize: bool) -> Tensor:
    """A public call of any op of the family except clamp, which does the same in its own lines to save a call."""
    y = engine.run_prepared(op.name, x, rule, edge, maximize, low, high)
    return _run_unprepared(op, x, low, high, rule, edge, maximize) if y is None else y


def _run_unprepared(
    op: Op, x: Tensor, low: Bound, high: Bound, rule: RuleLike, edge: EdgeAtBound, maximize: bool
) -> Tensor:
    call = call_for(op, rule, edge, maximize)
    low, high = _check_call(op.name, call, x, low, high)
    engine.prepare(x, call, rule, edge, low, high)
    return engine.run(call, x, low, high)


def _python_number(bound: object) -> Any:
    """A scalar of NumPy as a number. A compiler sees an array in its place, so there it becomes a tensor, as torch.clamp reads it."""
    if is_compiling() and not isinstance(bound, (Tensor, *_NUMBER_OR_NONE)) and hasattr(bound, "dtype"):
        return torch.as_tensor(bound)
    return as_number(bound)


def unify_bounds(x: Tensor, min: Bound, max: Bound) -> tuple[Bound, Bound]:
    """The bounds as torch.clamp takes them: of a number and a tensor, the number becomes a 0-d tensor."""
    if min is None or max is None or isinstance(min, Tensor) is isinstance(max, Tensor):
        return min, max
    dtype = x.dtype if x.is_floating_point() else None
    min, max = (b if isinstance(b, Tensor) else torch.full((), b, dtype=dtype, device=x.device) for b in (min, max))
    return min, max


@engine.unscriptable
def clamp_(
    x: Tensor,
    min: Bound = None,
    max: Bound = None,
    *,
    rule: RuleLike = DEFAULT_RULE,
    edge: EdgeAtBound = "closed",
    maximize: bool = False,
) -> Tensor:
    """Clamp `x` in place, with the gradient of `clamp`.

    Forward:  x becomes torch.clamp(x, min, max), bit for bit.
    Backward: that of `clamp` with the same rule and edge. Saves a copy of the old x, as torch.clamp_ does, or bits as `clamp`;
        "identity" saves nothing.

    Args:
        x: any shape; not a leaf that requires grad (torch's own error).
        min, max: as in `clamp`; tensors must broadcast to the shape of x.
        rule, edge, maximize: as in `clamp`.
    Returns: x itself.
    Raises: as `clamp`, and ValueError if a bound is larger than x.
    Example:
        >>> x = torch.tensor([-2.0, 0.0, 2.0], requires_grad=True)
        >>> y = clamp_(x * 1, -1, 1); y.sum().backward(); x.grad
        tensor([0., 1., 1.])
    Source: as `clamp`.
    """
    call = call_for(CLAMP, rule, edge, maximize)
    min, max = _check_call("clamp_", call, x, min, max)
    for name, bound in (("min", min), ("max", max)):
        if isinstance(bound, Tensor):
            check_broadcast("clamp_", name, bound, x.shape, "x", grows=False)
    if not engine.is_recording(x, min, max):
        return torch.clamp_(x, min, max)  # type: ignore[arg-type]
    return engine.run_in_place(call, x, min, max)


@engine.unscriptable
def lower_bound(
    x: Tensor,
    bound: float | Tensor,
    *,
    rule: RuleLike = DEFAULT_RULE,
    edge: EdgeAtBound = "closed",
    maximize: bool = False,
) -> Tensor:
    """max(x, bound). Below the bound, only gradients pass that lead back up.

    Forward:  y = torch.clamp(x, min=bound), bit for bit.
    Backward: that of `clamp` with min=bound. Saves and is linear in grad as in `clamp`.

    Args:
        x: any shape, floating point.
        bound: in the unit of x; number or tensor that broadcasts with x. A tensor gets the gradient of what it replaced.
        rule, edge, maximize: as in `clamp`; a rule that needs two bounds is not for this op.
    Returns: shape, dtype and device of torch.clamp(x, min=bound).
    Raises: as `clamp`.
    Example:
        >>> x = torch.tensor([-2.0, 2.0], requires_grad=True)
        >>> lower_bound(x, 0).neg().sum().backward(); x.grad
        tensor([-1., -1.])
    Source: tensorflow-compression `lower_bound` (2018); CompressAI `LowerBound`.
    """
    if bound is None:
        raise ValueError(must("lower_bound", "bound", "be a number or a tensor", None))
    return _run_op(LOWER_BOUND, x, bound, None, rule, edge, maximize)


@engine.unscriptable
def upper_bound(
    x: Tensor,
    bound: float | Tensor,
    *,
    rule: RuleLike = DEFAULT_RULE,
    edge: EdgeAtBound = "closed",
    maximize: bool = False,
) -> Tensor:
    """min(x, bound). Above the bound, only gradients pass that lead back down.

    Forward:  y = torch.clamp(x, max=bound), bit for bit.
    Backward: that of `clamp` with max=bound. Saves and is linear in grad as in `clamp`.

    Args:
        x: any shape, floating point.
        bound: in the unit of x; number or tensor that broadcasts with x. A tensor gets the gradient of what it replaced.
        rule, edge, maximize: as in `clamp`; a rule that needs two bounds is not for this op.
    Returns: shape, dtype and device of torch.clamp(x, max=bound).
    Raises: as `clamp`.
    Example:
        >>> x = torch.tensor([-2.0, 2.0], requires_grad=True)
        >>> upper_bound(x, 0).sum().backward(); x.grad
        tensor([1., 1.])
    Source: tensorflow-compression `upper_bound` (2018).
    """
    if bound is None:
        raise ValueError(must("upper_bound", "bound", "be a number or a tensor", None))
    return _run_op(UPPER_BOUND, x, None, bound, rule, edge, maximize)


@engine.unscriptable
def relu(x: Tensor, *, rule: RuleLike = TRUE_RULE, edge: EdgeAtBound = "open", maximize: bool = False) -> Tensor:
    """max(x, 0), by default with torch's own gradient.

    Forward:  y = torch.relu(x), bit for bit.
    Backward: that of `clamp` with min=0; the default is 0 at and below 0, as torch.relu. Saves as `clamp`.

    Args:
        x: any shape, floating point; an integer x gets no gradient.
        rule, edge, maximize: as in `clamp`; a rule that needs two bounds is not for this op.
    Returns: shape, dtype and device of x.
    Raises: as `clamp`.
    Example:
        >>> x = torch.tensor([-2.0, 0.0, 2.0], requires_grad=True)
        >>> relu(x, edge="closed").sum().backward(); x.grad
        tensor([0., 1., 1.])
    Source: torch.relu; with the default rule of clamp it is lucid's redirected ReLU (2018).
    """
    return _run_op(RELU, x, 0.0, None, rule, edge, maximize)


@engine.unscriptable
def relu6(x: Tensor, *, rule: RuleLike = TRUE_RULE, edge: EdgeAtBound = "open", maximize: bool = False) -> Tensor:
    """min(max(x, 0), 6), by default with torch's own gradient.

    Forward:  y = torch.nn.functional.relu6(x), bit for bit.
    Backward: that of `clamp` with bounds 0 and 6; the default is 0 outside and at both, as torch. Saves as `clamp`.

    Args:
        x: any shape, floating point; an integer x gets no gradient.
        rule, edge, maximize: as in `clamp`.
    Returns: shape, dtype and device of x.
    Raises: as `clamp`.
    Example:
        >>> x = torch.tensor([-2.0, 3.0, 9.0], requires_grad=True)
        >>> relu6(x, rule="identity").sum().backward(); x.grad
        tensor([1., 1., 1.])
    Source: torch.nn.functional.relu6; with the default rule of clamp it is lucid's redirected ReLU6 (2018).
    """
    return _run_op(RELU6, x, 0.0, 6.0, rule, edge, maximize)


@engine.unscriptable
def hardtanh(
    x: Tensor,
    min_val: float = -1.0,
    max_val: float = 1.0,
    *,
    rule: RuleLike = TRUE_RULE,
    edge: EdgeAtBound = "open",
    maximize: bool = False,
) -> Tensor:
    """Clamp `x` to two numbers, by default with torch's own gradient of hardtanh.

    Forward:  y = torch.nn.functional.hardtanh(x, min_val, max_val), bit for bit.
    Backward: that of `clamp`; the default is 0 outside and at both bounds, as torch. Saves as `clamp`.

    Args:
        x: any shape, floating point.
        min_val, max_val: numbers, in the unit of x.
        rule, edge, maximize: as in `clamp`.
    Returns: shape, dtype and device of x.
    Raises: as `clamp`, and TypeError if a bound is no number.
    Example:
        >>> x = torch.tensor([-2.0, 0.0, 2.0], requires_grad=True)
        >>> hardtanh(x, rule="identity").sum().backward(); x.grad
        tensor([1., 1., 1.])
    Source: torch.nn.functional.hardtanh.
    """
    for name, bound in (("min_val", min_val), ("max_val", max_val)):
        if not is_number(bound) and (isinstance(bound, Tensor) or _python_number(bound) is bound):
            raise TypeError(must("hardtanh", name, "be a number", bound, "Use clamp for tensor bounds"))
    return _run_op(HARDTANH, x, min_val, max_val, rule, edge, maximize)


def picture_of(low: float | None, high: float | None) -> Picture:
    """The picture of a clamp to these bounds. It shows the range and half its width on each side."""
    bounds = tuple(bound for bound in (low, high) if bound is not None)
    margin = (bounds[-1] - bounds[0]) / 2 or 1.0
    return Picture((low, high), bounds, low=bounds[0] - margin, high=bounds[-1] + margin)


def _op(
    name: str,
    forward: Callable[..., Tensor],
    public: Callable[..., Tensor],
    bounds: tuple[float | None, float | None],
    samples: tuple[Sample, ...] = (),
    defaults: tuple[str, str] = (TRUE_RULE, "open"),
    plain_torch: Callable[..., Tensor] | None = None,
) -> Op:
    """A member of the family. bounds: of its picture and its sample; None for a bound that it never has. defaults: its rule and edge."""
    op = Op(
        name=name,
        rule_set="clamp",
        forward=forward,
        inputs=BOUNDED,
        rules=RULES_OF_ONE_BOUND if None in bounds else RULES,
        default_rule=defaults[0],
        edges=EDGES,
        default_edge=defaults[1],
        takes_maximize=True,
        adapter=ADAPTER,
        has_outside=True,
        public=public,
        samples=samples or (bounded(name, *bounds),),
        picture=picture_of(*bounds),
        plain_torch=plain_torch,
    )
    return register(op)


def _plain_clamp(x: Tensor, min: Bound, max: Bound) -> Tensor:
    return torch.clamp(x, *unify_bounds(x, min, max))  # type: ignore[arg-type]


_DEFAULTS_OF_CLAMP = DEFAULT_RULE, "closed"
CLAMP = _op(
    "clamp", torch.clamp, clamp, (-1.0, 1.0), samples_of_bounds(-1.0, 1.0), _DEFAULTS_OF_CLAMP, plain_torch=_plain_clamp
)
LOWER_BOUND = _op(
    "lower_bound",
    torch.clamp,
    lambda x, min, max, **how: lower_bound(x, min, **how),
    (-1.0, None),
    samples_of_bounds(-1.0, None),
    _DEFAULTS_OF_CLAMP,
)
UPPER_BOUND = _op(
    "upper_bound",
    torch.clamp,
    lambda x, min, max, **how: upper_bound(x, max, **how),
    (None, 1.0),
    samples_of_bounds(None, 1.0),
    _DEFAULTS_OF_CLAMP,
)
RELU = _op("relu", lambda x, min, max: torch.relu(x), lambda x, min, max, **how: relu(x, **how), (0.0, None))
RELU6 = _op("relu6", lambda x, min, max: functional.relu6(x), lambda x, min, max, **how: relu6(x, **how), (0.0, 6.0))
HARDTANH = _op(
    "hardtanh",
    functional.hardtanh,
    hardtanh,
    (-1.0, 1.0),
    (bounded("hardtanh", -1.0, 1.0), bounded("from zero", 0.0, 1.0), bounded("one point", 0.5, 0.5)),
)
