"""Numbers in source, also through names; tensors whose values the source says; and both in single precision."""

from __future__ import annotations

import ast
import math
import operator
import struct
from collections.abc import Callable

from .names import Module, last_name, words

_MATH = {"pi": math.pi, "inf": math.inf, "e": math.e, "nan": math.nan}
_CONSTANTS = {f"{module}.{name}": value for module in ("math", "numpy", "torch") for name, value in _MATH.items()}
_BINARY: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.Pow: operator.pow,
}  # fmt: skip


def number(module: Module, node: ast.expr | None, depth: int = 10) -> float | None:
    """The value of `1 - 1e-6`, of `-2 * math.pi`, or of a name for such an expression. None if the source does not say it."""
    if node is None or depth == 0:
        return None
    node = module.resolve(node)
    try:
        if isinstance(node, ast.Constant):
            constant = node.value
            return float(constant) if isinstance(constant, (int, float)) and not isinstance(constant, bool) else None
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            value = number(module, node.operand, depth - 1)
            return -value if value is not None and isinstance(node.op, ast.USub) else value
        if isinstance(node, ast.BinOp):
            operate, left = _BINARY.get(type(node.op)), number(module, node.left, depth - 1)
            right = None if left is None else number(module, node.right, depth - 1)
            value = None if operate is None or left is None or right is None else operate(left, right)
            return value if isinstance(value, float) else None  # a root may be complex
        # The default of `kwargs.get("eps", 0)`.
        if isinstance(node, ast.Call) and last_name(node) == "get" and len(node.args) == 2:
            return number(module, node.args[1], depth - 1)
        if isinstance(node, ast.Attribute):
            return _CONSTANTS.get(module.full_name(node))
    except (ArithmeticError, ValueError, TypeError):
        pass
    return None


def to_float32(value: float) -> float:
    """The number, rounded to float32."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def format_number(value: float) -> str:
    return f"{value:g}" if value != round(value, 6) else f"{round(value, 6):g}"


_ZEROS = words("zero zeros zeros_like new_zeros")
_ONES = words("ones ones_like new_ones")
_FILLS = words("full full_like new_full fill constant")
_TYPED = ("tensor", "as_tensor", "scalar_tensor")
# Functions whose result has values of the input, which get its gradient.
_MOVES = words(
    "view reshape unsqueeze squeeze expand expand_as repeat repeat_interleave to float double half bfloat16 type type_as clone "
    "contiguous permute transpose flatten cuda cpu view_as swapaxes swapdims movedim moveaxis t mT T broadcast_to flip "
    "requires_grad_ ravel unflatten rearrange"
)


def strip_views(module: Module, node: ast.expr) -> ast.expr:
    """The expression without views, casts and slices around it, also through names."""
    for _ in range(20):
        node = module.resolve(node)
        inner = _strip_view(module, node)
        if inner is None:
            break
        node = inner
    return node


def _strip_view(module: Module, node: ast.expr) -> ast.expr | None:
    if isinstance(node, ast.Subscript):
        index = module.resolve(node.slice)
        # A mask, as in `x[x > 0]`, may leave out the values at a bound, so it is no view.
        is_mask = isinstance(index, (ast.Compare, ast.BoolOp, ast.BinOp, ast.Call))
        return None if is_mask or isinstance(getattr(index, "op", None), ast.Invert) else node.value
    if isinstance(node, ast.Attribute) and node.attr in ("T", "mT"):
        return node.value
    if not isinstance(node, ast.Call) or last_name(node) not in _MOVES:
        return None
    if name := module.called_name(node):
        return node.args[0] if name.startswith(("torch.", "einops.")) and node.args else None
    return node.func.value if isinstance(node.func, ast.Attribute) else None


def tensor_values(module: Module, node: ast.expr, depth: int = 10) -> frozenset[float] | None:
    """The values of a tensor in float32, such as {0.5} for `torch.full((3,), 0.5)`. None if a value is not known."""
    node = strip_views(module, node)
    if depth == 0:
        return None
    if isinstance(node, (ast.List, ast.Tuple)):
        parts = [tensor_values(module, element, depth - 1) for element in node.elts]
        return None if None in parts or not parts else frozenset[float]().union(*(part for part in parts if part))
    if (value := number(module, node)) is not None:
        return frozenset({to_float32(value)})
    if not isinstance(node, ast.Call):
        return None
    name, full_name = last_name(node), module.called_name(node)
    if not full_name.startswith("torch.") and (full_name or not name.startswith(("new_", "zero_", "fill_"))):
        return None
    if name not in _TYPED:
        return filled_values(module, node)
    return tensor_values(module, node.args[0]) if node.args else None


def filled_values(module: Module, call: ast.Call) -> frozenset[float] | None:
    """The value that `zeros(3)`, `full((3,), 2)`, `x.fill_(2)` or `nn.init.constant_(x, 2)` writes. None if it is not known."""
    name = last_name(call).rstrip("_")
    if name in _ZEROS or name in _ONES:
        return frozenset({float(name in _ONES)})
    named = [keyword.value for keyword in call.keywords if keyword.arg in ("fill_value", "val", "value")]
    fills = named or call.args[-1:]
    return tensor_values(module, fills[0]) if name in _FILLS and fills else None
