"""Rules about forms that people copy: straight-through sums, clamps of a grid, margins of 0, classes of old notebooks.

The rules of one kind are one file, since `lint` imports all of them at every start.
"""

from __future__ import annotations

import ast

from pseudograd_notices.code import Code

from ..calls import has_rest, may_learn, read_call, read_clamp, strip_arithmetic
from ..quiet import is_function_of_autograd
from ..terms import Term, find_keyword, is_same, last_name
from ..values import format_number, number, strip_moves
from ..walk import Rule, Spot

# --- x + (y - x).detach() ---------------------------------------------------------------------------------------------


def hard_value(term: Term) -> Term | None:
    """Of `x + (y - x).detach()`, in any order, y; also of `x - (x - y).detach()`."""
    node = term.node
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Add, ast.Sub)):
        return None
    is_sum = isinstance(node.op, ast.Add)
    for x, other in [(node.left, node.right), *([(node.right, node.left)] if is_sum else [])]:
        inner = _detached(term.part(other))
        if inner is None or not isinstance(inner.node, ast.BinOp) or not isinstance(inner.node.op, ast.Sub):
            continue
        y, subtracted = (inner.node.left, inner.node.right) if is_sum else (inner.node.right, inner.node.left)
        if is_same(x, subtracted):
            return inner.part(y)
    return None


def _detached(term: Term) -> Term | None:
    term = term.resolved()
    if isinstance(term.node, ast.Attribute) and term.node.attr == "data":
        return term.part(term.node.value).resolved()
    call = read_call(term)
    return call.arguments[0].resolved() if call is not None and call.name == "detach" and call.arguments else None


def _find_inexact_identity(spot: Spot) -> str | None:
    hard = hard_value(spot.term)
    clamp = None if hard is None else read_clamp(strip_moves(hard))
    if clamp is None:
        return None
    return (
        f"the value of this is not that of its {clamp.name}: x + (y - x) is rounded twice, so that results lie beside the bound, and an x "
        "that is far outside or infinite gives 0 or NaN"
    )


INEXACT_IDENTITY = Rule(
    Code(
        number="PG105",
        name="inexact-identity",
        meaning="`x + (clamp(x) - x).detach()` gives the gradient of x, and a value that is not that of the clamp",
        why="`x + (y - x)` is rounded twice. With the bounds -0.3 and 0.7 four of five clamped float32 values lie "
        "beside the bound, some outside the range that was promised, for a large x the result is 0, and for an "
        "infinite one NaN.",
        mend="`pseudograd.clamp(x, min, max, rule='identity')` has the value of torch.clamp bit for bit and the same "
        "gradient. Without the library: `y.detach() + (x - x.detach())` is exact for finite x.",
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
    find=_find_inexact_identity,
)


def _find_inexact_straight_through(spot: Spot) -> str | None:
    hard = hard_value(spot.term)
    if hard is None or read_clamp(strip_moves(hard)) is not None:
        return None
    call = read_call(strip_moves(hard))
    if call is not None and call.name == "round":
        return None  # the only one that is exact for every finite x
    text = hard.text()
    return f"the value of this differs from {text if len(text) < 40 else 'the hard value'} in its last bits, and is NaN where x is infinite"


INEXACT_STRAIGHT_THROUGH = Rule(
    Code(
        number="PG153",
        name="inexact-straight-through",
        meaning="`x + (hard - x).detach()` is not exactly the hard value",
        why="`x + (y - x)` is rounded twice: a third of the entries of a code book's vectors differ from the code in "
        "float32, and training sees other values than inference does.",
        mend="`pseudograd.replace_grad(hard, x)` has the value of the first and gives the gradient to the second, bit "
        "for bit; without the library `hard.detach() + (x - x.detach())` is exact for finite x.",
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
    find=_find_inexact_straight_through,
)


def _find_clamped_grid(spot: Spot) -> str | None:
    clamp = read_clamp(spot.term)
    if (
        clamp is None
        or not clamp.has_eras
        or not spot.is_trained
        or not _is_on_a_grid(clamp.x)
        or not may_learn(clamp.x)
    ):
        return None
    return (
        f"rounded values stand exactly on the bounds of this {clamp.name} often, and there torch <= 2.13 passes the gradient and "
        "torch >= 2.14 passes none"
    )


def _is_on_a_grid(x: Term, depth: int = 6) -> bool:
    """A round with a gradient of its own, or the sum of one and an offset; a plain round passes nothing on any torch."""
    inner, _ = strip_arithmetic(x, 0.0)
    node = inner.node
    hard = hard_value(inner)
    if hard is not None:
        call = read_call(strip_moves(hard))
        return call is not None and call.name == "round"
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        return depth > 0 and any(_is_on_a_grid(inner.part(side), depth - 1) for side in (node.left, node.right))
    call = read_call(inner)
    if not isinstance(node, ast.Call) or (call is not None and call.name == "round"):
        return False
    name = last_name(node)
    if name == "apply" and isinstance(node.func, ast.Attribute):  # of a class
        name = last_name(node.func.value)
    return "round" in name.lower()


CLAMPED_GRID = Rule(
    Code(
        number="PG152",
        name="clamped-grid",
        meaning="rounded values are clamped, so that many stand exactly on a bound",
        why="With 2 bits a third or more of the values are on a bound of the grid. torch 2.14 stopped their "
        "gradient: some quantised trainings diverge with it and some end better.",
        mend="Try both: `pseudograd.pin_edge('torch<=2.13')` and 'torch>=2.14'. `pseudograd.fake_quantize` is the "
        "whole quantiser, with the rule and the edge that you choose.",
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
    find=_find_clamped_grid,
)


# --- arguments --------------------------------------------------------------------------------------------------------


def _find_crossed_bounds(spot: Spot) -> str | None:
    clamp = read_clamp(spot.term)
    low, high = (None, None) if clamp is None else (number(clamp.low), number(clamp.high))
    if clamp is None or low is None or high is None or low < high:
        return None
    limit = format_number(high)
    if low == high:
        return f"both bounds of this {clamp.name} are {limit}: the result is that number, whatever goes in, and no gradient passes"
    return (
        f"min is {format_number(low)} and max is {limit}: the result of this {clamp.name} is {limit}, whatever goes in"
    )


CROSSED_BOUNDS = Rule(
    Code(
        number="PG110",
        name="crossed-bounds",
        meaning="the min of a clamp is not below its max",
        why="torch.clamp gives max everywhere where min exceeds max, without an error: the result is constant, and "
        "nothing learns through it.",
        mend="Swap the bounds, or drop the clamp. `pseudograd.clamp` raises an error.",
        bad="""\
import torch


def bounded(x):
    return torch.clamp(x, 1.0, -1.0)  # PG110
""",
        good="""\
import torch


def bounded(x):
    return torch.clamp(x, -1.0, 1.0)
""",
        is_default=False,
    ),
    kinds=(ast.Call,),
    words=("clamp", "clip", "hardtanh"),
    find=_find_crossed_bounds,
)


# Of each loss: where margin stands among its arguments, its default, and what a tie is at a margin of 0. The default is None where the loss
# is left alone: orthogonal vectors are rare, and with targets of 1 alone no clamp is used.
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


def _find_tied_margin(spot: Spot) -> str | None:
    node, name = spot.term.node, spot.term.full_name()
    loss = name.rpartition(".")[2]
    if not isinstance(node, ast.Call) or not name.startswith("torch.") or loss not in _LOSSES or has_rest(node):
        return None
    position, default, tie = _LOSSES[loss]
    margin = node.args[position] if len(node.args) > position else find_keyword(node, "margin")
    if (default if margin is None else number(spot.term.part(margin))) != 0:
        return None
    return (
        f"with a margin of 0 {tie} are a tie of the clamp inside {loss}, where torch <= 2.13 gives a gradient and torch >= 2.14 gives 0: "
        "scores that start equal never train"
    )


TIED_MARGIN = Rule(
    Code(
        number="PG106",
        name="tied-margin",
        meaning="a margin loss of torch has a margin of 0, so that equal scores are a tie",
        why="`margin_ranking_loss` hides a clamp. At a tie torch up to 2.13 passes the gradient of 1 and torch since "
        "2.14 passes 0. A scorer whose last layer starts at zeros gives equal scores: on torch 2.15 it never "
        "trains, on 2.13 it does.",
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
    find=_find_tied_margin,
)


# --- classes ----------------------------------------------------------------------------------------------------------


def _find_copied_rule(spot: Spot) -> str | None:
    """A hint by the text of the class; `audit` and `migrate` measure."""
    node = spot.term.node
    if not is_function_of_autograd(node, spot.term.module):
        return None
    methods = {method.name: method for method in ast.walk(node) if isinstance(method, ast.FunctionDef)}
    forward, backward = methods.get("forward"), methods.get("backward")
    if forward is None or backward is None or len(backward.args.args) < 2:
        return None
    gradient = backward.args.args[1].arg
    clamps = _calls(forward) & {"clamp", "clip", "max", "maximum", "min", "minimum"}
    compares_gradient = any(
        isinstance(test.comparators[0], ast.Constant)
        and test.comparators[0].value == 0
        and gradient in _names(test.left)
        for test in ast.walk(backward)
        if isinstance(test, ast.Compare)
    )
    returns = [line.value for line in ast.walk(forward) if isinstance(line, ast.Return)]
    is_replaced = [ast.unparse(value) for value in returns if value] == [
        argument.arg for argument in forward.args.args[1:2]
    ]
    if (clamps and compares_gradient) or (is_replaced and "sum_to_size" in _calls(backward)):
        name = getattr(node, "name", "")
        return (
            f"{name} looks like a copy of ClampWithGrad, LowerBound or ReplaceGrad, which pseudograd has, under torch.func and "
            f"torch.compile too: `pseudograd audit MODULE:{name}` measures which rule it is, and `pseudograd migrate` replaces it"
        )
    return None


def _calls(root: ast.AST) -> set[str]:
    return {last_name(node) for node in ast.walk(root) if isinstance(node, ast.Call)}


def _names(root: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(root) if isinstance(node, ast.Name)}


COPIED_RULE = Rule(
    Code(
        number="PG108",
        name="copied-rule",
        meaning="a class is a copy of ClampWithGrad, ReplaceGrad or LowerBound, which have names and tests here",
        why="The copies are dropped by `torch.compile(torch.func.grad(f))` or fail under `torch.func`, and the "
        "product in ClampWithGrad blocks the wrong gradients where it underflows.",
        mend="`pseudograd migrate FILE` shows the edit where values and gradients are equal to the bit; by hand `from "
        "pseudograd.familiar import clamp_with_grad, replace_grad`, or `pseudograd.lower_bound(x, bound)`, and "
        "delete the class.",
        bad="""\
import torch


class ClampWithGrad(torch.autograd.Function):  # PG108
    @staticmethod
    def forward(ctx, input, min, max):
        ctx.min, ctx.max = min, max
        ctx.save_for_backward(input)
        return input.clamp(min, max)

    @staticmethod
    def backward(ctx, grad_in):
        (input,) = ctx.saved_tensors
        return grad_in * (grad_in * (input - input.clamp(ctx.min, ctx.max)) >= 0), None, None
""",
        good="""\
from pseudograd.familiar import clamp_with_grad


def bounded(x):
    return clamp_with_grad(x, 0, 1)
""",
    ),
    kinds=(ast.ClassDef,),
    words=("autograd",),
    find=_find_copied_rule,
)
