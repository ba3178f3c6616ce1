"""The record of one run of a program."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

MOST_DIGESTS = 20_000  # in one step; later events of the step are not recorded

# Further runs of the older torch, by their names in an answer.
OTHER_ORDER, SHAKEN = "sums in another order", "parameters moved by roundings"
Content = Mapping[str, Any]  # what a process wrote
# The kinds of events. A leaf event is the gradient that arrives at a parameter.
FORWARD, BACKWARD, UPDATE, LEAF = "forward", "backward", "update", "leaf"


class Schedule(NamedTuple):
    """The steps whose events are recorded: steps 1 to `first` and every `every`-th step; or, with a `window`, only its first to its last.

    Losses are recorded in every step. A program ends after its window, or after step `last`. The calls after the last backward form one
    more step. Its calls without gradients are recorded; if `tail` is the number of this step, all of its calls are. With every=0, neither
    these calls nor a step after `first` is recorded.
    """

    first: int = 6
    every: int = 25
    window: tuple[int, int] | None = None
    last: int | None = None
    tail: int | None = None

    def has(self, step: int) -> bool:
        if self.window is not None:
            return self.window[0] <= step <= self.window[1]
        return step <= self.first or step == self.tail or (self.every > 0 and step % self.every == 0)

    def is_over(self, step: int) -> bool:
        last = self.last if self.window is None else self.window[1]
        return last is not None and step > last


LOSSES_ALONE = Schedule(0, 0)


class Origin(NamedTuple):
    """The call that caused an event: its kind, its op, the line that calls torch, the program's own line, and the source text."""

    kind: str
    op: str
    where: str
    user_where: str
    expression: str


class Digest(NamedTuple):
    """A tensor's dtype and shape, its sum, the sum of its magnitudes, a projection of it, and its number of nonzero entries."""

    shape: str
    numbers: tuple[float, float, float, float]

    @property
    def magnitude(self) -> float:
        return self.numbers[1]


class Event(NamedTuple):
    """The tensors of one call. The process writes the first three fields; a recording adds the others."""

    origin: Origin
    options: str  # the other arguments of the call, as text
    tensors: tuple[Digest, ...]
    occurrence: int = 0  # 0 for the first equal call of a step, 1 for the second
    line: str = ""  # the line of the call in the older environment

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for the same event of two runs."""
        return (*self.origin[:2], self.line, *(tensor.shape for tensor in self.tensors), self.occurrence)


@dataclass(frozen=True)
class Recording:
    """The losses of every backward pass, the events of some steps, and how the program ended.

    The events after the last backward pass form one more step.
    """

    torch: str
    losses: list[list[float]]
    steps: dict[int, list[Event]]
    status: int = 0
    ending: tuple[str, ...] = ()  # the last lines that the program printed
    errors: tuple[str, ...] = ()
    raw: Content = field(default_factory=dict, repr=False, compare=False)  # the content as the process wrote it


def load_recording(
    content: Content, status: int = 0, ending: Iterable[str] = (), errors: Iterable[str] = ()
) -> Recording:
    """The recording that a process wrote as `content`."""
    errors = (*errors, *content.get("errors", ()))
    run = Recording(content["torch"], content["losses"], content["steps"], status, tuple(ending), errors, content)
    return align(run, {})


def align(run: Recording, lines: Mapping[str, str]) -> Recording:
    """The run with other lines: `lines` has the older line of each line that moved."""
    return replace(run, steps={step: _number_events(events, lines) for step, events in run.steps.items()})


def _number_events(events: Iterable[Event], lines: Mapping[str, str]) -> list[Event]:
    """The events with their lines and occurrences."""
    counts: dict[tuple[object, ...], int] = {}
    numbered = []
    for event in events:
        event = event._replace(occurrence=0, line=lines.get(event.origin.where, event.origin.where))
        occurrence = counts[event.key] = counts.get(event.key, -1) + 1
        numbered.append(event._replace(occurrence=occurrence))
    return numbered


# --- a suite of tests -------------------------------------------------------------------------------------------------

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
XFAILED, XPASSED, NOT_COLLECTED, NOT_RUN = "xfailed", "xpassed", "not collected", "not run"
# The exit status that stands for an outcome.
_STATUS = {outcome: status for status, outcome in enumerate((PASSED, FAILED, XFAILED, XPASSED, NOT_RUN))}


@dataclass(frozen=True)
class SuiteTest:
    """A test, or a file that was not collected.

    parts: the packed events of each fixture that the test shares, then the packed events of the test itself; b"" where torch did nothing.
    """

    outcome: str  # a constant above
    message: str = ""  # the reason, in one line
    parts: tuple[bytes, ...] = field(default=(), repr=False)

    @property
    def content(self) -> tuple[str, tuple[bytes, ...]]:
        """The outcome and the parts. The message may have an address or a time, which would differ."""
        return self.outcome, self.parts

    def recording(self, torch: str) -> Recording:
        """The test as if it were a program that ends with the message."""
        contents = [pickle.loads(zlib.decompress(part)) for part in self.parts if part]
        content = {"torch": torch, **_join(contents)}
        return load_recording(content, _STATUS.get(self.outcome, 0), filter(None, [self.message]))


def _join(contents: Iterable[Content]) -> Content:
    """Join contents that follow each other. The events after the last backward of one belong to the first step of the next."""
    losses: list[object] = []
    steps: dict[int, list[Event]] = {}
    for content in contents:
        for step, events in content["steps"].items():
            steps.setdefault(step + len(losses), []).extend(events)
        losses += content["losses"]
    return {"steps": steps, "losses": losses}


@dataclass(frozen=True)
class SuiteRun:
    """The run of a suite under one torch."""

    torch: str
    status: int
    tests: Mapping[str, SuiteTest]  # the tests that ended, by name
    running: tuple[str, ...] = ()  # the tests during which a process ended
    errors: tuple[str, ...] = ()
    ending: tuple[str, ...] = ()  # the last lines that pytest printed

    def recording(self, name: str) -> Recording:
        """The recording of a test. Empty if the test did not run."""
        return self.tests.get(name, SuiteTest(NOT_RUN)).recording(self.torch)


def load_suite(torch: str, status: int, contents: Iterable[Content], ending: tuple[str, ...]) -> SuiteRun:
    """The run of a suite. contents: what each of its processes wrote; there are several if pytest-xdist has workers."""
    tests: dict[str, SuiteTest] = {}
    running, errors = [], dict[str, None]()
    for content in contents:
        torch = content["torch"]
        for name, (outcome, message) in content["endings"].items():
            tests[name] = SuiteTest(outcome, message, content["tests"].get(name, ()))
        running += [content["running"]] * bool(content["running"])
        errors.update(dict.fromkeys(content["errors"]))
    return SuiteRun(torch, status, tests, tuple(running), tuple(errors), ending)
