"""A guard whose bound is the point that it guards against, where nobody sees a loss."""

from __future__ import annotations

import ast

from pseudograd_notices.code import Code

from ..uses import only_chooses, reaches_loss
from ..walk import Spot
from .era_guard import guard
from .rule import Rule


def _find(spot: Spot) -> str | None:
    message = guard(spot)
    return None if message is None or reaches_loss(spot) or only_chooses(spot) else message


RULE = Rule(
    Code(
        number="PG111",
        name="era-guard-elsewhere",
        meaning="a guard in front of sqrt, log or acos has its bound at the singular point itself, and nobody sees what is made of it",
        why="As PG102, in functions whose value is not followed into a loss: of geometry, of covariances, of a model. Many are never "
        "differentiated, and so this is off by default; a library that promises gradients should ask for it. Told in files that speak "
        "of a loss, a parameter or gradients.",
        mend="As PG102 where a gradient is wanted: a bound beside the singular point, or "
        "`pseudograd.clamp(x, 0, rule='zero', edge='open')`.",
        bad="""\
import torch


def angle(x, y):  # for a loss of somebody else
    return (x * y).sum(-1).clamp(-1, 1).acos()  # PG111
""",
        good="""\
import torch


def angle(x, y):  # for a loss of somebody else
    return (x * y).sum(-1).clamp(-1 + 1e-6, 1 - 1e-6).acos()
""",
        is_default=False,
    ),
    kinds=(ast.Call, ast.BinOp),
    words=("clamp", "clip"),
    find=_find,
)
