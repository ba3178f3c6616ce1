"""A parameter that starts exactly on the bound of its clamp."""

from __future__ import annotations

import ast

from pseudograd_notices.code import Code

from ..numbers import shown, single
from ..ops import clamp_of, is_detached, parameter_of
from ..walk import Spot
from .flat_start import is_only_use
from .rule import Rule


def _find(spot: Spot) -> str | None:
    clamp = clamp_of(spot.term)
    if clamp is None or clamp.in_place or not spot.is_recorded or is_detached(spot.term.node, spot.parents):
        return None
    parameter = parameter_of(clamp.x)
    if parameter is None:
        return None
    for _, value in clamp.bounds():
        if single(value) in parameter.values:
            who = parameter.name if len(parameter.values) == 1 else f"an entry of {parameter.name}"
            start = f"{who} starts at {shown(value)} (line {parameter.line}), exactly on a bound of this {clamp.name}"
            so = ", so it stays" if is_only_use(spot, parameter.name) and len(parameter.values) == 1 else ""
            if clamp.has_eras:
                return f"{start}: torch >= 2.14 passes it no gradient there{so}; torch <= 2.13 passes all of it"
            return f"{start}, which passes it no gradient there on any torch{so}"
    return None


RULE = Rule(
    Code(
        number="PG101",
        name="born-on-bound",
        meaning="a parameter starts exactly on the bound of its own clamp or relu",
        why="Since torch 2.14 a clamp passes no gradient exactly at a number bound, and relu never did at 0. Such a parameter gets none in "
        "the first step, does not move, and so gets none in any later one. torch 2.13 and older pass the "
        "gradient of a clamp there: the same "
        "program trained.",
        mend="Start inside the range, or choose what passes at the bound: `pseudograd.clamp(x, min, max)` passes on every torch what leads "
        "back inside, `pseudograd.pin_edge('torch<=2.13')` keeps the older torch's gradient in code that you do not edit.",
        bad="""\
import torch
from torch import nn


class Polar(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        return x + self.bias.clamp(-6.28, 0.0)  # PG101
""",
        good="""\
import torch
from torch import nn


class Polar(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.bias = nn.Parameter(torch.full((dim,), -0.01))

    def forward(self, x):
        return x + self.bias.clamp(-6.28, 0.0)
""",
    ),
    kinds=(ast.Call,),
    words=("clamp", "clip", "relu", "hardtanh"),
    find=_find,
)
