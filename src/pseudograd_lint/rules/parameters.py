"""Rules about parameters: what they start as, and what they are clamped or rounded by."""

from __future__ import annotations

import ast
from collections import Counter

from pseudograd_notices.code import Code

from ..calls import find_parameter, read_call, read_clamp
from ..quiet import QUIET_FUNCTIONS
from ..terms import Term, is_same, key_of, last_name, words
from ..values import format_number, number, single
from ..walk import Rule, Spot
from .forms import hard_value


def is_only_use(spot: Spot, name: str, count: int = 1) -> bool:
    """Is a parameter read nowhere else in its class, apart from where it is made? Elsewhere it may get a gradient."""
    if spot.owner is None or not name.startswith("self."):
        return True
    reads = spot.term.module.reads
    if id(spot.owner) not in reads:
        methods = [
            method
            for method in spot.owner.body
            if isinstance(method, ast.FunctionDef) and method.name not in QUIET_FUNCTIONS
        ]
        nodes = (node for method in methods for node in ast.walk(method) if isinstance(node, ast.Attribute))
        reads[id(spot.owner)] = Counter(
            key for node in nodes if isinstance(node.ctx, ast.Load) and (key := key_of(node))
        )
    return reads[id(spot.owner)][name] <= count


def _find_born_on_bound(spot: Spot) -> str | None:
    clamp = read_clamp(spot.term)
    if clamp is None or clamp.in_place or not spot.is_trained:
        return None
    parameter = find_parameter(clamp.x)
    if parameter is None:
        return None
    for _, value in clamp.bounds():
        if single(value) in parameter.values:
            is_whole = len(parameter.values) == 1
            who = parameter.name if is_whole else f"an entry of {parameter.name}"
            start = f"{who} starts at {format_number(value)} (line {parameter.line}), exactly on a bound of this {clamp.name}"
            result = ", so it stays" if is_whole and is_only_use(spot, parameter.name) else ""
            if clamp.has_eras:
                return f"{start}: torch >= 2.14 passes it no gradient there{result}; torch <= 2.13 passes all of it"
            return f"{start}, which passes it no gradient there on any torch{result}"
    return None


BORN_ON_BOUND = Rule(
    Code(
        number="PG101",
        name="born-on-bound",
        meaning="a parameter starts exactly on the bound of its own clamp or relu",
        why="Since torch 2.14 a clamp passes no gradient exactly at a number bound, and relu never did at 0. Such a "
        "parameter gets none in the first step, does not move, and so gets none in any later one. torch 2.13 and "
        "older pass the gradient of a clamp there: the same program trained.",
        mend="Start inside the range, or choose what passes at the bound: `pseudograd.clamp(x, min, max)` passes on "
        "every torch what leads back inside, `pseudograd.pin_edge('torch<=2.13')` keeps the older torch's "
        "gradient in code that you do not edit.",
        bad="""\
import torch
from torch import nn


class Polar(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        return x + self.bias.clamp(-6.28, 0.0)  # PG101
""",
        good="""\
import torch
from torch import nn


class Polar(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.bias = nn.Parameter(torch.full((dim,), -0.01))

    def forward(self, x):
        return x + self.bias.clamp(-6.28, 0.0)
""",
    ),
    kinds=(ast.Call,),
    words=("clamp", "clip", "relu", "hardtanh"),
    find=_find_born_on_bound,
)


_SUMS = words("sum mean norm max min amax amin item all any backward")


def _find_flat_start(spot: Spot) -> str | None:
    flat = _flat(spot.term) if spot.is_trained and not _is_penalty(spot) else None
    if flat is None:
        return None
    what, x, effect = flat
    parameter = find_parameter(x)
    uses = 2 if what == "its square" else 1
    if parameter is None or parameter.values != {0.0} or not is_only_use(spot, parameter.name, uses):
        return None
    return f"{parameter.name} starts at 0 (line {parameter.line}), where {what} {effect}"


def _flat(term: Term) -> tuple[str, Term, str] | None:
    """How a message names the function, its x, and what it does at 0."""
    never = "has the slope 0: it gets no gradient from here, and stays"
    node = term.node
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Pow) and number(term.part(node.right)) in (2, 3, 4):
            return "its power", term.part(node.left), never
        is_square = isinstance(node.op, ast.Mult) and is_same(node.left, node.right)
        return ("its square", term.part(node.left), never) if is_square else None
    call = read_call(term)
    if call is None or not call.arguments:
        return None
    if call.name in ("abs", "absolute", "square"):
        return call.name, call.arguments[0], never
    if call.name == "pow" and number(call.argument(1, "exponent")) in (2, 3, 4):
        return "its power", call.arguments[0], never
    if call.name in ("sqrt", "rsqrt", "log"):
        return call.name, call.arguments[0], "has an infinite slope: the first step makes it NaN"
    return None


def _is_penalty(spot: Spot) -> bool:
    """`p.abs().sum()` is to be 0 there."""
    return any(last_name(parent) in _SUMS for parent in spot.parents if isinstance(parent, (ast.Attribute, ast.Call)))


FLAT_START = Rule(
    Code(
        number="PG107",
        name="flat-start",
        meaning="a parameter starts at 0, where the abs, square or root that is made of it has no slope to leave by",
        why="The slope of abs and of a square at 0 is 0, so a gain `abs(p)` or `p ** 2` of a p that starts at zeros "
        "gets no gradient in the first step and in none that follows. The slope of a root at 0 is infinite.",
        mend="Start beside 0, or use what has a slope there: `softplus(p)`, `exp(p)`; `pseudograd.abs(p, edge=1.0)` "
        "chooses the slope at 0.",
        bad="""\
import torch
from torch import nn


class Gain(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        return x * self.gain.abs()  # PG107
""",
        good="""\
import torch
from torch import nn
from torch.nn import functional as F


class Gain(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        return x * F.softplus(self.gain)
""",
        is_default=False,
    ),
    kinds=(ast.Call, ast.BinOp),
    words=("Parameter", "requires_grad"),
    find=_find_flat_start,
)


_STEPS = words("round floor ceil trunc sign fix heaviside sgn")


def _find_rounded_parameter(spot: Spot) -> str | None:
    call = read_call(spot.term)
    if call is None or call.name not in _STEPS or not call.arguments or call.in_place:
        return None
    parameter = find_parameter(call.arguments[0])
    if parameter is None or not spot.is_trained:
        return None
    if any(isinstance(parent, ast.BinOp) and hard_value(spot.term.part(parent)) is not None for parent in spot.parents):
        return None
    return f"the gradient of {call.name} is 0 everywhere: {parameter.name} learns nothing through it"


ROUNDED_PARAMETER = Rule(
    Code(
        number="PG109",
        name="rounded-parameter",
        meaning="a round, floor or sign of a parameter stands in a forward with nothing that passes its gradient",
        why="The slope of a step is 0 wherever it has one, so the parameter gets zeros for ever, without an error.",
        mend="`pseudograd.round(p)` and `pseudograd.sign(p)` pass the gradient, by the rule that you choose; or "
        "freeze the parameter.",
        bad="""\
import torch
from torch import nn


class Quantised(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim))

    def forward(self, x):
        return x * torch.round(self.weight)  # PG109
""",
        good="""\
import torch
from torch import nn


class Quantised(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim))

    def forward(self, x):
        return x * (self.weight + (torch.round(self.weight) - self.weight).detach())
""",
        is_default=False,
    ),
    kinds=(ast.Call,),
    words=("Parameter", "requires_grad"),
    find=_find_rounded_parameter,
)


def _find_clamped_parameter(spot: Spot) -> str | None:
    clamp = read_clamp(spot.term)
    if clamp is None or not clamp.has_eras or clamp.in_place or not spot.is_trained:
        return None
    parameter = find_parameter(clamp.x)
    if parameter is None:
        return None
    return f"once outside its bounds {parameter.name} gets no gradient from this {clamp.name}: at most weight decay leads it back"


CLAMPED_PARAMETER = Rule(
    Code(
        number="PG151",
        name="clamped-parameter",
        meaning="a parameter is clamped in the forward",
        why="An entry that a step carries outside gets the gradient 0 and does not come back by itself.",
        mend="Clip the parameter after each step, `pseudograd.optim.project(optimizer, {p: (min, max)})`, which was "
        "among the best in all measured problems; or `pseudograd.clamp`, whose gradient leads back inside.",
        bad="""\
import torch
from torch import nn


class Leak(nn.Module):
    def __init__(self):
        super().__init__()
        self.beta = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return x * self.beta.clamp(0, 1)  # PG151
""",
        good="""\
import torch
from torch import nn


class Leak(nn.Module):
    def __init__(self):
        super().__init__()
        self.beta = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return x * torch.sigmoid(self.beta)
""",
        is_default=False,
    ),
    kinds=(ast.Call,),
    words=("Parameter", "requires_grad"),
    find=_find_clamped_parameter,
)
