"""How a pin of conventions runs a call: by a primitive that stands in, or by a function that is written out in torch's functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from .. import engine
from ..rule import PRIMITIVES, Call, call_for
from ..torch_table.conventions import OWN, is_torchs_own, make_rules, pinned_primitive
from ..torch_table.eras import ERAS, OPEN_ERA
from ..torch_table.forms import FAMILIES, KINKED, Kinked
from ..torch_table.records import Arguments, Function, Inputs, Keywords
from . import edges
from .stand_ins import run_stand_in, why_not

# Why the gradients of a quantile in this era cannot be computed: torch chooses one of several tied entries.
NO_ORDER = f"{OPEN_ERA} takes them from a partial selection, whose order is that of the C++ library it was built with"


class Pinning(Protocol):
    """A mode that pins conventions, by family, and notes the calls that they change."""

    @property
    def conventions(self) -> Mapping[str, str]: ...
    def note(self, op: str, switches: tuple[str, ...], rule: str, why: str | None) -> None: ...


def prepare(conventions: dict[str, str]) -> dict[str, str]:
    """Make the rules of these conventions, by family, in advance: compiled code cannot make them. Returns `conventions`."""
    for family, convention in conventions.items():
        make_rules(FAMILIES[family], convention)
        if convention in ERAS:
            edges.rule_named(convention, convention)
    return conventions


def drop_torchs_own(conventions: dict[str, str]) -> dict[str, str]:
    """The conventions that the installed torch does not have by itself."""
    return {name: text for name, text in conventions.items() if not is_torchs_own(FAMILIES[name], text)}


def run_pinned(mode: Pinning, func: Function, args: Arguments, kwargs: Keywords) -> Any:
    """The result of a call under the conventions of a mode; None if torch has to run it."""
    for kinked in KINKED.get(func, ()):
        if kinked.kink.write is not None:
            result = _write(mode, kinked, func, args, kwargs)
        elif kinked.kink.pick is not None or kinked.family in mode.conventions:
            result = _run_primitive(mode, kinked, args, kwargs)
        else:
            continue
        if result is not None:
            return result
    return None


def _run_primitive(mode: Pinning, kinked: Kinked, args: Arguments, kwargs: Keywords) -> object:
    read = kinked.spelling.read(args, kwargs)
    if read is None:
        return None
    name, inputs, in_place = read
    if not engine.is_recording(*inputs):
        return None
    family = kinked.family
    if kinked.kink.pick is not None:
        family, name = kinked.kink.pick(None, inputs) or (family, name)
    convention = mode.conventions.get(family)
    call = None if convention is None else call_of(convention, name, inputs, in_place)
    if call is None:
        return None
    why = why_not(call, inputs, in_place)
    mode.note(kinked.spelling.name, (kinked.family,), f"{family} {convention}", why)
    return None if why is not None else run_stand_in(call, inputs, in_place)


def call_of(convention: str, name: str, inputs: Inputs, in_place: bool = False) -> Call | None:
    """The call that stands in for a primitive under a convention that was prepared; None if an era has no pinned edge for the primitive."""
    if convention not in ERAS:
        primitive = pinned_primitive(name, in_place)
        return call_for(primitive, convention, primitive.default_edge)
    pinned = edges.pinned_edge(name, inputs)
    if pinned is None:
        return None
    primitive = PRIMITIVES[pinned]
    return call_for(primitive, edges.rule_named(convention, convention), primitive.default_edge)


def _write(mode: Pinning, kinked: Kinked, func: Function, args: Arguments, kwargs: Keywords) -> object:
    convention = mode.conventions.get(kinked.family)
    if convention is None or convention == OWN:
        return None
    spelling = kinked.spelling
    values = spelling.values(args, kwargs)
    if values is None or not isinstance(values[0], Tensor) or not engine.is_recording(*values):
        return None
    if not values[0].is_floating_point() or values[0].layout is not torch.strided or values[0].is_nested:
        return None
    if convention == OPEN_ERA:
        mode.note(spelling.name, (kinked.family,), "", NO_ORDER)
        return None
    x = values[0]
    if spelling.in_place:  # the result is written into x at the end, so nothing before may be a view of x
        func = getattr(Tensor, spelling.name.removesuffix("_"))
        values = [value.clone() if isinstance(value, Tensor) else value for value in values]
    assert kinked.kink.write is not None, "run_pinned has checked it"
    result = kinked.kink.write(convention, _own_function(func, args, kwargs), *values)
    if result is not None:
        mode.note(spelling.name, (kinked.family,), f"{kinked.family} {convention}", None)
        if spelling.in_place:
            return x.copy_(result)
    return result


def _own_function(func: Function, args: Arguments, kwargs: Keywords) -> Callable[..., object]:
    """own(*tensors): torch's function with the arguments of the call, but with these tensors in the place of the first one or two."""

    def own(*tensors: Tensor) -> object:
        # The names of the first argument, and of the second.
        names = (("input", "self", "x", "a", "x1"), ("other", "x2", "exponent"))
        named = {name: tensor for at, tensor in enumerate(tensors) for name in kwargs if name in names[at]}
        return func(*tensors[: len(args)], *args[len(tensors) :], **{**kwargs, **named})

    return own
