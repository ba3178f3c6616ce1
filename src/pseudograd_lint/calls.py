"""Calls of torch, by whatever name: clamps, and functions with a singular point."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from typing import NamedTuple

from .names import Module, changes_in_place, is_constant
from .values import number, strip_views

_PREFIXES = ("torch.nn.functional.", "torch.special.", "torch.linalg.", "torch.Tensor.", "torch.functional.", "torch.")


class Call(NamedTuple):
    """A call of a function of torch, or of a method of any object, which may be a tensor."""

    name: str  # without modules, and without the "_" of a function that works in place
    arguments: tuple[ast.expr, ...]  # the tensor comes first
    keywords: dict[str, ast.expr]
    in_place: bool
    is_method: bool

    def argument(self, position: int, name: str) -> ast.expr | None:
        return self.arguments[position] if position < len(self.arguments) else self.keywords.get(name)


def read_call(module: Module, node: ast.AST) -> Call | None:
    """The call that this node is; None if it is another node or calls another function."""
    if not isinstance(node, ast.Call) or any(isinstance(argument, ast.Starred) for argument in node.args):
        return None
    arguments = tuple(node.args)
    keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
    name, is_method = module.called_name(node), False
    if name:
        prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None)
        name = "" if prefix is None else name.removeprefix(prefix)
        if not arguments and "input" in keywords:
            arguments = (keywords.pop("input"),)
    elif isinstance(node.func, ast.Attribute):
        name, is_method = node.func.attr, True
        arguments = (node.func.value, *arguments)
    if not name or "." in name or not arguments:
        return None
    in_place = changes_in_place(name)
    return Call(name.rstrip("_") if in_place else name, arguments, keywords, in_place, is_method)


class Clamp(NamedTuple):
    """A clamp of x, with the bounds as they are written."""

    name: str
    x: ast.expr
    low: ast.expr | None
    high: ast.expr | None
    has_eras: bool  # does the gradient exactly at a bound depend on the version of torch?
    in_place: bool

    def bounds(self, module: Module) -> Iterator[tuple[ast.expr | None, float]]:
        """The bounds that are numbers: the expression, and its value. The bound of relu, 0, has no expression."""
        for bound in (self.low, self.high):
            if (value := number(module, bound)) is not None:
                yield bound, value
        if not self.has_eras:
            yield None, 0.0


_BOUNDS = {"clamp": ("min", "max"), "clip": ("min", "max"), "clamp_min": ("min", ""), "clamp_max": ("", "max")}
_BOUNDS["relu"] = ("", "")


def read_clamp(module: Module, node: ast.AST) -> Clamp | None:
    call = read_call(module, node)
    if call is None or call.name not in _BOUNDS:
        return None
    name, x = call.name, call.arguments[0]
    if name == "clip" and call.is_method and {"numpy", "pandas"} & set(module.imports.values()):
        return None
    low_name, high_name = _BOUNDS[name]
    low = call.argument(1, low_name) if low_name else None
    high = call.argument(2 if low_name else 1, high_name) if high_name else None
    if name in ("clamp", "clip"):
        if low is None and high is None:
            return None
        low, high = (None if is_constant(bound, None) else bound for bound in (low, high))
    return Clamp(name, x, low, high, name != "relu", call.in_place)


_SINGULAR = {
    "sqrt": (0.0,), "rsqrt": (0.0,), "log": (0.0,), "log2": (0.0,), "log10": (0.0,), "log1p": (-1.0,), "reciprocal": (0.0,),
    "acos": (-1.0, 1.0), "arccos": (-1.0, 1.0), "asin": (-1.0, 1.0), "arcsin": (-1.0, 1.0), "acosh": (1.0,), "arccosh": (1.0,),
    "atanh": (-1.0, 1.0), "arctanh": (-1.0, 1.0), "logit": (0.0, 1.0), "erfinv": (-1.0, 1.0), "ndtri": (0.0, 1.0),
}  # fmt: skip


class Singular(NamedTuple):
    """A function of x that has no finite slope at these points. label: how a message names it."""

    name: str
    x: ast.expr
    points: tuple[float, ...]
    label: str


def read_singular(module: Module, node: ast.AST) -> Singular | None:
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Div):
            return Singular("div", node.right, (0.0,), "the division")
        return _power(node.left, number(module, node.right)) if isinstance(node.op, ast.Pow) else None
    call = read_call(module, node)
    if call is None:
        return None
    if call.name in ("pow", "float_power"):
        return _power(call.arguments[0], number(module, call.argument(1, "exponent")))
    if call.name in ("div", "true_divide", "divide") and len(call.arguments) == 2:
        return Singular("div", call.arguments[1], (0.0,), "the division")
    if call.name not in _SINGULAR or (call.name == "logit" and call.argument(1, "eps") is not None):
        return None
    return Singular(call.name, call.arguments[0], _SINGULAR[call.name], call.name)


def _power(x: ast.expr, exponent: float | None) -> Singular | None:
    """A power whose slope is infinite at 0, because the exponent is below 1."""
    if exponent is None or exponent >= 1 or exponent == 0:
        return None
    return Singular("pow", x, (0.0,), f"the power {exponent:g}")


def strip_arithmetic(module: Module, node: ast.expr, point: float) -> tuple[ast.expr, float]:
    """The expression inside views, sums and products with numbers; and the value that it has where the whole node has the value `point`."""
    for _ in range(20):
        node = strip_views(module, node)
        step = _strip_step(module, node, point)
        if step is None:
            break
        node, point = step
    return node, point


def _strip_step(module: Module, node: ast.expr, point: float) -> tuple[ast.expr, float] | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return node.operand, -point
    if not isinstance(node, ast.BinOp):
        return None
    a, b = number(module, node.left), number(module, node.right)
    inner, value = (node.left, b) if a is None else (node.right, a)
    if value is None or (a is not None and b is not None):
        return None
    if isinstance(node.op, ast.Add):
        return inner, point - value
    if isinstance(node.op, ast.Sub):
        return inner, point + value if a is None else value - point
    if not value or not math.isfinite(value):
        return None
    if isinstance(node.op, ast.Mult):
        return inner, point / value
    return (inner, point * value) if isinstance(node.op, ast.Div) and a is None else None
