"""What a rule's pull may not call, and every function that a pull can reach: through calls, tables, closures and partials, in all files.

A formula of a rule is made of comparisons, `where` and arithmetic. A function of torch that has an edge of its own would bring into the
rule what the installed torch does there, which differs from version to version.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from pseudograd.geometry import SHARES
from pseudograd.record import Record
from pseudograd.rewrite import edges
from pseudograd.rule import OPS, PRIMITIVES, Rule
from pseudograd.torch_table.eras import ERAS
from pseudograd.torch_table.forms import FORMS
from pseudograd.torch_table.records import EDGE

# All functions of torch that clamp, by the table; min and max are more than that, so only calls of them count.
_CLAMPING = {name for form in FORMS if {"clamp", "relu", EDGE} & set(form.switches) for name in form.names}
_READS_AN_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_ONLY_CALLED = {"min", "max"}
_NOT_AGAIN = {"item", "tolist", "backward", "numpy"}  # after these nothing can be differentiated
FORBIDDEN = {*_CLAMPING, *(f"{name}_" for name in _CLAMPING)} - _ONLY_CALLED | _NOT_AGAIN


def pulls() -> dict[str, Any]:
    """Every rule of every primitive, through what stands before it there, and how a user's function becomes one."""
    for edge in (*ERAS, *SHARES):
        for era in ERAS:
            edges.rule_named(edge, era)  # which are made when they are asked for
    rules = {
        f"{name}/{rule.name}": rule.pull if primitive.through is None else primitive.through(rule.pull)
        for name, primitive in PRIMITIVES.items()
        for rule in primitive.rules.values()
    }
    of_users = {
        f"{name}/a user's": op.adapter.make_rule(None, True, None, name="", formula="", source="").pull
        for name, op in OPS.items()
        if op.adapter is not None
    }
    return {**rules, **of_users}


def faults(start: Any) -> list[str]:
    """What must not be called, of what can be reached from here: `file:line function: name`."""
    found = []
    for reached in reachable(start):
        if isinstance(reached, FunctionType):
            for code in _codes(reached.__code__):
                where = f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno} {reached.__qualname__}"
                found += [f"{where}: {name}" for name in _forbidden_in(code)]
        elif _is_of_torch(reached) and reached.__name__ in FORBIDDEN | _ONLY_CALLED:
            found.append(f"{reached.__module__}: {reached.__name__}")
    return found


def functions(start: Any) -> list[FunctionType]:
    """Those of our files that can be reached."""
    found = [reached for reached in reachable(start) if isinstance(reached, FunctionType)]
    return [function for function in found if "pseudograd" in function.__code__.co_filename]


def reachable(start: Any) -> list[Any]:
    """Functions of ours, and what they name of torch's."""
    seen: dict[int, Any] = {}
    waiting = [start]
    while waiting:
        found = waiting.pop()
        if id(found) not in seen:
            seen[id(found)] = found
            waiting += _behind(found)
    return [found for found in seen.values() if isinstance(found, FunctionType) or _is_of_torch(found)]


def _behind(found: Any) -> Iterator[Any]:
    """What it may call or read next."""
    if isinstance(found, FunctionType):
        if found.__module__.startswith(("pseudograd", "tests")):
            yield from _named_in(found)
    elif isinstance(found, partial):
        yield from (found.func, *found.args, *found.keywords.values())
    elif isinstance(found, type):
        if found.__module__.startswith(("pseudograd", "tests")):
            yield from vars(found).values()
    elif isinstance(found, property):
        yield from (one for one in (found.fget, found.fset) if one)
    elif isinstance(found, (staticmethod, classmethod)) or hasattr(found, "__wrapped__"):
        yield found.__wrapped__ if hasattr(found, "__wrapped__") else found.__func__
    elif isinstance(found, Rule):
        yield found.pull
    elif isinstance(found, Record):
        yield from (type(found), *vars(found).values())
    elif isinstance(found, Mapping):
        yield from found.values()
    elif isinstance(found, (tuple, list, set, frozenset)):
        yield from found


def _named_in(function: FunctionType) -> Iterator[Any]:
    """Its closure, its defaults, its globals; of a module that it names, what it reads there."""
    yield from (cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell))
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    read = [one for code in _codes(function.__code__) for one in _instructions(code)]
    attributes = {one.argval for one in read if one.opname in _READS_AN_ATTRIBUTE}
    for name in {one.argval for one in read if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}:
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType):
            if value.__name__.startswith(("pseudograd", "tests")):
                yield from (vars(value)[other] for other in attributes if other in vars(value))
        elif value is not None:
            yield value


@cache
def _instructions(code: CodeType) -> list[dis.Instruction]:
    return list(dis.get_instructions(code))


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _codes(code: CodeType) -> Iterator[CodeType]:
    """And the functions that are made in it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _forbidden_in(code: CodeType) -> Iterator[str]:
    """Attributes that are read; min and max where they are called; a name given to getattr."""
    texts = {text for constant in code.co_consts for text in _texts_of(constant)}
    for instruction in _instructions(code):
        if instruction.opname not in _READS_AN_ATTRIBUTE:
            continue
        name = instruction.argval
        is_call = instruction.opname == "LOAD_METHOD" or "NULL|self" in instruction.argrepr
        if name in FORBIDDEN or (name in _ONLY_CALLED and is_call) or _changes_in_place(name, is_call):
            yield name
    if "getattr" in code.co_names:
        yield from sorted(texts & FORBIDDEN)


def _changes_in_place(name: str, is_call: bool) -> bool:
    return is_call and name.endswith("_") and not name.startswith("_")


def _texts_of(constant: Any) -> Iterable[str]:
    return (
        [constant]
        if isinstance(constant, str)
        else [c for c in constant if isinstance(c, str)]
        if isinstance(constant, tuple)
        else []
    )


def _is_of_torch(found: Any) -> bool:
    if isinstance(found, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return True
    module = getattr(found, "__module__", None) or ""
    return (
        callable(found) and hasattr(found, "__name__") and isinstance(module, str) and module.split(".")[0] == "torch"
    )
