"""A clamp of a parameter in the forward. An opinion."""

from __future__ import annotations

import ast

from pseudograd_notices.code import Code

from ..ops import clamp_of, is_detached, parameter_of
from ..walk import Spot
from .rule import Rule


def _find(spot: Spot) -> str | None:
    clamp = clamp_of(spot.term)
    if (
        clamp is None
        or not clamp.has_eras
        or clamp.in_place
        or not spot.is_recorded
        or is_detached(spot.term.node, spot.parents)
    ):
        return None
    parameter = parameter_of(clamp.x)
    if parameter is None:
        return None
    return f"once outside its bounds {parameter.name} gets no gradient from this {clamp.name}: at most weight decay leads it back"


RULE = Rule(
    Code(
        number="PG151",
        name="clamped-parameter",
        meaning="a parameter is clamped in the forward",
        why="An entry that a step carries outside gets the gradient 0 and does not come back by itself.",
        mend="Clip the parameter after each step, `pseudograd.optim.project(optimizer, {p: (min, max)})`, which was among the best in all "
        "measured problems; or `pseudograd.clamp`, whose gradient leads back inside.",
        bad="""\
import torch
from torch import nn


class Leak(nn.Module):
    def __init__(self):
        super().__init__()
        self.beta = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return x * self.beta.clamp(0, 1)  # PG151
""",
        good="""\
import torch
from torch import nn


class Leak(nn.Module):
    def __init__(self):
        super().__init__()
        self.beta = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return x * torch.sigmoid(self.beta)
""",
        is_default=False,
    ),
    kinds=(ast.Call,),
    words=("Parameter", "requires_grad"),
    find=_find,
)
