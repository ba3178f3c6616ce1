"""Numbers that stand in source, also behind names; tensors whose every value stands there; and what single precision makes of them."""

from __future__ import annotations

import ast
import math
import operator
import struct
from collections.abc import Callable

from .names import Module, last_name, words

_CONSTANTS = {
    f"{module}.{name}": getattr(math, name) for module in ("math", "numpy", "torch") for name in words("pi inf e nan")
}
_BINARY: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.Pow: operator.pow,
}  # fmt: skip
FINFO = {"eps": 2.0**-23, "tiny": 2.0**-126, "smallest_normal": 2.0**-126}


def number(module: Module, node: ast.expr | None, depth: int = 10) -> float | None:
    """The value of `1 - 1e-6`, `-2 * math.pi` or a name for it; None where it is not a number that stands there."""
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
            return _binary(module, node, depth - 1)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "float" and node.args:
            text = getattr(node.args[0], "value", None)
            return float(text) if isinstance(text, str) else number(module, node.args[0], depth - 1)
        if isinstance(node, ast.Attribute):
            return _attribute(module, node)
    except (ArithmeticError, ValueError, TypeError):
        pass
    return None


def _binary(module: Module, node: ast.BinOp, depth: int) -> float | None:
    act = _BINARY.get(type(node.op))
    if act is None or (left := number(module, node.left, depth)) is None:
        return None
    right = number(module, node.right, depth)
    if right is None or (act is operator.pow and abs(right) > 2000):
        return None
    value = act(left, right)
    return value if isinstance(value, float) else None


def _attribute(module: Module, node: ast.Attribute) -> float | None:
    """math.pi; torch.finfo(torch.float32).eps, and of no other dtype."""
    name = module.full_name(node)
    if name in _CONSTANTS:
        return float(_CONSTANTS[name])
    if node.attr not in FINFO or module.called_name(node.value) != "torch.finfo":
        return None
    assert isinstance(node.value, ast.Call)
    is_single = [module.full_name(argument) for argument in node.value.args] in (["torch.float32"], ["torch.float"])
    return FINFO[node.attr] if is_single else None


def single(value: float) -> float:
    """The number as float32 has it."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def format_number(value: float) -> str:
    return f"{value:g}" if value != round(value, 6) else f"{round(value, 6):g}"


# --- tensors ----------------------------------------------------------------------------------------------------------

_ZEROS = words("zero zeros zeros_like new_zeros")
_ONES = words("ones ones_like new_ones")
_FILLS = words("full full_like new_full fill constant")
_TYPED = ("tensor", "as_tensor", "Tensor", "FloatTensor", "DoubleTensor", "HalfTensor", "scalar_tensor")
# Every value of the result is one of the input, and the gradient of it goes there.
_MOVES = words(
    "view reshape unsqueeze squeeze expand expand_as repeat repeat_interleave to float double half bfloat16 type type_as clone "
    "contiguous permute transpose flatten cuda cpu view_as swapaxes swapdims movedim moveaxis t mT T broadcast_to flip "
    "requires_grad_ ravel unflatten rearrange"
)
_MOST_MOVES = 20  # one after another


def strip_moves(module: Module, node: ast.expr) -> ast.expr:
    """What stands behind views, casts and slices; also behind names."""
    for _ in range(_MOST_MOVES):
        node = module.resolve(node)
        inner = _moved(module, node)
        if inner is None:
            break
        node = inner
    return node


def _moved(module: Module, node: ast.expr) -> ast.expr | None:
    if isinstance(node, ast.Subscript):
        index = module.resolve(node.slice)  # of `x[x > 0]` no value need be a bound
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
    """The values of a tensor as float32 has them, {0.5} for `torch.full((3,), 0.5)`; None where some value is not known."""
    node = strip_moves(module, node)
    if depth == 0:
        return None
    if isinstance(node, (ast.List, ast.Tuple)):
        parts = [tensor_values(module, element, depth - 1) for element in node.elts]
        return None if None in parts or not parts else frozenset[float]().union(*(part for part in parts if part))
    if (value := number(module, node)) is not None:
        return frozenset({single(value)})
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = ast.copy_location(ast.BinOp(ast.Constant(-1), ast.Mult(), node.operand), node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Add, ast.Sub, ast.Div)):
        left, right = (tensor_values(module, side, depth - 1) for side in (node.left, node.right))
        if not left or not right or min(len(left), len(right)) > 1 or (isinstance(node.op, ast.Div) and 0.0 in right):
            return None
        return frozenset(single(_BINARY[type(node.op)](a, b)) for a in left for b in right)
    if not isinstance(node, ast.Call):
        return None
    name, full_name = last_name(node), module.called_name(node)
    if not full_name.startswith("torch.") and (full_name or not name.startswith(("new_", "zero_", "fill_"))):
        return None
    if name not in _TYPED:
        return filled_values(module, node)
    is_size = name[0].isupper() and not isinstance(node.args[0] if node.args else None, (ast.List, ast.Tuple))
    return (
        tensor_values(module, node.args[0]) if node.args and not is_size else None
    )  # `torch.Tensor(3)` is three unknown ones


def filled_values(module: Module, call: ast.Call) -> frozenset[float] | None:
    """The value that `zeros(3)`, `full((3,), 2)`, `x.fill_(2)` and `nn.init.constant_(x, 2)` write; None for what is not known."""
    name = last_name(call).rstrip("_")
    if name in _ZEROS or name in _ONES:
        return frozenset({float(name in _ONES)})
    fills = [keyword.value for keyword in call.keywords if keyword.arg in ("fill_value", "val", "value")] or call.args[
        -1:
    ]
    return tensor_values(module, fills[0]) if name in _FILLS and fills else None
