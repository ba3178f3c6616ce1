"""Will this training survive the new torch? The program runs under both; the first difference is named, and explained by further runs."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pseudograd.listen.program import follow as programs
from pseudograd.torch_table.eras import era_of
from pseudograd.wording import counted

from . import recording
from .answer import CONVENTION, FAILS, MAGNIFIED, OTHER_OP, OWN, ROUNDING, SAME, SURVIVES, UNHEARD, Answer, named_origin
from .cutting.cut import cut
from .differences import PLAIN, Comparison, Difference, compare_events, first_loss, runs_of, train_alike
from .growth import explain_equality, explain_growth, may_have_grown
from .recording import AS_IT_IS, BACKWARD, OTHER_ORDER, SHAKEN, Event, Recording
from .runs import Interpreter, Runner, find_interpreter, our_packages
from .schedule import Schedule


def upgrade(
    program: str,
    arguments: Sequence[str] = (),
    *,
    old: str | None,
    new: str | None,
    against: Path | None = None,
    keep: Path | None = None,
    is_module: bool = False,
    seed: int = 0,
    on_run: Callable[[int, str], None] = lambda number, text: None,
) -> Answer | None:
    """Run a program under two torches and say what differs first.

    Args:
        program, arguments, is_module: what python would run.
        old, new: interpreters. Without `new` the digests of the old one are kept, and nothing is compared.
        against: digests that were kept, in place of `old`.
        keep: the file to which the digests of `old` go.
        seed: of random, numpy, torch and the hashes of texts, set before the program begins.
        on_run: called before each run with its number and what it is.
    Returns: the answer; None where nothing was to be compared.
    Raises: ValueError for an interpreter or a file that cannot do, or a program that fails in both.
    """
    programs.check("upgrade", program, is_module)
    command = [*(["-m"] if is_module else []), program, *arguments]
    before = None if old is None else find_interpreter("--from", old)
    after = None if new is None else find_interpreter("--to", new)
    stored, runs = ([], {}) if against is None else recording.read(against)
    with our_packages() as home:
        question = Question(Runner(command, home, seed, on_run), before, after, runs)
        if against is not None and stored != command:
            question.notes.append(f"--against: the digests are of {shlex.join(stored)}")
        if keep is not None or after is None:
            kept_runs = question.record()
            if keep is not None:
                recording.keep(keep, command, kept_runs)
        return None if after is None else question.cut_out(question.answer())


class Question:
    """Asks one thing after the other; a program runs again only where the runs before make it necessary.

    runs: of the older torch, by their names, where a file has them.
    """

    roundings = PLAIN  # that are nothing but rounding
    sides = "torches"  # what the two runs go through

    def __init__(
        self,
        runner: Runner,
        old: Interpreter | None,
        new: Interpreter | None,
        runs: dict[str, Recording] | None = None,
    ) -> None:
        self.runner, self.old_python, self.new_python = runner, old, new
        self.schedule = Schedule()
        self.notes: list[str] = []
        runs = runs or {}
        self._old, self._noise = runs.get(AS_IT_IS), runs.get(OTHER_ORDER)
        if self._noise is not None and SHAKEN in runs:
            self._noise = replace(self._noise, more=(runs[SHAKEN],))

    def record(self) -> dict[str, Recording]:
        """Of the older torch, all runs that a later comparison may ask for."""
        if self.old.status:
            raise ValueError(f"upgrade: the program must end well, got status {self.old.status}.{_stderr(self.old)}")
        self._shake()
        return {AS_IT_IS: self.old, **dict(zip((OTHER_ORDER, SHAKEN), runs_of(self.noise), strict=False))}

    @property
    def old(self) -> Recording:
        if self._old is None:
            assert self.old_python is not None
            self._old = _require_events(self.runner.run(self.old_python, self.schedule), "--from")
        return self._old

    @property
    def noise(self) -> Recording | None:
        """The older torch with sums in another order, once it has been asked for."""
        if self._noise is None and self.old_python is not None:
            self._noise = self.runner.run(self.old_python, self.schedule, other_order=True)
        return self._noise

    def _shake(self) -> None:
        """Adds a run that shows what becomes of rounding."""
        if self.noise is not None and not self.noise.more and self.old_python is not None:
            shaken = self.runner.run(replace(self.old_python, is_shaken=True), self.schedule)
            if shaken.status == 0:
                self._noise = replace(self.noise, more=(shaken,))

    # --- the answer -----------------------------------------------------------------------------------------------------

    def answer(self) -> Answer:
        assert self.new_python is not None
        old = self.old
        new = _require_events(self.runner.run(self.new_python, self.schedule), "--to")
        if old.status or new.status:
            return self._explain_failure(old, new)
        comparison = compare_events(old, new)
        if comparison.first is None and comparison.largest == 0.0 and first_loss(old, new) is None:
            return self._answer(SAME, old, new, comparison, why=_summary(comparison))
        comparison, noise = compare_events(old, new, self.noise, self.roundings), self.noise
        if noise is not None and (answer := self._explain_by_program(old, new, noise)) is not None:
            return answer
        step = first_loss(old, new, noise)
        if may_have_grown(old, new, noise, comparison, step):
            self._shake()
            noise = self.noise
            comparison, step = compare_events(old, new, noise, self.roundings), first_loss(old, new, noise)
        if step is not None and (comparison.first is None or comparison.first.step > step):
            comparison = self._look_closer(step, comparison)
        if comparison.first is not None and self._train_alike(old, new):
            why = (f"apart by {comparison.first.distance:.1e} there, but no loss and no gradient of a parameter is",)
            return self._explain_rounding(old, new, comparison, why)
        if comparison.first is not None:
            return self._explain_difference(old, new, comparison, comparison.first)
        if step is not None:
            why = (f"the losses part at step {step}, beyond rounding; none of the events that were kept does before",)
            return self._answer(OTHER_OP, old, new, comparison, why=why)
        return self._explain_rounding(old, new, comparison, _summary(comparison))

    def _explain_rounding(self, old: Recording, new: Recording, comparison: Comparison, why: tuple[str, ...]) -> Answer:
        growth = explain_growth(old, new, self.noise)
        if growth is None:
            return self._answer(ROUNDING, old, new, comparison, why=why)
        kind = MAGNIFIED if growth.is_rounding else OTHER_OP
        return self._answer(kind, old, new, replace(comparison, first=None), growth.why, growth.next_steps)

    def _train_alike(self, old: Recording, new: Recording) -> bool:
        """Strictly: no further apart than another order of sums makes it."""
        return train_alike(old, new, self.noise and replace(self.noise, more=()), self.roundings)

    def cut_out(self, answer: Answer) -> Answer:
        """The answer with the call that differs as a program of its own, where torch is what differs."""
        if answer.difference is None or answer.kind not in (CONVENTION, OTHER_OP):
            return answer
        assert self.new_python is not None
        program = cut(self.runner, self.old_python, self.new_python, answer.difference)
        steps, origin = answer.next_steps, named_origin(answer.difference)
        if answer.kind == OTHER_OP and program.program:
            steps = (f"report it upstream, with the program below: {origin.op} of torch {answer.torch[1]}",)
        elif answer.kind == OTHER_OP and program.is_same_alone:
            steps = (
                f"look at what reaches {origin.where}: the difference came with its arguments, or with a setting of torch",
            )
        return replace(answer, cut=program, runs=self.runner.count, next_steps=steps)

    def _explain_by_program(self, old: Recording, new: Recording, noise: Recording) -> Answer | None:
        """Does the program repeat? Asked where another order of sums changes more than rounding."""
        if self.old_python is None or train_alike(old, noise):
            return None
        again = self.runner.run(self.old_python, self.schedule)
        if train_alike(old, again):
            return None  # it repeats; what another order of sums does to it is noise
        why = f"the same run twice under torch {old.torch}, with the same seeds, differs there already"
        next_step = "fix its seeds, or what else changes from run to run; then ask again"
        return self._answer(OWN, old, new, compare_events(old, again), (why,), (next_step,))

    def _look_closer(self, step: int, comparison: Comparison) -> Comparison:
        """Keeps the steps around the first loss that differs whole; the program ends behind them."""
        if self.old_python is None or self.new_python is None:
            return comparison
        window = Schedule(0, 0, (max(1, step - 1), step))
        old, new = (self.runner.run(python, window) for python in (self.old_python, self.new_python))
        noise = self.runner.run(self.old_python, window, other_order=True)
        if self.noise is not None and self.noise.more:
            noise = replace(noise, more=(self.runner.run(replace(self.old_python, is_shaken=True), window),))
        closer = compare_events(old, new, noise, self.roundings)
        return closer if closer.first is not None else comparison

    def _explain_difference(self, old: Recording, new: Recording, comparison: Comparison, first: Difference) -> Answer:
        era = era_of(old.torch)
        if first.old.origin.kind == BACKWARD and era != era_of(new.torch):
            answer = self._try_pins(old, new, comparison, first, era)
            if answer is not None:
                return answer
        origin = named_origin(first)
        if first.only_old or first.only_new:
            why = _list_ops(old, first.only_old) + _list_ops(new, first.only_new)
        elif first.old.options != first.new.options:
            why = (f"called with {first.old.options or 'nothing'} and with {first.new.options or 'nothing'}",)
        elif first.is_reordered:
            why = (f"the same ops, in another order: apart by {first.distance:.1e}, where all before was rounding",)
        else:
            why = (f"apart by {first.distance:.1e} there; all that was seen before it was rounding",)
        next_step = "the line is not known: code that no mode of torch sees"
        if origin.where != "?":
            report = f"report it upstream: {origin.op} of torch {new.torch}"
            next_step = f"if {origin.where} asks both {self.sides} for the same, {report}"
        return self._answer(OTHER_OP, old, new, comparison, why, (next_step,))

    def _try_pins(
        self, old: Recording, new: Recording, comparison: Comparison, first: Difference, era: str
    ) -> Answer | None:
        """Is it the convention at a kink? Then the newer torch does as the older one where this line is pinned."""
        assert self.new_python is not None
        where = first.old.origin.where
        for lines in ([where], None):
            pinned = self.runner.run(self.new_python, self.schedule, pin=era, lines=lines)
            if pinned.status == 0 and self._train_alike(old, pinned):
                scope = "this line pinned" if lines else "pinned everywhere, as this line alone is not enough"
                why = (f"{scope}, {explain_equality(old, pinned)}", compare_last_losses(old, new, pinned, "pinned"))
                steps = [f"with pseudograd.pin_edge({era!r}): ...  # around {where}"] if lines else []
                steps.append(f"unedited: pseudograd run --pin {shlex.quote(era)} {shlex.join(self.runner.program)}")
                return self._answer(CONVENTION, old, new, comparison, why, tuple(steps))
        return None

    def _explain_failure(self, old: Recording, new: Recording) -> Answer:
        if old.status and new.status:
            raise ValueError(
                f"upgrade: the program must end well in one of them, got {old.status} and {new.status}.{_stderr(old)}"
            )
        failed = old if old.status else new
        why = (f"it ends with status {failed.status} under torch {failed.torch} alone:", *failed.stderr)
        return self._answer(FAILS, old, new, Comparison(None, 0.0, 0), why)

    def _answer(
        self,
        kind: str,
        old: Recording,
        new: Recording,
        comparison: Comparison,
        why: tuple[str, ...],
        next_steps: tuple[str, ...] = (),
    ) -> Answer:
        errors = dict.fromkeys([*old.errors, *new.errors])
        notes = (*self.notes, *(f"not heard: {error}" for error in errors), *self._notes(old, new))
        return Answer(
            UNHEARD if errors and kind in SURVIVES else kind,
            (old.torch, new.torch),
            self.runner.count,
            max(len(old.losses), len(new.losses)),
            why,
            next_steps,
            comparison.first,
            {"old": [sum(loss) for loss in old.losses], "new": [sum(loss) for loss in new.losses]},
            notes=notes,
        )

    def _notes(self, old: Recording, new: Recording) -> tuple[str, ...]:
        """What else is to be known of the two runs."""
        return ()


def _summary(comparison: Comparison) -> tuple[str, ...]:
    largest = comparison.largest
    distance = f"apart by at most {largest:.1e}" if largest else "equal to the last bit of our sums"
    lines = [f"{comparison.events:,} events compared, {distance}"]
    if comparison.other_ops:
        count, first = counted(len(comparison.other_ops), "line"), ", ".join(comparison.other_ops[:3])
        lines.append(f"the same values by other ops at {count}: {first}")
    return tuple(lines)


def _list_ops(run: Recording, events: Sequence[Event]) -> tuple[str, ...]:
    """The ops that this run alone has."""
    ops = dict.fromkeys(f"{event.origin.op} at {event.origin.where}" for event in events)
    return (f"only under torch {run.torch}: {', '.join(list(ops)[:4])}",) if ops else ()


def compare_last_losses(old: Recording, new: Recording, mended: Recording, how: str) -> str:
    losses = [f"{sum(run.losses[-1]):.6g}" if run.losses else "none" for run in (old, new, mended)]
    return f"the last loss is {losses[0]} under torch {old.torch}, {losses[1]} under {new.torch}, {losses[2]} {how}"


def _require_events(run: Recording, argument: str) -> Recording:
    if run.status == 0 and not run.steps and not run.losses:
        why = "; ".join(run.errors) or "it called no function of torch in its own process"
        raise ValueError(f"upgrade: the program must call torch under {argument}, got nothing. {why}.")
    return run


def _stderr(run: Recording) -> str:
    return "".join(f"\n  {line}" for line in run.stderr)
