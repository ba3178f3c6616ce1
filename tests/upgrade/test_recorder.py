"""The recorders of `upgrade` in this process, on three steps of a training."""

import contextlib
import io
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import pseudograd as pg
from pseudograd.listen import frames
from pseudograd.listen.listener import listening
from pseudograd.listen.program.follow import Enough
from pseudograd.torch_table.eras import installed_era
from pseudograd_upgrade.cutting.recorder import ArgumentRecorder, RecordedCall
from pseudograd_upgrade.recorder import CallListener, Recorder, Session, set_seed
from pseudograd_upgrade.recording import Schedule


def _record(recorder: Recorder, program: Callable[[], object]) -> dict[str, Any]:
    recorder.listener_of_backward = partial(CallListener, recorder)
    with listening(CallListener(recorder)), contextlib.suppress(Enough):
        program()
    return recorder.content()


def _train() -> None:
    w = torch.ones(3, requires_grad=True)
    optimiser = torch.optim.SGD([w], lr=0.25)
    optimiser.param_groups[0]["lr"] = 0.5  # as a schedule does
    for _ in range(3):
        y = sum(torch.sigmoid(part) for part in (w, w * 2))
        optimiser.zero_grad()
        y.sum().backward()
        optimiser.step()


@pytest.mark.parametrize("uses_sign", [False, True])
def test_leaves_that_a_program_moves_by_hand_go_down_the_loss_or_up(uses_sign: bool) -> None:
    def train() -> None:
        theta, multiplier = (torch.full((n,), 0.5, requires_grad=True) for n in (4, 1))
        for _ in range(4):
            ((theta - 2).pow(2).sum() + multiplier * (theta.sum() - 1)).backward()
            for leaf, rate in ((theta, -0.02), (multiplier, 0.05)):
                leaf.data += rate * (leaf.grad.sign() if uses_sign else leaf.grad)
                leaf.grad = None

    content = _record(Recorder(Schedule()), train)
    assert (content["moves"], content["graph_steps"]) == ({"float32 [4]": -3, "float32 [1]": 3}, [])
    assert _record(Recorder(Schedule(first=0)), train)["moves"] == {}


def test_a_recorder_has_every_call_node_leaf_and_update_of_its_steps() -> None:
    content = _record(Recorder(Schedule()), _train)
    steps = {step: [event.origin.op for event in events] for step, events in content["steps"].items()}
    update = ["SGD.step"]
    step = ["mul", "sigmoid", "add", "sigmoid", "add", "sum"]
    nodes = ["SumBackward0", "AddBackward0", "SigmoidBackward0", "AddBackward0", "SigmoidBackward0", "MulBackward0"]
    step += [*nodes, "torch::autograd::AccumulateGrad"]
    assert steps == {1: ["ones", *step], 2: update + step, 3: update + step, 4: update}
    first = {event.origin.op: event for event in content["steps"][1]}
    where = {op: event.origin.where for op, event in first.items()}
    assert where["mul"] == where["sigmoid"] == where["MulBackward0"] != where["sum"] == where["SumBackward0"]
    assert (where["torch::autograd::AccumulateGrad"], where["sum"] != "?") == ("?", True)
    sigmoid = first["SigmoidBackward0"].tensors
    assert [shape for shape, _ in sigmoid] == ["float32 [3]"] * 2  # the gradient that arrives, and the one that leaves
    assert sigmoid[0].numbers[0] == 3
    assert [losses for (losses,) in content["losses"]] == pytest.approx([4.83557, 4.56109, 4.15179], rel=1e-5)
    assert content["steps"][2][0].options.startswith("lr=0.5, momentum=0, ")


def test_calls_of_a_module_that_torch_imports_are_not_recorded() -> None:
    """A version of torch may import it late, in the constructor of an optimiser for example."""
    imported = compile("torch.ones(2)", "<frozen importlib._bootstrap>", "exec")
    content = _record(Recorder(Schedule()), lambda: (exec(imported), torch.zeros(1, requires_grad=True).backward()))
    assert next(event.origin.op for event in content["steps"][1]) == "zeros"


@pytest.mark.parametrize(
    ("end", "is_unheard", "is_recorded"),
    [
        (lambda w: w.exp(), True, False),
        (lambda w: w.sum().item(), True, False),
        (lambda w: (w.requires_grad, w.grad, w.shape, w[:0].numel(), w.detach().cpu().tolist(), repr(w)), True, False),
        (lambda w: (w.grad, w.detach().cpu().tolist(), repr(w)), False, False),
        (lambda w: torch.no_grad()(torch.exp)(w), False, True),
    ],
    ids=["a call", "a value", "an entry", "what it is", "without gradients"],
)
def test_calls_that_the_schedule_leaves_out_behind_the_last_backward_are_known(
    end: Callable[[torch.Tensor], object], is_unheard: bool, is_recorded: bool
) -> None:
    w = torch.ones(3, requires_grad=True)

    def program() -> None:
        torch.no_grad()(torch.exp)(w)  # an evaluation before a step is no event
        (w * 2).sum().backward()
        end(w)

    content = _record(Recorder(Schedule(first=0)), program)
    assert (content["has_unheard"], bool(content["steps"])) == (is_unheard, is_recorded)
    content = _record(Recorder(Schedule(first=0, tail=2)), program)
    assert not content["has_unheard"]
    assert content["steps"] or not (is_unheard or is_recorded)


def test_memory_that_nobody_has_written_is_no_event() -> None:
    """torch.Tensor(3) has any numbers: its views and `.data` are read before they are written."""

    def program() -> None:
        torch.empty(3)
        w = torch.nn.Parameter(torch.Tensor(3))
        w.data.view(3).uniform_()
        w.sum().backward()

    content = _record(Recorder(Schedule()), program)
    ops = {event.origin.op for event in content["steps"][1]}
    assert not {"data", "view", "empty"} & ops
    assert {"uniform_", "sum"} <= ops


class _Descent(torch.optim.Optimizer):
    """An optimiser of a package, which calls torch in functions of its own."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(torch.sign(parameter.grad))


def test_an_optimiser_of_a_package_is_no_evaluation() -> None:
    w = torch.ones(3, requires_grad=True)
    optimiser = _Descent([w], {})

    def program() -> None:
        for _ in range(3):
            w.exp().sum().backward()
            optimiser.step()
        with torch.no_grad():
            w.cos()

    content = _record(Recorder(Schedule(first=1)), program)
    ops = {step: {event.origin.op for event in events} for step, events in content["steps"].items()}
    assert ops.keys() == {1, 4}
    assert ops[4] == {"cos"}


def test_a_step_with_too_many_tensors_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    content = _record(Recorder(Schedule()), _train)
    assert (content["full_step"], content["is_ended"], content["errors"]) == (None, False, [])
    content = _record(Recorder(Schedule(last=2)), _train)
    assert (len(content["losses"]), content["is_ended"]) == (2, True)
    monkeypatch.setattr("pseudograd_upgrade.recorder.MOST_DIGESTS", 20)
    assert _record(Recorder(Schedule()), _train)["full_step"] == 1


def _measure_the_era() -> None:
    installed_era.__wrapped__()


def _measure_a_tie() -> None:
    with pg.diagnose(sensitivity=True):
        torch.ones(3, requires_grad=True).sort().values[0].backward()


@pytest.mark.parametrize(("measurement", "own_steps"), [(_measure_the_era, 0), (_measure_a_tie, 1)])
def test_a_measurement_of_ours_is_no_step_of_the_program(measurement: Callable[[], None], own_steps: int) -> None:
    installed_era()
    recorder = Recorder(Schedule())
    _record(recorder, measurement)
    assert len(recorder.losses) == own_steps


@pytest.mark.parametrize(("kind", "op"), [("forward", "sigmoid"), ("backward", "SigmoidBackward0")])
@pytest.mark.parametrize("count", [0, 1])
def test_the_arguments_of_the_call_that_is_asked_for_are_copied(kind: str, op: str, count: int) -> None:
    origins = (event.origin for event in _record(Recorder(Schedule()), _train)["steps"][1])
    origin = next(origin for origin in origins if origin[:2] == (kind, op))
    shapes = ["float32 [3]"] * (1 if kind == "forward" else 2)
    recorder = ArgumentRecorder(Schedule(), [(kind, op, origin.where, shapes, count)])
    ((at, (call, data)),) = _record(recorder, _train)["calls"].items()
    is_backward = kind == "backward"
    factor = 1 + (count != is_backward)  # a backward comes to the second sigmoid first
    arrives = {"grad": torch.ones(3)} if is_backward else {}
    tensors = torch.load(io.BytesIO(data))
    assert (at, call.name, call.args, call.requires) == (0, "torch.sigmoid", ("x",), {"x"})
    assert call.grads == ((None, "grad" if is_backward else None),)
    assert tensors.keys() == {"x", *arrives}
    assert torch.equal(tensors["x"], torch.full((3,), float(factor)))
    assert all(torch.equal(tensors[name], grad) for name, grad in arrives.items())
    assert 3 not in recorder.steps, "it ends the program"
    own = RecordedCall(torch.sigmoid, (torch.ones(1),), {})
    recorder._follow_outputs(own, (torch.ones(1), 3, torch.ones(1, requires_grad=True)))
    assert (own.outputs, recorder.noted.lines) == ([2], [])


def test_a_node_that_nobody_saw_is_recorded_at_the_call_that_takes_it() -> None:
    def program() -> None:
        x = torch.ones(3, requires_grad=True)
        with torch._C.DisableTorchFunction():
            y = x * 2
        z = torch.cos(x)  # which says nothing of y
        (torch.sigmoid(y) + z).sum().backward()

    where = {event.origin.op: event.origin.where for event in _record(Recorder(Schedule()), program)["steps"][1]}
    assert where["MulBackward0"] == where["sigmoid"] == where["SigmoidBackward0"] != where["cos"]


def test_what_a_checkpoint_repeats_in_a_backward_is_heard() -> None:
    def program() -> None:
        checkpoint(
            lambda x: torch.sigmoid(x).sin(), torch.ones(3, requires_grad=True), use_reentrant=False
        ).sum().backward()

    ops = [event.origin.op for event in _record(Recorder(Schedule()), program)["steps"][1]]
    assert ops.count("sigmoid") == 2


class _Pin:
    entered: ClassVar[list[object]] = []

    def __init__(self, edge: str) -> None:
        self.edge, self.lines = edge, [""]

    def __enter__(self) -> None:
        self.entered.append((self.edge, self.lines))


def test_a_session_enters_its_pin_at_these_lines_and_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pseudograd_upgrade.recorder.pin_edge", _Pin)
    monkeypatch.setattr("pseudograd_upgrade.recorder.when_dynamo_arrives", lambda change: None)
    monkeypatch.setattr("pseudograd_upgrade.recorder.hooks.NewThreads", lambda make: make())
    for settings, entered in (({}, []), ({"pin": "half", "lines": ["a.py:1"]}, [("half", ["a.py:1"])] * 2)):
        Session.prepare(Session.__new__(Session), settings)  # type: ignore[arg-type]
        assert _Pin.entered == entered


def test_a_seed_is_that_of_every_generator_that_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    states = random.getstate(), numpy.random.get_state()
    try:
        draws = []
        for seed in (3, 3, 4):
            set_seed(seed)
            draws.append((random.random(), float(numpy.random.rand()), float(torch.rand(()))))
        assert draws[0] == draws[1]
        assert not any(a == b for a, b in zip(draws[1], draws[2], strict=True))
        monkeypatch.setitem(sys.modules, "numpy", None)
        set_seed(3)
    finally:
        random.setstate(states[0])
        numpy.random.set_state(states[1])


def test_an_event_keeps_its_numbers_when_another_thread_ends_a_step_meanwhile() -> None:
    recorder = Recorder(Schedule())
    origin, other = (recorder._origin("forward", op, frames.NOWHERE) for op in ("cos", "sin"))

    def values() -> Iterator[torch.Tensor]:
        for number in (1.0, 2.0):
            recorder._add(other, [torch.tensor(9.0)])
            recorder._fetch_events()
            yield torch.tensor(number)

    recorder._add(origin, values())
    recorder._fetch_events()
    *_, event = recorder.steps[1]
    assert (event.origin, [digest.numbers[0] for digest in event.tensors]) == (origin, [1.0, 2.0])


SEEDS = """
import torch
from pseudograd_upgrade.recorder import set_seed
set_seed(1)
import numpy, secrets
numbers = numpy.random.get_state()[1].tolist()
numpy.random.seed(1)
assert numbers == numpy.random.get_state()[1].tolist()
print(secrets.NAME)
"""


@pytest.mark.program
def test_numpy_is_seeded_although_the_program_has_a_file_with_the_name_of_a_module_that_numpy_imports(
    tmp_path: Path,
) -> None:
    (tmp_path / "secrets.py").write_text("NAME = 'that of the program'")
    (tmp_path / "program.py").write_text(SEEDS)
    done = subprocess.run([sys.executable, tmp_path / "program.py"], capture_output=True, text=True, check=False)
    assert done.stdout == "that of the program\n", done.stderr
