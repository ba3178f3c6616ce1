"""A user's function as the parameter of a rule: what tells it from others, and how a compiled graph names it."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

from torch import Tensor

from .torch_table.private import constant_result


class UserFunction:
    """The function. A compiled graph can hold constants but no functions, so `key` names it.

    It holds the calls that were made with it, so that they go when it goes; they hold the user's function alone. One that a compiler
    makes has no key, until a graph needs it.
    """

    __slots__ = ("__weakref__", "call", "calls", "key")

    def __init__(self, call: Callable[..., Tensor], key: str = "") -> None:
        self.call = call
        self.key = key
        self.calls: dict[tuple[object, ...], Any] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UserFunction) and _identity(self.call) == _identity(other.call)

    def __hash__(self) -> int:
        return hash(_identity(self.call))

    def __repr__(self) -> str:
        return self.key.removeprefix("function:")

    def __reduce__(self) -> tuple[object, ...]:
        return function_of, (self.call,)


# Remembered for as long as a rule holds them: by identity, and by key.
_known: weakref.WeakValueDictionary[object, UserFunction] = weakref.WeakValueDictionary()
_functions: weakref.WeakValueDictionary[str, UserFunction] = weakref.WeakValueDictionary()
_in_graphs: dict[str, UserFunction] = {}  # those that a compiled graph names: it runs as long as the program
_numbers = itertools.count(2)


def _identity(call: Callable[..., Tensor]) -> object:
    """What tells a function from all others that live. A bound method is made anew by each access, and is one function."""
    return (id(call.__self__), call.__func__) if isinstance(call, MethodType) else id(call)


def function_of(call: Callable[..., Tensor]) -> UserFunction:
    """The parameter that holds this function; one for each function."""
    function = _known.get(_identity(call))
    if function is None:
        module = getattr(call, "__module__", None) or type(call).__module__  # torch's own methods have none
        key = f"function:{module}.{getattr(call, '__qualname__', type(call).__qualname__)}"
        if key in _functions:  # another one of that name: a second lambda
            key = f"{key}#{next(_numbers)}"
        function = _known[_identity(call)] = _functions[key] = UserFunction(call, key)
    return function


@constant_result
def key_of(call: Callable[..., Tensor]) -> str:
    """The key of a function that a graph is to name. Dynamo runs this while it traces, instead of tracing it."""
    function = function_of(call)
    _in_graphs[function.key] = function
    return function.key


def function_named(key: str) -> UserFunction:
    """The function that a graph names, which keeps it from here on."""
    function = _in_graphs.get(key)
    if function is None:
        function = _in_graphs[key] = _functions[key]
    return function
