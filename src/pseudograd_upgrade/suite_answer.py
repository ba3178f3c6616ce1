"""The effect of an upgrade on a suite of tests: its causes, each with its tests and what to type."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pseudograd.wording import counted

from .answer import Answer, location_lines, origin_to_name
from .environments import describe_packages
from .recording import FAILED, NOT_COLLECTED, PASSED, XFAILED, XPASSED, SuiteTest

COLLECTED = "collected"  # the outcome of a file
UNEXPLAINED = "different, and not explained in --max-runs"
_SHOWN = 5  # tests of one cause
Pair = tuple[SuiteTest, SuiteTest]  # a test under the older and under the newer torch


@dataclass(frozen=True)
class Cause:
    """Tests that differ for the same reason: their answers have the same kind and line.

    answer: that of the first test, with the reasons that all tests share. endings: for each test, how it ends under each torch.
    """

    answer: Answer
    endings: Mapping[str, Pair]

    @property
    def ends_otherwise(self) -> bool:
        return any(old.outcome != new.outcome for old, new in self.endings.values())

    def lines(self, total: int) -> list[str]:
        answer = self.answer
        is_of_files = any(NOT_COLLECTED in (old.outcome, new.outcome) for old, new in self.endings.values())
        tests = f"{len(self.endings)} of {counted(total, 'test')}"
        count = counted(len(self.endings), "file") if is_of_files else tests
        lines = [f"  {count}: {answer.kind}"]
        if answer.difference is not None:
            lines += [f"  {line}" for line in location_lines(answer.difference)]
        for name, (old, new) in list(self.endings.items())[:_SHOWN]:
            lines.append(f"    {name}: {_describe_pair(old, new, answer.torch)}")
        if len(self.endings) > _SHOWN:
            lines.append(f"    and {len(self.endings) - _SHOWN} more")
        return [*lines, *(f"    {line}" for line in answer.why), *(f"    next: {line}" for line in answer.next_steps)]

    def to_json(self) -> dict[str, object]:
        tests = {
            name: {"old": [old.outcome, old.message], "new": [new.outcome, new.message]}
            for name, (old, new) in self.endings.items()
        }
        return {**self.answer.to_json(), "tests": tests}


def _summarize(answers: Mapping[str, Answer], endings: Mapping[str, Pair]) -> Cause:
    """The cause of these tests. The tests that end differently come first."""
    names = sorted(answers, key=lambda name: endings[name][0].outcome == endings[name][1].outcome)
    first = answers[names[0]]
    shared = (line for line in first.why if all(line in answer.why for answer in answers.values()))
    why = tuple(line for line in shared if not line.startswith(("it ends with status", "the last loss")))
    return Cause(replace(first, why=why, losses={}), {name: endings[name] for name in names})


def _pin_steps(cause: Cause, reasons: Sequence[tuple[str, ...]], may_pin_suite: bool) -> tuple[str, ...]:
    """What to type for a cause that a pin mends. reasons: for each test, the reasons not to pin it."""
    answer, pairs = cause.answer, cause.endings.values()
    mended = any(_is_mended(*pair) for pair in pairs)
    if not any(_is_broken(*pair) and not _is_mended(*pair) for pair in pairs):
        if mended or any(_is_broken(new, old) for old, new in pairs):
            mark = " and drop the mark xfail" if mended else ""
            return (f"they pass under torch {answer.torch[1]}: keep its convention{mark}",)
        if any(reasons):
            return tuple(dict.fromkeys(step for steps in reasons for step in steps))
    marker, hint = f"@pytest.mark.pseudograd_pin({answer.pin!r})", "one test"
    if any(old.parts[:-1] != new.parts[:-1] for old, new in pairs):
        marker, hint = marker.replace("@", "pytestmark = "), "all tests of a file, which share a fixture"
    if not may_pin_suite:
        return (f"{marker}  # {hint}; not the whole suite: under the pin others fail",)
    return f"pytest --pseudograd-pin {shlex.quote(answer.pin)}  # the whole suite", f"{marker}  # or {hint}"


def _is_broken(old: SuiteTest, new: SuiteTest) -> bool:
    """Does the test fail only under the newer torch?"""
    return new.outcome == FAILED != old.outcome


def _is_mended(old: SuiteTest, new: SuiteTest) -> bool:
    """Does the test fail as expected under the older torch alone?"""
    return old.outcome == XFAILED and (new.outcome == XPASSED or new.message.startswith("[XPASS(strict)]"))


def _describe_pair(old: SuiteTest, new: SuiteTest, torches: tuple[str, str]) -> str:
    if old.outcome == new.outcome:
        return f"{old.outcome} under both"
    ends = zip((old, new), torches, strict=True)
    faults = [(test, torch) for test, torch in ends if test.outcome not in (PASSED, COLLECTED)]
    text = ", ".join(f"{test.outcome} under torch {torch}" for test, torch in faults)
    message = next((test.message for test, _ in reversed(faults) if test.message), "")
    return f"{text}{' alone' if len(faults) == 1 else ''}{message and f': {message}'}"


@dataclass(frozen=True)
class SuiteAnswer:
    """The answer for a suite. counts: the number of tests for each kind of answer. causes: those of tests that differ by more than rounding
    or end differently. is_whole: did each run of the whole suite come to its end? packages: both versions of each package that differs.
    not_compared: notes about parts that should have been compared.
    """

    torch: tuple[str, str]
    runs: int
    total: int
    counts: Mapping[str, int]
    causes: tuple[Cause, ...]
    notes: tuple[str, ...] = ()
    is_whole: bool = True
    packages: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    not_compared: tuple[str, ...] = ()
    cut = None  # for a suite, no call is cut out

    @property
    def survives(self) -> bool:
        return self.is_whole and not (self.causes or self.counts[UNEXPLAINED])

    def __str__(self) -> str:
        old, new = self.torch
        summary = ", ".join(f"{count} {kind}" for kind, count in self.counts.items() if count)
        size = f"{counted(self.total, 'test')}: {summary}; {counted(self.runs, 'run')}"
        lines = [f"upgrade: torch {old} -> {new}: {size}"]
        lines += [f"  {line}" for line in filter(None, [describe_packages(self.packages)])]
        for cause in self.causes:
            lines += cause.lines(self.total)
        return "\n".join([*lines, *(f"upgrade: {note}" for note in self.notes)])

    def to_json(self) -> dict[str, object]:
        return {
            "kind": "pseudograd upgrade of a suite",
            "survives": self.survives,
            "torch": self.torch,
            "runs": self.runs,
            "tests": self.total,
            "counts": self.counts,
            "causes": [cause.to_json() for cause in self.causes],
            "notes": self.notes,
            "packages": self.packages,
            "not_compared": self.not_compared,
        }


def list_causes(
    groups: Iterable[Mapping[str, Answer]], pairs: Mapping[str, Pair], may_pin_suite: bool = True
) -> tuple[Cause, ...]:
    """The cause of each group of answers. Causes that change how a test ends come first. may_pin_suite: may the suite be pinned?"""
    groups = list(groups)
    pinned = [pairs[name] for group in groups for name, answer in group.items() if answer.pin]
    may_pin_suite = may_pin_suite and not any(_is_broken(new, old) for old, new in pinned)
    causes = []
    for group in groups:
        cause = _summarize(group, pairs)
        if cause.answer.pin:
            steps = _pin_steps(cause, [answer.next_steps for answer in group.values()], may_pin_suite)
            cause = replace(cause, answer=replace(cause.answer, next_steps=steps))
        causes.append(cause)
    return tuple(sorted(causes, key=lambda cause: (not cause.ends_otherwise, -len(cause.endings), min(cause.endings))))


def cause_key(answer: Answer, old: SuiteTest, new: SuiteTest) -> object:
    """A key that is equal for tests with the same cause: the kind, the pin that mends it, and the line that differs or else the error."""
    if answer.difference is not None:
        return answer.kind, answer.pin, origin_to_name(answer.difference).where
    return answer.kind, answer.pin, (old if old.outcome in (FAILED, NOT_COLLECTED) else new).message
