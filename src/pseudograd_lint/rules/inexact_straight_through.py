"""`x + (hard - x).detach()` of anything but a clamp. An opinion."""

from __future__ import annotations

import ast

from pseudograd_notices.code import Code

from ..ops import called, clamp_of
from ..tensors import moved
from ..walk import Spot
from .inexact_identity import hard_value
from .rule import Rule


def _find(spot: Spot) -> str | None:
    hard = hard_value(spot.term)
    if hard is None or clamp_of(moved(hard)) is not None:
        return None
    call = called(moved(hard))
    if call is not None and call.name == "round":
        return None  # the only one that is exact for every finite x
    return (
        f"the value of this differs from {hard.text() if len(hard.text()) < 40 else 'the hard value'} in "
        f"its last bits, and is NaN where x is infinite"
    )


RULE = Rule(
    Code(
        number="PG153",
        name="inexact-straight-through",
        meaning="`x + (hard - x).detach()` is not exactly the hard value",
        why="`x + (y - x)` is rounded twice: a third of the entries of a code book's vectors differ from the code in float32, and training "
        "sees other values than inference does.",
        mend="`pseudograd.replace_grad(hard, x)` has the value of the first and gives the gradient to the "
        "second, bit for bit; without the library "
        "`hard.detach() + (x - x.detach())` is exact for finite x.",
        bad="""\
import torch


def straight_through(x, code):
    return x + (code - x).detach()  # PG153
""",
        good="""\
import torch


def straight_through(x, code):
    return code.detach() + (x - x.detach())
""",
        is_default=False,
    ),
    kinds=(ast.BinOp,),
    words=("detach", ".data"),
    find=_find,
)
