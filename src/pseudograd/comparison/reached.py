"""The calls that `override` rewrote in a program, and those that it cannot reach, such as the program's own Functions."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, count

import torch

from ..listen import frames, hooks, nodes
from ..listen.hooks import backwards
from ..look.what_is import what_is
from ..rewrite.report import Missed, Report, Rewritten
from ..torch_table.private import function_of

_OUR_NODE = "PseudogradBackward"
_MAX_BACKWARDS = 8  # the search for Functions ends after this many backward passes
_MAX_LINES = 8  # of each kind of call, in a report

# A function and a line: for a Function of the program the line that defines it, for all others the line that calls it.
Call = tuple[str, str]


@dataclass(frozen=True)
class Reach:
    """The calls of a program, by what `override` did with them."""

    rewritten: tuple[Call, ...] = ()  # calls of torch's functions that ran with the rule of the variant
    missed: tuple[Call, ...] = ()  # calls of these functions that torch ran itself; the reason follows the line
    # Autograd Functions of the program and ops of this library, which have a rule of their own.
    own: tuple[Call, ...] = ()

    @classmethod
    def from_report(cls, report: Report | None, own: Iterable[Call] = ()) -> Reach:
        rewritten = ((call.op, _line(call)) for call in (report.rewritten if report else ()))
        missed = ((call.op, f"{_line(call)}: {call.why}") for call in (report.missed if report else ()))
        return cls(*(tuple(dict.fromkeys(calls)) for calls in (rewritten, missed, own)))

    @classmethod
    def union(cls, parts: Iterable[Reach]) -> Reach:
        """All calls of the parts, each once."""
        kinds = zip(*(vars(part).values() for part in parts), strict=True)
        return cls(*(tuple(dict.fromkeys(chain.from_iterable(calls))) for calls in kinds))

    def lines(self) -> Iterator[str]:
        """Sentences about the calls, for a user who wonders why a rule changed nothing."""
        kinds = ("Rewritten", "Not reached", "Not changed, it has a rule of its own")
        for kind, calls in zip(kinds, (self.rewritten, self.missed, self.own), strict=True):
            yield from (f"{kind}: {name} at {line}." for name, line in calls[:_MAX_LINES])
            if len(calls) > _MAX_LINES:
                yield f"{kind}: {len(calls) - _MAX_LINES} more."

    def to_json(self) -> dict[str, list[list[str]]]:
        return {kind: [list(call) for call in calls] for kind, calls in vars(self).items()}


def _line(call: Rewritten | Missed) -> str:
    return (
        call.where if call.user_where in (call.where, frames.NO_LINE) else f"{call.where}, called by {call.user_where}"
    )


@contextmanager
def watch_own_functions() -> Iterator[dict[Call, None]]:
    """Yields a dict that fills while the program runs: its autograd Functions, and calls of ops of this library.

    The Functions of the program are read from the graphs of its first backward passes. A hook on `apply` could miss some of them: the
    program may have stored the `apply` of a class before this context began.
    """
    calls: dict[Call, None] = {}
    backward_number = count(1)

    def note_functions(roots: Iterable[torch.Tensor], grads: object, inputs: object) -> None:
        with suppress(Exception):  # an error here must not end the program
            if next(backward_number) <= _MAX_BACKWARDS:
                classes = {function_of(type(node)) for node in nodes.reachable_from(roots)}
                calls.update(dict.fromkeys(sorted(_definition(cls) for cls in classes if _belongs_to_program(cls))))

    def note_library_op(result: object) -> None:
        with suppress(Exception):
            if any(node.name() == _OUR_NODE for node in nodes.nodes_of(result)):
                frame = frames.calling_frame()
                line = frames.NO_LINE if frame is None else frames.format_location(frame.f_code, frame.f_lineno)
                calls["an op of pseudograd", line] = None

    backwards.subscribe(note_functions)
    try:
        with hooks.watch_functions(note_library_op):
            yield calls
    finally:
        backwards.unsubscribe(note_functions)


def _belongs_to_program(cls: object) -> bool:
    module = getattr(cls, "__module__", None) or ""
    return cls is not None and module.partition(".")[0] not in ("torch", __name__.partition(".")[0])


def _definition(cls: type[torch.autograd.Function]) -> Call:
    """The name of the class, and the line that defines it. If an op of this library does the same, the line is followed by that op."""
    code = inspect.unwrap(cls.forward).__code__
    line, known = frames.format_location(code, code.co_firstlineno), what_is(cls)
    return cls.__qualname__, line if known is None else f"{line}, which is {known.meaning}: `{known.instead}`"
