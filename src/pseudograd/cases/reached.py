"""What the rules of `override` came upon in an unedited run, and what they cannot reach: the program's own autograd Functions among it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..rewrite.report import Report
from ..trace import frames, functions, nodes

_OURS = "Pseudograd"
_TORCHS = ("ApplyTemplate", "CompiledFunction", "Checkpoint")  # what a compiler or a checkpoint makes

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
        every = list(parts)
        return cls(
            _once(place for one in every for place in one.rewritten),
            _once(place for one in every for place in one.missed),
            _once(place for one in every for place in one.own),
        )

    def lines(self) -> Iterator[str]:
        """As text, for whoever wonders why a rule changed nothing."""
        for what, places in (
            ("Rewritten", self.rewritten),
            ("Not reached", self.missed),
            ("Not reached, a Function with a rule of its own", self.own),
        ):
            yield from (f"{what}: {name} at {where}." for name, where in places)

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
    """The custom Functions that a run applies, each with the line that calls it."""

    def __init__(self) -> None:
        self._seen: Counter[Place] = Counter()

    @contextmanager
    def watched(self) -> Iterator[None]:
        with functions.watched(self._see):
            yield

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple(place for place, _ in self._seen.most_common())

    def _see(self, result: Any) -> None:
        made = nodes.of(result)
        if not made:
            return
        name = made[0].name().removesuffix("Backward")
        if name.startswith(_TORCHS):
            return
        frame = frames.calling_frame()
        where = "?" if frame is None else frames.shown(frame.f_code, frame.f_lineno)
        self._seen["an op of pseudograd" if name == _OURS else name, where] += 1
