"""A clamp whose range is empty or one point."""

from __future__ import annotations

import ast

from pseudograd_notices.code import Code

from ..numbers import number, shown
from ..ops import clamp_of
from ..walk import Spot
from .rule import Rule


def _find(spot: Spot) -> str | None:
    clamp = clamp_of(spot.term)
    if clamp is None or clamp.low is None or clamp.high is None:
        return None
    low, high = number(clamp.low), number(clamp.high)
    if low is None or high is None or low < high:
        return None
    if low == high:
        return f"both bounds of this {clamp.name} are {shown(low)}: the result is that number, whatever goes in, and no gradient passes"
    return f"min is {shown(low)} and max is {shown(high)}: the result of this {clamp.name} is {shown(high)}, whatever goes in"


RULE = Rule(
    Code(
        number="PG110",
        name="crossed-bounds",
        meaning="the min of a clamp is not below its max",
        why="torch.clamp gives max everywhere where min exceeds max, without an error: the result is "
        "constant, and nothing learns through it.",
        mend="Swap the bounds, or drop the clamp. `pseudograd.clamp` raises an error.",
        bad="""\
import torch


def bounded(x):
    return torch.clamp(x, 1.0, -1.0)  # PG110
""",
        good="""\
import torch


def bounded(x):
    return torch.clamp(x, -1.0, 1.0)
""",
        is_default=False,
    ),
    kinds=(ast.Call,),
    words=("clamp", "clip", "hardtanh"),
    find=_find,
)
