"""Does this training survive another route through the same torch? The first block that differs, and the line in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pseudograd.listen.program import follow as programs

from ..answer import CONVENTION, NARROW, OTHER_OP, Answer
from ..differences import COMPILED as ROUNDINGS_COMPILED
from ..differences import LARGEST, Comparison, Difference, compare
from ..growth import how_equal
from ..interpreters import ourselves
from ..recorded import BACKWARD, FORWARD, Event, Recorded
from ..runs import Runner
from ..schedule import Schedule
from ..upgrade import Question, last_losses
from .devices import BetweenDevices
from .names import COMPILED, interpreter_for
from .routed import Compiled, Device

_MOST_LINES = 4  # that are left out together
_WHOLE_STEPS = 6


def between_routes(
    program: str,
    arguments: Sequence[str] = (),
    *,
    python: str,
    routes: tuple[str, str],
    is_module: bool = False,
    seed: int = 0,
    on_run: Callable[[int, str], None] = lambda number, said: None,
) -> Answer:
    """Run a program on two routes through one torch and say what differs first.

    Args:
        program, arguments, is_module: what python would run.
        python: an interpreter.
        routes: two of eager, aot_eager and inductor, or cpu and cuda.
        seed: of random, numpy, torch and the hashes of texts, set before the program begins.
        on_run: called before each run with its number and what it is.
    Raises: ValueError for an interpreter that cannot do, or a program that fails on both routes.
    """
    programs.check("upgrade", program, is_module)
    interpreter = interpreter_for(python, routes)
    command = [*(["-m"] if is_module else []), program, *arguments]
    is_compiled = any(route in COMPILED for route in routes)
    kind, question = (Compiled, _BetweenCompilers) if is_compiled else (Device, BetweenDevices)
    before, after = (kind(interpreter.path, interpreter.torch, route) for route in routes)
    with ourselves() as home:
        return question(Runner(command, home, seed, on_run), before, after).answer()


class _BetweenCompilers(Question):
    """One after the other, each run only where the ones before it make it necessary."""

    old_python: Compiled
    new_python: Compiled
    roundings = ROUNDINGS_COMPILED

    def _notes_of(self, old: Recorded, new: Recorded) -> tuple[str, ...]:
        """Where not that was compiled which the program asked for."""
        if not old.raw.get("graphs") and not new.raw.get("graphs"):
            return ("nothing of the program was compiled",)
        if old.raw.get("is_asked") or new.raw.get("is_asked"):
            return ()
        return ("the program compiles nothing: each call of a module from outside of others was compiled",)

    def _of_difference(self, old: Recorded, new: Recorded, found: Comparison, first: Difference) -> Answer:
        window = Schedule(0, 0, (1 if first.step <= _WHOLE_STEPS else first.step - 1, first.step))
        old_cut, new_cut = (replace(python, is_cut=True) for python in (self.old_python, self.new_python))
        eager = self.runner.run(old_cut, window)
        noise = self.runner.run(old_cut, window, other_order=True)
        if compare(old, eager, self.other_order, self.roundings).first is not None:
            return self._of_dynamo(old, new, found)
        is_narrow = computes_in_16_bits(eager)
        out: tuple[str, ...] = ()
        named: Comparison | None = None
        while len(out) < _MOST_LINES:
            cut = self.runner.run(replace(new_cut, out=out), window)
            inner = compare(eager, cut, noise, self.roundings)
            if cut.status or inner.first is None or inner.first.old.site.where in ("?", *out):
                break
            named = named or inner
            out = (*out, inner.first.old.site.where)
            left = self.runner.run(replace(self.new_python, out=out), self.schedule)
            if left.status == 0 and self._train_alike(old, left):
                if is_narrow and _can_be_rounding(named):
                    return self._of_16_bits(old, new, named, _mended(out, old, left))
                is_kink = self._is_at_a_kink(named, noise, window, out)
                return self._of_lines(is_kink, named, out, (old, new, left))
        return self._of_no_line(old, new, named or found, is_narrow)

    def _is_at_a_kink(self, named: Comparison, noise: Recorded, window: Schedule, lines: tuple[str, ...]) -> bool:
        """Do the gradients of these lines agree as soon as their inputs are moved a little?"""
        assert named.first is not None
        if named.first.old.site.kind != BACKWARD:
            return False
        old, new = (
            self.runner.run(replace(python, is_cut=True, moved=lines), window)
            for python in (self.old_python, self.new_python)
        )
        if old.status or new.status:
            return False
        one, other, around = (_at(run, lines) for run in (old, new, noise))
        return compare(one, other, around, self.roundings).first is None

    def _of_lines(
        self, is_kink: bool, found: Comparison, out: tuple[str, ...], runs: tuple[Recorded, Recorded, Recorded]
    ) -> Answer:
        old, new, left = runs
        why = [_mended(out, old, left)]
        if is_kink:
            why.append("its inputs moved off the point at which they stand, it has the same gradient on both routes")
        why.append(last_losses(old, new, left, "left out"))
        steps = [f"put what {' and '.join(out)} calls into a function under @torch.compiler.disable"]
        if not is_kink:
            assert found.first is not None
            steps.append(
                f"report it upstream: {found.first.old.site.op} compiled by {self.new_python.route}, of torch {old.torch}"
            )
        kind = CONVENTION if is_kink else OTHER_OP
        return self._made(kind, old, new, found, why=tuple(why), next_steps=tuple(steps))

    def _of_dynamo(self, old: Recorded, new: Recorded, found: Comparison) -> Answer:
        why = ("what Dynamo captures of the code differs already where nothing of it is compiled",)
        step = "look for torch.compiler.is_compiling(), and for Python in there that depends on values"
        return self._made(OTHER_OP, old, new, found, why=why, next_steps=(step,))

    def _of_no_line(self, old: Recorded, new: Recorded, found: Comparison, is_narrow: bool) -> Answer:
        assert found.first is not None
        apart = f"apart by {found.first.distance:.1e} there; no line that was left out of what is compiled mends it"
        if is_narrow:
            return self._of_16_bits(old, new, found, apart)
        why = (apart,)
        step = "it may come from how the compiler joins lines: leave out more of it with @torch.compiler.disable"
        return self._made(OTHER_OP, old, new, found, why=why, next_steps=(step,))

    def _of_16_bits(self, old: Recorded, new: Recorded, found: Comparison, known: str) -> Answer:
        narrow = "where it joins lines, a compiler keeps in 32 bits what eager mode rounds to 16: this can be all of it"
        step = "ask again in float32, with autocast off: a kink or another op shows there, too"
        return self._made(NARROW, old, new, found, why=(known, narrow), next_steps=(step,))


def _mended(out: Sequence[str], old: Recorded, left: Recorded) -> str:
    return f"{'this line' if len(out) == 1 else ', '.join(out)} left out of what is compiled, {how_equal(old, left)}"


def _can_be_rounding(found: Comparison) -> bool:
    """Of 16 bits. A line that is left out has its roundings back, too, and then proves nothing."""
    return found.first is not None and found.first.distance <= LARGEST


def computes_in_16_bits(run: Recorded) -> bool:
    shapes = {kept.shape.split()[0] for events in run.steps.values() for event in events for kept in event.tensors}
    return not shapes.isdisjoint(("bfloat16", "float16"))


def _at(run: Recorded, lines: Sequence[str]) -> Recorded:
    def is_there(event: Event) -> bool:
        return event.site.where in lines and event.site.kind in (FORWARD, BACKWARD)

    return replace(run, steps={step: list(filter(is_there, events)) for step, events in run.steps.items()})
