"""The names of an object in a running program: a variable, or an attribute or item of one, as `self.latent` and `params["scale"]`."""

from __future__ import annotations

import contextlib
import dis
import inspect
import sys
import types
from collections.abc import Collection, Iterable
from types import CodeType, FrameType
from typing import Any

import torch
from torch.optim import Optimizer

from .frames import is_of_a_package, is_users, next_program_frame

_MOST_STEPS = 2  # from a variable to the object
_MOST_ITEMS = 1000  # a larger list or dictionary is not searched
_MOST_OBJECTS = 20_000  # in one search
_PLAIN = (int, float, str, bytes, bool, complex, type(None))
_OF_MODULES = ("_parameters", "_buffers", "_modules")  # not searched: parameters have names of their own
_NOT_LOOKED_INTO = (*_PLAIN, torch.Tensor, Optimizer, type, types.ModuleType, types.FunctionType, types.MethodType)
# Before Python 3.13 a frame has one dictionary of its variables, its *snapshot*. We change it when we read `f_locals`. The program may hold
# it if it calls one of these functions.
_FUNCTIONS_THAT_READ_LOCALS = frozenset(("locals", "vars", "eval", "exec", "dir"))
_ATTRIBUTES_THAT_READ_LOCALS = frozenset(("f_locals", "getargvalues"))  # of a frame, and of `inspect`
_HAS_SNAPSHOTS = sys.version_info < (3, 13)
_IS_HEAP_TYPE = 1 << 9  # of the flags of a class
_OWN_REFERENCES = 3  # references to a snapshot: of the frame, of a name, and of the argument of `getrefcount`

Names = dict[int, str]


def names_in_program(wanted: Collection[int], depth: int) -> Names:
    """The names that the program has for the objects with these ids. Starts at the frame `depth` calls above, and goes to the outermost."""
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(depth)
    while (frame := next_program_frame(frame)) is not None:
        frames.append(frame)
        frame = frame.f_back
    search = _Search(wanted)
    for frame in frames:
        if not search.has_ended:
            search.look_into(_variables_of(frame).items())
    for variables in {id(frame.f_globals): frame.f_globals for frame in frames}.values():
        search.look_into(variables.copy().items())
    return search.names


def _variables_of(frame: FrameType) -> dict[str, Any]:
    """A copy of the variables. The frame's snapshot would keep the objects in it alive, so it is emptied here."""
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED:  # a module or a class: these are its variables
        return dict(frame.f_locals)
    if _HAS_SNAPSHOTS and _reads_locals(code):
        return {}
    variables = frame.f_locals
    copy = dict(variables)
    if (
        _HAS_SNAPSHOTS and sys.getrefcount(variables) == _OWN_REFERENCES
    ):  # only the frame and we hold it; a debugger may, too
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            variables.pop(name, None)
    return copy


def _reads_locals(code: CodeType) -> bool:
    """May this code hold the snapshot of its frame?"""
    if not _ATTRIBUTES_THAT_READ_LOCALS.isdisjoint(code.co_names):
        return True
    if _FUNCTIONS_THAT_READ_LOCALS.isdisjoint(code.co_names):  # attributes are among these
        return False
    return any(
        step.opname == "LOAD_GLOBAL" and step.argval in _FUNCTIONS_THAT_READ_LOCALS
        for step in dis.get_instructions(code)
    )


class _Search:
    """A search for the names of the objects with the wanted ids."""

    def __init__(self, wanted: Collection[int]) -> None:
        self.names: Names = {}  # the names that were found, by the id of the object
        self._wanted = wanted
        self._seen: set[int] = set()  # the ids of objects that were looked into
        self._objects = 0

    @property
    def has_ended(self) -> bool:
        return len(self.names) == len(self._wanted) or self._objects >= _MOST_OBJECTS

    def look_into(self, parts: Iterable[tuple[str, object]], name: str = "", steps: int = 0) -> None:
        """Search the parts of an object. name: of the object. steps: how many lead from a variable to the object."""
        for key, value in parts:
            if self.has_ended:
                return
            self._objects += 1
            if id(value) in self._wanted:
                self.names.setdefault(id(value), name + key)
            elif steps < _MOST_STEPS and not issubclass(type(value), _NOT_LOOKED_INTO) and id(value) not in self._seen:
                self._seen.add(id(value))
                self.look_into(_parts_of(value), name + key, steps + 1)
            elif steps == 0 and _is_space_of_program(value):
                # Few of its many values are tensors. The other values are not looked into.
                self.look_into([(f".{name}", item) for name, item in vars(value).copy().items()], key, _MOST_STEPS)


def _is_space_of_program(value: object) -> bool:
    """Is it a class, or an imported module of the program?"""
    if type(value) is types.ModuleType:
        file = vars(value).get("__file__") or ""
        return file != "" and is_users(file) and not is_of_a_package(file)
    return type(value) is type


def _parts_of(value: Any) -> list[tuple[str, object]]:
    """The key and value of each item or attribute. Runs no code of the program; `isinstance` could, as it reads `__class__`."""
    kind = type(value)
    if issubclass(kind, dict):
        return _items_of(value) if dict.__len__(value) <= _MOST_ITEMS else []
    if issubclass(kind, (list, tuple)):
        base = list if issubclass(kind, list) else tuple
        if base.__len__(value) > _MOST_ITEMS:
            return []
        fields = kind.__dict__.get("_fields", ())
        keys = [f".{fields[at]}" if at < len(fields) else f"[{at}]" for at in range(base.__len__(value))]
        return list(zip(keys, base.__iter__(value), strict=False))
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return _slots_of(value)
    if type(attributes) is not dict or len(attributes) > _MOST_ITEMS:
        return []
    own = _OF_MODULES if issubclass(kind, torch.nn.Module) else ()
    return [(f".{key}", item) for key, item in attributes.copy().items() if key not in own]


def _slots_of(value: object) -> list[tuple[str, object]]:
    if not type(value).__flags__ & _IS_HEAP_TYPE:  # a class of C: no program has named its members
        return []
    parts = []
    for key, slot in (item for kind in type(value).__mro__ for item in kind.__dict__.items()):
        if type(slot) is types.MemberDescriptorType:
            with contextlib.suppress(AttributeError):  # the slot is empty
                parts.append((f".{key}", slot.__get__(value)))
    return parts


def _items_of(dictionary: dict[object, object]) -> list[tuple[str, object]]:
    items = list(dict.items(dictionary))
    return [
        (f'["{key}"]' if type(key) is str else f"[{key!r}]", item) for key, item in items if type(key) in (str, int)
    ]
