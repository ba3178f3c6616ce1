"""Compares a training under two torches: runs the program under both, and again to explain the first difference."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from pseudograd.listen.frames import NO_LINE
from pseudograd.listen.program.signals import Stopped
from pseudograd.torch_table.eras import era_of
from pseudograd.wording import counted

from .answer import (
    CONVENTION,
    FAILS,
    MAGNIFIED,
    OTHER_OP,
    OWN,
    ROUNDING,
    SAME,
    SURVIVES,
    UNKNOWN,
    Answer,
    location_lines,
    origin_to_name,
)
from .cutting.cut import cut
from .differences import (
    ROUNDINGS,
    Comparison,
    Difference,
    compare_events,
    digest_distance,
    explain_equality,
    explain_growth,
    find_added_calls,
    find_other_ops,
    first_differing_step,
    is_beyond_rounding,
    last_loss,
    may_have_grown,
    same_leaves,
    shorten,
    train_alike,
)
from .environments import compare_packages, find_environments
from .moved import MovedLines
from .pins import (
    Pinned,
    find_kink,
    find_pin,
    is_at_line,
    known_change,
    may_be_pinned,
    may_hide_convention,
    pin_steps,
    unpinned_steps,
)
from .recording import FORWARD, MOST_DIGESTS, UPDATE, Event, Recording, Schedule
from .runs import Interpreter, LimitError, Runner


def compare_torches(runner: Runner, old: str | None, new: str | None) -> Answer:
    """Run the program under two torches, each in its interpreter, and name the first difference.

    Raises: ValueError for an interpreter that cannot be used, or a program that fails under both.
    """
    question = Question(runner, *find_environments(old, new))
    with question.report_when_stopped():
        return question.cut_out(question.answer())


class Question:
    """Compares two runs. It keeps its runs, and makes a further run only if the earlier ones leave the answer open."""

    schedule = Schedule()
    roundings = ROUNDINGS
    sides = "torches"  # the word of messages for what the two runs differ in
    is_test = False  # Is the program one test of a suite?

    def __init__(self, runner: Runner, old_python: Interpreter, new_python: Interpreter) -> None:
        self.runner, self.old_python, self.new_python = runner, old_python, new_python
        self.moved_lines = MovedLines(old_python.folders, new_python.folders)
        self._noises: list[Recording] = []
        self._old: Recording | None = None
        self._new: Recording | None = None
        self._answered: Answer | None = None  # complete but for the program of its call
        self._most_steps: int | None = None  # the steps of the shorter of the first two runs, if they differ in this

    @property
    def old(self) -> Recording:
        if self._old is None:
            run = self._old = self._require_events(self.runner.run(self.old_python, self.schedule), "--from")
            # This run left out calls after its last step. Now the number of steps is known, so a second run can record these calls.
            if run.raw.get("has_unheard") and run.status == 0 and not self.is_test:
                self.schedule = self.schedule._replace(tail=len(run.losses) + 1)
                self._old = self.runner.run(self.old_python, self.schedule)
        return self._old

    @property
    def new(self) -> Recording:
        if self._new is None:
            run = self._require_events(self.runner.run(self.new_python, self.schedule), "--to")
            self._new = self.moved_lines.align(run)
        return self._new

    def _require_events(self, run: Recording, argument: str) -> Recording:
        if not (self.is_test or run.status or run.steps or run.losses):
            reason = "; ".join(run.errors) or "it called no function of torch in its own process"
            raise ValueError(f"upgrade: the program must call torch under {argument}, got nothing. {reason}.")
        return run

    def run(self, python: Interpreter, schedule: Schedule | None = None) -> Recording:
        """A further run. It is shortened to the steps of the first two runs, if these were shortened."""
        run = self.runner.run(python, schedule or self.schedule)
        is_new = python.path == self.new_python.path
        return shorten(self.moved_lines.align(run) if is_new else run, self._most_steps)

    @contextlib.contextmanager
    def report_when_stopped(self) -> Iterator[None]:
        """If a signal or the limit of runs stops the command, its error says what is known so far."""
        try:
            yield
        except Stopped as stop:
            stop.known = self._describe_known()
            raise
        except LimitError as limit:
            raise ValueError(
                f"upgrade: --max-runs must be at least {self.runner.count + 1} here.\n{self._describe_known()}"
            ) from limit

    def _describe_known(self) -> str:
        if self._answered is not None:
            return str(self._answered)
        old, new = self._old, self._new
        lines = [f"upgrade: stopped in run {self.runner.count}, before the answer"]
        for run in filter(None, (old, new)):
            last = last_loss(run)
            loss = "" if last is None else f", the last loss is {last:.6g}"
            lines.append(f"  torch {run.torch}: status {run.status}{loss}")
        if old is not None and new is not None and not (old.status or new.status):
            comparison = compare_events(old, new, self._noises, self.roundings)
            if comparison.first is None:
                lines += [f"  {line}" for line in _summarize(comparison, old)]
            else:
                lines += ["  the first event that differs; its cause is not known yet:"]
                lines += location_lines(comparison.first)
        return "\n".join(lines)

    @property
    def noises(self) -> list[Recording]:
        """Runs of the older torch in which rounding alone differs: one with its sums in another order, then one that is shaken."""
        if not self._noises:
            self._noises = [self.run(self.old_python.but(has_other_order=True))]
        return self._noises

    def _add_shaken_noise(self) -> None:
        """Add a run in which roundings move the parameters after each step. It shows how far they grow in later steps."""
        if len(self.noises) == 1 and self.may_be_shaken():
            shaken = self.run(self.old_python.but(is_shaken=True))
            self._noises += [shaken] if shaken.status == 0 else []

    def may_be_shaken(self) -> bool:
        """Does a run with moved parameters say anything about rounding?"""
        return True

    def answer(self) -> Answer:
        """Explain the first difference. If a run failed, compare what comes before its end, and say how it ended."""
        old, new = self.old, self.new
        if not (old.status or new.status):
            return self.explain()
        self.shorten_both()
        answer = self.explain()
        if old.status and new.status:
            if answer.survives and not self.is_test:
                got = f"{old.status} and {new.status}"
                raise ValueError(f"upgrade: the program must end well in one of them, got {got}.{indented(old.ending)}")
            ends = f"it ends with status {old.status} and {new.status}, under both; compared is what comes before that"
            return replace(answer, why=(*answer.why, ends))
        failed = old if old.status else new
        why = [f"it ends with status {failed.status} under torch {failed.torch} alone:", *failed.ending]
        return replace(answer, kind=FAILS if answer.survives else answer.kind, why=(*answer.why, *why))

    def shorten_both(self) -> None:
        """If a run failed and so has fewer steps, shorten both runs to these steps."""
        if len(self.old.losses) != len(self.new.losses):
            self._most_steps = min(len(self.old.losses), len(self.new.losses))
            self._old, self._new = (shorten(run, self._most_steps) for run in (self.old, self.new))

    def explain(self) -> Answer:
        """The answer about what the two runs computed, whatever their exit status is."""
        old, new = self.old, self.new
        comparison = compare_events(old, new)
        is_equal = comparison.largest == 0.0
        if comparison.first is None:
            if (answer := self._explain_last_calls(comparison)) is not None:
                return answer
            if (is_equal or self.is_test) and first_differing_step(old, new) is None:
                return self.make_answer(SAME if is_equal else ROUNDING, comparison, _summarize(comparison, old))
        comparison = self._compare(new)
        if (answer := self._explain_by_program()) is not None:
            return answer
        step = first_differing_step(old, new, self.noises)
        if may_have_grown(old, new, self.noises, comparison, step):
            self._add_shaken_noise()
            comparison, step = self._compare(new), first_differing_step(old, new, self.noises)
        if step is not None and (comparison.first is None or comparison.first.step > step):
            comparison = self._look_closer(step, comparison)
        if comparison.first is not None and self.is_without_effect():
            return self._explain_without_effect(comparison, comparison.first)
        if comparison.first is not None:
            return self.explain_difference(comparison, comparison.first)
        if step is not None:
            if (answer := self.answer_pinned(comparison)) is not None:
                return answer
            why = f"the losses part at step {step}, beyond rounding; none of the events that were kept does before"
            return self.make_answer(OTHER_OP, comparison, [why])
        return self._explain_rounding(comparison, _summarize(comparison, old))

    def _explain_without_effect(self, comparison: Comparison, first: Difference) -> Answer:
        """An answer if no loss and no gradient of a parameter differs. An evaluation after the last backward may differ."""
        self._add_shaken_noise()
        evaluation = compare_events(self.old, self.new, self.noises, self.roundings, since=len(self.old.losses) + 1)
        if evaluation.first is None:
            why = [f"apart by {first.distance:.1e} there, but no loss and no gradient of a parameter is"]
            return self._explain_rounding(comparison, why)
        if may_be_pinned(self.old, self.new):  # the evaluation may use a gradient, as a saliency map does
            pinned = self._run_pinned(False, ())
            if pinned.is_mended and not self._describe_last_calls(pinned.run):
                why = ["pinned everywhere, what is computed after the last backward pass is equal, too"]
                at_kink = replace(evaluation, first=self._find_kink(pinned) or evaluation.first)
                answer = self.make_answer(CONVENTION, at_kink, why, self.pin_steps(pinned))
                return replace(answer, pin=era_of(self.old.torch))
        origin = origin_to_name(evaluation.first)
        why = self._list_unmatched(evaluation.first) or [f"apart by {evaluation.first.distance:.1e} there"]
        why[-1] += ", after the last backward pass; the training before it is the same"
        next_step = f"compare by hand what {origin.where} computes under both {self.sides}"
        return self.make_answer(OTHER_OP, evaluation, why, [next_step])

    def _explain_last_calls(self, comparison: Comparison) -> Answer | None:
        """An answer if the two runs end with different calls, which give different values."""
        first = find_other_ops(self.old, self.new)
        is_in_training = first is not None and first.step <= len(self.old.losses)
        if first is None or self.is_test or is_in_training or _end_alike(first):
            return None
        next_step = f"compare by hand what {origin_to_name(first).where} computes under both {self.sides}"
        why = [*self._list_unmatched(first), "no call of both follows; all before it is the same"]
        return self.make_answer(OTHER_OP, replace(comparison, first=first), why, [next_step])

    def _compare(self, new: Recording) -> Comparison:
        return compare_events(self.old, new, self.noises, self.roundings)

    def trains_as_old(self, run: Recording) -> bool:
        """Does this run train as the older torch, apart from what another order of sums changes?"""
        return train_alike(self.old, run, self.noises[:1], self.roundings)

    def is_without_effect(self) -> bool:
        """Are the losses and the gradients of the parameters the same?"""
        return self.trains_as_old(self.new)

    def make_answer(
        self, kind: str, comparison: Comparison, why: Iterable[str], next_steps: Iterable[str] = ()
    ) -> Answer:
        old, new = self.old, self.new
        errors = dict.fromkeys([*old.errors, *new.errors])
        not_compared = *(f"not heard: {error}" for error in errors), *_list_full(old, new)
        return Answer(
            UNKNOWN if errors and kind in SURVIVES else kind,
            (old.torch, new.torch),
            self.runner.count,
            max(len(old.losses), len(new.losses)),
            tuple(filter(None, why)),
            tuple(next_steps),
            comparison.first,
            {"old": [sum(loss) for loss in old.losses], "new": [sum(loss) for loss in new.losses]},
            (*not_compared, *self._list_notes(), *_list_ends(old, new)),
            packages={} if self.is_test else compare_packages(self.old_python, self.new_python),
            not_compared=not_compared,
        )

    def _list_notes(self) -> list[str]:
        return []

    def _explain_by_program(self) -> Answer | None:
        """An answer if a second run of the older torch trains differently. It is made only if another order of sums does that, too."""
        if train_alike(self.old, self.noises[0]):
            return None
        again = self.run(self.old_python.but(is_repeated=True))
        if train_alike(self.old, again):
            return None
        why = f"the same run twice under torch {self.old.torch}, with the same seeds, differs there already"
        next_step = "fix its seeds, or what else changes from run to run; then ask again"
        return self.make_answer(OWN, compare_events(self.old, again), [why], [next_step])

    def window(self, step: int) -> Schedule:
        """The schedule of runs that show the difference in this step."""
        return Schedule(0, 0, (max(1, step - 1), step))

    def _look_closer(self, step: int, comparison: Comparison) -> Comparison:
        """Record all events around the first loss that differs, and compare them."""
        window = self.window(step)
        old, new = (self.run(python, window) for python in (self.old_python, self.new_python))
        changes = ("has_other_order", "is_shaken")[: len(self.noises)]
        noises = [self.run(self.old_python.but("", **{change: True}), window) for change in changes]
        closer = compare_events(old, new, noises, self.roundings)
        first = closer.first or find_added_calls(old, new, step)
        return comparison if first is None else replace(closer, first=first)

    def _explain_rounding(self, comparison: Comparison, why: Iterable[str]) -> Answer:
        answer = self.answer_pinned(comparison, to_the_bit=True) if self.old.losses != self.new.losses else None
        if answer is not None:
            return answer
        growth = explain_growth(self.old, self.new, self.noises)
        if growth is None:
            origin = None if comparison.first is None else origin_to_name(comparison.first)
            change = "" if origin is None else known_change(origin, self.old, self.new)
            return replace(self.make_answer(ROUNDING, comparison, [*why, change]), convention=change)
        kind = MAGNIFIED if growth.is_rounding else OTHER_OP
        return self.make_answer(kind, replace(comparison, first=None), growth.why, growth.next_steps)

    def _list_unmatched(self, first: Difference) -> list[str]:
        """Lines with the ops that one run alone has."""
        return _list_ops(self.old, first.only_old) + _list_ops(self.new, first.only_new)

    def explain_difference(self, comparison: Comparison, first: Difference) -> Answer:
        old, new = self.old, self.new
        if (answer := self.answer_pinned(comparison, first)) is not None:
            return answer
        origin = origin_to_name(first)
        has_other_options = first.old.options != first.new.options
        if first.only_old or first.only_new:
            why = self._list_unmatched(first)
        elif has_other_options:
            why = [f"called with {' and with '.join(_differing_options(first))}"]
        elif first.is_reordered:
            why = [f"the same ops, in another order: apart by {first.distance:.1e}, where all before was rounding"]
        else:
            why = [f"apart by {first.distance:.1e} there; all that was seen before it was rounding"]
        next_step = "the line is not known: code that no mode of torch sees"
        if change := known_change(origin, old, new):
            why.append(self.compare_last_losses())
            return self.make_answer(CONVENTION, comparison, why, unpinned_steps(old, new, change, origin.where))
        if origin.kind == UPDATE and has_other_options:
            next_step = f"find out why {origin.where} steps with other settings under one of the two alone"
        elif origin.kind == UPDATE and (relation := self._compare_gradients_before(first)):
            advice = "look for lines that one of the two runs alone has"
            next_step = f"the gradients that reach it {relation} already: {advice}"
        elif origin.kind == FORWARD and bool(first.only_old) != bool(first.only_new):
            next_step = f"find out why {origin.where} calls {origin.op} under one of the two alone"
        elif origin.where != NO_LINE:
            report = f"report it upstream: {origin.op} of torch {new.torch}"
            next_step = f"if {origin.where} asks both {self.sides} for the same, {report}"
        return self.make_answer(OTHER_OP, comparison, why, [next_step])

    def _compare_gradients_before(self, update: Difference) -> str:
        """How the gradients of parameters before this update compare, as a verb. Empty if they are alike and none is missing."""
        earlier = {step: events for step, events in self.old.steps.items() if step < update.step}
        if not same_leaves(replace(self.old, steps=earlier), self.new, self.noises, self.roundings):
            return "differ"
        return "" if update.step - 1 in earlier else "may differ"

    def answer_pinned(
        self, comparison: Comparison, first: Difference | None = None, to_the_bit: bool = False
    ) -> Answer | None:
        """An answer if under a pin the newer torch trains as the older one, or if the pin removes this difference and the next one comes
        later. to_the_bit: every digest must be equal.
        """
        old, new = self.old, self.new
        if not may_be_pinned(old, new) or (to_the_bit and not may_hide_convention(new)):
            return None
        pinned = self.find_pin(first, partial(self._run_pinned, to_the_bit))
        line = first.new.origin.where if first is not None and is_at_line(first) else ""
        last = self.compare_last_losses(pinned.run, "pinned")
        if pinned.is_mended:
            # The answer names the line of the kink, which may come before the first difference.
            is_at_kink = bool(line and (not pinned.lines or line in pinned.lines))
            if not (is_at_kink and first is not None and known_change(first.old.origin, old, new)):
                kink = self._find_kink(pinned) or comparison.first
                is_at_kink = kink is None or origin_to_name(kink).where == line
                comparison = comparison if is_at_kink else replace(comparison, first=kink)
            mended = self.describe_pinned(pinned, line if is_at_kink else "", to_the_bit)
            why = [mended, last, self._describe_last_calls(pinned.run)]
            steps = self.pin_steps(pinned)
            return replace(self.make_answer(CONVENTION, comparison, why, steps), pin=era_of(old.torch))
        if first is None or not line or pinned.run.status:
            return None
        rest = self._compare(pinned.run).first
        if rest is None or not _comes_later(old, first, rest):
            return None
        later = origin_to_name(rest)
        gone = f"pinned everywhere, this difference is gone, and the next is at {later.where}, step {rest.step}: {later.op}"
        step = f"this is a convention of torch, and no pin mends what comes later: look at {later.where}, too"
        return self.make_answer(CONVENTION, comparison, [gone, last], [step])

    def _describe_last_calls(self, run: Recording) -> str:
        """A line if this run, which trains as the older torch, differs from it after the last backward pass. Else empty."""
        steps, other_ops = len(self.old.losses), find_other_ops(self.old, run)
        first = compare_events(self.old, run, self._noises, self.roundings, since=steps + 1).first
        if first is None and other_ops is not None and other_ops.step > steps and not _end_alike(other_ops):
            first = other_ops
        if first is None or self.is_test:
            return ""
        where = origin_to_name(first).where
        return (
            f"it still differs after the last backward pass, first at {where}: compare by hand what is computed there"
        )

    def find_pin(self, first: Difference | None, run_pinned: Callable[[tuple[str, ...]], Pinned]) -> Pinned:
        pinned = find_pin(first, run_pinned, lambda run: self._compare(run).first)
        kink = None if pinned.lines or not pinned.is_mended else self._find_kink(pinned)
        where = NO_LINE if kink is None else origin_to_name(kink).where
        if where == NO_LINE or (first is not None and where == first.new.origin.where):
            return pinned
        at_kink = run_pinned((where,))  # the line of the kink, which may come before the first difference
        return at_kink if at_kink.is_mended else pinned

    def _find_kink(self, pinned: Pinned) -> Difference | None:
        """The first difference that the pin makes in the newer torch."""
        return find_kink(self.old, self.new, pinned.run) or compare_events(self.new, pinned.run).first

    def describe_pinned(self, pinned: Pinned, line: str, to_the_bit: bool) -> str:
        """What is pinned, and how equal the runs then are. line: that of the first difference, or ""."""
        equality = "every digest is equal" if to_the_bit else explain_equality(self.old, pinned.run)
        if bool(self.old.status) != bool(self.new.status):
            equality = f"{'it fails in the same way' if self.old.status else 'it ends well'}: {equality}"
        return f"{pinned.scope(line)}, {equality}"

    def pin_steps(self, pinned: Pinned) -> list[str]:
        return pin_steps(self.old, self.new, pinned.lines, self.runner.program)

    def _run_pinned(self, to_the_bit: bool, lines: tuple[str, ...]) -> Pinned:
        """A run under the pin to the older torch, at these lines; without lines, everywhere."""
        era = era_of(self.old.torch)
        run = self.run(self.new_python.but(pin=era, lines=list(lines)))
        if not to_the_bit:
            return Pinned(lines, run, self.ends_as_old(run))
        rest = compare_events(self.old, run)
        is_equal = rest.first is None and not rest.largest and self.old.losses == run.losses
        return Pinned(lines, run, is_equal and self.old.status == run.status)

    def ends_as_old(self, run: Recording) -> bool:
        return run.status == self.old.status and self.trains_as_old(run)

    def compare_last_losses(self, mended: Recording | None = None, how: str = "") -> str:
        """The last losses of both runs, and of the mended run if there is one. Empty if the program has no loss."""
        names = {f"under torch {self.old.torch}": self.old, f"under {self.new.torch}": self.new}
        names |= {} if mended is None else {how: mended}
        losses = {name: last_loss(run) for name, run in names.items()}
        if None in losses.values():
            return ""
        return f"the last loss is {', '.join(f'{loss:.6g} {name}' for name, loss in losses.items())}"

    def cut_out(self, answer: Answer) -> Answer:
        """The answer with the call that differs as a program of its own, if torch is the cause."""
        if answer.difference is None or answer.kind not in (CONVENTION, OTHER_OP):
            return answer
        self._answered = answer
        excerpt = cut(self.runner, self.old_python, self.new_python, answer.difference)
        steps, origin = answer.next_steps, origin_to_name(answer.difference)
        if answer.kind == OTHER_OP and excerpt.program:
            steps = (f"report it upstream, with the program below: {origin.op} of torch {answer.torch[1]}",)
        elif answer.kind == OTHER_OP and excerpt.is_same_alone:
            cause = "the difference came with its arguments, or with a setting of torch"
            steps = (f"look at what reaches {origin.where}: {cause}",)
        return replace(answer, cut=excerpt, runs=self.runner.count, next_steps=steps)


def _list_ends(*runs: Recording) -> list[str]:
    """A line if `--steps` ended a run."""
    ends = [counted(len(run.losses), "backward pass", "backward passes") for run in runs if run.raw.get("is_ended")]
    return [f"--steps ended the runs after {count}: what comes later was not compared" for count in ends[:1]]


def _list_full(*runs: Recording) -> list[str]:
    """A line if a step has more tensors than a recording holds."""
    full = [step for run in runs if (step := run.raw.get("full_step"))]
    text = f"has more than {MOST_DIGESTS:,} tensors: what comes later was not compared"
    return [f"step {step} {text}" for step in full[:1]]


def _differing_options(first: Difference) -> tuple[str, str]:
    """The options of the two events; of an optimiser, only those that differ."""
    old, new = first.old.options, first.new.options
    if first.old.origin.kind == UPDATE:
        pairs = [*zip(old.split(", "), new.split(", "), strict=False)]
        old, new = (", ".join(pair[at] for pair in pairs if pair[0] != pair[1]) for at in (0, 1))
    return old or "nothing", new or "nothing"


def _end_alike(first: Difference) -> bool:
    """Are the last values of the two runs equal, except for rounding?"""
    pairs = [*zip(first.only_old[-1].tensors, first.only_new[-1].tensors, strict=False)]
    return not any(is_beyond_rounding(digest_distance(old, new), old, noise=0.0, usual=0.0) for old, new in pairs)


def _comes_later(run: Recording, first: Difference, other: Difference) -> bool:
    """Does the other difference come after the first one?"""
    if other.step != first.step:
        return other.step > first.step
    keys = [event.key for event in run.steps[first.step]]
    return keys.index(other.old.key) > keys.index(first.old.key)


def _summarize(comparison: Comparison, old: Recording) -> list[str]:
    largest = comparison.largest
    distance = f"apart by at most {largest:.1e}" if largest else "equal to the last bit of our sums"
    steps = len(old.losses)
    recorded = sum(1 <= step <= steps for step in old.steps)
    scope = f" in {recorded} of {steps} steps" if recorded < steps else ""
    lines = [f"{comparison.events:,} events{scope} compared, {distance}"]
    if comparison.other_ops:
        count, first = counted(len(comparison.other_ops), "line"), ", ".join(comparison.other_ops[:3])
        lines.append(f"the same values by other ops at {count}: {first}")
    return lines


def _list_ops(run: Recording, events: Sequence[Event]) -> list[str]:
    """A line with the ops that this run alone has, if there are any."""
    ops = dict.fromkeys(f"{event.origin.op} at {event.origin.where}" for event in events)
    return [f"only under torch {run.torch}: {', '.join(list(ops)[:4])}"] if ops else []


def indented(lines: Iterable[str]) -> str:
    """The lines, to follow the text of an error."""
    return "".join(f"\n  {line}" for line in lines)
