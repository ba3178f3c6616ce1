"""A loss of torch with a hidden clamp, whose tie is where its inputs are equal."""

from __future__ import annotations

import ast

from pseudograd_notices.code import Code

from ..numbers import number
from ..ops import has_rest
from ..walk import Spot
from .rule import Rule

# Of each loss: where margin stands among its arguments, its default, and what a tie is at a margin of 0. The default is None
# where it is left alone:
# orthogonal vectors are rare, and with targets of 1 alone no clamp is used.
_LOSSES: dict[str, tuple[int, float | None, str]] = {
    "margin_ranking_loss": (3, 0.0, "two equal scores"),
    "MarginRankingLoss": (0, 0.0, "two equal scores"),
    "cosine_embedding_loss": (3, None, "two orthogonal vectors"),
    "CosineEmbeddingLoss": (0, None, "two orthogonal vectors"),
    "hinge_embedding_loss": (2, 1.0, "a distance of 0"),
    "HingeEmbeddingLoss": (0, 1.0, "a distance of 0"),
    "triplet_margin_loss": (3, 1.0, "two equal distances"),
    "TripletMarginLoss": (0, 1.0, "two equal distances"),
}


def _find(spot: Spot) -> str | None:
    node = spot.term.node
    assert isinstance(node, ast.Call)
    full = spot.term.module.dotted(node.func, spot.term.env) or ""
    name = full.rpartition(".")[2]
    if not full.startswith("torch.") or name not in _LOSSES or has_rest(node):
        return None
    at, default, tie = _LOSSES[name]
    given = (
        node.args[at]
        if len(node.args) > at
        else next((one.value for one in node.keywords if one.arg == "margin"), None)
    )
    margin = default if given is None else number(spot.term.of(given))
    if margin != 0:
        return None
    return (
        f"with a margin of 0 {tie} are a tie of the clamp inside {name}, where torch <= 2.13 gives a gradient and torch >= 2.14 gives 0: "
        "scores that start equal never train"
    )


RULE = Rule(
    Code(
        number="PG106",
        name="tied-margin",
        meaning="a margin loss of torch has a margin of 0, so that equal scores are a tie",
        why="`margin_ranking_loss` hides a clamp. At a tie torch up to 2.13 passes the gradient of 1 and "
        "torch since 2.14 passes 0. A scorer whose "
        "last layer starts at zeros gives equal scores: on torch 2.15 it never trains, on 2.13 it does.",
        mend="Give a margin above 0, or a smooth loss: `-F.logsigmoid(y * (a - b)).mean()`.",
        bad="""\
import torch.nn.functional as F


def loss(better, worse, y):
    return F.margin_ranking_loss(better, worse, y)  # PG106
""",
        good="""\
import torch.nn.functional as F


def loss(better, worse, y):
    return F.margin_ranking_loss(better, worse, y, margin=0.1)
""",
        is_default=False,
    ),
    kinds=(ast.Call,),
    words=("argin", "mbedding"),
    find=_find,
)
