"""The rules of the clamp family: what x gets outside, what x gets at a bound, and what tensor bounds get."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..arguments import is_compiling, rounded
from ..geometry import ALL, INWARD, NOTHING, SHARES, Constant, Formula, Reversal, Slope
from ..reference import bounds as reference
from ..rule import BOUNDED, Adapter, Gradients, Pull, Rule, Wants
from .shared_rules import UserFormula, widened

Value = float | Tensor
Bound = Value | None
EDGES = (*SHARES, "inward")
DEFAULT_RULE = "inward"  # of clamp
TRUE_RULE = "zero"  # torch's own, the default of relu and its like
IDENTITY_RULE = "identity"
LEAKY_RULE = "leaky"  # the rule that revives a relu that is 0 everywhere
LEAKY_INWARD_RULE = "leaky_inward"
# The rules that `compare` trains with by default.
COMPARED_RULES = (DEFAULT_RULE, IDENTITY_RULE, "sign", LEAKY_RULE, "elastic", "inverting")
EXAMPLE = f"{LEAKY_RULE}(0.2)"  # a rule with a parameter, for messages

# --- the rules: what x gets outside ---------------------------------------------------------------------------------
# Each function takes (grad, below, above, x, y, min, max) and returns the gradient of x before the edge is applied. They are not made from
# `sides`: under torch.compile(dynamic=True) a float that a formula reads from a table becomes a symbol, and a comparison of symbols is a
# guard or an error.


def _blocked(grad: Tensor, below: Tensor, above: Tensor) -> Tensor:
    """Where would a descent step move x further out? Signs are compared, because a product could underflow."""
    return (below & (grad > 0)) | (above & (grad < 0))


def _zero(grad: Tensor, below: Tensor, above: Tensor, *others: object) -> Tensor:
    return torch.where(below | above, 0.0, grad)


def _identity(grad: Tensor, *others: object) -> Tensor:
    return grad


def _inward(grad: Tensor, below: Tensor, above: Tensor, *others: object) -> Tensor:
    return torch.where(_blocked(grad, below, above), 0.0, grad)


def _sign(grad: Tensor, below: Tensor, above: Tensor, *others: object) -> Tensor:
    return torch.where(above, 1.0, torch.where(below, -1.0, grad))


def _leaky(grad: Tensor, below: Tensor, above: Tensor, *others: object, slope: float) -> Tensor:
    return torch.where(below | above, _product(slope, grad), grad)


def _leaky_inward(grad: Tensor, below: Tensor, above: Tensor, *others: object, low: float, high: float) -> Tensor:
    leaking = torch.where(above & (grad < 0), _product(high, grad), grad)
    return torch.where(below & (grad > 0), _product(low, grad), leaking)


def _product(factor: float, grad: Tensor) -> Tensor | float:
    """factor * grad. A factor that rounds to 0 gives 0 for an infinite grad, too. Compiled code cannot compare it: it may be a symbol."""
    number = rounded(factor, grad)
    return number * grad if is_compiling() or number != 0 else 0.0


# The next two apply `where` before each division and product, not after: a second derivative multiplies the branch that was not taken by
# zero, and zero times infinity is NaN.


def _elastic(
    grad: Tensor, below: Tensor, above: Tensor, x: Tensor, y: Tensor, min: Value, max: Value, *, width: float
) -> Tensor:
    blocked = _blocked(grad, below, above)
    span = rounded(max - min, grad)
    scale = rounded(rounded(width, grad) * span, grad)
    usable = _is_usable(span) & (scale < torch.inf)
    distance = torch.where(blocked & usable, torch.where(above, x - max, min - x), 0.0)
    share = distance / _divisor_or_one(scale, usable)
    share = torch.where(share < 1, share, 1.0)
    return torch.where(blocked, -torch.where(share > 0, grad, 0.0) * share, grad)


def _inverting(grad: Tensor, below: Tensor, above: Tensor, x: Tensor, y: Tensor, min: Value, max: Value) -> Tensor:
    span = rounded(max - min, grad)
    usable = (x == x) & _is_usable(span)
    room = torch.where(usable, torch.where(grad < 0, max - x, x - min), 0.0) / _divisor_or_one(span, _is_usable(span))
    zero_times_inf = ((room == 0) & (grad.abs() == torch.inf)) | ((grad == 0) & (room.abs() == torch.inf))
    scaled = torch.where(zero_times_inf, 0.0, grad) * torch.where(zero_times_inf, 0.0, room)
    return torch.where(usable, scaled, _inward(grad, below, above))


def _is_usable(span: Value) -> bool | Tensor:
    """Is the span positive and finite? A bool for a number, a mask for a tensor."""
    return (span > 0) & (span < torch.inf)


def _divisor_or_one(divisor: Value, usable: bool | Tensor) -> Value:
    if isinstance(usable, Tensor):
        return torch.where(usable, divisor, 1.0)
    return divisor if usable else 1.0


# --- the edge, and the gradient to the bounds -----------------------------------------------------------------------


def _gradients_at_bound(edge: str, grad: Tensor, at_min: Tensor, at_max: Tensor) -> tuple[Value, Value]:
    """(the gradient of x, the gradient of the bound) where x is at a bound."""
    if edge == "closed":
        return grad, 0.0
    if edge == "open":
        return 0.0, grad
    if edge == "half":
        return 0.5 * grad, 0.5 * grad
    blocked = _blocked(grad, at_min, at_max)
    return torch.where(blocked, 0.0, grad), torch.where(blocked, grad, 0.0)


def _make_pull(outside: Callable[..., Tensor], ignores_edge: bool = False) -> Pull:
    """The pull of a rule whose gradient of x outside is outside(...). The bounds get the true gradient: grad where they replaced x."""

    def pull(
        grad: Tensor, x: Tensor, min: Bound, max: Bound, *, y: Tensor, wants: Wants, edge: str, **parameters: object
    ) -> Gradients:
        wants_x, wants_min, wants_max = wants
        edge = "closed" if ignores_edge else edge
        masks = _masks_outside(x, y, min, max)
        if edge != "closed" or wants_min or wants_max:
            at = x == y
            for bound in (min, max):
                masks.append(at & (x == bound) if bound is not None else torch.zeros_like(at))
        below, above, *at_bounds = in_one_byte(masks) if is_compiling() and not x.is_cpu else masks
        grad_x = grad_min = grad_max = None
        if wants_x:
            grad_x = outside(grad, below, above, x, y, min, max, **parameters)
        if not at_bounds:
            return grad_x, None, None
        at_min, at_max = at_bounds
        to_x, to_bound = _gradients_at_bound(edge, grad, at_min, at_max)
        if grad_x is not None and edge != "closed":
            grad_x = torch.where(at_min | at_max, to_x, grad_x)
        if wants_min:
            crossed = min > max if max is not None else False  # type: ignore[operator]
            grad_min = torch.where(below & ~_expand_bool(crossed, below), grad, torch.where(at_min, to_bound, 0.0))
        if wants_max:
            crossed = min > max if min is not None else False  # type: ignore[operator]
            replaced = above | (below & _expand_bool(crossed, below))
            grad_max = torch.where(replaced, grad, torch.where(at_max & ~at_min, to_bound, 0.0))
        return grad_x, grad_min, grad_max

    return pull


def _masks_outside(x: Tensor, y: Tensor, low: Bound, high: Bound) -> list[Tensor]:
    """Two masks: x is below the range, x is above it. A compiler compares x with numbers, which saves computing y in the backward."""
    if not (is_compiling() and x.is_cpu) or isinstance(low, Tensor) or isinstance(high, Tensor):
        return [x < y, x > y]
    low, high = -torch.inf if low is None else low, torch.inf if high is None else high
    return [x < min(low, high), x > high]  # a rewritten call may have crossed bounds: then y is high


def in_one_byte(masks: list[Tensor]) -> list[Tensor]:
    """The same masks, computed from one integer for each element: a compiler saves that for backward, and not x or all masks."""
    code = masks[0].to(torch.uint8)
    for bit, mask in enumerate(masks[1:], 1):
        code = code | mask.to(torch.uint8) << bit
    return [(code >> bit & 1).to(torch.bool) for bit in range(len(masks))]


def _expand_bool(value: object, like: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.full_like(like, bool(value))


def _pull_identity(grad: Tensor, x: object, min: object, max: object, *, wants: Wants, **how: object) -> Gradients:
    """x gets grad as it is. If no bound wants a gradient, no input was kept, and x, min and max are None."""
    if not (wants[1] or wants[2]):
        return grad, None, None
    return _make_pull(_identity, ignores_edge=True)(grad, x, min, max, wants=wants, **how)


def _inputs_for_bounds(wants: Wants) -> tuple[str, ...]:
    return BOUNDED if wants[1] or wants[2] else ()


# --- a user's own -----------------------------------------------------------------------------------------------------


def adapt(function: UserFormula, is_linear: bool, scalar_formula: Callable[..., float], /, **row: Any) -> Rule:
    """The row of a user's function(grad, x, y, min, max, **settings), which gives the gradient of x outside.

    `_make_pull` adds the edge and the gradients of the bounds. Half precision is computed in float32, because a formula has several steps.
    """

    def outside(grad: Tensor, below: Tensor, above: Tensor, *others: Bound, settings: Mapping[str, float]) -> Tensor:
        wide = [widened(value) if isinstance(value, Tensor) else value for value in (grad, *others)]
        return torch.where(below | above, function(*wide, **settings), wide[0]).to(grad.dtype)  # type: ignore[arg-type]

    pull, scalar_reference = _make_pull(outside), partial(reference.gradient, scalar_formula)
    return Rule(pull=pull, reference=scalar_reference, is_linear=is_linear, keeps=BOUNDED, is_from_user=True, **row)


def _trial() -> tuple[object, ...]:
    """Arguments for the one call that checks a user's function before it becomes a rule."""
    x = torch.linspace(-2, 2, 5)
    return torch.ones(5), x, x.clamp(-1, 1), -1.0, 1.0


ADAPTER = Adapter(adapt, ("grad", "x", "y", "min", "max"), _trial)

# --- the rows ---------------------------------------------------------------------------------------------------------

RULES: dict[str, Rule] = {}
# Together, because they have to differ for every eye, on white and in print.
_COLOURS = {
    "zero": "#D55E00", "identity": "#E69F00", "inward": "#0072B2", "sign": "#CC79A7",
    "leaky": "#56B4E9", "leaky_inward": "#4B6A9B", "elastic": "#009E73", "inverting": "#7F6A00",
}  # fmt: skip


def _find_room(min: Bound, max: Bound, **_: object) -> Formula:
    low, high = (None if isinstance(bound, Tensor) else bound for bound in (min, max))
    return Formula("room", low, high)


def _rule(name: str, outside: Callable[..., Tensor], **row: Any) -> None:
    pull = _make_pull(outside, bool(row.get("ignores_edge")))
    row = {"pull": pull, "keeps": BOUNDED, "is_long": True, "colour": _COLOURS.get(name, ""), **row}
    RULES[name] = Rule(name=name, reference=partial(reference.gradient, name), **row)


_rule(
    TRUE_RULE,
    _zero,
    formula="0",
    source="the true gradient; torch.clamp",
    is_linear=True,
    sides=lambda: (NOTHING, NOTHING),
    also_called="true gradient, tensorflow-compression's disconnected, clipped straight-through",
    translates="true clamp_with_grad_that_works disconnected clipped_ste native clipped_straight_through",
)
_rule(
    IDENTITY_RULE,
    _identity,
    formula="grad",
    source="straight-through estimator (Bengio, Léonard & Courville, 2013)",
    is_linear=True,
    ignores_edge=True,
    pull=_pull_identity,
    keeps=_inputs_for_bounds,
    sides=lambda: (ALL, ALL),
    is_long=False,
    also_called="straight-through, clamp_ste, preserve-gradient",
    translates="ste straight_through clamp_ste preserve_gradient",
)
_rule(
    DEFAULT_RULE,
    _inward,
    formula="grad, or 0 where a descent step would move x further out",
    source="lucid and tensorflow-compression (2018); ClampWithGrad, VQGAN+CLIP notebooks (K. Crowson, 2021)",
    is_linear=False,
    sides=lambda: INWARD,
    also_called="ClampWithGrad, identity_if_towards, LowerBound, redirected ReLU, conditional integration",
    translates="identity_if_towards clamp_with_grad towards directional redirected",
)
_rule(
    "sign",
    _sign,
    formula="sign(x - y)",
    source="An analysis of clamp_with_grad (J. Halliwell, 2022)",
    is_linear=False,
    sides=lambda: (Constant(-1.0), Constant(1.0)),
    also_called="the article's proposed variant",
    translates="clamp_with_grad_proposed clamp_with_grad2 proposed",
)
_rule(
    LEAKY_RULE,
    _leaky,
    formula="slope * grad",
    source="leaky clamp; lucent's ReLU layers (2020) with slope 0.1",
    is_linear=True,
    parameters={"slope": 0.1},
    sides=lambda slope: (Slope(slope, slope), Slope(slope, slope)),
    also_called="leaky clamp",
    translates="leaky_clamp",
)
_rule(
    LEAKY_INWARD_RULE,
    _leaky_inward,
    formula="low * grad where grad points outward below, high * grad where grad points outward above, else grad",
    source="gradient-preserving clips: GPPO, CE-GPPO (Su et al., 2025)",
    is_linear=False,
    parameters={"low": 0.1, "high": 0.1},
    sides=lambda low, high: (Slope(low, 1.0), Slope(1.0, high)),
    also_called="gradient-preserving clip",
    translates="gradient_preserving gppo ce_gppo",
)
_rule(
    "elastic",
    _elastic,
    formula="grad, or -grad * min(1, |x - y| / (width * (max - min))) where a descent step would move x further out",
    source="new in pseudograd",
    is_linear=False,
    parameters={"width": 1.0},
    sides=lambda width: (Slope(Reversal(width), 1.0), Slope(1.0, Reversal(width))),
    requires=("min", "max"),
)
_rule(
    "inverting",
    _inverting,
    formula="everywhere: grad * (max - x) / (max - min) if grad < 0, else grad * (x - min) / (max - min)",
    source="inverting gradients (Hausknecht & Stone, 2016)",
    is_linear=False,
    ignores_edge=True,
    requires=("min", "max"),
    find_formula=_find_room,
    also_called="inverting gradients",
    translates="inverting_gradients",
)
RULES_OF_ONE_BOUND = {name: row for name, row in RULES.items() if not row.requires}
