"""Rules about guards of functions that have an infinite slope somewhere.

The rules of one kind are one file, since `lint` imports all of them at every start.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Iterator

from pseudograd_notices.code import Code

from ..calls import Call, Clamp, Singular, may_learn, read_call, read_clamp, read_singular, strip_arithmetic
from ..terms import Term, is_same, last_name, words
from ..uses import only_chooses, reaches_loss
from ..values import format_number, number, single, strip_moves
from ..walk import Rule, Spot

# --- the bound is the singular point ----------------------------------------------------------------------------------

_ANGLES = ("acos", "arccos", "asin", "arcsin")


def _find_era_guard(spot: Spot) -> str | None:
    message = _era_guard(spot)
    return message if message is not None and reaches_loss(spot) else None


def _find_era_guard_elsewhere(spot: Spot) -> str | None:
    message = _era_guard(spot)
    return None if message is None or reaches_loss(spot) or only_chooses(spot) else message


def _era_guard(spot: Spot) -> str | None:
    """The message, wherever the value goes."""
    singular = read_singular(spot.term)
    if singular is None or singular.name == "div" or not spot.is_trained:
        return None  # a number over 0 is infinite, so nothing was guarded
    call = read_call(spot.term)
    if call is not None and call.in_place:
        return None  # then nobody thought of a graph
    if not spot.term.module.speaks_of_gradients or (singular.name in _ANGLES and _is_in_degrees(spot)):
        return None
    for point in singular.points:
        inner, position = strip_arithmetic(singular.x, point)
        clamp = read_clamp(inner)
        if clamp is None or not clamp.has_eras or not may_learn(clamp.x):
            continue
        for bound, value in clamp.bounds():
            if value == position:
                remedy = "" if bound is None else "; a bound just beside it gives a finite one on both"
                return (
                    f"the bound {format_number(value)} of this {clamp.name} is the point where {singular.label} has an infinite slope: "
                    f"exactly there torch <= 2.13 gives an infinite or NaN gradient and torch >= 2.14 gives 0{remedy}"
                )
    return None


def _is_in_degrees(spot: Spot) -> bool:
    """Does the function make an angle that people read? Nothing is trained with it."""
    return any(
        (isinstance(node, ast.Call) and last_name(node) in ("rad2deg", "degrees"))
        or (isinstance(node, ast.Constant) and node.value in (180, 180.0))
        for node in ast.walk(spot.term.module.function or spot.term.node)
    )


ERA_GUARD = Rule(
    Code(
        number="PG102",
        name="era-guard",
        meaning="a guard in front of sqrt, log or acos has its bound at the singular point itself, and a loss is made of "
        "it",
        why="The value is guarded, the gradient is not: exactly at the bound the slope of the guarded function is "
        "infinite, and it depends on the version of torch whether the clamp passes it on (up to 2.13, where it "
        "becomes inf or NaN) or cuts it (since 2.14). A distance of 0, two equal vectors or a black pixel is "
        "enough. Told where the value goes, within its file, into what is called a loss.",
        mend="Put the bound beside the singular point: `clamp(min=1e-12).sqrt()`, `clamp(-1 + 1e-6, 1 - "
        "1e-6).acos()`. Where the value at the point must stay exact, `pseudograd.clamp(x, 0, rule='zero', "
        "edge='open')` gives 0 there on every torch.",
        bad="""\
import torch


def distance_loss(x, y):
    return (x - y).pow(2).sum(-1).clamp(min=0).sqrt().mean()  # PG102
""",
        good="""\
import torch


def distance_loss(x, y):
    return (x - y).pow(2).sum(-1).clamp(min=1e-12).sqrt().mean()
""",
    ),
    kinds=(ast.Call, ast.BinOp),
    words=("clamp", "clip"),
    find=_find_era_guard,
)


ERA_GUARD_ELSEWHERE = Rule(
    Code(
        number="PG111",
        name="era-guard-elsewhere",
        meaning="a guard in front of sqrt, log or acos has its bound at the singular point itself, and nobody sees what "
        "is made of it",
        why="As PG102, in functions whose value is not followed into a loss: of geometry, of covariances, of a "
        "model. Many are never differentiated, and so this is off by default; a library that promises gradients "
        "should ask for it. Told in files that speak of a loss, a parameter or gradients.",
        mend="As PG102 where a gradient is wanted: a bound beside the singular point, or `pseudograd.clamp(x, 0, "
        "rule='zero', edge='open')`.",
        bad="""\
import torch


def angle(x, y):  # for a loss of somebody else
    return (x * y).sum(-1).clamp(-1, 1).acos()  # PG111
""",
        good="""\
import torch


def angle(x, y):  # for a loss of somebody else
    return (x * y).sum(-1).clamp(-1 + 1e-6, 1 - 1e-6).acos()
""",
        is_default=False,
    ),
    kinds=(ast.Call, ast.BinOp),
    words=("clamp", "clip"),
    find=_find_era_guard_elsewhere,
)


# --- the bound is the singular point in float32 -----------------------------------------------------------------------


def _find_lost_epsilon(spot: Spot) -> str | None:
    singular = read_singular(spot.term)
    call = read_call(spot.term)
    if call is not None and call.name == "binary_cross_entropy" and call.arguments:  # log(p) and log(1 - p)
        singular = Singular(call.name, call.arguments[0], (0.0, 1.0), call.name)
    if singular is None:
        return None
    for point in singular.points:
        inner, position = strip_arithmetic(singular.x, point)
        clamp = read_clamp(inner)
        if clamp is None or not clamp.has_eras or _is_double(clamp) or not may_learn(clamp.x):
            continue
        for bound in filter(None, (clamp.low, clamp.high)):
            lost = _lost_epsilon(bound)
            if lost is not None and single(lost[0]) == single(position):
                value = format_number(lost[0])
                return (
                    f"the bound {bound.text()} of this {clamp.name} is {value} in float32, where {singular.label} has an infinite slope: "
                    f"a value of {value} passes; the smallest step beside it is {_step_beside(*lost):.1e}"
                )
    return None


def _lost_epsilon(bound: Term) -> tuple[float, float] | None:
    """Of `1 - 1e-8` the number 1 and the 1e-8 that is not there."""
    term = bound.resolved()
    node = term.node
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Add, ast.Sub)):
        return None
    left, right, value = number(term.part(node.left)), number(term.part(node.right)), number(bound)
    if not left or not right or value is None:
        return None
    base, epsilon = (left, right) if abs(left) > abs(right) else (right, left)
    return (base, epsilon) if value != base and single(value) == single(base) else None


def _step_beside(base: float, epsilon: float) -> float:
    """From this number to the one below of float32."""
    step = 2.0**-149
    while single(base - step) == single(base):
        step *= 2
    return step


def _is_double(clamp: Clamp) -> bool:
    nodes = ast.walk(clamp.x.resolved().node)
    return any(isinstance(node, ast.Attribute) and node.attr in ("double", "float64") for node in nodes)


LOST_EPSILON = Rule(
    Code(
        number="PG103",
        name="lost-epsilon",
        meaning="a bound such as `1 - 1e-8` is the number 1 in float32, and log, acos or a division stands behind it",
        why="The numbers of float32 next to 1 are 6e-8 below and 1.2e-7 above, so `clamp(p, 1e-8, 1 - 1e-8)` lets a "
        "p of exactly 1 through, and `log(1 - p)` behind it is -inf with a gradient that is not finite. In half "
        "precision epsilons are lost below 5e-4, in bfloat16 below 4e-3.",
        mend="Choose an epsilon that the dtype has: `1 - 1e-6` or more for float32, `torch.finfo(p.dtype).eps` for "
        "any; or work with logits: `binary_cross_entropy_with_logits`, `logsigmoid`, `log_softmax`.",
        bad="""\
import torch


def loss(p, y):
    p = torch.clamp(p, 1e-8, 1 - 1e-8)
    return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()  # PG103
""",
        good="""\
import torch


def loss(p, y):
    p = torch.clamp(p, 1e-6, 1 - 1e-6)
    return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()
""",
        is_default=False,
    ),
    kinds=(ast.Call, ast.BinOp),
    words=("clamp", "clip"),
    find=_find_lost_epsilon,
)


# --- the guard stands behind the function -----------------------------------------------------------------------------

# The value at the singular point. A gradient that is cut there arrives as 0, and 0 times an infinite slope is NaN.
_VALUES = {
    "sqrt": 0.0, "log": -math.inf, "log2": -math.inf, "log10": -math.inf, "log1p": -math.inf, "rsqrt": math.inf, "reciprocal": math.inf,
}  # fmt: skip
# nan_to_num leaves their value there as it is, and so their slope.
_FINITE = words("sqrt pow acos arccos asin arcsin")
# No value of these is 0, or they are guarded already.
_POSITIVE = words(
    "exp softplus sigmoid clamp clip clamp_min clamp_max softmax where maximum max relu cosh masked_fill norm add"
)
_COMPARISONS = words("eq ne gt lt ge le isclose abs logical_not logical_and")
_ORDER = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip


def _find_late_guard(spot: Spot) -> str | None:
    message = _late_guard(spot) if spot.is_trained else None
    return None if message is None or only_chooses(spot) else message


def _late_guard(spot: Spot) -> str | None:
    clamp = read_clamp(spot.term)
    if clamp is not None:
        return None if clamp.in_place else _guard_by_clamp(clamp)
    call = read_call(spot.term)
    if call is None or not call.arguments:
        return None
    if call.name == "where" and len(call.arguments) == 3:
        condition, first, second = call.arguments
        if call.is_method:
            condition, first = first, condition
        return _guard_by_branch(condition, ((first, True), (second, False)), "where")
    if call.name == "masked_fill" and len(call.arguments) == 3:
        return _guard_by_branch(call.arguments[1], ((call.arguments[0], False),), "masked_fill")
    return _guard_by_nan_to_num(call)


def _guard_by_clamp(clamp: Clamp) -> str | None:
    singular = read_singular(strip_moves(clamp.x))
    if singular is None or singular.name not in _VALUES or not _can_be_singular(singular.x):
        return None
    value = _VALUES[singular.name]
    low, high = number(clamp.low), number(clamp.high)
    if (low is not None and value < low) or (high is not None and value > high):
        return _late_message(singular, f"this {clamp.name} stands behind it and")
    return None


def _guard_by_nan_to_num(call: Call) -> str | None:
    singular = read_singular(strip_moves(call.arguments[0])) if call.name == "nan_to_num" else None
    if singular is None or singular.name in _FINITE or not _can_be_singular(singular.x):
        return None
    return _late_message(singular, "nan_to_num stands behind it and")


def _guard_by_branch(condition: Term, branches: tuple[tuple[Term, bool], ...], name: str) -> str | None:
    """branches: each with the value of the condition where it is chosen."""
    for branch, chosen in branches:
        for singular in _singular_parts(branch):
            if not _can_be_singular(singular.x) or not _asks_about(condition, singular.x):
                continue
            if any(_value_at(condition, singular.x, point) is not chosen for point in singular.points):
                return _late_message(singular, f"{name} chooses behind it and")
    return None


def _late_message(singular: Singular, guard: str) -> str:
    point = " or ".join(f"{point:g}" for point in singular.points)
    x = singular.x.text()
    x = x if len(x) <= 40 else "its argument"
    what = "the division" if singular.name == "div" else singular.name
    effect = f"sends back 0, which {what} multiplies with an infinite slope; guard what goes in"
    return f"where {x} is {point}, the gradient is NaN: {guard} {effect}"


def _singular_parts(branch: Term) -> Iterator[Singular]:
    """Every singular function that the value of the branch is computed by."""
    branch = branch.resolved()
    for node in ast.walk(branch.node):
        if isinstance(node, (ast.Call, ast.BinOp)) and (singular := read_singular(branch.part(node))) is not None:
            yield singular


def _can_be_singular(x: Term, depth: int = 6) -> bool:
    """Not where a number is added, or where it comes from a function that has no such value."""
    x = strip_moves(x)
    if not may_learn(x):
        return False
    node = x.node
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Mult):
            return depth > 0 and any(_can_be_singular(x.part(side), depth - 1) for side in (node.left, node.right))
        return not isinstance(node.op, ast.Add)
    call = read_call(x)
    return not isinstance(node, ast.Call) if call is None else call.name not in _POSITIVE


def _asks_about(condition: Term, x: Term, depth: int = 6) -> bool:
    """Does it compare this very thing?"""
    condition = strip_moves(condition)
    node = condition.node
    if isinstance(node, (ast.BinOp, ast.BoolOp)):
        parts = [node.left, node.right] if isinstance(node, ast.BinOp) else node.values
        return depth > 0 and any(_asks_about(condition.part(part), x, depth - 1) for part in parts)
    if isinstance(node, ast.UnaryOp):
        return _asks_about(condition.part(node.operand), x)
    if isinstance(node, ast.Compare):
        return any(_is_x(condition.part(side), x) for side in (node.left, *node.comparators))
    call = read_call(condition)
    arguments = call.arguments if call is not None and call.name in _COMPARISONS else ()
    return any(_is_x(argument, x) or _asks_about(argument, x) for argument in arguments)


def _value_at(condition: Term, x: Term, point: float) -> bool | None:
    """Of `x < 1` at 0 True: there the branch is chosen, and nothing is guarded. None for what is not so plain."""
    condition = strip_moves(condition)
    node = condition.node
    if not isinstance(node, ast.Compare) or len(node.ops) != 1 or type(node.ops[0]) not in _ORDER:
        return None
    left, right = condition.part(node.left), condition.part(node.comparators[0])
    act = _ORDER[type(node.ops[0])]
    if _is_x(left, x) and (value := number(right)) is not None:
        return bool(act(point, value))
    if _is_x(right, x) and (value := number(left)) is not None:
        return bool(act(value, point))
    return None


def _is_x(side: Term, x: Term) -> bool:
    """x itself, or |x|."""
    side = _source_form(side)
    call = read_call(side)
    if call is not None and call.name == "abs":
        side = call.arguments[0]
    return is_same(side.node, _source_form(x).node) and not isinstance(side.node, ast.Constant)


def _source_form(term: Term) -> Term:
    """As it is written, or what its name stands for where that is a name again."""
    definition = term.resolved()
    return definition if isinstance(definition.node, (ast.Name, ast.Attribute)) else term


LATE_GUARD = Rule(
    Code(
        number="PG104",
        name="late-guard",
        meaning="a where, clamp or nan_to_num stands behind the function whose infinite slope it should stop",
        why="The value is right and the gradient is NaN: what is not chosen, or is cut, gets the gradient 0, and the "
        "function in front multiplies 0 by an infinite slope. One such element makes every parameter NaN.",
        mend="Guard what goes in: `torch.where(x > 0, torch.log(torch.where(x > 0, x, 1)), 0)`, "
        "`x.clamp(min=1e-12).sqrt()`, `a / torch.where(b == 0, 1, b)`, or `torch.xlogy`.",
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
    find=_find_late_guard,
)
