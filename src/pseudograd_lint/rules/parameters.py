"""Rules about parameters that a forward clamps."""

from __future__ import annotations

import ast

from pseudograd_notices.code import Code

from ..calls import Clamp, read_clamp
from ..classes import Parameter, find_parameter
from ..learning import is_quiet_scope, is_trained
from ..names import FUNCTIONS, Module, key_of
from ..values import format_number, single
from . import Rule


def _clamped_parameter(module: Module, node: ast.AST) -> tuple[Clamp, Parameter] | None:
    clamp = read_clamp(module, node)
    if clamp is None or clamp.in_place or not is_trained(module, node):
        return None
    parameter = find_parameter(module, clamp.x)
    return None if parameter is None else (clamp, parameter)


def _find_born_on_bound(module: Module, node: ast.AST) -> str | None:
    clamp, parameter = _clamped_parameter(module, node) or (None, None)
    if clamp is None or parameter is None:
        return None
    for _, value in clamp.bounds(module):
        if single(value) in parameter.values:
            is_whole = len(parameter.values) == 1
            who = parameter.name if is_whole else f"an entry of {parameter.name}"
            start = f"{who} starts at {format_number(value)} (line {parameter.line}), exactly on a bound of this {clamp.name}"
            result = ", so it stays" if is_whole and _is_only_read(module, node, parameter.name) else ""
            if clamp.has_eras:
                return f"{start}: torch >= 2.14 passes it no gradient there{result}; torch <= 2.13 passes all of it"
            return f"{start}, which passes it no gradient there on any torch{result}"
    return None


def _is_only_read(module: Module, node: ast.AST, name: str) -> bool:
    """Is a parameter read nowhere else in its class, apart from where it is made? Elsewhere it may get a gradient."""
    owner = module.owner(node)
    reads = [
        load
        for load in module.loads[name.rpartition(".")[2]]
        if key_of(load) == name
        and module.owner(load) is owner
        and not any(isinstance(up, FUNCTIONS) and is_quiet_scope(module, up) for up in module.parents(load))
    ]
    return owner is None or len(reads) <= 1


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


def _find_clamped_parameter(module: Module, node: ast.AST) -> str | None:
    clamp, parameter = _clamped_parameter(module, node) or (None, None)
    if clamp is None or parameter is None or not clamp.has_eras:
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
