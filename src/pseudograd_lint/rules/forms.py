"""Rules about code that people copy (straight-through sums, classes of old notebooks), and about parameters that a forward clamps."""

from __future__ import annotations

import ast
import re

from ..calls import Clamp, read_call, read_clamp
from ..classes import Parameter, find_parameter
from ..learning import is_function_of_autograd, is_recorded, is_trained
from ..names import Module, is_same, last_name, unparse
from ..values import format_number, number, strip_views, to_float32
from . import Rule


def _hard_value(module: Module, node: ast.AST) -> ast.expr | None:
    """The hard value y of `x + (y - x).detach()`, in any order: the forward returns it, and the backward ignores it."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
        return None
    for x, other in ((node.left, node.right), (node.right, node.left)):
        call = read_call(module, strip_views(module, other))
        inner = strip_views(module, call.arguments[0]) if call is not None and call.name == "detach" else None
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Sub) and is_same(x, inner.right):
            hard = strip_views(module, inner.left)
            return None if _is_exact(module, inner.left, hard) or not is_recorded(module, node, by_name=False) else hard
    return None


def _is_exact(module: Module, written: ast.expr, hard: ast.expr) -> bool:
    """Is x + (hard - x) exactly the hard value, as for round? Or do its last bits not matter, as in a mask or a choice?"""
    clamp, call = read_clamp(module, hard), read_call(module, hard)
    if clamp is not None:
        bounds = [bound for bound in (clamp.low, clamp.high) if bound is not None and number(module, bound) != 0]
        call = read_call(module, strip_views(module, clamp.x))
        return not bounds or (call is not None and call.name == "round")
    is_choice = _CHOICE.search(f"{unparse(written)} {unparse(hard)}".lower()) is not None
    return is_choice or (call is not None and call.name == "round")


def _find_inexact_identity(module: Module, node: ast.AST) -> str | None:
    hard = _hard_value(module, node)
    clamp = None if hard is None else read_clamp(module, hard)
    return clamp and (
        f"the value of this is not that of its {clamp.name}: x + (y - x) is rounded twice, so that results lie beside the bound, and an x "
        "that is far outside or infinite gives 0 or NaN"
    )


# Functions with such names look up vectors by their indices, so they can give the hard value itself.
_DECODES = re.compile(
    r"codebook|from_(ind|code)|(indices|ids)_to|codes?_from|embed_code|decode_|dequant|lookup|inference"
)
_CHOICE = re.compile(r"hard|one_?hot|mask|scatter|log\(")


def _find_inexact_straight_through(module: Module, node: ast.AST) -> str | None:
    decoder = next(filter(_DECODES.search, module.functions), None)
    hard = None if decoder is None else _hard_value(module, node)
    if hard is None or read_clamp(module, hard):
        return None
    text = unparse(hard)
    text = text if len(text) < 40 else "the hard value"
    return f"the value of this differs from {text} in its last bits, and is NaN where x is infinite; {decoder} here may give the exact one"


_WORDS = ("detach",)  # a file without these holds no straight-through sum
INEXACT_IDENTITY = Rule("PG105", (ast.BinOp,), _WORDS, _find_inexact_identity)
INEXACT_STRAIGHT_THROUGH = Rule("PG153", (ast.BinOp,), _WORDS, _find_inexact_straight_through)


_CLAMPS = {"clamp", "clip", "clamp_min", "clamp_max", "max", "maximum", "min", "minimum"}


def _find_copied_rule(module: Module, node: ast.AST) -> str | None:
    """A guess from the text of the class alone. `audit` and `migrate` measure its backward."""
    if not isinstance(node, ast.ClassDef) or not is_function_of_autograd(module, node):
        return None
    methods = {method.name: method for method in ast.walk(node) if isinstance(method, ast.FunctionDef)}
    forward, backward = methods.get("forward"), methods.get("backward")
    if forward is None or backward is None or len(forward.body) > 8:  # a copy is short
        return None
    gradients = {argument.arg for argument in (*backward.args.args[1:2], backward.args.vararg) if argument is not None}
    for line in ast.walk(backward):  # `(grad,) = grads`
        if isinstance(line, ast.Assign) and getattr(line.value, "id", 0) == getattr(backward.args.vararg, "arg", ""):
            gradients |= {name.id for target in line.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    compares_gradient = any(
        getattr(test.comparators[0], "value", None) == 0
        and any(isinstance(name, ast.Name) and name.id in gradients for name in ast.walk(test.left))
        for test in ast.walk(backward)
        if isinstance(test, ast.Compare)
    )
    returns = [ast.unparse(line.value) for line in ast.walk(forward) if isinstance(line, ast.Return) and line.value]
    returns_first_input = returns == [argument.arg for argument in forward.args.args[1:2]]
    if (compares_gradient and _calls(forward) & _CLAMPS) or (returns_first_input and "sum_to_size" in _calls(backward)):
        return (
            f"{node.name} looks like a copy of ClampWithGrad, LowerBound or ReplaceGrad, which pseudograd has, under torch.func and "
            f"torch.compile too: `pseudograd audit MODULE:{node.name}` measures its rule, and `pseudograd migrate` replaces an exact copy"
        )
    return None


def _calls(root: ast.AST) -> set[str]:
    return {last_name(node) for node in ast.walk(root) if isinstance(node, ast.Call)}


COPIED_RULE = Rule("PG108", (ast.ClassDef,), ("autograd",), _find_copied_rule)


def _clamped_parameter(module: Module, node: ast.AST) -> tuple[Clamp, Parameter] | None:
    clamp = read_clamp(module, node)
    if clamp is None or clamp.in_place or not is_trained(module, node):
        return None
    parameter = find_parameter(module, clamp.x)
    return None if parameter is None else (clamp, parameter)


def _find_born_on_bound(module: Module, node: ast.AST) -> str | None:
    clamp, parameter = _clamped_parameter(module, node) or (None, None)
    if clamp is None or parameter is None:
        return None
    for _, value in clamp.bounds(module):
        if to_float32(value) in parameter.values:
            who = parameter.name if len(parameter.values) == 1 else f"an entry of {parameter.name}"
            start = f"{who} starts at {format_number(value)} (line {parameter.line}), exactly on a bound of this {clamp.name}"
            if clamp.has_eras:
                return f"{start}: torch >= 2.14 passes it no gradient there; torch <= 2.13 passes all of it"
            return f"{start}, which passes it no gradient there on any torch"
    return None


BORN_ON_BOUND = Rule("PG101", (ast.Call,), ("clamp", "clip", "relu"), _find_born_on_bound)


def _find_clamped_parameter(module: Module, node: ast.AST) -> str | None:
    clamp, parameter = _clamped_parameter(module, node) or (None, None)
    if clamp is None or parameter is None:
        return None
    side = "outside its bounds" if clamp.has_eras else "below 0"
    return f"once {side} {parameter.name} gets no gradient from this {clamp.name}: at most weight decay leads it back"


CLAMPED_PARAMETER = Rule("PG151", (ast.Call,), ("Parameter", "requires_grad"), _find_clamped_parameter)
