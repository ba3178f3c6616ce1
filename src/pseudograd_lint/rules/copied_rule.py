"""A class that people copy from one another, and that is a rule with a name."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pseudograd_notices.code import Code

from ..walk import Spot
from .rule import Rule


def _find(spot: Spot) -> str | None:
    node = spot.term.node
    if not isinstance(node, ast.ClassDef):
        return None
    if not any(
        (spot.term.module.dotted(base, spot.term.env) or "").startswith("torch.autograd") for base in node.bases
    ):
        return None
    methods = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
    forward, backward = methods.get("forward"), methods.get("backward")
    if forward is None or backward is None:
        return None
    if _is_clamp_with_grad(forward, backward):
        return (
            f"{node.name} is the rule `inward` of pseudograd.clamp, under the name clamp_with_grad in "
            f"pseudograd.familiar. This copy multiplies "
            "gradients to find their direction, which underflows in half precision and makes NaN of an infinite one"
        )
    if _is_lower_bound(forward, backward):
        return (
            f"{node.name} is pseudograd.lower_bound or upper_bound with the rule `inward`, which works "
            f"under torch.func and torch.compile too"
        )
    if _is_replace_grad(forward, backward):
        return f"{node.name} is replace_grad of pseudograd.familiar, which works under torch.func and torch.compile too and checks shapes"
    return None


def _is_clamp_with_grad(forward: ast.FunctionDef, backward: ast.FunctionDef) -> bool:
    """grad * (grad * (x - clamp(x)) >= 0)"""
    if not _calls(forward, "clamp", "clip"):
        return False
    return any(
        isinstance(test.ops[0], ast.GtE) and _is_zero(test.comparators[0]) and isinstance(test.left, ast.BinOp)
        and isinstance(test.left.op, ast.Mult) and _calls(test.left, "clamp", "clip")
        for test in _compared(backward)
    )  # fmt: skip


def _is_lower_bound(forward: ast.FunctionDef, backward: ast.FunctionDef) -> bool:
    """(x >= bound) | (grad < 0), and its mirror."""
    if not _calls(forward, "max", "maximum", "min", "minimum", "clamp"):
        return False
    for node in ast.walk(backward):
        pair: list[ast.expr] = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            pair = [node.left, node.right]
        elif isinstance(node, ast.Call) and _called(node) == "logical_or" and len(node.args) == 2:
            pair = list(node.args)
        tests = [_behind(one, backward) for one in pair]
        if len(tests) == 2 and all(isinstance(one, ast.Compare) for one in tests):
            of_grad = [one for one in tests if isinstance(one, ast.Compare) and _is_zero(one.comparators[0])]
            signs = {type(one.ops[0]) for one in tests if isinstance(one, ast.Compare)}
            if len(of_grad) == 1 and signs in ({ast.GtE, ast.Lt}, {ast.LtE, ast.Gt}):
                return True
    return False


def _is_replace_grad(forward: ast.FunctionDef, backward: ast.FunctionDef) -> bool:
    """forward(ctx, x_forward, x_backward) gives the first, backward None and grad.sum_to_size(shape)."""
    arguments = [one.arg for one in forward.args.args]
    if len(arguments) != 3:
        return False
    gives = [node.value for node in ast.walk(forward) if isinstance(node, ast.Return)]
    returned = [node.value for node in ast.walk(backward) if isinstance(node, ast.Return)]
    if len(gives) != 1 or not isinstance(gives[0], ast.Name) or gives[0].id != arguments[1] or len(returned) != 1:
        return False
    pair = returned[0]
    if not isinstance(pair, ast.Tuple) or len(pair.elts) != 2:
        return False
    first, second = pair.elts
    return isinstance(first, ast.Constant) and first.value is None and bool(_calls(second, "sum_to_size"))


def _behind(node: ast.expr, function: ast.FunctionDef) -> ast.expr:
    """What a name was given in this function."""
    if not isinstance(node, ast.Name):
        return node
    for one in ast.walk(function):
        if (
            isinstance(one, ast.Assign)
            and len(one.targets) == 1
            and isinstance(one.targets[0], ast.Name)
            and one.targets[0].id == node.id
        ):
            return one.value
    return node


def _compared(root: ast.AST) -> Iterator[ast.Compare]:
    return (node for node in ast.walk(root) if isinstance(node, ast.Compare))


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _calls(root: ast.AST, *names: str) -> bool:
    return any(isinstance(node, ast.Call) and _called(node) in names for node in ast.walk(root))


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0


RULE = Rule(
    Code(
        number="PG108",
        name="copied-rule",
        meaning="a class is a copy of ClampWithGrad, ReplaceGrad or LowerBound, which have names and tests here",
        why="The copies are dropped by `torch.compile(torch.func.grad(f))` or fail under `torch.func`, and "
        "the product in ClampWithGrad blocks the "
        "wrong gradients where it underflows.",
        mend="`from pseudograd.familiar import clamp_with_grad, replace_grad`, or `pseudograd.lower_bound(x, "
        "bound)`; then delete the class.",
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
    find=_find,
)
