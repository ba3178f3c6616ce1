"""Numbers that stand in source, also behind names; and what single precision makes of them."""

from __future__ import annotations

import ast
import math
import operator
import struct
from collections.abc import Callable

from .terms import Term

_CONSTANTS = {
    **{f"{module}.{name}": getattr(math, name) for module in ("math", "numpy", "torch") for name in ("pi", "inf", "e")},
    **{f"{module}.nan": math.nan for module in ("math", "numpy", "torch")},
}
_FUNCTIONS: dict[str, Callable[..., float]] = {
    **{
        f"math.{name}": getattr(math, name)
        for name in ("sqrt", "log", "log2", "log10", "exp", "pow", "cos", "sin", "tan", "radians")
    },
    **{f"numpy.{name}": getattr(math, name) for name in ("sqrt", "log", "log2", "log10", "exp")},
}
_BINARY: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.Pow: operator.pow,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_FINFO = {"eps": 2.0**-23, "tiny": 2.0**-126, "smallest_normal": 2.0**-126, "max": (2 - 2.0**-23) * 2.0**127}
_FINFO["min"] = -_FINFO["max"]


def number(term: Term | None, depth: int = 10) -> float | None:
    """The value of `1 - 1e-6`, `-2 * math.pi` or a name for it; None where it is not a number that stands there."""
    if term is None or depth == 0:
        return None
    term = term.resolved()
    node = term.node
    try:
        if isinstance(node, ast.Constant):
            is_one = isinstance(node.value, (int, float)) and not isinstance(node.value, bool)
            return float(node.value) if is_one else None  # type: ignore[arg-type]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            value = number(term.of(node.operand), depth - 1)
            return value if value is None or isinstance(node.op, ast.UAdd) else -value
        if isinstance(node, ast.BinOp):
            return _of_two(term, node, depth - 1)
        if isinstance(node, ast.Call):
            return _of_call(term, node, depth - 1)
        if isinstance(node, ast.Attribute):
            return _of_attribute(term, node)
    except (ArithmeticError, ValueError, TypeError):
        pass
    return None


def _of_two(term: Term, node: ast.BinOp, depth: int) -> float | None:
    act = _BINARY.get(type(node.op))
    if (
        act is None
        or (left := number(term.of(node.left), depth)) is None
        or (right := number(term.of(node.right), depth)) is None
    ):
        return None
    if act is operator.pow and abs(right) > 2000:
        return None
    value = act(left, right)
    return value if isinstance(value, float) else None


def _of_call(term: Term, node: ast.Call, depth: int) -> float | None:
    if isinstance(node.func, ast.Name) and node.func.id == "float" and len(node.args) == 1 and not node.keywords:
        (one,) = node.args
        return (
            float(one.value)
            if isinstance(one, ast.Constant) and isinstance(one.value, (int, float, str))
            else number(term.of(one), depth)
        )
    act = _FUNCTIONS.get(term.module.dotted(node.func, term.env) or "")
    if act is None or node.keywords or len(node.args) > 2:
        return None
    values = [number(term.of(one), depth) for one in node.args]
    return None if None in values else act(*values)


def _of_attribute(term: Term, node: ast.Attribute) -> float | None:
    """math.pi; torch.finfo(torch.float32).eps, and of no other dtype."""
    name = term.module.dotted(node, term.env)
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    if node.attr not in _FINFO or not isinstance(node.value, ast.Call) or len(node.value.args) != 1:
        return None
    if term.module.dotted(node.value.func, term.env) != "torch.finfo":
        return None
    dtype = term.module.dotted(node.value.args[0], term.env)
    return _FINFO[node.attr] if dtype in ("torch.float32", "torch.float") else None


def single(value: float) -> float:
    """As float32 has it."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def shown(value: float) -> str:
    return f"{value:g}" if value != round(value, 6) else f"{round(value, 6):g}"
