"""How a user of torch writes the call of a function: by a public name, as a method, as an operator."""

from __future__ import annotations

import builtins
import inspect
import keyword
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.overrides import resolve_name

from .trees import UnwritableError

FUNCTION, METHOD, PROPERTY, OPERATOR, UPDATE = "function", "method", "property", "operator", "update"
OPERATORS = {
    "__getitem__": "{0}[{1}]",
    "__rsub__": "{1} - {0}",
    "__pow__": "{0} ** {1}",
    "__rpow__": "{1} ** {0}",
    "__rdiv__": "{1} / {0}",
    "__rtruediv__": "{1} / {0}",
    "__matmul__": "{0} @ {1}",
    "__rmatmul__": "{1} @ {0}",
    "__neg__": "-{0}",
}
_OF_ATEN = (type(torch.ops.aten.clamp), type(torch.ops.aten.clamp.default))
_SPACES = ("torch", "torch.nn.functional", "torch.special", "torch.linalg", "torch.fft")
_TAKEN = frozenset(("torch", "y", "optimiser", "grad", *keyword.kwlist, *dir(builtins)))
_LETTERS = "abcdefghijklmnopqrstuvw"


class Written(NamedTuple):
    """form: one of the above. name: of a function with its modules, of a method or an operator without."""

    form: str
    name: str


def written(func: object) -> Written:
    """UnwritableError for one that has no public name in torch."""
    name = _resolved(func)
    if name is None:
        raise UnwritableError(f"{getattr(func, '__name__', func)} is no function of torch that has a public name")
    if name.startswith("torch.Tensor."):
        return _of_tensor(name.removeprefix("torch.Tensor."))
    _public(name)
    return Written(FUNCTION, name)


def _of_tensor(name: str) -> Written:
    if name.endswith(".__get__"):
        return Written(PROPERTY, name.removesuffix(".__get__"))
    if name in OPERATORS:
        return Written(OPERATOR, name)
    if not name.startswith("__"):
        _public(name)
    return Written(METHOD, name)


def _public(name: str) -> None:
    if any(part.startswith("_") for part in name.split(".")):
        raise UnwritableError(f"{name} is not public")


def _resolved(func: object) -> str | None:
    if isinstance(func, _OF_ATEN):
        space, _, rest = str(func).partition(".")
        if space != "aten":
            raise UnwritableError(f"{space}.{rest} is an op of another package")
        return f"torch.ops.aten.{rest}"
    name = getattr(func, "__name__", "")
    for space in _SPACES:
        if getattr(_module(space), name, None) is func:
            return f"{space}.{name}"
    found = resolve_name(func)
    return None if found is None else str(found)


def _module(space: str) -> object:
    found: object = torch
    for part in space.split(".")[1:]:
        found = getattr(found, part)
    return found


class Names:
    """Of the tensors of one call: x the first, the others as torch calls its parameters, else a, b and so on."""

    def __init__(self, func: object, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        self._wanted: dict[int, str] = {}
        for name, value in (*zip(_parameters(func), args, strict=False), *kwargs.items()):
            self._wanted.setdefault(id(value), name)
        self._given: dict[int, str] = {}

    def of(self, tensor: object) -> str:
        known = self._given.get(id(tensor))
        if known is None:
            wanted = self._wanted.get(id(tensor), "")
            choices = [] if wanted in ("input", "self") or not wanted.isidentifier() else [wanted, f"{wanted}_"]
            taken = {*_TAKEN, *self._given.values()}
            known = self._given[id(tensor)] = next(one for one in [*choices, "x", *_LETTERS] if one not in taken)
        return known


def _parameters(func: Any) -> list[str]:
    """By its signature, or by the first line of its text, where torch writes those of its own functions."""
    try:
        found = inspect.signature(func).parameters.values()
        return [one.name for one in found if one.kind is one.POSITIONAL_OR_KEYWORD]
    except (TypeError, ValueError):
        said = re.match(r"\s*[\w.]+\(([^()]*)", func.__doc__ or "")
        names = [] if said is None else [one.split("=")[0].strip(" *") for one in said[1].split(",")]
        is_method = getattr(func, "__objclass__", None) is not None
        return ["self", *names] if is_method else names
