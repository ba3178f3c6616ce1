"""The calls of an unedited run that `override` rewrote, and those that it cannot reach, such as the program's own Functions."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch

from ..listen import frames, hooks, nodes
from ..listen.hooks import backwards
from ..look.what_is import what_is
from ..rewrite.report import Missed, Report, Rewritten
from ..torch_table.private import function_of

_OUR_NODE = "PseudogradBackward"
_MOST_BACKWARDS = 8  # of each run that are searched
_MOST_LINES = 8  # of each kind

Call = tuple[str, str]  # a function, and the line that calls it or, of a Function, defines it


@dataclass(frozen=True)
class Reached:
    """rewritten: functions of torch that got the rule. missed: matching calls that were left to torch, and why. own: autograd Functions of
    the program, or ops of this library, which have a rule of their own.
    """

    rewritten: tuple[Call, ...] = ()
    missed: tuple[Call, ...] = ()
    own: tuple[Call, ...] = ()

    @classmethod
    def from_report(cls, report: Report | None, own: Iterable[Call] = ()) -> Reached:
        rewritten = ((call.op, _line(call)) for call in (report.rewritten if report else ()))
        missed = ((call.op, f"{_line(call)}: {call.why}") for call in (report.missed if report else ()))
        return cls(*(tuple(dict.fromkeys(calls)) for calls in (rewritten, missed, own)))

    @classmethod
    def union(cls, parts: Iterable[Reached]) -> Reached:
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return cls(*(tuple(dict.fromkeys(call for calls in column for call in calls)) for column in columns))

    def lines(self) -> Iterator[str]:
        """Sentences for a reader who wonders why a rule changed nothing."""
        kinds = ("Rewritten", "Not reached", "Not reached, a Function with a rule of its own")
        for kind, calls in zip(kinds, (self.rewritten, self.missed, self.own), strict=True):
            yield from (f"{kind}: {name} at {line}." for name, line in calls[:_MOST_LINES])
            if len(calls) > _MOST_LINES:
                yield f"{kind}: {len(calls) - _MOST_LINES} more."

    def to_json(self) -> dict[str, list[list[str]]]:
        return {kind: [list(call) for call in calls] for kind, calls in vars(self).items()}


def _line(call: Rewritten | Missed) -> str:
    return call.where if call.user_where in (call.where, "?") else f"{call.where}, called by {call.user_where}"


@contextmanager
def watch_own_functions() -> Iterator[dict[Call, None]]:
    """The custom Functions of a run: the program's with the line that defines each, ops of this library with the lines that call them.

    The program's are read from the graphs of its first backwards, because it may have taken `apply` from the class before this began.
    """
    calls: dict[Call, None] = {}
    backwards_left = iter(range(_MOST_BACKWARDS))

    def note_functions(roots: Iterable[torch.Tensor], grads: object, inputs: object) -> None:
        with suppress(Exception):  # an error here must not end the program
            for _ in itertools.islice(backwards_left, 1):
                classes = {function_of(type(node)) for node in nodes.reachable_from(roots)}
                calls.update(dict.fromkeys(sorted(_definition(cls) for cls in classes if _is_users(cls))))

    def note_ours(result: object) -> None:
        with suppress(Exception):
            if any(node.name() == _OUR_NODE for node in nodes.nodes_of(result)):
                frame = frames.calling_frame()
                line = "?" if frame is None else frames.format_location(frame.f_code, frame.f_lineno)
                calls["an op of pseudograd", line] = None

    backwards.subscribe(note_functions)
    try:
        with hooks.watch_functions(note_ours):
            yield calls
    finally:
        backwards.unsubscribe(note_functions)


def _is_users(cls: object) -> bool:
    module = getattr(cls, "__module__", None) or ""
    return cls is not None and module.partition(".")[0] not in ("torch", __name__.partition(".")[0])


def _definition(cls: type[torch.autograd.Function]) -> Call:
    """Name and line of the class. If it is a copy of an op of this library, the line names the op."""
    code = inspect.unwrap(cls.forward).__code__
    line, copy = frames.format_location(code, code.co_firstlineno), what_is(cls)
    return cls.__qualname__, line if copy is None else f"{line}, which is {copy.meaning}: `{copy.instead}`"
