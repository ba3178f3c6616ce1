"""A bound beside a number that single precision cannot tell from it."""

from __future__ import annotations

import ast

from pseudograd_notices.code import Code

from ..numbers import number, shown, single
from ..ops import Clamp, Singular, called, clamp_of, may_learn, peeled, singular_of
from ..terms import Term
from ..walk import Spot
from .rule import Rule


def _find(spot: Spot) -> str | None:
    singular = _singular(spot.term)
    if singular is None:
        return None
    for point in singular.points:
        inner, at = peeled(singular.x, point)
        clamp = clamp_of(inner)
        if clamp is None or not clamp.has_eras or _is_double(clamp) or not may_learn(clamp.x):
            continue
        for bound in (clamp.low, clamp.high):
            if bound is not None and (lost := _lost(bound)) is not None and single(lost[0]) == single(at):
                whole, epsilon = lost
                return (
                    f"the bound {bound.text()} of this {clamp.name} is {shown(whole)} in float32, where {singular.shown} has an infinite "
                    f"slope: a value of {shown(whole)} passes; the smallest step beside it is {_step(whole, epsilon):.1e}"
                )
    return None


def _singular(term: Term) -> Singular | None:
    """Also binary_cross_entropy of a probability, which is log(p) and log(1 - p)."""
    call = called(term)
    if call is not None and call.name == "binary_cross_entropy" and call.arguments:
        return Singular(call.name, call.arguments[0], (0.0, 1.0), call.name)
    return singular_of(term)


def _lost(bound: Term) -> tuple[float, float] | None:
    """Of `1 - 1e-8` 1 and the 1e-8 that is not there."""
    node = bound.resolved().node
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Add, ast.Sub)):
        return None
    at = bound.resolved()
    left, right = number(at.of(node.left)), number(at.of(node.right))
    if left is None or right is None or not left or not right:
        return None
    whole, epsilon = (left, right) if abs(left) > abs(right) else (right, left)
    value = number(bound)
    is_lost = value is not None and value != whole and single(value) == single(whole)
    return (whole, epsilon) if is_lost else None


def _step(whole: float, epsilon: float) -> float:
    """From this number to the next one of float32, in the direction that was meant."""
    step = 2.0**-149
    while single(whole - step) == single(whole):
        step *= 2
    return step


def _is_double(clamp: Clamp) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr in ("double", "float64")
        for node in ast.walk(clamp.x.resolved().node)
    )


RULE = Rule(
    Code(
        number="PG103",
        name="lost-epsilon",
        meaning="a bound such as `1 - 1e-8` is the number 1 in float32, and log, acos or a division stands behind it",
        why="The numbers of float32 next to 1 are 6e-8 below and 1.2e-7 above, so `clamp(p, 1e-8, 1 - 1e-8)` "
        "lets a p of exactly 1 through, and "
        "`log(1 - p)` behind it is -inf with a gradient that is not finite. In half precision epsilons are lost below 5e-4, in bfloat16 "
        "below 4e-3.",
        mend="Choose an epsilon that the dtype has: `1 - 1e-6` or more for float32, `torch.finfo(p.dtype).eps` for any; or work with "
        "logits: `binary_cross_entropy_with_logits`, `logsigmoid`, `log_softmax`.",
        bad="""\
import torch


def loss(p, y):
    p = torch.clamp(p, 1e-8, 1 - 1e-8)
    return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()  # PG103
""",
        good="""\
import torch


def loss(p, y):
    p = torch.clamp(p, 1e-6, 1 - 1e-6)
    return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()
""",
        is_default=False,
    ),
    kinds=(ast.Call, ast.BinOp),
    words=("clamp", "clip"),
    find=_find,
)
