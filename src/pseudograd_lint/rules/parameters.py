"""Rules about parameters that a forward clamps."""

from __future__ import annotations

import ast

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


BORN_ON_BOUND = Rule("PG101", (ast.Call,), ("clamp", "clip", "relu", "hardtanh"), _find_born_on_bound)


def _find_clamped_parameter(module: Module, node: ast.AST) -> str | None:
    clamp, parameter = _clamped_parameter(module, node) or (None, None)
    if clamp is None or parameter is None or not clamp.has_eras:
        return None
    return f"once outside its bounds {parameter.name} gets no gradient from this {clamp.name}: at most weight decay leads it back"


CLAMPED_PARAMETER = Rule("PG151", (ast.Call,), ("Parameter", "requires_grad"), _find_clamped_parameter)
