"""A step function of a parameter, with nothing that lets a gradient past."""

from __future__ import annotations

import ast

from pseudograd_notices.code import Code

from ..ops import called, is_detached, parameter_of
from ..walk import Spot
from .inexact_identity import hard_value
from .rule import Rule

_STEPS = frozenset(["round", "floor", "ceil", "trunc", "sign", "fix", "heaviside", "sgn"])


def _find(spot: Spot) -> str | None:
    call = called(spot.term)
    if call is None or call.name not in _STEPS or not call.arguments or call.in_place or not spot.is_recorded:
        return None
    parameter = parameter_of(call.arguments[0])
    if parameter is None or is_detached(spot.term.node, spot.parents):
        return None
    if any(isinstance(parent, ast.BinOp) and hard_value(spot.term.of(parent)) is not None for parent in spot.parents):
        return None
    return f"the gradient of {call.name} is 0 everywhere: {parameter.name} learns nothing through it"


RULE = Rule(
    Code(
        number="PG109",
        name="rounded-parameter",
        meaning="a round, floor or sign of a parameter stands in a forward with nothing that passes its gradient",
        why="The slope of a step is 0 wherever it has one, so the parameter gets zeros for ever, without an error.",
        mend="`pseudograd.round(p)` and `pseudograd.sign(p)` pass the gradient, by the rule that you choose; or freeze the parameter.",
        bad="""\
import torch
from torch import nn


class Quantised(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim))

    def forward(self, x):
        return x * torch.round(self.weight)  # PG109
""",
        good="""\
import torch
from torch import nn


class Quantised(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim))

    def forward(self, x):
        return x * (self.weight + (torch.round(self.weight) - self.weight).detach())
""",
        is_default=False,
    ),
    kinds=(ast.Call,),
    words=("Parameter", "requires_grad"),
    find=_find,
)
