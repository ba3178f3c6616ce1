"""Calls of torch, by whatever name: clamps, functions with a singular point, and what takes an expression out of the graph."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .classes import made_as_parameter
from .numbers import number
from .tensors import moved, tensor_values
from .terms import Parameter, Term, is_same, key_of

_PREFIXES = ("torch.nn.functional.", "torch.special.", "torch.linalg.", "torch.Tensor.", "torch.functional.", "torch.")


class Called(NamedTuple):
    """A function of torch, or a method of what may be a tensor: its name alone, without the "_" of what works in place, and its arguments,
    the tensor first.
    """

    name: str
    arguments: tuple[Term, ...]
    named: dict[str, Term]
    in_place: bool
    is_method: bool

    def argument(self, at: int, *names: str) -> Term | None:
        if at < len(self.arguments):
            return self.arguments[at]
        return next((self.named[name] for name in names if name in self.named), None)


def called(term: Term) -> Called | None:
    """What this call calls; None for what is no call, or calls something else."""
    node = term.node
    if not isinstance(node, ast.Call) or any(isinstance(one, ast.Starred) for one in node.args):
        return None
    arguments = tuple(term.of(one) for one in node.args)
    named = {one.arg: term.of(one.value) for one in node.keywords if one.arg}
    full = term.module.dotted(node.func, term.env)
    is_method = False
    if full is not None:
        prefix = next((prefix for prefix in _PREFIXES if full.startswith(prefix)), None)
        if prefix is None:
            return None
        name = full.removeprefix(prefix)
        if not arguments and "input" in named:
            arguments = (named.pop("input"),)
    elif isinstance(node.func, ast.Attribute):
        name, is_method = node.func.attr, True
        arguments = (term.of(node.func.value), *arguments)
    else:
        return None
    if "." in name:
        return None
    in_place = name.endswith("_") and not name.endswith("__")
    return Called(name.rstrip("_") if in_place else name, arguments, named, in_place, is_method)


def is_named(call: ast.Call, *names: str) -> bool:
    """By the last part of what is called."""
    func = call.func
    return (func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")) in names


def has_rest(call: ast.Call) -> bool:
    """Arguments that nobody sees: `*more` and `**more`."""
    return any(isinstance(one, ast.Starred) for one in call.args) or any(one.arg is None for one in call.keywords)


def is_in_place(term: Term) -> bool:
    call = called(term)
    return call is not None and call.in_place


# --- clamps -----------------------------------------------------------------------------------------------------------


class Clamp(NamedTuple):
    """x, and the bounds as they are written; has_eras: what it passes exactly at a bound depends on the version of torch."""

    name: str
    x: Term
    low: Term | None
    high: Term | None
    has_eras: bool
    in_place: bool

    def bounds(self) -> Iterator[tuple[Term | None, float]]:
        """Those that are numbers."""
        for bound in (self.low, self.high):
            if bound is not None and (value := number(bound)) is not None:
                yield bound, value
        if not self.has_eras and self.low is None:
            yield from ((None, value) for value in _OPEN[self.name])


_OPEN = {"relu": (0.0,), "relu6": (0.0, 6.0), "hardtanh": (-1.0, 1.0)}
_CLAMPS = ("clamp", "clip", "clamp_min", "clamp_max")


def clamp_of(term: Term) -> Clamp | None:
    call = called(term)
    if call is None or not call.arguments:
        return None
    x, name = call.arguments[0], call.name
    if name in ("clamp", "clip"):
        if name == "clip" and call.is_method and not is_tensor(x):
            return None  # of numpy, or of a data frame
        low, high = call.argument(1, "min"), call.argument(2, "max")
        return Clamp(name, x, _given(low), _given(high), True, call.in_place) if low or high else None
    if name == "clamp_min":
        return Clamp(name, x, call.argument(1, "min"), None, True, call.in_place)
    if name == "clamp_max":
        return Clamp(name, x, None, call.argument(1, "max"), True, call.in_place)
    if name == "hardtanh":
        return Clamp(name, x, call.argument(1, "min_val"), call.argument(2, "max_val"), False, call.in_place)
    return Clamp(name, x, None, None, False, call.in_place) if name in _OPEN else None


def _given(bound: Term | None) -> Term | None:
    return None if bound is None or (isinstance(bound.node, ast.Constant) and bound.node.value is None) else bound


def is_tensor(term: Term, depth: int = 6) -> bool:
    """Is there evidence that it is one?"""
    term = moved(term)
    if key_of(term.node) in term.module.parameters:
        return True
    if isinstance(term.node, ast.BinOp):
        sides = (term.node.left, term.node.right)
        return depth > 0 and any(is_tensor(term.of(one), depth - 1) for one in sides)
    node = term.node
    if not isinstance(node, ast.Call):
        return False
    full = term.module.dotted(node.func, term.env) or ""
    return full.startswith("torch.") or (isinstance(node.func, ast.Attribute) and is_tensor(term.of(node.func.value)))


# --- functions whose slope is infinite somewhere ----------------------------------------------------------------------

_SINGULAR = {
    "sqrt": (0.0,), "rsqrt": (0.0,), "log": (0.0,), "log2": (0.0,), "log10": (0.0,), "log1p": (-1.0,), "reciprocal": (0.0,),
    "acos": (-1.0, 1.0), "arccos": (-1.0, 1.0), "asin": (-1.0, 1.0), "arcsin": (-1.0, 1.0), "acosh": (1.0,), "arccosh": (1.0,),
    "atanh": (-1.0, 1.0), "arctanh": (-1.0, 1.0), "logit": (0.0, 1.0), "erfinv": (-1.0, 1.0), "ndtri": (0.0, 1.0),
}  # fmt: skip


class Singular(NamedTuple):
    """A function of x that has no finite slope at these points. shown: how a message names it."""

    name: str
    x: Term
    points: tuple[float, ...]
    shown: str


def singular_of(term: Term) -> Singular | None:
    node = term.node
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Div):
            return Singular("div", term.of(node.right), (0.0,), "a division by it")
        if isinstance(node.op, ast.Pow):
            return _power(term.of(node.left), number(term.of(node.right)))
        return None
    call = called(term)
    if call is None or not call.arguments:
        return None
    if call.name in ("pow", "float_power"):
        return _power(call.arguments[0], number(call.argument(1, "exponent")))
    if call.name in ("div", "true_divide", "divide") and len(call.arguments) == 2:
        return Singular("div", call.arguments[1], (0.0,), "a division by it")
    if call.name == "logit" and (len(call.arguments) > 1 or "eps" in call.named):
        return None
    points = _SINGULAR.get(call.name)
    return None if points is None else Singular(call.name, call.arguments[0], points, call.name)


def _power(x: Term, exponent: float | None) -> Singular | None:
    """Its slope is infinite at 0 where the exponent is below 1."""
    if exponent is None or exponent >= 1 or exponent == 0:
        return None
    return Singular("pow", x, (0.0,), f"the power {exponent:g}")


def peeled(term: Term, point: float) -> tuple[Term, float]:
    """Behind sums and products with numbers, views and names: the expression, and where it stands when the whole one stands at `point`."""
    for _ in range(20):
        term = moved(term)
        step = _step(term, point)
        if step is None:
            return term, point
        term, point = step
    return term, point


def _step(term: Term, point: float) -> tuple[Term, float] | None:
    node = term.node
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return term.of(node.operand), -point
    if not isinstance(node, ast.BinOp):
        return None
    left, right = term.of(node.left), term.of(node.right)
    a, b = number(left), number(right)
    if (a is None) == (b is None):
        return None
    if isinstance(node.op, ast.Add):
        return (right, point - a) if a is not None else (left, point - b)  # type: ignore[operator]
    if isinstance(node.op, ast.Sub):
        return (right, a - point) if a is not None else (left, point + b)  # type: ignore[operator]
    if isinstance(node.op, ast.Mult):
        factor = a if a is not None else b
        return (right if a is not None else left, point / factor) if factor and math.isfinite(factor) else None
    if isinstance(node.op, ast.Div) and b and math.isfinite(b):
        return left, point * b
    return None


# --- could anything learn through it? ---------------------------------------------------------------------------------

_LEAVES_THE_GRAPH = frozenset(
    [
        "detach",
        "item",
        "tolist",
        "numpy",
        "long",
        "int",
        "bool",
        "short",
        "byte",
        "char",
        "argmax",
        "argmin",
        "argsort",
        "size",
        "dim",
        "numel",
        "bincount",
        "nonzero",
        "isnan",
        "isinf",
        "isfinite",
        "all",
        "any",
        "eq",
        "ne",
        "lt",
        "gt",
        "le",
        "ge",
        "sign",
        "multinomial",
        "allclose",
        "isclose",
        "equal",
        "searchsorted",
        "bucketize",
        "argwhere",
        "indices",
    ]
)
_MADE_OF_NOTHING = frozenset(
    [
        "arange",
        "linspace",
        "logspace",
        "zeros",
        "ones",
        "full",
        "empty",
        "tensor",
        "as_tensor",
        "rand",
        "randn",
        "randint",
        "randperm",
        "zeros_like",
        "ones_like",
        "full_like",
        "rand_like",
        "randn_like",
        "empty_like",
        "eye",
        "from_numpy",
        "tril_indices",
        "triu_indices",
        "bernoulli",
        "hann_window",
        "hamming_window",
        "finfo",
        "iinfo",
    ]
)
_LEAVES = ("float", "int", "bool", "len", "print", "str", "round", "format", "isinstance", "repr", "range")


def is_detached(node: ast.AST, parents: Sequence[ast.AST]) -> bool:
    """Does what is written around it take its value out of the graph, as `.detach()`, a comparison or `print` do?"""
    child = node
    for parent in reversed(parents):
        if isinstance(parent, ast.Attribute) and (parent.attr in _LEAVES_THE_GRAPH or parent.attr in ("data", "shape")):
            return True
        if isinstance(parent, (ast.Compare, ast.FormattedValue, ast.Assert)):
            return True
        if isinstance(parent, (ast.IfExp, ast.While, ast.If)) and child is getattr(parent, "test", None):
            return True
        if isinstance(parent, ast.Subscript) and child is parent.slice:
            return True
        if isinstance(parent, ast.Call) and child is not parent.func:
            func = parent.func
            name = func.id if isinstance(func, ast.Name) else func.attr if isinstance(func, ast.Attribute) else ""
            if name in _LEAVES and isinstance(func, ast.Name):
                return True
            if isinstance(func, ast.Attribute) and name in (
                *_LEAVES_THE_GRAPH,
                "copy_",
                "fill_",
                "register_buffer",
                "info",
                "debug",
            ):
                return True
        child = parent
    return False


def may_learn(term: Term, depth: int = 8) -> bool:
    """Could a gradient be wanted for it? Not for numbers, for what is made of nothing, and for what left the graph."""
    term = moved(term)
    node = term.node
    if depth == 0:
        return True
    key = key_of(node)
    if key is not None and key in term.module.buffers:
        return False
    if isinstance(node, ast.Constant) or number(term) is not None:
        return False
    if isinstance(node, ast.Attribute) and node.attr in ("shape", "data", "grad", "ndim"):
        return False
    if isinstance(node, (ast.BinOp, ast.UnaryOp)):
        parts = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.operand]
        return any(may_learn(term.of(one), depth - 1) for one in parts)
    if isinstance(node, (ast.Compare, ast.JoinedStr, ast.List, ast.Dict)):
        return False
    if isinstance(node, ast.IfExp):
        left = _asked_for_gradient(node.test)
        branches = [node.body, *([] if left is not None and is_same(left, node.orelse) else [node.orelse])]
        return any(may_learn(term.of(one), depth - 1) for one in branches)
    if isinstance(node, ast.Call):
        return _may_learn_of_call(term, node, depth)
    return True


def _asked_for_gradient(test: ast.expr) -> ast.expr | None:
    """The x of `x.requires_grad`."""
    return test.value if isinstance(test, ast.Attribute) and test.attr == "requires_grad" else None


def _may_learn_of_call(term: Term, node: ast.Call, depth: int) -> bool:
    full = term.module.dotted(node.func, term.env)
    if made_as_parameter(term) is not None:
        return True
    if isinstance(node.func, ast.Name) and node.func.id in _LEAVES:
        return False
    call = called(term)
    if call is None:
        return not (full or "").startswith(("math.", "numpy.", "scipy."))
    if call.name in _MADE_OF_NOTHING:
        flag = next((one.value for one in node.keywords if one.arg == "requires_grad"), None)
        return flag is not None and not (isinstance(flag, ast.Constant) and flag.value is False)
    if (call.is_method and call.name in _LEAVES_THE_GRAPH) or call.name in (
        "argmax",
        "argmin",
        "argsort",
        "bincount",
        "nonzero",
    ):
        return False
    if call.is_method and isinstance(call.arguments[0].node, ast.Name) and call.arguments[0].node.id == "self":
        return True
    return any(may_learn(one, depth - 1) for one in call.arguments) or any(
        may_learn(one, depth - 1) for one in call.named.values()
    )


def parameter_of(term: Term) -> Parameter | None:
    """The parameter that this is, behind names, views and slices; None for anything else."""
    asked = term.resolved()
    if (
        isinstance(asked.node, ast.Call)
        and isinstance(asked.node.func, ast.Attribute)
        and asked.node.func.attr == "requires_grad_"
    ):
        tensor = asked.of(asked.node.func.value)
        return (
            Parameter("this leaf", asked.node.lineno, tensor_values(tensor) or frozenset())
            if is_tensor(tensor)
            else None
        )
    term = moved(term)
    key = key_of(term.node)
    if key is not None and key in term.module.parameters:
        return term.module.parameters[key]
    made = made_as_parameter(term)
    if made is None and isinstance(term.node, ast.Call):
        flag = next((one.value for one in term.node.keywords if one.arg == "requires_grad"), None)
        if isinstance(flag, ast.Constant) and flag.value is True:
            made = term
    if made is None:
        return None
    return Parameter("this leaf", term.node.lineno, tensor_values(made) or frozenset())
