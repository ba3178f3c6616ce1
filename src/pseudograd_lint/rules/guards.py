"""Rules about guards of functions that have an infinite slope somewhere."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Iterator
from functools import partial

from ..calls import Call, Clamp, Singular, read_call, read_clamp, read_singular, strip_arithmetic
from ..learning import is_recorded, is_trained, may_learn, reaches_loss
from ..names import Module, is_same, key_of, unparse, words
from ..values import format_number, number, strip_views, to_float32
from . import Rule


def _find_clamps(module: Module, singular: Singular) -> Iterator[tuple[Clamp, float]]:
    """The clamps whose result the function gets; with each clamp, its value where the function has no finite slope."""
    for point in singular.points:
        inner, position = strip_arithmetic(module, singular.x, point)
        clamp = read_clamp(module, inner)
        if clamp is not None and clamp.has_eras and may_learn(module, clamp.x):
            yield clamp, position


def _find_era_guard(module: Module, node: ast.AST, is_in_loss: bool) -> str | None:
    singular, call = read_singular(module, node), read_call(module, node)
    if singular is None or singular.name == "div" or (call is not None and call.in_place):
        return None  # a clamp to 0 does not guard a division by 0; code that works in place is not written for a graph
    if not module.speaks_of_gradients:
        return None
    for clamp, position in _find_clamps(module, singular):
        for bound, value in clamp.bounds(module):
            if value == position and is_trained(module, node) and reaches_loss(module, node) is is_in_loss:
                remedy = "" if bound is None else "; a bound just beside it gives a finite one on both"
                return (
                    f"the bound {format_number(value)} of this {clamp.name} is the point where {singular.label} has an infinite slope: "
                    f"exactly there torch <= 2.13 gives an infinite or NaN gradient and torch >= 2.14 gives 0{remedy}"
                )
    return None


_ERA_GUARDS = (ast.Call, ast.BinOp), ("clamp", "clip")
ERA_GUARD = Rule("PG102", *_ERA_GUARDS, partial(_find_era_guard, is_in_loss=True))
ERA_GUARD_ELSEWHERE = Rule("PG111", *_ERA_GUARDS, partial(_find_era_guard, is_in_loss=False))


def _find_lost_epsilon(module: Module, node: ast.AST) -> str | None:
    singular, call = read_singular(module, node), read_call(module, node)
    if call is not None and call.name == "binary_cross_entropy":  # log(p) and log(1 - p)
        singular = Singular(call.name, call.arguments[0], (0.0, 1.0), f"the log in {call.name}")
    is_double = "float64" in module.loads or any(key_of(load) != "torch.double" for load in module.loads["double"])
    if singular is None or is_double or not is_recorded(module, node):
        return None
    for clamp, position in _find_clamps(module, singular):
        for bound in filter(None, (clamp.low, clamp.high)):
            base = _float32_base(module, bound)
            if base is not None and to_float32(base) == to_float32(position):
                value = format_number(base)
                where = f"the bound {unparse(bound)} of this {clamp.name} is {value} in float32, where {singular.label}"
                return f"{where} has an infinite slope: a value of {value} passes"
    return None


def _float32_base(module: Module, bound: ast.expr) -> float | None:
    """The number that float32 makes of a bound with a lost epsilon: 1 for `1 - 1e-8`, 0 for 1e-50. None for other bounds."""
    node, value = module.resolve(bound), number(module, bound)
    if value and not to_float32(value) and abs(value) > 1e-250:  # a smaller number is meant for float64
        return 0.0
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Add, ast.Sub)):
        return None
    left, right = number(module, node.left), number(module, node.right)
    if not left or not right or value is None:
        return None
    base = max(left, right, key=abs)
    return base if value != base and to_float32(value) == to_float32(base) else None


LOST_EPSILON = Rule("PG103", (ast.Call, ast.BinOp), ("clamp", "clip"), _find_lost_epsilon)


# The value at the singular point. A gradient that is cut there arrives as 0, and 0 times an infinite slope is NaN.
_VALUES = {
    "sqrt": 0.0, "log": -math.inf, "log2": -math.inf, "log10": -math.inf, "log1p": -math.inf, "rsqrt": math.inf, "reciprocal": math.inf,
}  # fmt: skip
# Functions whose value at the singular point is finite: nan_to_num does not change it, and cuts no gradient there.
_FINITE = words("sqrt pow acos arccos asin arcsin")
# Functions whose results count as safe: they are never 0, or the function is itself a guard.
_SAFE = words(
    "exp softplus sigmoid clamp clip clamp_min clamp_max softmax where maximum max relu cosh masked_fill norm add"
)
_ORDER = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip


def _find_late_guard(module: Module, node: ast.AST) -> str | None:
    clamp, call = read_clamp(module, node), read_call(module, node)
    if call is None or (clamp is not None and clamp.in_place) or not is_trained(module, node):
        return None
    if call.name == "where":
        hidden = next(hidden_functions(module, call), None)
        return hidden and _late_message(hidden[1], "where chooses after it and")
    singular = read_singular(module, strip_views(module, call.arguments[0]))
    if singular is None or not _can_be_singular(module, singular.x):
        return None
    if clamp is None:
        is_cut = call.name == "nan_to_num" and singular.name not in _FINITE
    else:
        value, low, high = _VALUES.get(singular.name), number(module, clamp.low), number(module, clamp.high)
        is_cut = value is not None and ((low is not None and value < low) or (high is not None and value > high))
    return _late_message(singular, f"{'this ' if clamp else ''}{call.name} follows it and") if is_cut else None


def hidden_functions(module: Module, call: Call) -> Iterator[tuple[ast.AST, Singular, bool]]:
    """Functions in a branch of a `where` that have no finite slope for some x of the other branch.

    Yields the node, the function, and whether it is in the first branch.
    """
    x, *others = call.arguments  # x: the condition in torch.where(x, ...), the first branch in x.where(...)
    condition, *branches = (others[0], x, *others[1:]) if call.is_method and others else call.arguments
    for branch, other, chosen in zip(branches, branches[::-1], (True, False), strict=False):
        functions = (read_singular(module, part) for part in ast.walk(module.resolve(other)))
        # The other branch has no finite slope for these x either.
        beside = [function.x for function in functions if function is not None]
        for part in ast.walk(module.resolve(branch)):
            singular = read_singular(module, part)
            if singular is None or not _can_be_singular(module, singular.x):
                continue
            values = [_value_at(module, condition, singular.x, point) for point in singular.points]
            if (not chosen) in values and not any(_is_x(module, x, singular.x) for x in beside):
                yield part, singular, chosen


def _late_message(singular: Singular, guard: str) -> str:
    point, x = " or ".join(f"{point:g}" for point in singular.points), unparse(singular.x)
    x = x if len(x) <= 40 else "its argument"
    effect = f"sends back 0, which {singular.label} multiplies with an infinite slope; guard what goes in"
    return f"where {x} is {point}, the gradient is NaN: {guard} {effect}"


def _can_be_singular(module: Module, x: ast.expr, depth: int = 6) -> bool:
    """Can x be at a singular point? Not if it is a sum, or the result of a function that never reaches such a point."""
    x = strip_views(module, x)
    if depth == 0 or not may_learn(module, x):
        return False
    if isinstance(x, ast.BinOp):
        if isinstance(x.op, ast.Mult):
            return any(_can_be_singular(module, side, depth - 1) for side in (x.left, x.right))
        return not isinstance(x.op, ast.Add)
    call = read_call(module, x)
    if call is not None:
        return call.name not in _SAFE
    if not isinstance(x, ast.Call):
        return True
    if not isinstance(x.func, ast.Name):
        return False
    if (function := module.functions.get(x.func.id)) is not None:  # what it returns
        values = [line.value for line in ast.walk(function) if isinstance(line, ast.Return) and line.value]
        return any(_can_be_singular(module, value, depth - 1) for value in values)
    return module.definition(x.func) is not None  # the output of a network: `net(x)`, where `net` is a variable


def _value_at(module: Module, condition: ast.expr, x: ast.expr, point: float) -> bool | None:
    """The value of the condition if x is `point`. None if it does not compare x. An unknown bound counts as a small number."""
    node = strip_views(module, condition)
    if not isinstance(node, ast.Compare) or len(node.ops) != 1 or type(node.ops[0]) not in _ORDER:
        return None
    sides, act = (node.left, node.comparators[0]), _ORDER[type(node.ops[0])]
    unknown = point if act in (operator.eq, operator.ne) else 1e-6
    are_x = [_is_x(module, side, x) for side in sides]
    values = [point if is_x else number(module, side) for side, is_x in zip(sides, are_x, strict=True)]
    left, right = (unknown if value is None else value for value in values)
    return bool(act(left, right)) if any(are_x) else None


def _is_x(module: Module, side: ast.expr, x: ast.expr) -> bool:
    """Is this side of a comparison x or |x|?"""
    side = _source_form(module, side)
    call = read_call(module, side)
    if call is not None and call.name == "abs":
        side = call.arguments[0]
    return is_same(side, _source_form(module, x)) and not isinstance(side, ast.Constant)


def _source_form(module: Module, node: ast.expr) -> ast.expr:
    """The name or attribute that a name stands for, or the node itself."""
    definition = module.resolve(node)
    return definition if isinstance(definition, (ast.Name, ast.Attribute)) else node


LATE_GUARD = Rule("PG104", (ast.Call,), ("where", "nan_to_num", "clamp", "clip"), _find_late_guard)
