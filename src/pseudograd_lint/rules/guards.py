"""Rules about guards of functions that have an infinite slope somewhere."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Iterator

from pseudograd_notices.code import Code

from ..calls import Call, Clamp, Singular, read_call, read_clamp, read_singular, strip_arithmetic
from ..learning import is_trained, may_learn, only_chooses, reaches_loss
from ..names import FUNCTIONS, Module, is_same, last_name, unparse, words
from ..values import format_number, number, single, strip_moves
from . import Rule


def _clamps_behind(module: Module, singular: Singular) -> Iterator[tuple[Clamp, float]]:
    """The clamp that makes what goes into the function, with its value where the function has no finite slope."""
    for point in singular.points:
        inner, position = strip_arithmetic(module, singular.x, point)
        clamp = read_clamp(module, inner)
        if clamp is not None and clamp.has_eras and may_learn(module, clamp.x):
            yield clamp, position


# --- the bound is the singular point ----------------------------------------------------------------------------------

_ANGLES = ("acos", "arccos", "asin", "arcsin")


def _find_era_guard(module: Module, node: ast.AST) -> str | None:
    message = _era_guard(module, node)
    return message if message is not None and reaches_loss(module, node) else None


def _find_era_guard_elsewhere(module: Module, node: ast.AST) -> str | None:
    message = _era_guard(module, node)
    return None if message is None or reaches_loss(module, node) or only_chooses(module, node) else message


def _era_guard(module: Module, node: ast.AST) -> str | None:
    """The message, wherever the value goes."""
    singular, call = read_singular(module, node), read_call(module, node)
    if singular is None or singular.name == "div" or (call is not None and call.in_place):
        return None  # a number over 0 is infinite, so nothing was guarded; who works in place thought of no graph
    if not module.speaks_of_gradients or (singular.name in _ANGLES and _is_in_degrees(module, node)):
        return None
    for clamp, position in _clamps_behind(module, singular):
        for bound, value in clamp.bounds(module):
            if value == position and is_trained(module, node):
                remedy = "" if bound is None else "; a bound just beside it gives a finite one on both"
                return (
                    f"the bound {format_number(value)} of this {clamp.name} is the point where {singular.label} has an infinite slope: "
                    f"exactly there torch <= 2.13 gives an infinite or NaN gradient and torch >= 2.14 gives 0{remedy}"
                )
    return None


def _is_in_degrees(module: Module, node: ast.AST) -> bool:
    """Does the function make an angle that people read? Nothing is trained with it."""
    function = next((up for up in module.parents(node) if isinstance(up, FUNCTIONS)), node)
    return any(
        (isinstance(part, ast.Call) and last_name(part) in ("rad2deg", "degrees"))
        or (isinstance(part, ast.Constant) and part.value in (180, 180.0))
        for part in ast.walk(function)
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


def _find_lost_epsilon(module: Module, node: ast.AST) -> str | None:
    singular, call = read_singular(module, node), read_call(module, node)
    if call is not None and call.name == "binary_cross_entropy":  # log(p) and log(1 - p)
        singular = Singular(call.name, call.arguments[0], (0.0, 1.0), call.name)
    for clamp, position in () if singular is None else _clamps_behind(module, singular):
        for bound in filter(None, (clamp.low, clamp.high)):
            base = _float32_base(module, bound)
            if base is not None and single(base) == single(position) and not _is_double(module, clamp):
                assert singular is not None
                value = format_number(base)
                return (
                    f"the bound {unparse(bound)} of this {clamp.name} is {value} in float32, where {singular.label} has an infinite slope: "
                    f"a value of {value} passes; the smallest step beside it is {_step_below(base):.1e}"
                )
    return None


def _float32_base(module: Module, bound: ast.expr) -> float | None:
    """The 1 of `1 - 1e-8`, which is 1 in float32."""
    node = module.resolve(bound)
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Add, ast.Sub)):
        return None
    left, right, value = number(module, node.left), number(module, node.right), number(module, bound)
    if not left or not right or value is None:
        return None
    base = max(left, right, key=abs)
    return base if value != base and single(value) == single(base) else None


def _step_below(base: float) -> float:
    """From this number to the next lower one of float32."""
    step = 2.0**-149
    while single(base - step) == single(base):
        step *= 2
    return step


def _is_double(module: Module, clamp: Clamp) -> bool:
    nodes = ast.walk(module.resolve(clamp.x))
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


def _find_late_guard(module: Module, node: ast.AST) -> str | None:
    message = _late_guard(module, node)
    return None if message is None or not is_trained(module, node) or only_chooses(module, node) else message


def _late_guard(module: Module, node: ast.AST) -> str | None:
    clamp, call = read_clamp(module, node), read_call(module, node)
    if clamp is not None:
        return None if clamp.in_place else _guard_by_clamp(module, clamp)
    if call is None:
        return None
    if call.name == "where" and len(call.arguments) == 3:
        condition, first, second = call.arguments
        if call.is_method:
            condition, first = first, condition
        return _guard_by_branch(module, condition, ((first, True), (second, False)), "where")
    if call.name == "masked_fill" and len(call.arguments) == 3:
        return _guard_by_branch(module, call.arguments[1], ((call.arguments[0], False),), "masked_fill")
    return _guard_by_nan_to_num(module, call)


def _guard_by_clamp(module: Module, clamp: Clamp) -> str | None:
    singular = read_singular(module, strip_moves(module, clamp.x))
    if singular is None or singular.name not in _VALUES or not _can_be_singular(module, singular.x):
        return None
    value = _VALUES[singular.name]
    low, high = number(module, clamp.low), number(module, clamp.high)
    if (low is not None and value < low) or (high is not None and value > high):
        return _late_message(singular, f"this {clamp.name} stands behind it and")
    return None


def _guard_by_nan_to_num(module: Module, call: Call) -> str | None:
    singular = read_singular(module, strip_moves(module, call.arguments[0])) if call.name == "nan_to_num" else None
    if singular is None or singular.name in _FINITE or not _can_be_singular(module, singular.x):
        return None
    return _late_message(singular, "nan_to_num stands behind it and")


def _guard_by_branch(
    module: Module, condition: ast.expr, branches: tuple[tuple[ast.expr, bool], ...], name: str
) -> str | None:
    """branches: each with the value of the condition where it is chosen."""
    for branch, chosen in branches:
        for part in ast.walk(module.resolve(branch)):
            singular = read_singular(module, part)
            if singular is None or not _can_be_singular(module, singular.x):
                continue
            is_asked = _asks_about(module, condition, singular.x)
            if is_asked and any(
                _value_at(module, condition, singular.x, point) is not chosen for point in singular.points
            ):
                return _late_message(singular, f"{name} chooses behind it and")
    return None


def _late_message(singular: Singular, guard: str) -> str:
    point = " or ".join(f"{point:g}" for point in singular.points)
    x = unparse(singular.x)
    x = x if len(x) <= 40 else "its argument"
    function = "the division" if singular.name == "div" else singular.name
    effect = f"sends back 0, which {function} multiplies with an infinite slope; guard what goes in"
    return f"where {x} is {point}, the gradient is NaN: {guard} {effect}"


def _can_be_singular(module: Module, x: ast.expr, depth: int = 6) -> bool:
    """Not where a number is added, or where it comes from a function that may have no such value."""
    x = strip_moves(module, x)
    if depth == 0 or not may_learn(module, x):
        return False
    if isinstance(x, ast.BinOp):
        if isinstance(x.op, ast.Mult):
            return any(_can_be_singular(module, side, depth - 1) for side in (x.left, x.right))
        return not isinstance(x.op, ast.Add)
    call = read_call(module, x)
    if call is not None:
        return call.name not in _POSITIVE
    if not isinstance(x, ast.Call):
        return True
    # the output of a network: a call of a name that the scope gives a value
    return isinstance(x.func, ast.Name) and x.func.id not in module.functions and module.definition(x.func) is not None


def _asks_about(module: Module, condition: ast.expr, x: ast.expr, depth: int = 6) -> bool:
    """Does it compare this very thing?"""
    node = strip_moves(module, condition)
    if isinstance(node, ast.Compare):
        return any(_is_x(module, side, x) for side in (node.left, *node.comparators))
    parts: list[ast.expr] = []
    if isinstance(node, ast.BinOp):
        parts = [node.left, node.right]
    elif isinstance(node, ast.BoolOp):
        parts = node.values
    elif isinstance(node, ast.UnaryOp):
        parts = [node.operand]
    elif (call := read_call(module, node)) is not None and call.name in _COMPARISONS:
        parts = [*call.arguments]
        if any(_is_x(module, argument, x) for argument in parts):
            return True
    return depth > 0 and any(_asks_about(module, part, x, depth - 1) for part in parts)


def _value_at(module: Module, condition: ast.expr, x: ast.expr, point: float) -> bool | None:
    """True for `x < 1` at 0: there the branch is chosen, and nothing is guarded. None for what is not so plain."""
    node = strip_moves(module, condition)
    if not isinstance(node, ast.Compare) or len(node.ops) != 1 or type(node.ops[0]) not in _ORDER:
        return None
    left, right = node.left, node.comparators[0]
    act = _ORDER[type(node.ops[0])]
    if _is_x(module, left, x) and (value := number(module, right)) is not None:
        return bool(act(point, value))
    if _is_x(module, right, x) and (value := number(module, left)) is not None:
        return bool(act(value, point))
    return None


def _is_x(module: Module, side: ast.expr, x: ast.expr) -> bool:
    """x itself, or |x|."""
    side = _source_form(module, side)
    call = read_call(module, side)
    if call is not None and call.name == "abs":
        side = call.arguments[0]
    return is_same(side, _source_form(module, x)) and not isinstance(side, ast.Constant)


def _source_form(module: Module, node: ast.expr) -> ast.expr:
    """As it is written, or what its name stands for where that is a name again."""
    definition = module.resolve(node)
    return definition if isinstance(definition, (ast.Name, ast.Attribute)) else node


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
