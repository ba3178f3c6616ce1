"""A guard that stands behind the function it guards."""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterator

from pseudograd_notices.code import Code

from ..numbers import number
from ..ops import Called, Singular, called, clamp_of, is_detached, may_learn, singular_of
from ..tensors import moved
from ..terms import Term, is_same
from ..uses import only_chooses
from ..walk import Spot
from .rule import Rule

# At its singular point: the value of each. What is cut there arrives as 0, and 0 times an infinite slope is NaN.
_VALUES = {
    "sqrt": 0.0, "log": -float("inf"), "log2": -float("inf"), "log10": -float("inf"), "log1p": -float("inf"),
    "rsqrt": float("inf"), "reciprocal": float("inf"),
}  # fmt: skip
_FINITE = (
    "sqrt",
    "pow",
    "acos",
    "arccos",
    "asin",
    "arcsin",
)  # their value there is left as it is, and so is their slope
# No value of these is 0, or they are guarded already.
_POSITIVE = frozenset(
    [
        "exp",
        "softplus",
        "sigmoid",
        "clamp",
        "clip",
        "clamp_min",
        "clamp_max",
        "softmax",
        "where",
        "maximum",
        "max",
        "relu",
        "cosh",
        "masked_fill",
        "norm",
        "add",
    ]
)


def _find(spot: Spot) -> str | None:
    if not spot.is_recorded or is_detached(spot.term.node, spot.parents):
        return None
    message = _guard(spot)
    return None if message is None or only_chooses(spot) else message


def _guard(spot: Spot) -> str | None:
    clamp = clamp_of(spot.term)
    if clamp is not None:
        return None if clamp.in_place else _behind_a_clamp(spot)
    call = called(spot.term)
    if call is None or not call.arguments:
        return None
    if call.name == "where" and len(call.arguments) == 3:
        condition, first, second = call.arguments
        if call.is_method:
            condition, first = first, condition
        return _in_a_branch(condition, ((first, True), (second, False)), "where")
    if call.name == "masked_fill" and len(call.arguments) == 3:
        return _in_a_branch(call.arguments[1], ((call.arguments[0], False),), "masked_fill")
    return _behind_nan_to_num(call)


def _behind_a_clamp(spot: Spot) -> str | None:
    clamp = clamp_of(spot.term)
    assert clamp is not None
    inner = moved(clamp.x)
    singular = singular_of(inner)
    if singular is None or singular.name not in _VALUES or not _can_be_singular(singular.x):
        return None
    value = _VALUES[singular.name]
    low, high = number(clamp.low), number(clamp.high)
    if (low is not None and value < low) or (high is not None and value > high):
        return _message(singular, f"this {clamp.name} stands behind it and")
    return None


def _behind_nan_to_num(call: Called) -> str | None:
    if call.name != "nan_to_num":
        return None
    singular = singular_of(moved(call.arguments[0]))
    if singular is None or singular.name in _FINITE or not _can_be_singular(singular.x):
        return None
    return _message(singular, "nan_to_num stands behind it and")


def _in_a_branch(condition: Term, branches: tuple[tuple[Term, bool], ...], name: str) -> str | None:
    """branches: each with what the condition is where it is chosen."""
    for branch, chosen in branches:
        for singular in _inside(branch):
            if not _can_be_singular(singular.x) or not _asks_about(condition, singular.x):
                continue
            if any(_holds_at(condition, singular.x, point) is not chosen for point in singular.points):
                return _message(singular, f"{name} chooses behind it and")
    return None


def _message(singular: Singular, guard: str) -> str:
    point = " or ".join(f"{point:g}" for point in singular.points)
    what = singular.x.text()
    what = what if len(what) <= 40 else "its argument"
    return (
        f"where {what} is {point}, the gradient is NaN: {guard} sends back 0, which "
        f"{'the division' if singular.name == 'div' else singular.name} "
        "multiplies with an infinite slope; guard what goes in"
    )


def _inside(branch: Term) -> Iterator[Singular]:
    """Every singular function that the value of the branch is computed by."""
    branch = branch.resolved()
    for node in ast.walk(branch.node):
        if isinstance(node, (ast.Call, ast.BinOp)):
            singular = singular_of(branch.of(node))
            if singular is not None:
                yield singular


def _can_be_singular(x: Term, depth: int = 6) -> bool:
    """Not where a number is added, or where it comes from a function that has no such value."""
    x = moved(x)
    if not may_learn(x):
        return False
    node = x.node
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Add):
            return False
        if isinstance(node.op, ast.Mult):
            return depth > 0 and any(_can_be_singular(x.of(one), depth - 1) for one in (node.left, node.right))
        return True
    call = called(x)
    if call is None:
        return not isinstance(node, ast.Call)
    return call.name not in _POSITIVE


def _asks_about(condition: Term, x: Term, depth: int = 6) -> bool:
    """Does it compare this very thing?"""
    condition = moved(condition)
    node = condition.node
    if isinstance(node, (ast.BinOp, ast.BoolOp)):
        parts = [node.left, node.right] if isinstance(node, ast.BinOp) else node.values
        return depth > 0 and any(_asks_about(condition.of(one), x, depth - 1) for one in parts)
    if isinstance(node, ast.UnaryOp):
        return _asks_about(condition.of(node.operand), x)
    if isinstance(node, ast.Compare):
        return any(_is_that(condition.of(one), x) for one in (node.left, *node.comparators))
    call = called(condition)
    if (
        call is not None
        and call.arguments
        and call.name in ("eq", "ne", "gt", "lt", "ge", "le", "isclose", "abs", "logical_not", "logical_and")
    ):
        return any(_is_that(one, x) or _asks_about(one, x) for one in call.arguments)
    return False


_ORDER = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip


def _holds_at(condition: Term, x: Term, point: float) -> bool | None:
    """Of `x < 1` and 0 True: there the branch is chosen, and nothing is guarded. None for what is not so plain."""
    condition = moved(condition)
    node = condition.node
    if not isinstance(node, ast.Compare) or len(node.ops) != 1 or type(node.ops[0]) not in _ORDER:
        return None
    left, right = condition.of(node.left), condition.of(node.comparators[0])
    act = _ORDER[type(node.ops[0])]
    if _is_that(left, x) and (value := number(right)) is not None:
        return bool(act(point, value))
    if _is_that(right, x) and (value := number(left)) is not None:
        return bool(act(value, point))
    return None


def _is_that(asked: Term, x: Term) -> bool:
    """x itself, or |x|."""
    asked = moved_text(asked)
    call = called(asked)
    if call is not None and call.name == "abs":
        asked = call.arguments[0]
    mine = moved_text(x)
    return is_same(asked.node, mine.node) and not isinstance(asked.node, ast.Constant)


def moved_text(term: Term) -> Term:
    """As it is written, or what its name stands for where that is a name again."""
    found = term.resolved()
    return found if isinstance(found.node, (ast.Name, ast.Attribute)) else term


RULE = Rule(
    Code(
        number="PG104",
        name="late-guard",
        meaning="a where, clamp or nan_to_num stands behind the function whose infinite slope it should stop",
        why="The value is right and the gradient is NaN: what is not chosen, or is cut, gets the gradient 0, and the function in front "
        "multiplies 0 by an infinite slope. One such element makes every parameter NaN.",
        mend="Guard what goes in: `torch.where(x > 0, torch.log(torch.where(x > 0, x, 1)), 0)`, `x.clamp(min=1e-12).sqrt()`, "
        "`a / torch.where(b == 0, 1, b)`, or `torch.xlogy`.",
        bad="""\
import torch


def entropy(p):
    return -(p * torch.where(p > 0, torch.log(p), 0.0)).sum()  # PG104
""",
        good="""\
import torch


def entropy(p):
    safe = torch.where(p > 0, p, 1.0)
    return -(p * torch.where(p > 0, torch.log(safe), 0.0)).sum()
""",
        is_default=False,
    ),
    kinds=(ast.Call,),
    words=("where", "masked_fill", "nan_to_num", "clamp", "clip"),
    find=_find,
)
