"""Pinned edges: the gradients of torch's own clamps in an era, element for element; or with a chosen edge, and those of an era elsewhere.

A pinned edge is a rule that is made when somebody first asks for it. In forward mode it has the slope of the backward. (torch 2.13's own
fmax has two different slopes at a tie.)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..geometry import ALL_TO_MIN, ALL_TO_X, SHARES, Pieces, Split, mirror, pieces_of_numbers, replace_edge
from ..rule import BOUNDED, PRIMITIVES, Gradients, RangePieces, Rule, Wants, register
from ..torch_table.conventions import measured_rule, share
from ..torch_table.eras import ERAS, Era, pieces_of_min
from ..torch_table.forms import EDGE_FAMILIES, FAMILIES


class Pin(NamedTuple):
    """part: the part of grad that x gets at a bound; None for what the era gives. era: its formula gives the gradient elsewhere."""

    part: float | None
    era: Era


# --- as geometry, which kernels read; a test compares it with the formulas below --------------------------------------


# Two functions for `Rule.find_range`: the bounds of x, and the split of grad in each region.


def _find_range(pieces: Callable[[bool, bool], Pieces], min: object, max: object) -> RangePieces:
    return min, max, pieces(min is not None, max is not None)


def _find_range_of_pair(is_min: bool, part: float, other: object) -> RangePieces:
    pieces = _pieces_of_pair(is_min, part)
    return (None, other, pieces) if is_min else (other, None, pieces)


_pieces_of_numbers = lru_cache(maxsize=64)(pieces_of_numbers)


@lru_cache(maxsize=64)
def _pieces_of_tensors(pin: Pin, has_min: bool, has_max: bool) -> Pieces:
    if has_min and has_max:
        return pin.era.pieces_of_bounds if pin.part is None else replace_edge(pin.era.pieces_of_bounds, pin.part)
    pieces = pin.era.pieces_of_min_alone
    if pin.part is not None:
        at = Split(pin.part, min=1.0 - pin.part)
        pieces = pieces._replace(at_min=at, at_point=at)
    return pieces if has_min else mirror(pieces)


@lru_cache(maxsize=64)
def _pieces_of_pair(is_min: bool, part: float) -> Pieces:
    """The pieces of fmin or fmax. If one input is NaN, the other gets grad; if both are, x gets it."""
    pieces = pieces_of_min(ALL_TO_MIN, Split(part, min=1.0 - part), ALL_TO_X, nan=ALL_TO_MIN, bound_nan=ALL_TO_X)
    return mirror(pieces) if is_min else pieces


# --- as formulas ------------------------------------------------------------------------------------------------------


def _pull_of_numbers(part: float, grad: Tensor, x: Tensor, min: Any, max: Any, *, y: Tensor, wants: Wants) -> Gradients:
    """x at a bound gets this part of grad. Elsewhere all eras have the same gradient; NaN gets 0."""
    inside = (x > min) if max is None else (x < max) if min is None else (x > min) & (x < max)
    if part == 0.0:
        return torch.where(inside, grad, 0.0), None, None
    within = (x >= min) if max is None else (x <= max) if min is None else (x >= min) & (x <= max)
    at_bound = torch.where(within, share(grad, part), 0.0)
    return (at_bound if part == 1.0 else torch.where(inside, grad, at_bound)), None, None


def _pull_of_tensors(
    pin: Pin, grad: Tensor, x: Tensor, min: Tensor | None, max: Tensor | None, *, wants: Wants
) -> Gradients:
    """The inputs keep their dtypes: torch promotes two of three at a time in its backward, and all three in its forward."""
    grads = pin.era.of_tensors(grad, x, min, max)
    if pin.part is None:
        return grads
    nowhere = torch.zeros((), dtype=torch.bool, device=grad.device)
    at_min = nowhere if min is None else x == min
    at_max = nowhere if max is None else x == max
    if min is not None and max is not None:  # where bounds are crossed, both eras replace x
        is_in_order = min <= max
        at_min, at_max = at_min & is_in_order, at_max & is_in_order
    to_x, to_bound = share(grad, pin.part), share(grad, 1.0 - pin.part)
    grad_x, grad_min, grad_max = grads
    assert grad_x is not None
    grad_x = torch.where(at_min | at_max, to_x, grad_x)
    grad_min = None if grad_min is None else torch.where(at_min, to_bound, torch.where(at_max, 0.0, grad_min))
    grad_max = None if grad_max is None else torch.where(at_min, 0.0, torch.where(at_max, to_bound, grad_max))
    return grad_x, grad_min, grad_max


# --- the rules --------------------------------------------------------------------------------------------------------

OF_NUMBERS: dict[str, Rule] = {}
OF_TENSORS: dict[str, Rule] = {}
OF_PAIRS: dict[str, dict[str, Rule]] = {}  # by the family: fmin, fmax
# By the name of a primitive: the two primitives that stand in under a pinned edge, with number bounds and with tensor bounds.
PINNED: dict[str, tuple[str, str]] = {}


def rule_named(edge: str, elsewhere: str) -> str:
    """Make the rules of a pinned edge and return their name. edge: an era; or an edge, with the era `elsewhere` for all other points."""
    if edge in ERAS:
        name, pin = f"zero/{edge}", Pin(None, ERAS[edge])
    else:
        name, pin = f"zero/{edge}, elsewhere {elsewhere}", Pin(SHARES[edge], ERAS[elsewhere])
    if name in OF_NUMBERS:
        return name
    part = SHARES[pin.era.edge] if pin.part is None else pin.part
    find_range: Any = partial(_find_range, partial(_pieces_of_numbers, part))
    OF_NUMBERS[name] = measured_rule(name, partial(_pull_of_numbers, part), BOUNDED, find_range=find_range)
    pull: Any = partial(_pull_of_tensors, pin)
    find_range = partial(_find_range, partial(_pieces_of_tensors, pin))
    OF_TENSORS[name] = measured_rule(name, pull, BOUNDED, compares=False, find_range=find_range)
    part = pin.era.share_in_fmax if pin.part is None else pin.part
    for family, rules in OF_PAIRS.items():
        ((pull_of_family, _),) = FAMILIES[family].pinned.values()
        find_range = partial(_find_range_of_pair, family == "fmin", part)
        rules[name] = measured_rule(name, partial(pull_of_family, str(part)), ("x", "other"), find_range=find_range)
    return name


# For each primitive of a family that an edge pins: one or two primitives with names of their own, which have the rules of pinned edges.
for _family in sorted(EDGE_FAMILIES):
    for _pinned in FAMILIES[_family].pinned:
        _primitive, _name = PRIMITIVES[_pinned], _pinned.removesuffix(", pinned")
        if _primitive.inputs == BOUNDED:
            _primitive = PRIMITIVES[_name].replaced(edges=(), rule_set="", default_edge=None)
            _kinds = {"numbers": OF_NUMBERS, "tensors": OF_TENSORS}
        else:
            _kinds = {"tensors": OF_PAIRS.setdefault(_family, {})}
        _names = [
            register(_primitive.replaced(name=f"{_name}, pinned edge of {kind}", rules=rules)).name
            for kind, rules in _kinds.items()
        ]
        PINNED[_name] = _names[0], _names[-1]


def pinned_edge(name: str, inputs: tuple[object, ...]) -> str | None:
    """The primitive that stands in for `name` under a pinned edge, for number bounds or for tensor bounds. None if there is none."""
    names = PINNED.get(name)
    if names is None:
        return None
    with_numbers, with_tensors = names
    for value in inputs[1:]:
        if value is not None and not isinstance(value, torch.Tensor):
            return with_numbers
    return with_tensors
