"""A user's function as the parameter of a rule: its identity, and the key by which a compiled graph names it."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

from torch import Tensor

from .torch_table.private import constant_result


class UserFunction:
    """`call` is the user's function. A compiled graph can hold constants but no functions, so `key` names it there.

    `calls` are the calls of ops with this function. They are freed with this object, because they refer to `call` and not back to it. An
    object that a compiler makes has no key until a graph needs one.
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


# These two tables remember a function for as long as a rule holds it.
_by_identity: weakref.WeakValueDictionary[object, UserFunction] = weakref.WeakValueDictionary()
_by_key: weakref.WeakValueDictionary[str, UserFunction] = weakref.WeakValueDictionary()
_functions_in_graphs: dict[str, UserFunction] = {}  # by key; for good: a compiled graph may run as long as the program
_name_suffixes = itertools.count(2)  # of keys, for functions of the same name


def _identity(call: Callable[..., Tensor]) -> object:
    """Tells a function from all others that exist now. Each access to a bound method makes a new object, which counts as the same one."""
    return (id(call.__self__), call.__func__) if isinstance(call, MethodType) else id(call)


def function_of(call: Callable[..., Tensor]) -> UserFunction:
    """The one UserFunction of this function."""
    function = _by_identity.get(_identity(call))
    if function is None:
        module = getattr(call, "__module__", None) or type(call).__module__  # torch's own methods have none
        key = f"function:{module}.{getattr(call, '__qualname__', type(call).__qualname__)}"
        if key in _by_key:  # another function has the same name: a second lambda
            key = f"{key}#{next(_name_suffixes)}"
        function = _by_identity[_identity(call)] = _by_key[key] = UserFunction(call, key)
    return function


@constant_result
def key_of(call: Callable[..., Tensor]) -> str:
    """The key of a function for a graph. Dynamo runs `key_of` while it traces, instead of tracing it."""
    function = function_of(call)
    _functions_in_graphs[function.key] = function
    return function.key


def function_named(key: str) -> UserFunction:
    """The function that a graph names by this key. It is kept from here on."""
    function = _functions_in_graphs.get(key)
    if function is None:
        function = _functions_in_graphs[key] = _by_key[key]
    return function
