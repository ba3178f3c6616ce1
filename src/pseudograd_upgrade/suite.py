"""Will this suite of tests survive the new torch? Each test is a program of its own, and all tests share the runs.

The whole suite runs once under each torch. Every test that differs is a `Question`. All questions that need the same further run share it:
pytest runs only their tests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from pseudograd.wording import counted

from .answer import FAILS, MAGNIFIED, OWN, SAME, Answer
from .differences import compare_events, find_other_ops, train_alike
from .environments import compare_packages, find_environments
from .pins import Pinned, find_better, known_change, may_hide_convention
from .recording import FAILED, NOT_COLLECTED, PASSED, SKIPPED, UPDATE, Recording, Schedule, SuiteRun, SuiteTest
from .runs import Interpreter, LimitError, Runner
from .suite_answer import COLLECTED, UNEXPLAINED, Pair, SuiteAnswer, cause_key, list_causes
from .upgrade import Question, indented

_SCHEDULE, _ALL_STEPS = Schedule(first=30), Schedule(first=1_000)
_STOPPED = 128 + 15  # the status of a run that its limit ended
_SEED_ADVICE = "seed what it draws, and let it not depend on other tests; then ask again"
_HAND_ADVICE = "compare by hand what it checks; of a program that it starts in another process, ask upgrade by itself"


_Request = tuple[Interpreter, Schedule]  # a run that a question needs


class _MissingRunError(Exception):
    """A question needs a run that was not made yet."""


class _KnownRuns:
    """The runs of one test, in place of the `Runner` of its question. runs: those of the suite so far. missing: the first that it lacks."""

    def __init__(self, name: str, program: Sequence[str], runs: Mapping[_Request, Mapping[str, Recording]]) -> None:
        self.name, self.program, self.count, self._runs = name, program, 0, runs
        self.missing: _Request | None = None

    def run(self, interpreter: Interpreter, schedule: Schedule) -> Recording:
        recording = self._runs.get((interpreter, schedule), {}).get(self.name)
        if recording is None:
            self.missing = interpreter, schedule
            raise _MissingRunError
        return recording


class SuiteTestQuestion(Question):
    """Compares two runs of one test."""

    is_test = True
    schedule = _SCHEDULE

    def answer(self) -> Answer:
        self.shorten_both()
        answer = self._answer_to_the_bit() or self.explain()
        return self._explain_ending(answer) if answer.survives and self.old.status != self.new.status else answer

    def _answer_to_the_bit(self) -> Answer | None:
        """An answer if under the pin every digest is equal, and the first gradient that the pin changes is at a kink."""
        old, new = self.old, self.new
        if old.status == new.status and train_alike(old, new):
            return None
        comparison = compare_events(old, new)
        answer = None if comparison.first is None else self.answer_pinned(comparison, to_the_bit=True)
        kink = None if answer is None else answer.difference
        return answer if kink is not None and known_change(kink.old.origin, old, new) else None

    def is_without_effect(self) -> bool:
        return self.old.status == self.new.status and super().is_without_effect()

    def ends_as_old(self, run: Recording) -> bool:
        """Does this run end as the older torch does? If the two torches end alike, the gradients must be the same, too."""
        return run.status == self.old.status and (run.status != self.new.status or self.trains_as_old(run))

    def may_be_shaken(self) -> bool:
        """Has the test steps of an optimiser?"""
        return any(event.origin.kind == UPDATE for events in self.old.steps.values() for event in events)

    def window(self, step: int) -> Schedule:
        return _ALL_STEPS  # the steps of a test go on from those of its fixtures

    def _explain_ending(self, answer: Answer) -> Answer:
        """An answer for a test that fails under one of the two, though the recorded events do not differ."""
        old, new = self.old, self.new
        if (first := find_other_ops(old, new)) is not None:
            return self.explain_difference(replace(compare_events(old, new, self.noises), first=first), first)
        if self.schedule != _ALL_STEPS and max(len(old.losses), len(new.losses)) > self.schedule.first:
            question = SuiteTestQuestion(self.runner, self.old_python, self.new_python)
            question.schedule = _ALL_STEPS
            return question.answer()
        comparison = compare_events(old, new)
        if any(map(may_hide_convention, (old, new))) and (pinned := self.answer_pinned(comparison)) is not None:
            return pinned
        run, python = (new, self.new_python) if new.status else (old, self.old_python)
        if self.run(python.but(is_repeated=True)).status != run.status:
            why = f"the same run twice under torch {run.torch} ends in two ways"
            return self.make_answer(OWN, comparison, [why], [_SEED_ADVICE])
        if answer.kind == MAGNIFIED:
            return replace(answer, kind=FAILS)
        is_rounded = comparison.largest > 0
        result = f"differs by rounding alone, by up to {comparison.largest:.1e}" if is_rounded else "is the same"
        why = f"what torch computes in the process of pytest {result}"
        return replace(answer, kind=FAILS, why=(why,), next_steps=(_HAND_ADVICE,))

    def _explain_by_program(self) -> Answer | None:
        answer = super()._explain_by_program()
        if answer is None:
            return None
        why = f"under torch {self.old.torch} alone it differs from run to run, or with the tests that run before it"
        return replace(answer, why=(why,), next_steps=(_SEED_ADVICE,))

    def find_pin(self, first: object, run_pinned: Callable[[tuple[str, ...]], Pinned]) -> Pinned:
        """Pin everywhere: a suite is pinned as a whole, or test by test, but never at a line."""
        return run_pinned(())

    def describe_pinned(self, pinned: Pinned, line: str, to_the_bit: bool) -> str:
        same = ", with the same gradients" if to_the_bit or self.trains_as_old(pinned.run) else ""
        return f"under the pin it ends as under torch {self.old.torch}{same}"

    def pin_steps(self, pinned: Pinned) -> list[str]:
        """The reason not to pin this test, if its losses give one. `Cause` has the steps for all of its tests."""
        if self.old.status != self.new.status:
            return []
        better, reason = find_better(self.old, self.new)
        return [f"{reason} keep its convention" if better is self.new else reason] if better is not self.old else []


def compare_suites(runner: Runner, old: str | None, new: str | None) -> SuiteAnswer:
    """Run a suite of pytest under two torches, and explain the tests that differ.

    Raises: ValueError for an interpreter that cannot be used, or a suite of which no test runs.
    """
    return Suite(runner, *find_environments(old, new)).answer()


class Suite:
    """A suite under two torches, and the questions about its tests."""

    def __init__(self, runner: Runner, old_python: Interpreter, new_python: Interpreter) -> None:
        # Both may be the same interpreter; their runs are kept apart.
        self.runner, self.pythons = runner, (old_python, new_python.but(side="new"))

    def answer(self) -> SuiteAnswer:
        old, new = self._run_all()
        tests, files = _pair_tests(old, new)
        differing = [name for name, (before, after) in tests.items() if before.content != after.content]
        compared = [name for name in differing if SKIPPED not in _outcomes(tests[name])]
        answers = self._answer_all(compared, old, new)
        same = {name for name in answers if answers[name].survives and len(_outcomes(tests[name])) == 1}
        equal_bits = len(tests) - len(differing) + sum(answers[name].kind == SAME for name in same)
        counts = {
            "the same to the last bit": equal_bits,
            "the same but for rounding": len(tests) - len(differing) + len(same) - equal_bits,
            "different": len(answers) - len(same),
            "skipped under one alone": len(differing) - len(compared),
            UNEXPLAINED: len(compared) - len(answers),
        }
        pairs = {**tests, **files}
        fails = Answer(FAILS, (old.torch, new.torch), self.runner.count, 0)
        different = {name: answer for name, answer in answers.items() if name not in same}
        different |= {name: fails for name, pair in files.items() if len(_outcomes(pair)) == 2}
        groups: dict[object, dict[str, Answer]] = defaultdict(dict)
        for name, answer in different.items():
            groups[cause_key(answer, *pairs[name])][name] = answer
        if not (tests or groups):
            raise ValueError(f"upgrade: a test must run under both, got none.{indented(old.ending)}")
        notes = [_note_both(tests, FAILED, "test"), _note_both(files, NOT_COLLECTED, "file"), *_note_alone(old, new)]
        not_compared = _list_missing(old, new)
        may_pin_suite = self._may_pin_suite(groups.values(), old, new)  # before the runs are counted: it may make one
        return SuiteAnswer(
            (old.torch, new.torch),
            self.runner.count,
            len(tests),
            counts,
            list_causes(groups.values(), pairs, may_pin_suite),
            (*filter(None, notes), *not_compared),
            not (old.running or new.running),
            compare_packages(*self.pythons),
            not_compared,
        )

    def _run_all(self) -> tuple[SuiteRun, SuiteRun]:
        old, new = (self.runner.run_suite(python, _SCHEDULE) for python in self.pythons)
        for run, argument in ((old, "--from"), (new, "--to")):
            if not run.tests:
                stopped = " --time-limit stopped it before a test ended." if run.status == _STOPPED else ""
                raise ValueError(f"upgrade: a test must run under {argument}, got none.{stopped}{indented(run.ending)}")
        return old, new

    def _may_pin_suite(self, groups: Iterable[Mapping[str, Answer]], old: SuiteRun, new: SuiteRun) -> bool:
        """Does the pin of an answer leave alone the tests that run under the newer torch alone? False if no run is left to see that."""
        pin = next((answer.pin for group in groups for answer in group.values() if answer.pin), "")
        runs_in_old = {name for name, test in old.tests.items() if test.outcome != SKIPPED}
        names = [name for name, test in new.tests.items() if test.outcome == PASSED and name not in runs_in_old]
        if not pin or not names:
            return True
        try:
            run = self.runner.run_suite(self.pythons[1].but(pin=pin, lines=[]), _SCHEDULE, names)
        except LimitError:
            return False
        return not any(run.tests[name].outcome == FAILED for name in names if name in run.tests)

    def _answer_all(self, names: Sequence[str], old: SuiteRun, new: SuiteRun) -> dict[str, Answer]:
        """Ask each question until it misses a run, make one of the missing runs, and ask again. If no more runs are allowed, the other
        tests have no answer.
        """
        answers: dict[str, Answer] = {}
        runs: dict[_Request, dict[str, Recording]] = defaultdict(dict)
        for python, run in zip(self.pythons, (old, new), strict=True):
            runs[python, _SCHEDULE] = {name: run.recording(name) for name in names}
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
            if not needed:
                break
            # The first further run is a pinned one, which answers some tests alone. Later a pinned run waits until no other run is missing.
            is_first = len(runs) == len(self.pythons)
            request = min(needed, key=lambda request: ("pin" in request[0].settings) != is_first)
            try:
                run = self.runner.run_suite(*request, needed[request])
            except LimitError:
                break
            runs[request] |= {name: run.recording(name) for name in needed[request]}
            waiting = [name for tests in needed.values() for name in tests]
        return answers


def _pair_tests(old: SuiteRun, new: SuiteRun) -> tuple[dict[str, Pair], dict[str, Pair]]:
    """The tests that ended under both, and the files that one of them did not collect."""
    collected = SuiteTest(COLLECTED)  # a run has no entry for a file that it could collect
    names = dict.fromkeys((*old.tests, *new.tests))
    pairs = {name: (old.tests.get(name, collected), new.tests.get(name, collected)) for name in names}
    files = {name: pair for name, pair in pairs.items() if NOT_COLLECTED in _outcomes(pair)}
    in_both = [name for name in old.tests if name in new.tests and name not in files]
    return {name: pairs[name] for name in in_both}, files


def _outcomes(pair: Pair) -> set[str]:
    return {test.outcome for test in pair}


def _note_both(pairs: Mapping[str, Pair], outcome: str, noun: str) -> str:
    names = [name for name, (old, new) in pairs.items() if old.outcome == new.outcome == outcome]
    if not names:
        return ""
    doing, message = "failing" if outcome == FAILED else outcome, pairs[names[0]][0].message
    example = ": ".join(filter(None, [names[0], message]))
    return f"{counted(len(names), noun)} {doing} under both, such as {example}"


def _note_alone(old: SuiteRun, new: SuiteRun) -> tuple[str, ...]:
    """A note for each torch under which alone some tests ended."""
    notes = []
    for run, other in ((old, new), (new, old)):
        alone = [name for name in run.tests if name not in other.tests and run.tests[name].outcome != NOT_COLLECTED]
        if alone:
            notes.append(f"{counted(len(alone), 'test')} ended only under torch {run.torch}, such as {alone[0]}")
    return tuple(notes)


def _list_missing(old: SuiteRun, new: SuiteRun) -> tuple[str, ...]:
    """Notes about parts that should have been compared."""
    ends = [f"under torch {run.torch} the suite ended during {name}" for run in (old, new) for name in run.running]
    return (*ends, *(f"not heard: {error}" for error in dict.fromkeys([*old.errors, *new.errors])))
