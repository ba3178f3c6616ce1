"""Rules about forms that people copy: straight-through sums, and classes of old notebooks."""

from __future__ import annotations

import ast

from pseudograd_notices.code import Code

from ..calls import read_call, read_clamp
from ..learning import is_function_of_autograd
from ..names import Module, is_same, last_name, unparse
from ..values import strip_moves
from . import Rule

# --- x + (y - x).detach() ---------------------------------------------------------------------------------------------


def _hard_value(module: Module, node: ast.AST) -> ast.expr | None:
    """The y of `x + (y - x).detach()`, in any order; also of `x - (x - y).detach()`."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Add, ast.Sub)):
        return None
    is_sum = isinstance(node.op, ast.Add)
    for x, other in [(node.left, node.right), *([(node.right, node.left)] if is_sum else [])]:
        inner = _detached(module, other)
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Sub):
            y, subtracted = (inner.left, inner.right) if is_sum else (inner.right, inner.left)
            if is_same(x, subtracted):
                return strip_moves(module, y)
    return None


def _detached(module: Module, node: ast.expr) -> ast.expr | None:
    node = strip_moves(module, node)
    if isinstance(node, ast.Attribute) and node.attr == "data":
        return strip_moves(module, node.value)
    call = read_call(module, node)
    return strip_moves(module, call.arguments[0]) if call is not None and call.name == "detach" else None


def _find_inexact_identity(module: Module, node: ast.AST) -> str | None:
    hard = _hard_value(module, node)
    clamp = None if hard is None else read_clamp(module, hard)
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


def _find_inexact_straight_through(module: Module, node: ast.AST) -> str | None:
    hard = _hard_value(module, node)
    if hard is None or read_clamp(module, hard) is not None:
        return None
    call = read_call(module, hard)
    if call is not None and call.name == "round":
        return None  # the only one that is exact for every finite x
    text = unparse(hard)
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


# --- classes ----------------------------------------------------------------------------------------------------------

_CLAMPS = {"clamp", "clip", "clamp_min", "clamp_max", "max", "maximum", "min", "minimum"}


def _find_copied_rule(module: Module, node: ast.AST) -> str | None:
    """A hint by the text of the class; `audit` and `migrate` measure."""
    if not isinstance(node, ast.ClassDef) or not is_function_of_autograd(module, node):
        return None
    methods = {method.name: method for method in ast.walk(node) if isinstance(method, ast.FunctionDef)}
    forward, backward = methods.get("forward"), methods.get("backward")
    if forward is None or backward is None or len(backward.args.args) < 2:
        return None
    gradient = backward.args.args[1].arg
    compares_gradient = any(
        getattr(test.comparators[0], "value", None) == 0
        and any(isinstance(name, ast.Name) and name.id == gradient for name in ast.walk(test.left))
        for test in ast.walk(backward)
        if isinstance(test, ast.Compare)
    )
    returns = [ast.unparse(line.value) for line in ast.walk(forward) if isinstance(line, ast.Return) and line.value]
    is_replaced = returns == [argument.arg for argument in forward.args.args[1:2]]
    if (compares_gradient and _calls(forward) & _CLAMPS) or (is_replaced and "sum_to_size" in _calls(backward)):
        return (
            f"{node.name} looks like a copy of ClampWithGrad, LowerBound or ReplaceGrad, which pseudograd has, under torch.func and "
            f"torch.compile too: `pseudograd audit MODULE:{node.name}` measures which rule it is, and `pseudograd migrate` replaces it"
        )
    return None


def _calls(root: ast.AST) -> set[str]:
    return {last_name(node) for node in ast.walk(root) if isinstance(node, ast.Call)}


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
