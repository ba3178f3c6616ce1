"""Clamps: with bounds, of lists, between two tensors. The file is long because they share the formulas of their pins."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from ...rule import Gradients, Pull, Wants
from ..conventions import FIRST, Family, Kink, pin, share
from ..eras import CLOSED_ERA, OPEN_ERA
from ..records import (
    CUTS,
    EDGE,
    HALVES,
    MISSING,
    PASSES,
    PASSES_ALL,
    Arrange,
    Arranged,
    Defaults,
    EdgeCase,
    Form,
    X,
    edge_case,
    is_constant,
    only_backward_tells,
    pass_pair,
    stand_in,
)

Bound = float | Tensor | None

# --- with a lower and an upper bound ----------------------------------------------------------------------------------

CLAMP = Family(
    "clamp",
    "a bound; x, the bound",
    number=FIRST,
    torch=CLOSED_ERA,
    since_2_14=OPEN_ERA,
    jax="jax",
    tensorflow="tensorflow",
    notes=("see above", ".5, .5", "1, 0"),
)


def _pull_clamp(
    convention: str, grad: Tensor, x: Tensor, min: Bound, max: Bound, *, y: Tensor, wants: Wants
) -> Gradients:
    if convention == "jax":
        return _pull_clamp_of_jax(grad, x, min, max)
    first = 1.0 if convention == "tensorflow" else float(convention)
    nowhere = torch.zeros((), dtype=torch.bool, device=x.device)
    below = nowhere if min is None else x < min
    above = nowhere if max is None else x > max
    if min is not None and max is not None:
        crossed = max < min
        if not isinstance(crossed, Tensor):
            crossed = torch.full((), crossed, dtype=torch.bool, device=x.device)
        below, above = below & ~crossed, above | crossed
    at_min = nowhere if min is None else (x == min) & ~above
    at_max = nowhere if max is None else (x == max) & ~below & ~at_min
    is_nan = y != y
    # TensorFlow's clip is maximum(minimum(x, max), min), which gives min the grad of an x that is NaN.
    if convention == "tensorflow" and min is not None:
        below, above = below | (x != x), above & (x == x)
    to_bound = share(grad, 1.0 - first)
    to_x = torch.where(below | above | is_nan, 0.0, torch.where(at_min | at_max, share(grad, first), grad))
    to_min = torch.where(below, grad, torch.where(at_min, to_bound, 0.0)) if isinstance(min, Tensor) else None
    to_max = torch.where(above, grad, torch.where(at_max, to_bound, 0.0)) if isinstance(max, Tensor) else None
    return to_x, to_min, to_max


def _pull_clamp_of_jax(grad: Tensor, x: Tensor, min: Bound, max: Bound) -> Gradients:
    """jnp.clip is minimum(maximum(x, min), max)."""
    lifted = x if min is None else torch.where(x < min, min, x)
    if isinstance(min, Tensor):
        lifted = torch.where(min == min, lifted, min)  # a NaN in min comes through
    to_x: Any = grad
    to_min = to_max = None
    if max is not None:
        to_x, to_max = _pull_extreme(True, "jax", to_x, lifted, max)
    if min is not None:
        to_x, to_min = _pull_extreme(False, "jax", to_x, x, min)
    return to_x, to_min if isinstance(min, Tensor) else None, to_max if isinstance(max, Tensor) else None


_CLAMP, _CLAMP_MIN, _CLAMP_MAX = (
    pin(CLAMP, stand_in(f"torch.{name}", forward, "clamp"), _pull_clamp)
    for name, forward in (
        ("clamp", torch.clamp),
        ("clamp_min", lambda x, min, max: torch.clamp_min(x, min)),
        ("clamp_max", lambda x, min, max: torch.clamp_max(x, max)),
    )
)


def _arrange_clamp(x: Tensor, min: object, max: object) -> Arranged | None:
    return None if min is None and max is None else (_CLAMP, (x, min, max))


def _arrange_aten_clamp(x: Tensor, min: object, max: object) -> Arranged | None:
    """aten takes two numbers or two tensors, not one of each as torch.clamp does."""
    kinds = {isinstance(bound, Tensor) for bound in (min, max) if bound is not None}
    return None if len(kinds) == 2 else _arrange_clamp(x, min, max)


def _list_form(name: str, each: str, defaults: Defaults, *switches: str) -> Form:
    node = "Foreach" + "".join(word.capitalize() for word in name.split("_"))
    return Form(f"_foreach_{name}", switches=switches, defaults=defaults, owners=(torch,), each=each, nodes=(node,))


_LIST_AND_BOUND: Defaults = {"input": MISSING, "scalar": MISSING}

# --- between two tensors ----------------------------------------------------------------------------------------------


def _pull_extreme(is_min: bool, convention: str, grad: Tensor, x: Tensor, other: Any, **_: object) -> Gradients:
    """minimum or maximum. NaN: torch gives grad to both, JAX to none, TensorFlow to the second."""
    x_wins, other_wins = (x < other, other < x) if is_min else (x > other, other > x)
    tied = x == other
    if convention == "jax":
        to_x, to_other = torch.where(x_wins, grad, 0.0), torch.where(other_wins, grad, 0.0)
    elif convention == "tensorflow":
        to_x = torch.where(tied | x_wins, grad, 0.0)
        return to_x, torch.where(tied | x_wins, 0.0, grad)
    else:
        to_x, to_other = torch.where(other_wins, 0.0, grad), torch.where(x_wins, 0.0, grad)
    return _share_tie(0.5 if convention == "jax" else float(convention), grad, tied, to_x, to_other)


def _pull_fextreme(
    is_min: bool, convention: str, grad: Tensor, x: Tensor, other: Tensor, *, y: Tensor, wants: Wants
) -> Gradients:
    """fmin or fmax. If one input is NaN, the other gets grad; if both are, x gets it."""
    wins = ((x < other) if is_min else (x > other)) | (other != other)
    to_x, to_other = torch.where(wins, grad, 0.0), torch.where(wins, 0.0, grad)
    return _share_tie(float(convention), grad, x == other, to_x, to_other)


def _share_tie(first: float, grad: Tensor, tied: Tensor, to_x: Tensor, to_other: Tensor) -> Gradients:
    return torch.where(tied, share(grad, first), to_x), torch.where(tied, share(grad, 1.0 - first), to_other)


def _pull_either(pull: Pull, is_min: bool) -> Pull:
    """The pull of minimum(x, other) or maximum: a clamp of the input that wants a gradient, with the other input as its bound. If both want
    one, torch's own gradient.
    """

    def pulled(grad: Tensor, x: Tensor, other: Tensor, *, y: Tensor, wants: Wants, **parameters: object) -> Gradients:
        wants_x, wants_other = wants
        if wants_x and wants_other:
            return _pull_extreme(is_min, "0.5", grad, x, other)
        x, bound = (x, other) if wants_x else (other, x)
        bounds = (None, bound) if is_min else (bound, None)
        grad_x, *_ = pull(grad, x, *bounds, y=y, wants=(True, False, False), **parameters)
        return (grad_x, None) if wants_x else (None, grad_x)

    return pulled


def _arrange_extreme(
    bounded: str, either: str, bound: Literal["min", "max"], x: object, other: object
) -> Arranged | None:
    """A clamp, if one of the two tensors is a constant.

    bounded: the primitive for a constant that comes second. either: the primitive for one that comes first, or if only backward tells which
    one is the constant. bound: whether the constant is the min or the max.
    """
    if not isinstance(x, Tensor) or not isinstance(other, Tensor):
        return None
    if only_backward_tells():
        return either, (x, other)
    if not is_constant(x) and is_constant(other):
        return bounded, ((x, other, None) if bound == "min" else (x, None, other))
    if is_constant(x) and not is_constant(other):
        return either, (x, other)
    return None


_PAIR = ("x", "other")
_TWO: Defaults = {"input": MISSING, "other": None}  # without `other` the name means another function, which torch runs


def _extremes(name: str, function: Callable[..., Tensor], short_name: str, bound: Literal["min", "max"]) -> list[Form]:
    """bound: of the maximum, each input is the min of the other."""
    is_min = bound == "max"
    notes = (".5, .5", ".5, .5; NaN 0, 0", "1, 0; NaN 0, 1")
    ties = Family(name, "a tie", number=FIRST, torch=0.5, jax="jax", tensorflow="tensorflow", notes=notes)
    pair = pin(ties, f"torch.{name} of two", partial(_pull_extreme, is_min), function, _PAIR)
    forward = (lambda x, min, max: function(x, max)) if is_min else (lambda x, min, max: function(x, min))
    bounded = stand_in(f"torch.{name}", forward, "clamp")
    through = partial(_pull_either, is_min=is_min)
    either = stand_in(f"torch.{name} of either order", function, "clamp", _PAIR, through, either_is=bound)
    return [
        Form(
            spelling,
            switches=("clamp",),
            defaults=_TWO,
            overloads=(overload,),
            arrange=partial(_arrange_extreme, bounded, either, bound),
            saved=("self", "other"),
            kink=Kink(ties, pass_pair(pair), example=(0.0, torch.zeros(1)), nodes=(f"{name.capitalize()}Backward",)),
            edge_cases=cases,
        )
        for spelling, overload, cases in (
            (name, "default", (edge_case(f"{name}(x, tensor)", HALVES),)),
            (short_name, "other", ()),
        )
    ]


def _fextreme(name: str, function: Callable[..., Tensor]) -> Form:
    ties = Family(name, "a tie", number=FIRST, torch=1.0, since_2_14=0.5, jax=0.0, notes=("see above", "0, 1", ""))
    pin(ties, f"torch.{name}", partial(_pull_fextreme, name == "fmin"), function, _PAIR)
    return Form(
        name,
        switches=(EDGE,),
        defaults=_TWO,
        arrange=pass_pair(f"torch.{name}"),
        nodes=(name.capitalize(),),
        saved=("self", "other"),
        kink=Kink(ties, example=(0.0, torch.zeros(1))),
        edge_cases=(edge_case(f"{name}(x, tensor)", PASSES_ALL, HALVES),),
    )


def _clamp_form(
    name: str,
    *bounds: str,
    other_name: str = "",
    arrange: Arrange,
    aten_arrange: Arrange | None = None,
    node: str,
    cases: tuple[EdgeCase, ...] = (),
) -> Form:
    return Form(
        name,
        other_name,
        switches=("clamp", EDGE),
        defaults={"input": MISSING, **dict.fromkeys(bounds)},
        overloads=("default", "Tensor"),
        arrange=arrange,
        aten_arrange=aten_arrange,
        nodes=(node,),
        saved=("self", *bounds),
        kink=Kink(CLAMP, example=(0.0, 0.0, 1.0)[: 1 + len(bounds)]),
        edge_cases=cases,
    )


_WITH_NUMBERS = "clamp(x, min=0)", "clamp(x, max=0)", "clip(x, 0, 1)", "x.clamp_(0, 1)", "clamp(x, 0, 0)"
FORMS = [
    _clamp_form(
        "clamp",
        "min",
        "max",
        other_name="clip",
        arrange=_arrange_clamp,
        aten_arrange=_arrange_aten_clamp,
        node="ClampBackward",
        cases=(
            *(edge_case(text, PASSES, CUTS) for text in _WITH_NUMBERS),
            *(edge_case(f"clamp(x, {bound}=tensor)", PASSES_ALL, HALVES) for bound in ("min", "max")),
        ),
    ),
    _clamp_form(
        "clamp_min",
        "min",
        arrange=lambda x, min: None if min is None else (_CLAMP_MIN, (x, min, None)),
        node="ClampMin",
        cases=(edge_case("clamp_min(x, 0)", PASSES, CUTS),),
    ),
    _clamp_form(
        "clamp_max",
        "max",
        arrange=lambda x, max: None if max is None else (_CLAMP_MAX, (x, None, max)),
        node="ClampMax",
    ),
    # No EDGE for maximum and minimum: they share a tie in every era.
    _list_form("clamp_min", "clamp_min", _LIST_AND_BOUND, "clamp", EDGE),
    _list_form("clamp_max", "clamp_max", _LIST_AND_BOUND, "clamp", EDGE),
    _list_form("maximum", "clamp_min", _LIST_AND_BOUND, "clamp"),
    _list_form("minimum", "clamp_max", _LIST_AND_BOUND, "clamp"),
    *(_list_form(name, name, X, "round") for name in ("round", "floor", "ceil", "trunc")),
    _list_form("sign", "sign", X, "sign"),
    *_extremes("maximum", torch.maximum, "max", "min"),
    *_extremes("minimum", torch.minimum, "min", "max"),
    _fextreme("fmax", torch.fmax),
    _fextreme("fmin", torch.fmin),
    # No function of torch: `doctor` compares a clamp that is written with `where`.
    Form("", edge_cases=(edge_case("where(x >= tensor, x, tensor)", PASSES_ALL),)),
]
