"""Rules about parameters that a forward clamps."""

from __future__ import annotations

import ast

from ..calls import Clamp, read_clamp
from ..classes import Parameter, find_parameter
from ..learning import is_trained
from ..names import Module
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
            who = parameter.name if len(parameter.values) == 1 else f"an entry of {parameter.name}"
            start = f"{who} starts at {format_number(value)} (line {parameter.line}), exactly on a bound of this {clamp.name}"
            if clamp.has_eras:
                return f"{start}: torch >= 2.14 passes it no gradient there; torch <= 2.13 passes all of it"
            return f"{start}, which passes it no gradient there on any torch"
    return None


BORN_ON_BOUND = Rule("PG101", (ast.Call,), ("clamp", "clip", "relu"), _find_born_on_bound)


def _find_clamped_parameter(module: Module, node: ast.AST) -> str | None:
    clamp, parameter = _clamped_parameter(module, node) or (None, None)
    if clamp is None or parameter is None:
        return None
    side = "outside its bounds" if clamp.has_eras else "below 0"
    return f"once {side} {parameter.name} gets no gradient from this {clamp.name}: at most weight decay leads it back"


CLAMPED_PARAMETER = Rule("PG151", (ast.Call,), ("Parameter", "requires_grad"), _find_clamped_parameter)
