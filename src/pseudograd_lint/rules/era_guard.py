"""A guard whose bound is the point that it guards against, in a loss."""

from __future__ import annotations

import ast

from pseudograd_notices.code import Code

from ..numbers import shown
from ..ops import clamp_of, is_detached, is_in_place, is_named, may_learn, peeled, singular_of
from ..uses import reaches_loss
from ..walk import Spot
from .rule import Rule

_ANGLES = ("acos", "arccos", "asin", "arcsin")


def _find(spot: Spot) -> str | None:
    message = guard(spot)
    return message if message is not None and reaches_loss(spot) else None


def guard(spot: Spot) -> str | None:
    """What there is to say of it, wherever its value goes."""
    singular = singular_of(spot.term)
    if singular is None or not spot.is_recorded or is_detached(spot.term.node, spot.parents):
        return None
    if singular.name == "div" or is_in_place(spot.term):
        return None  # a number over 0 is infinite, so nothing was guarded; in place no graph was thought of
    if not spot.term.module.speaks_of_gradients or (singular.name in _ANGLES and _is_in_degrees(spot)):
        return None
    for point in singular.points:
        inner, at = peeled(singular.x, point)
        clamp = clamp_of(inner)
        if clamp is None or not clamp.has_eras or not may_learn(clamp.x):
            continue
        for bound, value in clamp.bounds():
            if value == at:
                return (
                    f"the bound {shown(value)} of this {clamp.name} is the point where {singular.shown} has "
                    f"an infinite slope: exactly there "
                    "torch <= 2.13 gives an infinite or NaN gradient and torch >= 2.14 gives 0"
                    + ("" if bound is None else "; a bound just beside it gives a finite one on both")
                )
    return None


def _is_in_degrees(spot: Spot) -> bool:
    """Does the function make an angle that people read? Nothing is trained with it."""
    inside = ast.walk(spot.term.module.function or spot.term.node)
    return any(
        (isinstance(node, ast.Call) and is_named(node, "rad2deg", "degrees"))
        or (isinstance(node, ast.Constant) and node.value in (180, 180.0))
        for node in inside
    )


RULE = Rule(
    Code(
        number="PG102",
        name="era-guard",
        meaning="a guard in front of sqrt, log or acos has its bound at the singular point itself, and a loss is made of it",
        why="The value is guarded, the gradient is not: exactly at the bound the slope of the guarded "
        "function is infinite, and it depends on "
        "the version of torch whether the clamp passes it on (up to 2.13, where it becomes inf or NaN) or cuts it (since 2.14). A distance "
        "of 0, two equal vectors or a black pixel is enough. Told where the value goes, within its file, into what is called a loss.",
        mend="Put the bound beside the singular point: `clamp(min=1e-12).sqrt()`, `clamp(-1 + 1e-6, 1 - 1e-6).acos()`. Where the value at "
        "the point must stay exact, `pseudograd.clamp(x, 0, rule='zero', edge='open')` gives 0 there on every torch.",
        bad="""\
import torch


def distance_loss(x, y):
    return (x - y).pow(2).sum(-1).clamp(min=0).sqrt().mean()  # PG102
""",
        good="""\
import torch


def distance_loss(x, y):
    return (x - y).pow(2).sum(-1).clamp(min=1e-12).sqrt().mean()
""",
    ),
    kinds=(ast.Call, ast.BinOp),
    words=("clamp", "clip"),
    find=_find,
)
