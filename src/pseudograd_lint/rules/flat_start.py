"""A parameter that starts at 0, where what is made of it is flat."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from pseudograd_notices.code import Code

from ..numbers import number
from ..ops import called, is_detached, parameter_of
from ..quiet import QUIET_FUNCTIONS
from ..terms import Term, is_same, key_of
from ..walk import Spot
from .rule import Rule

_SUMS = frozenset(["sum", "mean", "norm", "max", "min", "amax", "amin", "item", "all", "any", "backward"])


def _find(spot: Spot) -> str | None:
    if not spot.is_recorded or is_detached(spot.term.node, spot.parents) or _is_penalty(spot):
        return None
    found = _flat(spot.term)
    if found is None:
        return None
    what, x, does = found
    parameter = parameter_of(x)
    if (
        parameter is None
        or parameter.values != frozenset({0.0})
        or not is_only_use(spot, parameter.name, 2 if _is_square(spot.term) else 1)
    ):
        return None
    return f"{parameter.name} starts at 0 (line {parameter.line}), where {what} {does}"


def _flat(term: Term) -> tuple[str, Term, str] | None:
    never = "has the slope 0: it gets no gradient from here, and stays"
    node = term.node
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Pow) and number(term.of(node.right)) in (2, 3, 4):
            return "its power", term.of(node.left), never
        if isinstance(node.op, ast.Mult) and is_same(node.left, node.right):
            return "its square", term.of(node.left), never
        return None
    call = called(term)
    if call is None or not call.arguments:
        return None
    if call.name in ("abs", "absolute", "square"):
        return call.name, call.arguments[0], never
    if call.name == "pow" and number(call.argument(1, "exponent")) in (2, 3, 4):
        return "its power", call.arguments[0], never
    if call.name in ("sqrt", "rsqrt", "log"):
        return call.name, call.arguments[0], "has an infinite slope: the first step makes it NaN"
    return None


def _is_square(term: Term) -> bool:
    return isinstance(term.node, ast.BinOp) and isinstance(term.node.op, ast.Mult)


def is_only_use(spot: Spot, name: str, count: int = 1) -> bool:
    """Is a parameter read nowhere else in its class, apart from where it is made? Elsewhere it may get a gradient."""
    if spot.owner is None or not name.startswith("self."):
        return True
    known = spot.term.module.reads
    if id(spot.owner) not in known:
        known[id(spot.owner)] = Counter(_reads(spot.owner))
    return known[id(spot.owner)][name] <= count


def _reads(owner: ast.ClassDef) -> Iterator[str]:
    for method in owner.body:
        if isinstance(method, ast.FunctionDef) and method.name not in QUIET_FUNCTIONS:
            for node in ast.walk(method):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and (key := key_of(node)):
                    yield key


def _is_penalty(spot: Spot) -> bool:
    """`p.abs().sum()` is to be 0 there."""
    for parent in reversed(spot.parents):
        if isinstance(parent, ast.Attribute) and parent.attr in _SUMS:
            return True
        if isinstance(parent, ast.Call):
            name = parent.func.attr if isinstance(parent.func, ast.Attribute) else getattr(parent.func, "id", "")
            if name in _SUMS:
                return True
    return False


RULE = Rule(
    Code(
        number="PG107",
        name="flat-start",
        meaning="a parameter starts at 0, where the abs, square or root that is made of it has no slope to leave by",
        why="The slope of abs and of a square at 0 is 0, so a gain `abs(p)` or `p ** 2` of a p that starts at "
        "zeros gets no gradient in the "
        "first step and in none that follows. The slope of a root at 0 is infinite.",
        mend="Start beside 0, or use what has a slope there: `softplus(p)`, `exp(p)`; `pseudograd.abs(p, "
        "edge=1.0)` chooses the slope at 0.",
        bad="""\
import torch
from torch import nn


class Gain(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        return x * self.gain.abs()  # PG107
""",
        good="""\
import torch
from torch import nn
from torch.nn import functional as F


class Gain(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        return x * F.softplus(self.gain)
""",
        is_default=False,
    ),
    kinds=(ast.Call, ast.BinOp),
    words=("Parameter", "requires_grad"),
    find=_find,
)
