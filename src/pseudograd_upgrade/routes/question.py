"""Does this training survive another route through the same torch? The first block that differs, and the line in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pseudograd.listen.program import follow as programs

from ..answer import CONVENTION, NARROW, OTHER_OP, OWN, Answer
from ..differences import COMPILED as ROUNDINGS_COMPILED
from ..differences import LARGEST, Comparison, Difference, compare_events
from ..growth import explain_equality
from ..recording import BACKWARD, FORWARD, Recording
from ..runs import Runner, our_packages
from ..schedule import Schedule
from ..upgrade import Question, compare_last_losses
from .interpreters import CUDA, Compiled, Device, find_routes

_LINES = 4  # that are left out together
_WHOLE_STEPS = 6
_TIES = "ties and kinks are each device's to choose: pseudograd kinks --check --device cuda names those of this one"


def compare_routes(
    program: str,
    arguments: Sequence[str] = (),
    *,
    python: str,
    routes: tuple[str, str],
    is_module: bool = False,
    seed: int = 0,
    on_run: Callable[[int, str], None] = lambda number, text: None,
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
    old, new = find_routes(python, routes)
    command = [*(["-m"] if is_module else []), program, *arguments]
    question = BetweenDevices if CUDA in routes else BetweenCompilers
    with our_packages() as home:
        return question(Runner(command, home, seed, on_run), old, new).answer()


class BetweenDevices(Question):
    """The CPU and a device, which computes without TensorFloat-32."""

    new_python: Device
    sides = "devices"

    def _notes(self, old: Recording, new: Recording) -> tuple[str, ...]:
        if new.raw.get("uses_device"):
            return ("TensorFloat-32 is off in the run on cuda; with it on, convolutions keep 10 bits of 23",)
        return () if new.status else ("the run on cuda put nothing on a device",)

    def _explain_difference(self, old: Recording, new: Recording, comparison: Comparison, first: Difference) -> Answer:
        again = compare_events(new, self.runner.run(self.new_python, self.schedule))
        if again.first is not None:
            why = "the same run twice on cuda, with the same seeds, differs here by more than rounding"
            step = "torch.use_deterministic_algorithms(True) names the calls that do not repeat there; then ask again"
            return self._answer(OWN, old, new, again, (why,), (step,))
        answer = super()._explain_difference(old, new, comparison, first)
        return replace(answer, next_steps=(*answer.next_steps, _TIES)) if _may_be_a_tie(first) else answer


def _may_be_a_tie(first: Difference) -> bool:
    """Do gradients alone differ, or whole numbers, such as the index of one among equals?"""
    if first.only_old or first.only_new:
        return False
    return first.old.origin.kind == BACKWARD or any(digest.shape.startswith("int") for digest in first.old.tensors)


class BetweenCompilers(Question):
    old_python: Compiled
    new_python: Compiled
    roundings = ROUNDINGS_COMPILED

    def _notes(self, old: Recording, new: Recording) -> tuple[str, ...]:
        """Where something else was compiled than the program asked for."""
        if not old.raw.get("graphs") and not new.raw.get("graphs"):
            return ("nothing of the program was compiled",)
        if old.raw.get("is_asked") or new.raw.get("is_asked"):
            return ()
        return ("the program compiles nothing: each call of a module from outside of others was compiled",)

    def _explain_difference(self, old: Recording, new: Recording, comparison: Comparison, first: Difference) -> Answer:
        """Goes down from the block to its lines: the line that differs, alone, must mend the whole where it is left out."""
        window = Schedule(0, 0, (1 if first.step <= _WHOLE_STEPS else first.step - 1, first.step))
        old_cut, new_cut = (replace(python, is_cut=True) for python in (self.old_python, self.new_python))
        eager = self.runner.run(old_cut, window)
        noise = self.runner.run(old_cut, window, other_order=True)
        if compare_events(old, eager, self.noise, self.roundings).first is not None:
            why = "what Dynamo captures of the code differs already where nothing of it is compiled"
            step = "look for torch.compiler.is_compiling(), and for Python in there that depends on values"
            return self._answer(OTHER_OP, old, new, comparison, (why,), (step,))
        out: tuple[str, ...] = ()
        named: Comparison | None = None
        while len(out) < _LINES:
            cut = self.runner.run(replace(new_cut, out=out), window)
            inner = compare_events(eager, cut, noise, self.roundings)
            if cut.status or inner.first is None or inner.first.old.origin.where in ("?", *out):
                break
            named = named or inner
            out = (*out, inner.first.old.origin.where)
            left = self.runner.run(replace(self.new_python, out=out), self.schedule)
            if left.status == 0 and self._train_alike(old, left):
                return self._explain_lines(named, out, (old, new, left), (eager, noise), window)
        named = named or comparison
        assert named.first is not None
        why = f"apart by {named.first.distance:.1e} there; no line that was left out of what is compiled mends it"
        if computes_in_16_bits(eager):
            return self._answer_16_bits(old, new, named, why)
        step = "it may come from how the compiler joins lines: leave out more of it with @torch.compiler.disable"
        return self._answer(OTHER_OP, old, new, named, (why,), (step,))

    def _explain_lines(
        self,
        named: Comparison,
        out: tuple[str, ...],
        runs: tuple[Recording, Recording, Recording],
        lines: tuple[Recording, Recording],
        window: Schedule,
    ) -> Answer:
        """runs: eager mode, the compiler, the compiler without the lines. lines: eager mode line by line, and its noise."""
        (old, new, left), (eager, noise) = runs, lines
        assert named.first is not None
        scope = "this line" if len(out) == 1 else ", ".join(out)
        why = [f"{scope} left out of what is compiled, {explain_equality(old, left)}"]
        if (
            computes_in_16_bits(eager) and named.first.distance <= LARGEST
        ):  # a line that is left out has its roundings back
            return self._answer_16_bits(old, new, named, why[0])
        steps = [f"put what {' and '.join(out)} calls into a function under @torch.compiler.disable"]
        is_kink = named.first.old.origin.kind == BACKWARD and self._is_at_a_kink(noise, window, out)
        if is_kink:
            why.append("its inputs moved off the point at which they stand, it has the same gradient on both routes")
        else:
            op, route = named.first.old.origin.op, self.new_python.route
            steps.append(f"report it upstream: {op} compiled by {route}, of torch {old.torch}")
        why.append(compare_last_losses(old, new, left, "left out"))
        return self._answer(CONVENTION if is_kink else OTHER_OP, old, new, named, tuple(why), tuple(steps))

    def _is_at_a_kink(self, noise: Recording, window: Schedule, lines: tuple[str, ...]) -> bool:
        """Do the gradients of these lines agree as soon as their inputs are moved a little?"""
        old, new = (
            self.runner.run(replace(python, is_cut=True, moved=lines), window)
            for python in (self.old_python, self.new_python)
        )
        if old.status or new.status:
            return False
        old, new, noise = (_select_lines(run, lines) for run in (old, new, noise))
        return compare_events(old, new, noise, self.roundings).first is None

    def _answer_16_bits(self, old: Recording, new: Recording, comparison: Comparison, why: str) -> Answer:
        narrow = "where it joins lines, a compiler keeps in 32 bits what eager mode rounds to 16: this can be all of it"
        step = "ask again in float32, with autocast off: a kink or another op shows there, too"
        return self._answer(NARROW, old, new, comparison, (why, narrow), (step,))


def computes_in_16_bits(run: Recording) -> bool:
    dtypes = {digest.shape.split()[0] for events in run.steps.values() for event in events for digest in event.tensors}
    return not dtypes.isdisjoint(("bfloat16", "float16"))


def _select_lines(run: Recording, lines: Sequence[str]) -> Recording:
    steps = {
        step: [event for event in events if event.origin.where in lines and event.origin.kind in (FORWARD, BACKWARD)]
        for step, events in run.steps.items()
    }
    return replace(run, steps=steps)
