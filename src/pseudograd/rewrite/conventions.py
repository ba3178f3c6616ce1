"""The mode of a pin to conventions: it runs a function by a primitive that stands in, or writes it out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import engine
from ..formula import own as own_depth
from ..rule import PRIMITIVES, Call, call_for
from ..torch_table.conventions import KINKED, OWN, Kinked, is_torchs_own, pins
from ..torch_table.eras import ERAS, OPEN_ERA
from ..torch_table.forms import EDGE, Spelling
from . import edges, sites, slopes_at_kinks, ties
from .mode import Replacement, Rewrite, pinned, run_stand_in, why_not
from .report import Log

_is_compiling, _is_dynamo_compiling = torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling

NO_ORDER = f"{OPEN_ERA} takes them from a partial selection, whose order is that of the C++ library it was built with"


_NORM_OF_A_TENSOR = Tensor.norm


class Pinning(Rewrite):
    """`kinks` maps a family of `torch_conventions` to the text of its convention."""

    def __init__(self, replacements: dict[str, Replacement], kinks: dict[str, str], log: Log | None) -> None:
        super().__init__(replacements, log)
        self.kinks = kinks

    def _anew(self, func: object, args: object, kwargs: object) -> object:
        if func is _NORM_OF_A_TENSOR:  # a function in Python, which Dynamo finds in no table
            func = torch.norm
        if KINKED.get(func) is not None and (_is_dynamo_compiling() or not own_depth.depth):
            result = rewritten(self, func, args, kwargs)
            if result is not None:
                if self.log is not None and not _is_compiling():
                    self.log.nodes.forget()
                return result
        return super()._anew(func, args, kwargs)

    def note(self, kinked: Kinked, rule: str, why: str | None) -> None:
        if _is_compiling():
            sites.note_compiled(kinked.spelling.name, (kinked.family,), rule, why)
        elif self.log is not None:
            self.log.count(kinked.spelling.name, rule, why)

    def _replacement(self, spelling: Spelling) -> Replacement | None:
        """A function that runs others inside is written out where one of these is pinned."""
        found = super()._replacement(spelling)
        form = spelling.form
        if (
            found is None
            and (form.write is not None or (form.each and EDGE in form.switches))
            and pins(form, self.kinks)
        ):
            return _WRITE_IT_OUT
        return found


_WRITE_IT_OUT = Replacement(OWN)


def rewritten(mode: Pinning, func: object, args: object, kwargs: object) -> Any:
    """The result under the conventions of the mode; None where torch is left alone."""
    for kinked in KINKED[func]:
        convention = mode.kinks.get(kinked.family)
        if convention is None:
            continue
        if kinked.spelling.form.op in ties.WRITE:
            found = _written(mode, kinked, convention, func, args, kwargs)
        else:
            found = _by_primitive(mode, kinked, convention, args, kwargs)
        if found is not None:
            return found
    return None


def _by_primitive(mode: Pinning, kinked: Kinked, convention: str, args: Any, kwargs: Any) -> object:
    spelling = kinked.spelling
    read = spelling.read(args, kwargs)
    if read is None:
        return None
    name, inputs, in_place = read
    if not engine.is_recording(*inputs):
        return None
    call = call_of(convention, name, inputs, in_place)
    if call is None:
        return None
    why = why_not(call, inputs, in_place)
    mode.note(kinked, f"{kinked.family} {convention}", why)
    return None if why is not None else run_stand_in(call, inputs, in_place)


def call_of(convention: str, name: str, inputs: Any, in_place: bool = False) -> Call | None:
    """What stands in for a primitive under a convention of its family, which was prepared; None where nobody has measured any."""
    if convention not in ERAS:
        primitive = slopes_at_kinks.primitive_of(name, in_place)
        return call_for(primitive, convention, primitive.default_edge)
    of_era = pinned(name, inputs)
    if of_era is None:
        return None
    primitive = PRIMITIVES[of_era]
    return call_for(primitive, edges.rule_named(convention, convention), primitive.default_edge)


def _written(mode: Pinning, kinked: Kinked, convention: str, func: object, args: Any, kwargs: Any) -> object:
    spelling = kinked.spelling
    values = spelling.values(args, kwargs)
    if convention == OWN or values is None or not isinstance(values[0], Tensor) or not engine.is_recording(*values):
        return None
    if not values[0].is_floating_point() or values[0].layout is not torch.strided or values[0].is_nested:
        return None
    if convention == OPEN_ERA:
        mode.note(kinked, "", NO_ORDER)
        return None
    x = values[0]
    if spelling.in_place:  # the result is written into x at the end, of which nothing may be a view
        func = getattr(Tensor, spelling.name.removesuffix("_"))
        values = [value.clone() if isinstance(value, Tensor) else value for value in values]
    found = ties.WRITE[spelling.form.op](convention, _own(func, args, kwargs), *values)
    if found is not None:
        mode.note(kinked, f"{kinked.family} {convention}", None)
        if spelling.in_place:
            return x.copy_(found)
    return found


def _own(func: Any, args: Any, kwargs: Any) -> Callable[..., object]:
    """torch's function with the arguments of the call; its first tensors are others where some are given."""

    def own(*tensors: Tensor) -> object:
        positional = list(args)
        named = dict(kwargs)
        for at, tensor in enumerate(tensors):
            if at < len(args):
                positional[at] = tensor
                continue
            for name in kwargs:
                if name in ((("input", "self", "x", "a", "x1"), ("other", "x2", "exponent"))[at]):
                    named[name] = tensor
        return func(*positional, **named)

    return own


def prepared(kinks: dict[str, str]) -> dict[str, str]:
    """Made ready for compiled code, too."""
    slopes_at_kinks.prepare(kinks)
    for convention in kinks.values():
        if convention in ERAS:
            edges.rule_named(convention, convention)
    return kinks


def acting(kinks: dict[str, str]) -> dict[str, str]:
    """Those that are not what the installed torch does by itself."""
    return {name: text for name, text in kinks.items() if not is_torchs_own(name, text)}
