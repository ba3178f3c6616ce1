"""Does this training survive another route through the same torch? Finds the first block that differs, and the line in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pseudograd.errors import must, unknown_name
from pseudograd.listen.frames import NO_LINE

from ..answer import CONVENTION, NARROW, OTHER_OP, OWN, Answer
from ..differences import LARGEST_ROUNDING, ROUNDINGS_COMPILED, Comparison, Difference, compare_events, explain_equality
from ..environments import find_environment
from ..recording import BACKWARD, FORWARD, Recording, Schedule
from ..runs import Interpreter, Runner, run_python
from ..upgrade import Question
from .segments import EAGER

CPU, CUDA = "cpu", "cuda"
_COMPILERS, _DEVICES = (EAGER, "aot_eager", "inductor"), (CPU, CUDA)
_ARGUMENT = "--routes"
_HAS_CUDA = "import torch; print(torch.cuda.is_available())"
ENVIRONMENTS: Mapping[str, Mapping[str, str]] = {
    # Each vendor hides its devices in its own way.
    CPU: {
        **dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"), "-1"),
        "ONEAPI_DEVICE_SELECTOR": "*:cpu",
    },
    CUDA: {"NVIDIA_TF32_OVERRIDE": "0"},  # NVIDIA's libraries obey it, whatever the program sets
}
_MOST_LINES = 4  # that are left out together
_FIRST_STEPS = 6  # a difference in one of these steps is looked for from step 1 on
_TIES = "ties and kinks are each device's to choose: pseudograd kinks --check --device cuda names those of this one"


def parse_routes(text: str) -> tuple[str, str]:
    """The two routes of a text like "eager,inductor". The CPU comes first."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in _COMPILERS + _DEVICES:
            raise unknown_name("upgrade", _ARGUMENT, _COMPILERS + _DEVICES, name)
    if len(names) != 2 or names[0] == names[1]:
        raise ValueError(must("upgrade", _ARGUMENT, "be two routes that differ", text, "Write eager,inductor"))
    if len({name in _DEVICES for name in names}) == 2:
        remedy = f"Ask {CPU},{CUDA} or two of {', '.join(_COMPILERS)}"
        raise ValueError(must("upgrade", _ARGUMENT, "name two devices or two compilers", text, remedy))
    return (CPU, CUDA) if CPU in names else (names[0], names[1])


def compare_routes(runner: Runner, python: str, routes: tuple[str, str]) -> Answer:
    """Run the program on two routes through one torch, and name the first difference. ValueError if a route cannot be used here."""
    interpreter = find_environment("--from", python)
    if CUDA in routes and not has_cuda(interpreter):
        remedy = f"Torch {interpreter.torch} finds no such device here"
        raise ValueError(must("upgrade", _ARGUMENT, "name a device that is there", CUDA, remedy))
    old, new = (make_route(interpreter, route) for route in routes)
    question = (BetweenDevices if CUDA in routes else BetweenCompilers)(runner, old, new)
    with question.report_when_stopped():
        return question.answer()


def has_cuda(interpreter: Interpreter) -> bool:
    return run_python(interpreter.path, _HAS_CUDA).stdout.strip() == "True"


def make_route(interpreter: Interpreter, route: str) -> Interpreter:
    recorder = f"{__package__}.{'drawing' if route in _DEVICES else 'blocks'}"
    return replace(interpreter, route=route, environment=ENVIRONMENTS.get(route, {})).but(recorder, route=route)


class BetweenDevices(Question):
    """The CPU and a device, which computes without TensorFloat-32."""

    sides = "devices"

    def _list_notes(self) -> list[str]:
        if self.new.raw.get("uses_device"):
            return ["TensorFloat-32 is off in the run on cuda; with it on, convolutions keep 10 bits of 23"]
        return [] if self.new.status else ["the run on cuda put nothing on a device"]

    def explain_difference(self, comparison: Comparison, first: Difference) -> Answer:
        again = compare_events(self.new, self.runner.run(self.new_python, self.schedule))
        if again.first is not None:
            why = "the same run twice on cuda, with the same seeds, differs here by more than rounding"
            step = "torch.use_deterministic_algorithms(True) names the calls that do not repeat there; then ask again"
            return self.make_answer(OWN, again, [why], [step])
        answer = super().explain_difference(comparison, first)
        return replace(answer, next_steps=(*answer.next_steps, _TIES)) if _may_be_tie(first) else answer


def _may_be_tie(first: Difference) -> bool:
    """Is the difference in gradients, or in whole numbers such as an index?"""
    if first.only_old or first.only_new:
        return False
    return first.old.origin.kind == BACKWARD or any(digest.shape.startswith("int") for digest in first.old.tensors)


class BetweenCompilers(Question):
    roundings = ROUNDINGS_COMPILED
    # Runs in which each line is compiled alone: their steps, the eager one, and the eager one with sums in another order.
    cut_steps: Schedule
    eager: Recording
    noise: Recording

    def _list_notes(self) -> list[str]:
        raw = (self.old.raw, self.new.raw)
        if not any(run.get("graphs") for run in raw):
            return ["nothing of the program was compiled"]
        if any(run.get("is_asked") for run in raw):
            return []
        return ["the program compiles nothing: each call of a module from outside of others was compiled"]

    def explain_difference(self, comparison: Comparison, first: Difference) -> Answer:
        """Name the lines of the block without whose compilation the program trains as in eager mode."""
        self.cut_steps = Schedule(0, 0, (1 if first.step <= _FIRST_STEPS else first.step - 1, first.step))
        self.eager = self._run_cut(self.old_python)
        self.noise = self._run_cut(self.old_python.but(has_other_order=True))
        if compare_events(self.old, self.eager, self.noises, self.roundings).first is not None:
            why = "what Dynamo captures of the code differs already where nothing of it is compiled"
            step = "look for torch.compiler.is_compiling(), and for Python in there that depends on values"
            return self.make_answer(OTHER_OP, comparison, [why], [step])
        left_out: list[str] = []
        named: Comparison | None = None
        while len(left_out) < _MOST_LINES:
            cut = self._run_cut(self.new_python.but(out=tuple(left_out)))
            inner = compare_events(self.eager, cut, [self.noise], self.roundings)
            where = NO_LINE if inner.first is None else inner.first.old.origin.where
            if cut.status or where in (NO_LINE, *left_out):
                break
            named = named or inner
            left_out.append(where)
            without = self.runner.run(self.new_python.but(out=tuple(left_out)), self.schedule)
            if without.status == 0 and self.trains_as_old(without):
                return self._explain_lines(named, left_out, without)
        named = named or comparison
        assert named.first is not None
        why = f"apart by {named.first.distance:.1e} there"
        if left_out:
            why += "; no line that was left out of what is compiled mends it"
        elif cut.status == 0 and inner.first is None:
            why += "; where each line is compiled alone, none differs"
        if computes_in_16_bits(self.eager):
            return self._answer_16_bits(named, why)
        step = "it may come from how the compiler joins lines: leave out more of it with @torch.compiler.disable"
        return self.make_answer(OTHER_OP, named, [why], [step])

    def _run_cut(self, python: Interpreter) -> Recording:
        return self.runner.run(python.but(is_cut=True), self.cut_steps)

    def _explain_lines(self, named: Comparison, left_out: Sequence[str], without: Recording) -> Answer:
        """without: the run that does not compile the lines `left_out`. named: the comparison whose first difference the answer names."""
        assert named.first is not None
        scope = "this line" if len(left_out) == 1 else ", ".join(left_out)
        why = [f"{scope} left out of what is compiled, {explain_equality(self.old, without)}"]
        # A line that is not compiled rounds to 16 bits again.
        if computes_in_16_bits(self.eager) and named.first.distance <= LARGEST_ROUNDING:
            return self._answer_16_bits(named, why[0])
        steps = [f"put what {' and '.join(left_out)} calls into a function under @torch.compiler.disable"]
        is_kink = named.first.old.origin.kind == BACKWARD and self._is_at_kink(left_out)
        if is_kink:
            why.append("its inputs moved off the point at which they stand, it has the same gradient on both routes")
        else:
            op, route = named.first.old.origin.op, self.new_python.route
            steps.append(f"report it upstream: {op} compiled by {route}, of torch {self.old.torch}")
        why.append(self.compare_last_losses(without, "left out"))
        return self.make_answer(CONVENTION if is_kink else OTHER_OP, named, why, steps)

    def _is_at_kink(self, lines: Sequence[str]) -> bool:
        """Are the gradients of these lines equal on both routes if their inputs are moved a little?"""
        old, new = (self._run_cut(python.but(moved=tuple(lines))) for python in (self.old_python, self.new_python))
        if old.status or new.status:
            return False
        old, new, noise = (_select_lines(run, lines) for run in (old, new, self.noise))
        return compare_events(old, new, [noise], self.roundings).first is None

    def _answer_16_bits(self, comparison: Comparison, why: str) -> Answer:
        narrow = "where it joins lines, a compiler keeps in 32 bits what eager mode rounds to 16: this can be all of it"
        step = "ask again in float32, with autocast off: a kink or another op shows there, too"
        return self.make_answer(NARROW, comparison, [why, narrow], [step])


def computes_in_16_bits(run: Recording) -> bool:
    dtypes = {digest.shape.split()[0] for events in run.steps.values() for event in events for digest in event.tensors}
    return not dtypes.isdisjoint(("bfloat16", "float16"))


def _select_lines(run: Recording, lines: Sequence[str]) -> Recording:
    steps = {
        step: [event for event in events if event.origin.where in lines and event.origin.kind in (FORWARD, BACKWARD)]
        for step, events in run.steps.items()
    }
    return replace(run, steps=steps)
