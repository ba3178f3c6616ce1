"""Numbers that stand in source, also behind names; tensors whose every value stands there; and what single precision makes of them."""

from __future__ import annotations

import ast
import math
import operator
import struct
from collections.abc import Callable, Sequence

from .terms import Term, find_keyword, last_name, words

_CONSTANTS = {
    f"{module}.{name}": getattr(math, name)
    for module in ("math", "numpy", "torch")
    for name in ("pi", "inf", "e", "nan")
}
_FUNCTIONS: dict[str, Callable[..., float]] = {
    f"{module}.{name}": getattr(math, name)
    for module, names in (
        ("math", "sqrt log log2 log10 exp pow cos sin tan radians"),
        ("numpy", "sqrt log log2 log10 exp"),
    )
    for name in names.split()
}
_BINARY: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.Pow: operator.pow,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
FINFO = {"eps": 2.0**-23, "tiny": 2.0**-126, "smallest_normal": 2.0**-126, "max": (2 - 2.0**-23) * 2.0**127}
FINFO["min"] = -FINFO["max"]


def number(term: Term | None, depth: int = 10) -> float | None:
    """The value of `1 - 1e-6`, `-2 * math.pi` or a name for it; None where it is not a number that stands there."""
    if term is None or depth == 0:
        return None
    term = term.resolved()
    node = term.node
    try:
        if isinstance(node, ast.Constant):
            is_number = isinstance(node.value, (int, float)) and not isinstance(node.value, bool)
            return float(node.value) if is_number else None  # type: ignore[arg-type]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            value = number(term.part(node.operand), depth - 1)
            return -value if value is not None and isinstance(node.op, ast.USub) else value
        if isinstance(node, ast.BinOp):
            return _binary(term, node, depth - 1)
        if isinstance(node, ast.Call):
            return _call(term, node, depth - 1)
        if isinstance(node, ast.Attribute):
            return _attribute(term, node)
    except (ArithmeticError, ValueError, TypeError):
        pass
    return None


def _binary(term: Term, node: ast.BinOp, depth: int) -> float | None:
    act = _BINARY.get(type(node.op))
    if act is None or (left := number(term.part(node.left), depth)) is None:
        return None
    right = number(term.part(node.right), depth)
    if right is None or (act is operator.pow and abs(right) > 2000):
        return None
    value = act(left, right)
    return value if isinstance(value, float) else None


def _call(term: Term, node: ast.Call, depth: int) -> float | None:
    if isinstance(node.func, ast.Name) and node.func.id == "float" and len(node.args) == 1 and not node.keywords:
        (argument,) = node.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, (int, float, str)):
            return float(argument.value)
        return number(term.part(argument), depth)
    act = _FUNCTIONS.get(term.full_name())
    if act is None or node.keywords or len(node.args) > 2:
        return None
    values = [number(term.part(argument), depth) for argument in node.args]
    return None if None in values else act(*values)


def _attribute(term: Term, node: ast.Attribute) -> float | None:
    """math.pi; torch.finfo(torch.float32).eps, and of no other dtype."""
    name = term.module.full_name(node, term.env)
    if name in _CONSTANTS:
        return float(_CONSTANTS[name])
    if node.attr not in FINFO or not isinstance(node.value, ast.Call) or len(node.value.args) != 1:
        return None
    if term.part(node.value).full_name() != "torch.finfo":
        return None
    dtype = term.module.full_name(node.value.args[0], term.env)
    return FINFO[node.attr] if dtype in ("torch.float32", "torch.float") else None


def single(value: float) -> float:
    """The number as float32 has it."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def format_number(value: float) -> str:
    return f"{value:g}" if value != round(value, 6) else f"{round(value, 6):g}"


# --- tensors ----------------------------------------------------------------------------------------------------------

_FILLED = {"zeros": 0.0, "zeros_like": 0.0, "new_zeros": 0.0, "ones": 1.0, "ones_like": 1.0, "new_ones": 1.0}
_FILL_VALUE = ("full", "full_like", "new_full")
_TYPED = ("tensor", "as_tensor", "Tensor", "FloatTensor", "DoubleTensor", "HalfTensor", "scalar_tensor")
# Every value of the result is one of the input, and the gradient of it goes there.
_MOVES = words(
    "view reshape unsqueeze squeeze expand expand_as repeat repeat_interleave to float double half bfloat16 type type_as clone "
    "contiguous permute transpose flatten cuda cpu view_as swapaxes swapdims movedim moveaxis t mT T broadcast_to flip "
    "requires_grad_ ravel unflatten rearrange"
)
_ASKS = words("gt ge lt le ne eq isfinite isnan nonzero where logical_not logical_and logical_or")


def strip_moves(term: Term) -> Term:
    """What stands behind views, casts and slices; also behind names."""
    while True:
        term = term.resolved()
        inner = _moved(term)
        if inner is None:
            return term
        term = term.part(inner)


def _moved(term: Term) -> ast.expr | None:
    node = term.node
    if isinstance(node, ast.Subscript):
        return None if _is_mask(term.part(node.slice).resolved().node) else node.value
    if isinstance(node, ast.Attribute) and node.attr in ("T", "mT"):
        return node.value
    if not isinstance(node, ast.Call):
        return None
    name = term.full_name()
    if name:
        is_known = name.startswith(("torch.", "einops.")) and name.rpartition(".")[2] in _MOVES
        return node.args[0] if is_known and node.args else None
    return node.func.value if isinstance(node.func, ast.Attribute) and node.func.attr in _MOVES else None


def _is_mask(index: ast.expr) -> bool:
    """Are values left out by what they are, as in `x[x > 0]`? Then no bound need be among them."""
    if isinstance(index, ast.Call):
        return last_name(index) in _ASKS
    if isinstance(index, (ast.UnaryOp, ast.BinOp)):
        return isinstance(index.op, (ast.Invert, ast.BitAnd, ast.BitOr))
    return isinstance(index, (ast.Compare, ast.BoolOp))


def tensor_values(term: Term) -> frozenset[float] | None:
    """Of `torch.full((3,), 0.5)` the set {0.5}, as float32 has it; None where some value is not known."""
    term = strip_moves(term)
    node = term.node
    if isinstance(node, ast.BinOp):
        return _computed(term, node)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        values = tensor_values(term.part(node.operand))
        return None if values is None else frozenset(-value for value in values)
    if not isinstance(node, ast.Call):
        return None
    full, name = term.full_name(), last_name(node)
    is_method = not full and (name.startswith("new_") or name in ("zero_", "fill_"))
    if full.startswith("torch."):
        name = full.rpartition(".")[2]
    elif not is_method or not isinstance(node.func, ast.Attribute):
        return None
    if name in _FILLED:
        return frozenset({_FILLED[name]})
    if name in _FILL_VALUE:
        fill = find_keyword(node, "fill_value") or (node.args[1] if len(node.args) > 1 else None)
        return _singleton(None if fill is None else number(term.part(fill)))
    if name in _TYPED and node.args:
        return _listed(term.part(node.args[0]))
    return _singleton(fill_value(name, [term.part(argument) for argument in node.args]))


def _singleton(value: float | None) -> frozenset[float] | None:
    return None if value is None else frozenset({single(value)})


def _computed(term: Term, node: ast.BinOp) -> frozenset[float] | None:
    """Of a tensor and a number."""
    act = _BINARY.get(type(node.op))
    if not isinstance(node.op, (ast.Mult, ast.Add, ast.Sub, ast.Div)) or act is None:
        return None
    left, right = term.part(node.left), term.part(node.right)
    if (value := number(right)) is not None and (values := tensor_values(left)) is not None:
        if isinstance(node.op, ast.Div) and not value:
            return None
        return frozenset(single(act(each, value)) for each in values)
    if isinstance(node.op, ast.Div) or (value := number(left)) is None or (values := tensor_values(right)) is None:
        return None
    return frozenset(single(act(value, each)) for each in values)


def _listed(term: Term) -> frozenset[float] | None:
    """Of numbers in lists; `torch.Tensor(3)` is three of nobody knows what."""
    if isinstance(term.node, (ast.List, ast.Tuple)):
        parts = [_listed(term.part(element)) for element in term.node.elts]
        return None if None in parts or not parts else frozenset[float]().union(*(part for part in parts if part))
    return _singleton(number(term))


def fill_value(name: str, arguments: Sequence[Term]) -> float | None:
    """What `zeros_`, `fill_(2)` and `constant_(2)` write; None for what is not known."""
    if name in ("zeros_", "zero_"):
        return 0.0
    if name == "ones_":
        return 1.0
    value = number(arguments[0]) if name in ("fill_", "constant_") and arguments else None
    return None if value is None else single(value)
