"""What the rules of `override` came upon in an unedited run, and what they cannot reach: the program's own autograd Functions among it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ..listen import frames, functions, nodes
from ..listen.around import backwards
from ..look.copies import known
from ..rewrite.report import Report
from ..torch_table.private import function_of

_OURS = "PseudogradBackward"
_LOOKS = 8  # backwards of each run that are searched
_SHOWN = 8  # lines of each kind

Place = tuple[str, str]  # what is called, and its line


@dataclass(frozen=True)
class Reached:
    """rewritten: torch's functions that got the rule. missed: matching calls that were left to torch, and why. own: Functions of the
    program, or of this library, which have a rule of their own. Each with its line.
    """

    rewritten: tuple[Place, ...] = ()
    missed: tuple[Place, ...] = ()
    own: tuple[Place, ...] = ()

    @classmethod
    def of(cls, report: Report | None, own: Iterable[Place] = ()) -> Reached:
        if report is None:
            return cls(own=tuple(own))
        return cls(
            _once((one.op, _line(one.where, one.user_where)) for one in report.rewritten),
            _once((one.op, f"{_line(one.where, one.user_where)}: {one.why}") for one in report.missed),
            tuple(own),
        )

    @classmethod
    def together(cls, parts: Iterable[Reached]) -> Reached:
        every = [vars(one) for one in parts]
        kinds = ("rewritten", "missed", "own")
        return cls(*(_once(place for one in every for place in one[kind]) for kind in kinds))

    def lines(self) -> Iterator[str]:
        """As text, for whoever wonders why a rule changed nothing."""
        for what, places in (
            ("Rewritten", self.rewritten),
            ("Not reached", self.missed),
            ("Not reached, a Function with a rule of its own", self.own),
        ):
            yield from (f"{what}: {name} at {where}." for name, where in places[:_SHOWN])
            if len(places) > _SHOWN:
                yield f"{what}: {len(places) - _SHOWN} more."

    def to_json(self) -> dict[str, list[list[str]]]:
        return {key: [list(place) for place in places] for key, places in vars(self).items()}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Reached:
        return cls(**{key: tuple((str(name), str(where)) for name, where in places) for key, places in stored.items()})


def _once(places: Iterable[Place]) -> tuple[Place, ...]:
    return tuple(dict.fromkeys(places))


def _line(where: str, user_where: str) -> str:
    return where if user_where in (where, "?") else f"{where}, called by {user_where}"


class OwnFunctions:
    """The custom Functions of a run: the program's with the line where each is defined, ops of this library with the lines that call them.

    The program's are found in the graphs of its first backwards: `apply` may have been taken from the class before anybody looked.
    """

    def __init__(self) -> None:
        self._seen: dict[Place, None] = {}
        self._looks = _LOOKS

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple(self._seen)

    @contextmanager
    def watched(self) -> Iterator[None]:
        backwards.subscribe(self._look)
        try:
            with functions.watched(self._see_ours):
                yield
        finally:
            backwards.unsubscribe(self._look)

    def _look(self, roots: Any, grads: object, inputs: object) -> Callable[[object], None]:
        with suppress(Exception):  # nothing of ours may end the program
            if self._looks:
                self._looks -= 1
                classes = {function_of(type(node)) for node in nodes.behind(roots)}
                self._seen |= dict.fromkeys(sorted(_defined(cls) for cls in classes if _is_theirs(cls)))
        return _nothing

    def _see_ours(self, result: object) -> None:
        with suppress(Exception):
            if any(node.name() == _OURS for node in nodes.of(result)):
                frame = frames.calling_frame()
                where = "?" if frame is None else frames.shown(frame.f_code, frame.f_lineno)
                self._seen["an op of pseudograd", where] = None


def _nothing(result: object) -> None:
    """When the backward has ended."""


def _is_theirs(cls: object) -> bool:
    module = getattr(cls, "__module__", None) or ""
    return cls is not None and module.partition(".")[0] not in ("torch", __name__.partition(".")[0])


def _defined(cls: Any) -> Place:
    """With what it is, where it is a copy of an op that stands here."""
    code = inspect.unwrap(cls.forward).__code__
    where, copy = frames.shown(code, code.co_firstlineno), known(cls)
    return cls.__qualname__, where if copy is None else f"{where}, which is {copy.meaning}: `{copy.instead}`"
