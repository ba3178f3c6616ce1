"""The site of a call, by which a user's function may choose the rule: the line, the path of the module and the bounds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..listen import frames
from ..rule import PRIMITIVES
from ..torch_table import records
from ..torch_table.private import constant_result
from ..torch_table.records import Spelling
from . import entered_contexts


@dataclass(frozen=True)
class Site:
    """A call for which a function may choose a rule. Inside torch.compile `module` is not known, and `expression` is the whole line.

    where: file:line of the call. The file is relative to site-packages or to the current folder, so compare it by `is_at`, which is right
        in every folder.
    expression: the source of the call, as `diagnose` and `report()` name it.
    """

    op: str
    family: str
    where: str
    module: str | None
    min: Any
    max: Any
    expression: str = ""
    is_compiled: bool = False

    def is_at(self, where: str, expression: str | None = None) -> bool:
        """Is the call at this file:line? With an expression: is it in this file, with this source, on whatever line?

        The file may be given by the end of its path: "train.py:12" or "models/gate.py:7". An edit above the call moves its line.
        """
        return _is_at(self.where, self.expression, self.is_compiled, where, expression)


@constant_result
def _is_at(site: str, source: str, is_line: bool, where: str, expression: str | None) -> bool:
    """is_line: is the source the whole line, as in compiled code?"""
    if expression is None:
        return frames.is_same_line(site, where)
    is_same = expression in source if is_line else expression == source
    return is_same and frames.is_same_file(site.rpartition(":")[0], where)


_compiled_lines = constant_result(frames.compiled_lines)


class RuleBySite:
    """A user's function from a Site to a rule, or to None for torch's own."""

    def __init__(self, function: Callable[[Site], object]) -> None:
        self.function = function

    def rule(self, spelling: Spelling, primitive: str, inputs: tuple[object, ...]) -> Any:
        low, high = _bounds(primitive, inputs)
        family = spelling.form.switches[0]
        if torch.compiler.is_compiling():
            where, _, line = _compiled_lines()
            return self.function(Site(spelling.name, family, where, None, low, high, line, is_compiled=True))
        location = frames.location()
        where, expression = frames.file_and_line(location.call), _expression(location.call)
        return self.function(Site(spelling.name, family, where, location.module, low, high, expression))


@functools.lru_cache(maxsize=256)
def _expression(call: frames.Point | None) -> str:
    """The source of a call. It is read once, because somebody may edit the file while the program runs."""
    return "" if call is None else call.expression


def _bounds(primitive: str, inputs: tuple[object, ...]) -> tuple[object, object]:
    stands_in = PRIMITIVES[primitive]
    if stands_in.either_is is not None:
        bound = _bound_of_two(*inputs)
        return (bound, None) if stands_in.either_is == "min" else (None, bound)
    by_name = stands_in.name_inputs(inputs)
    return by_name.get("min"), by_name.get("max")


def _bound_of_two(x: object, other: object) -> object:
    """Which of two tensors is the bound? The constant one, which asks for no gradient. None if that is not known before the backward."""
    only_backward_tells = records.only_backward_tells()
    if torch.compiler.is_compiling() and only_backward_tells:
        return None
    if records.is_constant(x):
        return x
    return None if only_backward_tells and not records.is_constant(other) else other


@constant_result
def note_compiled(op: str, switches: tuple[str, ...], label: str, why: str | None) -> None:
    """Note a call in compiled code. Runs while Dynamo traces, once for each call in the graph: runs of the graph cannot be counted."""
    for mode in reversed(entered_contexts.modes()):
        if any(switch in mode.replacements or switch in mode.conventions for switch in switches):
            assert mode.log is not None, "a context that is entered outside of compiled code has one"
            mode.log.compiled[op, label, frames.compiled_lines(), why] += 1
            return
