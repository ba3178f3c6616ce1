"""The calls that are forbidden in a rule's pull, and every function that a pull can reach: through calls, tables, closures and partials.

A formula of a rule is made of comparisons, `where` and arithmetic. A function of torch that has an edge of its own would bring into the
rule what the installed torch does there, which differs from version to version.
"""

import dis
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from types import CellType, CodeType, FunctionType, ModuleType
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


def pulls() -> dict[str, object]:
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


def faults(start: object) -> list[str]:
    """The forbidden calls that can be reached from here: `file:line function: name`."""
    lines = []
    for value in reachable(start):
        if isinstance(value, FunctionType):
            for code in _codes(value.__code__):
                location = f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno} {value.__qualname__}"
                lines += [f"{location}: {name}" for name in _forbidden_in(code)]
        elif _is_of_torch(value) and value.__name__ in FORBIDDEN | _ONLY_CALLED:
            lines.append(f"{value.__module__}: {value.__name__}")
    return lines


def reachable(start: object) -> list[Any]:
    """Functions of ours, and the functions of torch that they name."""
    values: dict[int, object] = {}
    waiting = [start]
    while waiting:
        value = waiting.pop()
        if id(value) not in values:
            values[id(value)] = value
            waiting += _neighbours(value)
    return [value for value in values.values() if isinstance(value, FunctionType) or _is_of_torch(value)]


def _neighbours(value: Any) -> Iterable[object]:
    """The values that this value may call or read next."""
    if isinstance(value, (FunctionType, type)) and not value.__module__.startswith(("pseudograd", "tests")):
        return ()
    if isinstance(value, FunctionType):
        return _named_in(value)
    if isinstance(value, partial):
        return value.func, *value.args, *value.keywords.values()
    if isinstance(value, type):
        return vars(value).values()
    if isinstance(value, property):
        return [function for function in (value.fget, value.fset) if function]
    if isinstance(value, (staticmethod, classmethod)) or hasattr(value, "__wrapped__"):
        return [value.__wrapped__ if hasattr(value, "__wrapped__") else value.__func__]
    if isinstance(value, Rule):
        return [value.pull]
    if isinstance(value, Record):
        return type(value), *vars(value).values()
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, (tuple, list, set, frozenset)) else ()


def _named_in(function: FunctionType) -> Iterator[object]:
    """Its closure, its defaults, its globals; of a module that it names, the attributes that it reads."""
    yield from (cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell))
    yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    read = [instruction for code in _codes(function.__code__) for instruction in _instructions(code)]
    attributes = {step.argval for step in read if step.opname in _READS_AN_ATTRIBUTE}
    for name in {step.argval for step in read if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}:
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType):
            if value.__name__.startswith(("pseudograd", "tests")):
                yield from (vars(value)[other] for other in attributes if other in vars(value))
        elif value is not None:
            yield value


@cache
def _instructions(code: CodeType) -> list[dis.Instruction]:
    return list(dis.get_instructions(code))


def _is_filled(cell: CellType) -> bool:
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


def _texts_of(constant: object) -> list[str]:
    constants = constant if isinstance(constant, tuple) else (constant,)
    return [text for text in constants if isinstance(text, str)]


def _is_of_torch(value: Any) -> bool:
    if isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return True
    module = getattr(value, "__module__", None) or ""
    return (
        callable(value) and hasattr(value, "__name__") and isinstance(module, str) and module.split(".")[0] == "torch"
    )
