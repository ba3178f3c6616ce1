"""A clamp of rounded values. An opinion."""

from __future__ import annotations

import ast

from pseudograd_notices.code import Code

from ..ops import called, clamp_of, is_detached, may_learn, peeled
from ..tensors import moved
from ..terms import Term
from ..walk import Spot
from .inexact_identity import hard_value
from .rule import Rule


def _find(spot: Spot) -> str | None:
    clamp = clamp_of(spot.term)
    if clamp is None or not clamp.has_eras or not spot.is_recorded or is_detached(spot.term.node, spot.parents):
        return None
    if not _is_on_a_grid(clamp.x) or not may_learn(clamp.x):
        return None
    return (
        f"rounded values stand exactly on the bounds of this {clamp.name} often, and there torch <= 2.13 "
        f"passes the gradient and torch >= 2.14 "
        "passes none"
    )


def _is_on_a_grid(x: Term, depth: int = 6) -> bool:
    """A round with a gradient of its own, or the sum of one and an offset; a plain round passes nothing on any torch."""
    inner, _ = peeled(x, 0.0)
    node = inner.node
    hard = hard_value(inner)
    if hard is not None:
        call = called(moved(hard))
        return call is not None and call.name == "round"
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        return depth > 0 and any(_is_on_a_grid(inner.of(one), depth - 1) for one in (node.left, node.right))
    if not isinstance(node, ast.Call):
        return False
    call = called(inner)
    if call is not None and call.name == "round":
        return False
    func = node.func
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    owner = (
        func.value.id
        if isinstance(func, ast.Attribute) and name == "apply" and isinstance(func.value, ast.Name)
        else ""
    )
    return "round" in name.lower() or "round" in owner.lower()


RULE = Rule(
    Code(
        number="PG152",
        name="clamped-grid",
        meaning="rounded values are clamped, so that many stand exactly on a bound",
        why="With 2 bits a third or more of the values are on a bound of the grid. torch 2.14 stopped their "
        "gradient: some quantised trainings "
        "diverge with it and some end better.",
        mend="Try both: `pseudograd.pin_edge('torch<=2.13')` and 'torch>=2.14'. `pseudograd.fake_quantize` is "
        "the whole quantiser, with the rule "
        "and the edge that you choose.",
        bad="""\
import torch


def round_ste(x):
    return x + (torch.round(x) - x).detach()


def quantize(x, scale):
    return torch.clamp(round_ste(x / scale), -2, 1) * scale  # PG152
""",
        good="""\
import torch


def round_ste(x):
    return x + (torch.round(x) - x).detach()


def quantize(x, scale):
    return round_ste(torch.clamp(x / scale, -2.4, 1.4)) * scale
""",
        is_default=False,
    ),
    kinds=(ast.Call,),
    words=("clamp", "clip"),
    find=_find,
)
