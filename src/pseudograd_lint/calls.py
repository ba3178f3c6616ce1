"""Calls of torch, by whatever name: clamps, functions with a singular point, and what takes an expression out of the graph."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .classes import parameter_tensor
from .terms import Parameter, Term, changes_in_place, find_keyword, is_constant, is_same, key_of, last_name, words
from .values import number, strip_moves, tensor_values

_PREFIXES = ("torch.nn.functional.", "torch.special.", "torch.linalg.", "torch.Tensor.", "torch.functional.", "torch.")


class Call(NamedTuple):
    """A call of a function of torch, or of a method of what may be a tensor. name: without its modules, and without the "_" of what works
    in place. arguments: the tensor first.
    """

    name: str
    arguments: tuple[Term, ...]
    keywords: dict[str, Term]
    in_place: bool
    is_method: bool

    def argument(self, position: int, name: str) -> Term | None:
        return self.arguments[position] if position < len(self.arguments) else self.keywords.get(name)


def read_call(term: Term) -> Call | None:
    """None for what is no call, or calls something else."""
    node = term.node
    if not isinstance(node, ast.Call) or any(isinstance(argument, ast.Starred) for argument in node.args):
        return None
    arguments = tuple(term.part(argument) for argument in node.args)
    keywords = {keyword.arg: term.part(keyword.value) for keyword in node.keywords if keyword.arg}
    name, is_method = term.full_name(), False
    if name:
        prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None)
        if prefix is None:
            return None
        name = name.removeprefix(prefix)
        if not arguments and "input" in keywords:
            arguments = (keywords.pop("input"),)
    elif isinstance(node.func, ast.Attribute):
        name, is_method = node.func.attr, True
        arguments = (term.part(node.func.value), *arguments)
    if not name or "." in name:
        return None
    in_place = changes_in_place(name)
    return Call(name.rstrip("_") if in_place else name, arguments, keywords, in_place, is_method)


def has_rest(call: ast.Call) -> bool:
    """Has it arguments that nobody sees, `*more` or `**more`?"""
    is_starred = any(isinstance(argument, ast.Starred) for argument in call.args)
    return is_starred or any(keyword.arg is None for keyword in call.keywords)


# --- clamps -----------------------------------------------------------------------------------------------------------


class Clamp(NamedTuple):
    """x, and the bounds as they are written. has_eras: does the version of torch decide what passes exactly at a bound?"""

    name: str
    x: Term
    low: Term | None
    high: Term | None
    has_eras: bool
    in_place: bool

    def bounds(self) -> Iterator[tuple[Term | None, float]]:
        """The bounds that are numbers."""
        for bound in (self.low, self.high):
            if bound is not None and (value := number(bound)) is not None:
                yield bound, value
        if not self.has_eras and self.low is None:
            yield from ((None, value) for value in _FIXED[self.name])


_FIXED = {"relu": (0.0,), "relu6": (0.0, 6.0), "hardtanh": (-1.0, 1.0)}
_BOUNDS = {"clamp": ("min", "max"), "clip": ("min", "max"), "clamp_min": ("min", ""), "clamp_max": ("", "max")}
_BOUNDS["hardtanh"] = ("min_val", "max_val")


def read_clamp(term: Term) -> Clamp | None:
    call = read_call(term)
    if call is None or not call.arguments or (call.name not in _BOUNDS and call.name not in _FIXED):
        return None
    name, x = call.name, call.arguments[0]
    if name == "clip" and call.is_method and not is_tensor(x):
        return None  # of numpy, or of a data frame
    low_name, high_name = _BOUNDS.get(name, ("", ""))
    low = call.argument(1, low_name) if low_name else None
    high = call.argument(2 if low_name else 1, high_name) if high_name else None
    if name in ("clamp", "clip"):
        if low is None and high is None:
            return None
        low, high = (None if bound is None or is_constant(bound.node, None) else bound for bound in (low, high))
    return Clamp(name, x, low, high, name not in _FIXED, call.in_place)


def is_tensor(term: Term, depth: int = 6) -> bool:
    """Is there evidence that it is one?"""
    term = strip_moves(term)
    node = term.node
    if key_of(node) in term.module.parameters:
        return True
    if isinstance(node, ast.BinOp):
        return depth > 0 and any(is_tensor(term.part(side), depth - 1) for side in (node.left, node.right))
    if not isinstance(node, ast.Call):
        return False
    is_method = isinstance(node.func, ast.Attribute) and is_tensor(term.part(node.func.value))
    return is_method or term.full_name().startswith("torch.")


# --- functions whose slope is infinite somewhere ----------------------------------------------------------------------

_SINGULAR = {
    "sqrt": (0.0,), "rsqrt": (0.0,), "log": (0.0,), "log2": (0.0,), "log10": (0.0,), "log1p": (-1.0,), "reciprocal": (0.0,),
    "acos": (-1.0, 1.0), "arccos": (-1.0, 1.0), "asin": (-1.0, 1.0), "arcsin": (-1.0, 1.0), "acosh": (1.0,), "arccosh": (1.0,),
    "atanh": (-1.0, 1.0), "arctanh": (-1.0, 1.0), "logit": (0.0, 1.0), "erfinv": (-1.0, 1.0), "ndtri": (0.0, 1.0),
}  # fmt: skip


class Singular(NamedTuple):
    """A function of x that has no finite slope at these points. label: how a message names it."""

    name: str
    x: Term
    points: tuple[float, ...]
    label: str


def read_singular(term: Term) -> Singular | None:
    node = term.node
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Div):
            return _division(term.part(node.right))
        is_power = isinstance(node.op, ast.Pow)
        return _power(term.part(node.left), number(term.part(node.right))) if is_power else None
    call = read_call(term)
    if call is None or not call.arguments:
        return None
    if call.name in ("pow", "float_power"):
        return _power(call.arguments[0], number(call.argument(1, "exponent")))
    if call.name in ("div", "true_divide", "divide") and len(call.arguments) == 2:
        return _division(call.arguments[1])
    if call.name not in _SINGULAR or (call.name == "logit" and call.argument(1, "eps") is not None):
        return None
    return Singular(call.name, call.arguments[0], _SINGULAR[call.name], call.name)


def _division(x: Term) -> Singular:
    return Singular("div", x, (0.0,), "a division by it")


def _power(x: Term, exponent: float | None) -> Singular | None:
    """Its slope is infinite at 0 where the exponent is below 1."""
    if exponent is None or exponent >= 1 or exponent == 0:
        return None
    return Singular("pow", x, (0.0,), f"the power {exponent:g}")


def strip_arithmetic(term: Term, point: float) -> tuple[Term, float]:
    """The expression behind sums and products with numbers, views and names, and where it stands when the term stands at `point`."""
    for _ in range(20):
        term = strip_moves(term)
        step = _strip_step(term, point)
        if step is None:
            break
        term, point = step
    return term, point


def _strip_step(term: Term, point: float) -> tuple[Term, float] | None:
    node = term.node
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return term.part(node.operand), -point
    if not isinstance(node, ast.BinOp):
        return None
    left, right = term.part(node.left), term.part(node.right)
    a, b = number(left), number(right)
    if (a is None) == (b is None):
        return None
    inner, value = (left, b) if a is None else (right, a)
    assert value is not None
    if isinstance(node.op, ast.Add):
        return inner, point - value
    if isinstance(node.op, ast.Sub):
        return inner, point + value if a is None else value - point
    if not value or not math.isfinite(value):
        return None
    if isinstance(node.op, ast.Mult):
        return inner, point / value
    return (inner, point * value) if isinstance(node.op, ast.Div) and a is None else None


# --- could anything learn through it? ---------------------------------------------------------------------------------

_INDICES = words("argmax argmin argsort bincount nonzero")
_LEAVES_THE_GRAPH = _INDICES | words(
    "detach item tolist numpy long int bool short byte char size dim numel isnan isinf isfinite all any eq ne lt gt le ge sign "
    "multinomial allclose isclose equal searchsorted bucketize argwhere indices"
)
_DETACHED_ATTRIBUTES = _LEAVES_THE_GRAPH | words("data shape")
_TAKES_A_VALUE = _LEAVES_THE_GRAPH | words("copy_ fill_ register_buffer info debug")
_MADE_OF_NOTHING = words(
    "arange linspace logspace zeros ones full empty tensor as_tensor rand randn randint randperm zeros_like ones_like full_like "
    "rand_like randn_like empty_like eye from_numpy tril_indices triu_indices bernoulli hann_window hamming_window finfo iinfo"
)
_PYTHON = words("float int bool len print str round format isinstance repr range")


def is_detached(node: ast.AST, parents: Sequence[ast.AST]) -> bool:
    """Does the code around it take its value out of the graph, as `.detach()`, a comparison or `print` do?"""
    for parent in reversed(parents):
        if isinstance(parent, (ast.Compare, ast.FormattedValue, ast.Assert)):
            return True
        if isinstance(parent, ast.Attribute) and parent.attr in _DETACHED_ATTRIBUTES:
            return True
        if isinstance(parent, (ast.IfExp, ast.While, ast.If)) and node is parent.test:
            return True
        if isinstance(parent, ast.Subscript) and node is parent.slice:
            return True
        if isinstance(parent, ast.Call) and node is not parent.func:
            names = _PYTHON if isinstance(parent.func, ast.Name) else _TAKES_A_VALUE
            if last_name(parent) in names:
                return True
        node = parent
    return False


def may_learn(term: Term, depth: int = 8) -> bool:
    """Could a gradient be wanted for it? Not for numbers, for what is made of nothing, and for what left the graph."""
    term = strip_moves(term)
    node = term.node
    if depth == 0:
        return True
    if key_of(node) in term.module.buffers or number(term) is not None:
        return False
    if isinstance(node, (ast.Constant, ast.Compare, ast.JoinedStr, ast.List, ast.Dict)):
        return False
    if isinstance(node, ast.Attribute):
        return node.attr not in ("shape", "data", "grad", "ndim")
    parts: list[ast.expr] = []
    if isinstance(node, ast.BinOp):
        parts = [node.left, node.right]
    elif isinstance(node, ast.UnaryOp):
        parts = [node.operand]
    elif isinstance(node, ast.IfExp):  # `x.detach() if x.requires_grad else x` never learns
        test = node.test
        is_detach = (
            isinstance(test, ast.Attribute) and test.attr == "requires_grad" and is_same(test.value, node.orelse)
        )
        parts = [node.body] if is_detach else [node.body, node.orelse]
    elif isinstance(node, ast.Call):
        return _call_may_learn(term, node, depth)
    return not parts or any(may_learn(term.part(part), depth - 1) for part in parts)


def _call_may_learn(term: Term, node: ast.Call, depth: int) -> bool:
    if parameter_tensor(term) is not None:
        return True
    if isinstance(node.func, ast.Name) and node.func.id in _PYTHON:
        return False
    call = read_call(term)
    if call is None:
        return not term.full_name().startswith(("math.", "numpy.", "scipy."))
    if call.name in _MADE_OF_NOTHING:
        flag = find_keyword(node, "requires_grad")
        return flag is not None and not is_constant(flag, False)
    if call.name in (_LEAVES_THE_GRAPH if call.is_method else _INDICES):
        return False
    if call.is_method and key_of(call.arguments[0].node) == "self":
        return True
    return any(may_learn(part, depth - 1) for part in (*call.arguments, *call.keywords.values()))


def find_parameter(term: Term) -> Parameter | None:
    """The parameter that this is, behind names, views and slices; None for anything else."""
    leaf = term.resolved()
    node = leaf.node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "requires_grad_":
        source = leaf.part(node.func.value)
        values = tensor_values(source) or frozenset()
        return Parameter("this leaf", node.lineno, values) if is_tensor(source) else None
    term = strip_moves(term)
    key = key_of(term.node)
    if key in term.module.parameters:
        return term.module.parameters[key]
    tensor = parameter_tensor(term)
    if isinstance(term.node, ast.Call) and is_constant(find_keyword(term.node, "requires_grad"), True):
        tensor = tensor or term
    return None if tensor is None else Parameter("this leaf", term.node.lineno, tensor_values(tensor) or frozenset())
