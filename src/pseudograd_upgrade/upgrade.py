"""Will this training survive the new torch? The program is run under both, and what differs first is named and tried."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pseudograd.listen.program import follow as programs
from pseudograd.torch_table.eras import era_of
from pseudograd.wording import counted

from . import recorded
from .answer import CONVENTION, FAILS, MAGNIFIED, OTHER_OP, OWN, ROUNDING, SAME, SURVIVES, UNHEARD, Answer, place_of
from .cutting.cut import cut
from .differences import PLAIN, Comparison, Difference, compare, first_loss, runs_of, same_leaves
from .growth import how_equal, how_it_grew, may_have_grown
from .interpreters import Interpreter, asked, ourselves
from .recorded import AS_IT_IS, BACKWARD, OTHER_ORDER, SHAKEN, Recorded
from .runs import Runner
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
    on_run: Callable[[int, str], None] = lambda number, said: None,
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
    before = None if old is None else asked("--from", old)
    after = None if new is None else asked("--to", new)
    known, runs = ([], {}) if against is None else recorded.read(against)
    with ourselves() as home:
        question = Question(Runner(command, home, seed, on_run), before, after)
        if against is not None:
            question.take(runs)
            if known != command:
                question.notes.append(f"--against: the digests are of {shlex.join(known)}")
        if keep is not None or after is None:
            question.record()
            if keep is not None:
                recorded.keep(keep, command, question.kept())
        return None if after is None else question.cut_out(question.answer())


class Question:
    """One after the other, each run only where the ones before it make it necessary."""

    roundings = PLAIN  # that are nothing but rounding
    sides = "torches"  # what the two runs go through

    def __init__(self, runner: Runner, old: Interpreter | None, new: Interpreter | None) -> None:
        self.runner, self.old_python, self.new_python = runner, old, new
        self.schedule = Schedule()
        self.notes: list[str] = []
        self._old: Recorded | None = None
        self._other_order: Recorded | None = None

    def take(self, runs: dict[str, Recorded]) -> None:
        self._old, self._other_order = runs[AS_IT_IS], runs.get(OTHER_ORDER)
        if self._other_order is not None and SHAKEN in runs:
            self._other_order = replace(self._other_order, more=(runs[SHAKEN],))

    def record(self) -> None:
        """Of the older torch, all that a later comparison may ask for."""
        if self.old.status:
            raise ValueError(f"upgrade: the program must end well, got status {self.old.status}.{_last(self.old)}")
        self._shake()

    def kept(self) -> dict[str, Recorded]:
        found = {AS_IT_IS: self.old}
        for name, run in zip((OTHER_ORDER, SHAKEN), runs_of(self.other_order), strict=False):
            found[name] = run
        return found

    @property
    def old(self) -> Recorded:
        if self._old is None:
            assert self.old_python is not None
            self._old = _heard(self.runner.run(self.old_python, self.schedule), "--from")
        return self._old

    @property
    def other_order(self) -> Recorded | None:
        if self._other_order is None and self.old_python is not None:
            self._other_order = self.runner.run(self.old_python, self.schedule, other_order=True)
        return self._other_order

    def _shake(self) -> None:
        """One run more that shows what rounding becomes."""
        other = self.other_order
        if other is not None and not other.more and self.old_python is not None:
            shaken = self.runner.run(replace(self.old_python, is_shaken=True), self.schedule)
            if shaken.status == 0:
                self._other_order = replace(other, more=(shaken,))

    # --- the answer -----------------------------------------------------------------------------------------------------

    def answer(self) -> Answer:
        assert self.new_python is not None
        old = self.old
        new = _heard(self.runner.run(self.new_python, self.schedule), "--to")
        if old.status or new.status:
            return self._of_failure(old, new)
        found = compare(old, new)
        if found.first is None and found.largest == 0.0 and first_loss(old, new) is None:
            return self._made(SAME, old, new, found, why=_how_much(found))
        other = self.other_order
        found = compare(old, new, other, self.roundings)
        if other is not None and (own := self._of_the_program(old, new, other)) is not None:
            return own
        step = first_loss(old, new, other)
        if may_have_grown(old, new, other, found, step):
            self._shake()
            other = self.other_order
            found, step = compare(old, new, other, self.roundings), first_loss(old, new, other)
        if step is not None and (found.first is None or found.first.step > step):
            found = self._closer(step, found)
        if found.first is not None and self._train_alike(old, new):
            why = (f"apart by {found.first.distance:.1e} there, but no loss and no gradient of a parameter is",)
            return self._of_rounding(old, new, found, why)
        if found.first is not None:
            return self._of_difference(old, new, found, found.first)
        if step is not None:
            why = (f"the losses part at step {step}, beyond rounding; none of the events that were kept does before",)
            return self._made(OTHER_OP, old, new, found, why=why)
        return self._of_rounding(old, new, found, _how_much(found))

    def _of_rounding(self, old: Recorded, new: Recorded, found: Comparison, why: tuple[str, ...]) -> Answer:
        grew = how_it_grew(old, new, self.other_order)
        if grew is None:
            return self._made(ROUNDING, old, new, found, why=why)
        kind = MAGNIFIED if grew.is_rounding else OTHER_OP
        return self._made(kind, old, new, replace(found, first=None), why=grew.why, next_steps=grew.next_steps)

    def _train_alike(self, old: Recorded, new: Recorded) -> bool:
        """Strictly: no further apart than another order of sums makes it."""
        noise = self.other_order and replace(self.other_order, more=())
        return train_alike(old, new, noise, self.roundings)

    def cut_out(self, answer: Answer) -> Answer:
        """With the call that differs as a program of its own, where torch is what differs."""
        if answer.difference is None or answer.kind not in (CONVENTION, OTHER_OP):
            return answer
        assert self.new_python is not None
        found = cut(self.runner, self.old_python, self.new_python, answer.difference)
        steps, site = answer.next_steps, place_of(answer.difference)
        if answer.kind == OTHER_OP and found.program:
            steps = (f"report it upstream, with the program below: {site.op} of torch {answer.torch[1]}",)
        elif answer.kind == OTHER_OP and found.is_same_alone:
            steps = (
                f"look at what reaches {site.where}: the difference came with its arguments, or with a setting of torch",
            )
        return replace(answer, cut=found, runs=self.runner.count, next_steps=steps)

    def _of_the_program(self, old: Recorded, new: Recorded, other: Recorded) -> Answer | None:
        """Does it repeat? Asked where another order of sums changes more than rounding."""
        if self.old_python is None or train_alike(old, other):
            return None
        again = self.runner.run(self.old_python, self.schedule)
        found = compare(old, again)
        if train_alike(old, again):
            return None  # it repeats; what another order of sums does to it is noise
        why = f"the same run twice under torch {old.torch}, with the same seeds, differs there already"
        next_step = "fix its seeds, or what else changes from run to run; then ask again"
        return self._made(OWN, old, new, found, why=(why,), next_steps=(next_step,))

    def _closer(self, step: int, found: Comparison) -> Comparison:
        """The steps around the first loss that differs, all of them; the program ends behind them."""
        if self.old_python is None or self.new_python is None:
            return found
        window = Schedule(0, 0, (max(1, step - 1), step))
        old, new = (self.runner.run(python, window) for python in (self.old_python, self.new_python))
        other = self.runner.run(self.old_python, window, other_order=True)
        if self.other_order is not None and self.other_order.more:
            other = replace(other, more=(self.runner.run(replace(self.old_python, is_shaken=True), window),))
        closer = compare(old, new, other, self.roundings)
        return closer if closer.first is not None else found

    def _of_difference(self, old: Recorded, new: Recorded, found: Comparison, first: Difference) -> Answer:
        eras = (old_era, new_era) = era_of(old.torch), era_of(new.torch)
        if first.old.site.kind == BACKWARD and old_era != new_era:
            answer = self._under_a_pin(old, new, found, first, eras)
            if answer is not None:
                return answer
        site = place_of(first)
        if first.only_old or first.only_new:
            why = _ops("only", old, first.only_old) + _ops("only", new, first.only_new)
        elif first.old.said != first.new.said:
            why = (f"called with {first.old.said or 'nothing'} and with {first.new.said or 'nothing'}",)
        elif first.is_reordered:
            why = (f"the same ops, in another order: apart by {first.distance:.1e}, where all before was rounding",)
        else:
            why = (f"apart by {first.distance:.1e} there; all that was seen before it was rounding",)
        if site.where == "?":
            next_step = "the line is not known: code that no mode of torch sees"
        else:
            next_step = f"if {site.where} asks both {self.sides} for the same, report it upstream: {site.op} of torch {new.torch}"
        return self._made(OTHER_OP, old, new, found, why=why, next_steps=(next_step,))

    def _under_a_pin(
        self, old: Recorded, new: Recorded, found: Comparison, first: Difference, eras: tuple[str, str]
    ) -> Answer | None:
        """Is it the convention at a kink? Then the newer torch does as the older one where this line is pinned."""
        assert self.new_python is not None
        where = first.old.site.where
        for lines in ([where], None):
            pinned = self.runner.run(self.new_python, self.schedule, pin=eras[0], lines=lines)
            if pinned.status == 0 and self._train_alike(old, pinned):
                place = "this line pinned" if lines else "pinned everywhere, as this line alone is not enough"
                why = (
                    f"{place}, {how_equal(old, pinned)}",
                    last_losses(old, new, pinned, "pinned"),
                )
                return self._made(CONVENTION, old, new, found, why=why, next_steps=self._pins(eras[0], first, lines))
        return None

    def _pins(self, era: str, first: Difference, lines: list[str] | None) -> tuple[str, ...]:
        program = shlex.join(self.runner.program)
        found = [f"with pseudograd.pin_edge({era!r}): ...  # around {first.old.site.where}"] if lines else []
        return (*found, f"unedited: pseudograd run --pin {shlex.quote(era)} {program}")

    def _of_failure(self, old: Recorded, new: Recorded) -> Answer:
        if old.status and new.status:
            raise ValueError(
                f"upgrade: the program must end well in one of them, got {old.status} and {new.status}.{_last(old)}"
            )
        failed = old if old.status else new
        why = (f"it ends with status {failed.status} under torch {failed.torch} alone:", *failed.stderr)
        return self._made(FAILS, old, new, Comparison(None, 0.0, 0), why=why)

    def _made(
        self,
        kind: str,
        old: Recorded,
        new: Recorded,
        found: Comparison,
        why: tuple[str, ...],
        next_steps: tuple[str, ...] = (),
    ) -> Answer:
        errors = dict.fromkeys([*old.errors, *new.errors])
        notes = (*self.notes, *(f"not heard: {error}" for error in errors), *self._notes_of(old, new))
        kind = UNHEARD if errors and kind in SURVIVES else kind
        return Answer(
            kind,
            (old.torch, new.torch),
            self.runner.count,
            max(len(old.losses), len(new.losses)),
            why,
            next_steps,
            found.first,
            {"old": [sum(loss) for loss in old.losses], "new": [sum(loss) for loss in new.losses]},
            notes=notes,
        )

    def _notes_of(self, old: Recorded, new: Recorded) -> tuple[str, ...]:
        """What else is to be known of the two runs."""
        return ()


def _how_much(found: Comparison) -> tuple[str, ...]:
    said = f"apart by at most {found.largest:.1e}" if found.largest else "equal to the last bit of our sums"
    lines = [f"{found.events:,} events compared, {said}"]
    if found.other_ops:
        some = ", ".join(found.other_ops[:3])
        lines.append(f"the same values by other ops at {counted(len(found.other_ops), 'line')}: {some}")
    return tuple(lines)


def train_alike(one: Recorded, other: Recorded, noise: Recorded | None = None, roundings: int = PLAIN) -> bool:
    """What only a value differs in that nothing came of, such as memory that nobody has written to, is no difference."""
    if one.losses or other.losses:
        return first_loss(one, other, noise) is None and same_leaves(one, other, noise, roundings)
    return compare(one, other, noise, roundings).first is None


def _ops(word: str, run: Recorded, events: Sequence[recorded.Event]) -> tuple[str, ...]:
    some = dict.fromkeys(f"{event.site.op} at {event.site.where}" for event in events)
    return (f"{word} under torch {run.torch}: {', '.join(list(some)[:4])}",) if some else ()


def last_losses(old: Recorded, new: Recorded, mended: Recorded, how: str) -> str:
    said = [f"{sum(run.losses[-1]):.6g}" if run.losses else "none" for run in (old, new, mended)]
    return f"the last loss is {said[0]} under torch {old.torch}, {said[1]} under {new.torch}, {said[2]} {how}"


def _heard(run: Recorded, argument: str) -> Recorded:
    """The run, if anything was heard of it."""
    if run.status == 0 and not run.steps and not run.losses:
        why = "; ".join(run.errors) or "it called no function of torch in its own process"
        raise ValueError(f"upgrade: the program must call torch under {argument}, got nothing. {why}.")
    return run


def _last(run: Recorded) -> str:
    return "".join(f"\n  {line}" for line in run.stderr)
