"""Tensors whose every value stands in the source, and calls that move values without changing them."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from .numbers import number, single
from .terms import Term

_FILLED = {"zeros": 0.0, "zeros_like": 0.0, "new_zeros": 0.0, "ones": 1.0, "ones_like": 1.0, "new_ones": 1.0}
_GIVEN = {"full": 1, "full_like": 1, "new_full": 1}
_TYPED = ("tensor", "as_tensor", "Tensor", "FloatTensor", "DoubleTensor", "HalfTensor", "scalar_tensor")
# Every value of the result is one of the input, and the gradient of it goes there.
MOVES = frozenset(
    [
        "view",
        "reshape",
        "unsqueeze",
        "squeeze",
        "expand",
        "expand_as",
        "repeat",
        "repeat_interleave",
        "to",
        "float",
        "double",
        "half",
        "bfloat16",
        "type",
        "type_as",
        "clone",
        "contiguous",
        "permute",
        "transpose",
        "flatten",
        "cuda",
        "cpu",
        "view_as",
        "swapaxes",
        "swapdims",
        "movedim",
        "moveaxis",
        "t",
        "mT",
        "T",
        "broadcast_to",
        "flip",
        "requires_grad_",
        "ravel",
        "unflatten",
        "rearrange",
    ]
)
_FROM_FUNCTION = ("torch.", "einops.")


def moved(term: Term) -> Term:
    """What stands behind views, casts and slices; also behind names."""
    while True:
        term = term.resolved()
        inner = _inner(term)
        if inner is None:
            return term
        term = inner


def _inner(term: Term) -> Term | None:
    node = term.node
    if isinstance(node, ast.Subscript):
        return None if _is_mask(term.of(node.slice)) else term.of(node.value)
    if isinstance(node, ast.Attribute) and node.attr in ("T", "mT"):
        return term.of(node.value)
    if not isinstance(node, ast.Call):
        return None
    name = term.module.dotted(node.func, term.env)
    if name is not None:
        last = name.rpartition(".")[2]
        is_known = name.startswith(_FROM_FUNCTION) and last in MOVES | {"repeat"} and bool(node.args)
        return term.of(node.args[0]) if is_known else None
    if isinstance(node.func, ast.Attribute) and node.func.attr in MOVES:
        return term.of(node.func.value)
    return None


_ASKS = frozenset(
    [
        "gt",
        "ge",
        "lt",
        "le",
        "ne",
        "eq",
        "isfinite",
        "isnan",
        "nonzero",
        "where",
        "logical_not",
        "logical_and",
        "logical_or",
    ]
)


def _is_mask(index: Term) -> bool:
    """Are values left out by what they are, as in `x[x > 0]`? Then no bound need be among them."""
    node = index.resolved().node
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return name in _ASKS
    return isinstance(node, (ast.Compare, ast.BoolOp)) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert)
    ) or (isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr)))  # fmt: skip


def tensor_values(term: Term) -> frozenset[float] | None:
    """Of `torch.full((3,), 0.5)` the set {0.5}, as float32 has it; None where it is not known whole."""
    term = moved(term)
    node = term.node
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Add, ast.Sub, ast.Div)):
        return _of_two(term, node)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        values = tensor_values(term.of(node.operand))
        return None if values is None else frozenset(-value for value in values)
    if not isinstance(node, ast.Call):
        return None
    name = term.module.dotted(node.func, term.env)
    last = name.rpartition(".")[2] if name is not None and name.startswith("torch.") else _method(node, name)
    arguments = [term.of(one) for one in node.args]
    named = {one.arg: term.of(one.value) for one in node.keywords}
    if last in _FILLED:
        return frozenset({_FILLED[last]})
    if last in _GIVEN:
        at = _GIVEN[last]
        value = number(named.get("fill_value", arguments[at] if len(arguments) > at else None))
        return None if value is None else frozenset({single(value)})
    if last in _TYPED and arguments:
        return _listed(arguments[0])
    if last in ("zero_", "fill_") or (last is not None and last.endswith("_")):
        value = filled_with(last, arguments)
        return None if value is None else frozenset({value})
    return None


def _method(node: ast.Call, name: str | None) -> str | None:
    """Of `x.new_zeros(3)`, and of `x.fill_(1)`."""
    if name is not None or not isinstance(node.func, ast.Attribute):
        return None
    return node.func.attr if node.func.attr.startswith("new_") or node.func.attr in ("zero_", "fill_") else None


def _of_two(term: Term, node: ast.BinOp) -> frozenset[float] | None:
    left, right = term.of(node.left), term.of(node.right)
    for one, other, is_first in ((left, right, True), (right, left, False)):
        value = number(other)
        if value is None or (values := tensor_values(one)) is None:
            continue
        if isinstance(node.op, ast.Mult):
            return frozenset(single(each * value) for each in values)
        if isinstance(node.op, ast.Add):
            return frozenset(single(each + value) for each in values)
        if isinstance(node.op, ast.Sub):
            return frozenset(single(each - value if is_first else value - each) for each in values)
        if is_first and value:
            return frozenset(single(each / value) for each in values)
    return None


def _listed(term: Term) -> frozenset[float] | None:
    """Of numbers in lists; `torch.Tensor(3)` is three of nobody knows what."""
    if isinstance(term.node, (ast.List, ast.Tuple)):
        if not term.node.elts:
            return None
        found = [_listed(term.of(one)) for one in term.node.elts]
        return None if None in found else frozenset[float]().union(*(one for one in found if one is not None))
    value = number(term)
    return None if value is None else frozenset({single(value)})


def filled_with(name: str, arguments: Sequence[Term]) -> float | None:
    """What `zeros_`, `fill_(2)` and `constant_(2)` write; None for what is not known."""
    if name in ("zeros_", "zero_"):
        return 0.0
    if name == "ones_":
        return 1.0
    if name in ("fill_", "constant_") and arguments:
        value = number(arguments[0])
        return None if value is None else single(value)
    return None
