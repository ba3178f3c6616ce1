"""`x + (clamp(x) - x).detach()`: the gradient of x, and not quite the value of the clamp."""

from __future__ import annotations

import ast

from pseudograd_notices.code import Code

from ..ops import called, clamp_of
from ..tensors import moved
from ..terms import Term, is_same
from ..walk import Spot
from .rule import Rule


def hard_value(term: Term) -> Term | None:
    """Of `x + (y - x).detach()`, in any order, y; also of `x - (x - y).detach()`."""
    node = term.node
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Add, ast.Sub)):
        return None
    is_sum = isinstance(node.op, ast.Add)
    pairs = [(node.left, node.right), *([(node.right, node.left)] if is_sum else [])]
    for x, other in pairs:
        inner = _detached(term.of(other))
        if inner is None or not isinstance(inner.node, ast.BinOp) or not isinstance(inner.node.op, ast.Sub):
            continue
        y, taken = (inner.node.left, inner.node.right) if is_sum else (inner.node.right, inner.node.left)
        if is_same(x, taken):
            return inner.of(y)
    return None


def _detached(term: Term) -> Term | None:
    term = term.resolved()
    if isinstance(term.node, ast.Attribute) and term.node.attr == "data":
        return term.of(term.node.value).resolved()
    call = called(term)
    return call.arguments[0].resolved() if call is not None and call.name == "detach" and call.arguments else None


def _find(spot: Spot) -> str | None:
    hard = hard_value(spot.term)
    if hard is None:
        return None
    clamp = clamp_of(moved(hard))
    if clamp is None:
        return None
    return (
        f"the value of this is not that of its {clamp.name}: x + (y - x) is rounded twice, so that results lie beside the bound, and an x "
        "that is far outside or infinite gives 0 or NaN"
    )


RULE = Rule(
    Code(
        number="PG105",
        name="inexact-identity",
        meaning="`x + (clamp(x) - x).detach()` gives the gradient of x, and a value that is not that of the clamp",
        why="`x + (y - x)` is rounded twice. With the bounds -0.3 and 0.7 four of five clamped float32 values "
        "lie beside the bound, some outside "
        "the range that was promised, for a large x the result is 0, and for an infinite one NaN.",
        mend="`pseudograd.clamp(x, min, max, rule='identity')` has the value of torch.clamp bit for bit and the same gradient. Without the "
        "library: `y.detach() + (x - x.detach())` is exact for finite x.",
        bad="""\
import torch


def clamp_ste(x):
    return x + (torch.clamp(x, -0.3, 0.7) - x).detach()  # PG105
""",
        good="""\
import torch


def clamp_ste(x):
    return torch.clamp(x, -0.3, 0.7).detach() + (x - x.detach())
""",
    ),
    kinds=(ast.BinOp,),
    words=("detach", ".data"),
    find=_find,
)
