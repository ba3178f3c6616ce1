"""Will this suite of tests survive the new torch? Each test is a program of its own, and all tests share the runs.

The whole suite runs once under each torch. Every test that differs is a `Question`; where it needs a further run, all tests that need the
same one get it together, with pytest limited to them.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pseudograd.torch_table.eras import era_of
from pseudograd.wording import counted

from .answer import SAME, Answer, location_lines, origin_to_name
from .pins import Pinned, find_better
from .recording import FAILED, SKIPPED, Recording, Schedule, SuiteRun, SuiteTest
from .runs import Interpreter, LimitError, Runner, find_interpreter, list_other_packages
from .upgrade import Question, indented

_SHOWN = 5  # tests of one cause
_UNEXPLAINED = "different, and not explained in --max-runs"


class _MissingRunError(Exception):
    """A question needs a run that was not made yet."""


class _KnownRuns:
    """The runs of one test, for its question: those of the suite that were made with it."""

    def __init__(self, name: str, program: Sequence[str], runs: Mapping[_Request, Mapping[str, Recording]]) -> None:
        self.name, self.program, self.count, self._runs = name, program, 0, runs
        self.missing: _Request | None = None

    def run(self, interpreter: Interpreter, schedule: Schedule, **options: object) -> Recording:
        request = _Request(interpreter, schedule, tuple(sorted(options.items())))
        recording = self._runs.get(request, {}).get(self.name)
        if recording is None:
            self.missing = request
            raise _MissingRunError
        return recording


@dataclass(frozen=True)
class _Request:
    """A run, by its interpreter, schedule and options. Hashable by its text: settings of an interpreter are a mapping."""

    interpreter: Interpreter
    schedule: Schedule
    options: tuple[tuple[str, object], ...]

    def __hash__(self) -> int:
        return hash((self.interpreter.path, self.schedule, str(self.options)))


class SuiteTestQuestion(Question):
    """Compares two runs of one test."""

    is_test = True

    def _explain_by_program(self) -> Answer | None:
        answer = super()._explain_by_program()
        if answer is None:
            return None
        why = f"under torch {self.old.torch} alone it differs from run to run, or with the tests that run before it"
        step = "seed what it draws, and let it not depend on other tests; then ask again"
        return replace(answer, why=(why,), next_steps=(step,))

    def find_pin(self, first: object, run_pinned: Callable[[tuple[str, ...]], Pinned]) -> Pinned:
        """A suite is pinned as a whole, or test by test."""
        return run_pinned(())

    def describe_pinned(self, pinned: Pinned, line: str, to_the_bit: bool) -> str:
        return f"under the pin it ends as under torch {self.old.torch}, with the same gradients"

    def pin_steps(self, pinned: Pinned) -> list[str]:
        better, reason = find_better(self.old, self.new)
        if better is None:
            return [reason]
        era = era_of(better.torch)
        marker = f"@pytest.mark.pseudograd_pin({era!r})  # or one test"
        if better is self.new:
            return [f"{reason}: keep its convention", marker]
        return [f"pytest --pseudograd-pin {shlex.quote(era)}  # the whole suite", marker]


@dataclass(frozen=True)
class Cause:
    """What makes tests differ: their answers have the same kind and line. endings: by the name of a test, how it ends under each torch."""

    answer: Answer
    endings: Mapping[str, tuple[SuiteTest, SuiteTest]]

    def lines(self, total: int) -> list[str]:
        answer = self.answer
        lines = [f"  {len(self.endings)} of {counted(total, 'test')}: {answer.kind}"]
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


def _describe_pair(old: SuiteTest, new: SuiteTest, torches: tuple[str, str]) -> str:
    if old.outcome == new.outcome:
        return f"{old.outcome} under both"
    failed, torch = (old, torches[0]) if old.outcome == FAILED else (new, torches[1])
    return f"{failed.outcome} under torch {torch} alone{failed.message and f': {failed.message}'}"


@dataclass(frozen=True)
class SuiteAnswer:
    """counts: tests by the kind of their answer. causes: of the tests that differ beyond rounding, or that end otherwise."""

    torch: tuple[str, str]
    runs: int
    total: int
    counts: Mapping[str, int]
    causes: tuple[Cause, ...]
    notes: tuple[str, ...] = ()
    cut = None  # no call of a suite is cut out

    @property
    def survives(self) -> bool:
        return not (self.causes or self.counts[_UNEXPLAINED])

    def __str__(self) -> str:
        old, new = self.torch
        summary = ", ".join(f"{count} {kind}" for kind, count in self.counts.items() if count)
        lines = [
            f"upgrade: torch {old} -> {new}: {counted(self.total, 'test')}: {summary}; {counted(self.runs, 'run')}"
        ]
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
        }


def compare_suites(runner: Runner, old: str, new: str) -> SuiteAnswer:
    """Runs a suite of pytest under two torches, and explains the tests that differ.

    Raises: ValueError for an interpreter that cannot be used, or a suite of which no test runs.
    """
    pythons = (find_interpreter("--from", old), find_interpreter("--to", new))
    return Suite(runner, *pythons).answer()


class Suite:
    def __init__(self, runner: Runner, old_python: Interpreter, new_python: Interpreter) -> None:
        # Both may be the same interpreter; their runs are kept apart.
        self.runner, self.pythons = runner, (old_python, new_python.but(side="new"))

    def answer(self) -> SuiteAnswer:
        old, new = (self.runner.run_suite(python, Schedule()) for python in self.pythons)
        for run, argument in ((old, "--from"), (new, "--to")):
            if not run.tests:
                raise ValueError(f"upgrade: a test must run under {argument}, got none.{indented(run.ending)}")
        common = [name for name in old.tests if name in new.tests]
        differing = [name for name in common if old.tests[name].content != new.tests[name].content]
        counts = {"the same to the last bit": len(common) - len(differing), "the same but for rounding": 0}
        compared = [name for name in differing if not _is_skipped(old.tests[name], new.tests[name])]
        answers = self._answer_all(compared, old, new)
        groups: dict[object, dict[str, Answer]] = defaultdict(dict)
        for name, answer in answers.items():
            pair = old.tests[name], new.tests[name]
            if answer.survives and pair[0].outcome == pair[1].outcome:
                counts["the same to the last bit" if answer.kind == SAME else "the same but for rounding"] += 1
            else:
                groups[_key(answer, *pair)][name] = answer
        counts["different"] = sum(map(len, groups.values()))
        counts["skipped under one alone"] = len(differing) - len(compared)
        counts[_UNEXPLAINED] = len(compared) - len(answers)
        failing = [name for name in common if old.tests[name].outcome == new.tests[name].outcome == FAILED]
        notes = []
        if failing:
            first = f"{failing[0]}: {old.tests[failing[0]].message}".removesuffix(": ")
            notes = [f"{counted(len(failing), 'test')} failing under both, such as {first}"]
        causes = [
            Cause(_summarize(list(group.values())), {name: (old.tests[name], new.tests[name]) for name in group})
            for group in groups.values()
        ]
        causes.sort(key=lambda cause: -len(cause.endings))
        torch = (old.torch, new.torch)
        notes += filter(None, [*_notes(old, new), list_other_packages(*self.pythons)])
        return SuiteAnswer(torch, self.runner.count, len(common), counts, tuple(causes), tuple(notes))

    def _answer_all(self, names: Sequence[str], old: SuiteRun, new: SuiteRun) -> dict[str, Answer]:
        """Asks each question until it misses a run, makes the runs that are missing, and asks again. Without an answer stay tests whose
        runs are more than allowed.
        """
        answers: dict[str, Answer] = {}
        runs: dict[_Request, dict[str, Recording]] = defaultdict(dict)
        for python, run in zip(self.pythons, (old, new), strict=True):
            runs[_Request(python, Schedule(), ())] = {name: run.recording(name) for name in names}
        waiting = list(names)
        while waiting:
            needed: dict[_Request, list[str]] = defaultdict(list)
            for name in waiting:
                known = _KnownRuns(name, self.runner.program, runs)
                try:
                    answers[name] = SuiteTestQuestion(known, *self.pythons).answer()  # type: ignore[arg-type]
                except _MissingRunError:
                    assert known.missing is not None
                    needed[known.missing].append(name)
            for request, tests in needed.items():
                options: dict[str, Any] = dict(request.options)
                try:
                    done = self.runner.run_suite(request.interpreter, request.schedule, tests, **options)
                except LimitError:
                    return answers
                runs[request] |= {name: done.recording(name) for name in tests}
            waiting = [name for tests in needed.values() for name in tests]
        return answers


def _is_skipped(old: SuiteTest, new: SuiteTest) -> bool:
    """Under one of the two."""
    return SKIPPED in (old.outcome, new.outcome)


def _summarize(answers: Sequence[Answer]) -> Answer:
    """The answer to the first of the tests, with the reasons that hold for all, without the end and the losses of a single one."""
    own = ("it ends with status", "the last loss")
    shared = (line for line in answers[0].why if all(line in answer.why for answer in answers))
    return replace(answers[0], why=tuple(line for line in shared if not line.startswith(own)), losses={})


def _key(answer: Answer, old: SuiteTest, new: SuiteTest) -> object:
    """Equal for tests with the same cause: the line that differs; without one, the line and the text of the error."""
    if answer.difference is not None:
        return answer.kind, origin_to_name(answer.difference).where
    return answer.kind, (old if old.outcome == FAILED else new).message


def _notes(old: SuiteRun, new: SuiteRun) -> tuple[str, ...]:
    notes = []
    for run, other in ((old, new), (new, old)):
        alone = [name for name in run.tests if name not in other.tests]
        if alone:
            notes.append(f"{counted(len(alone), 'test')} ended only under torch {run.torch}, such as {alone[0]}")
        notes += [f"under torch {run.torch} the suite ended during {name}" for name in run.running]
    return (*notes, *(f"not heard: {error}" for error in dict.fromkeys([*old.errors, *new.errors])))
