"""What is asked and what is answered, of runs written by hand: no program runs here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from pseudograd_upgrade.answer import CONVENTION, OTHER_OP, OWN, ROUNDING, SAME, Answer
from pseudograd_upgrade.recording import Recording
from pseudograd_upgrade.routes.interpreters import Compiled, Device
from pseudograd_upgrade.routes.question import BetweenCompilers, BetweenDevices
from pseudograd_upgrade.runs import Interpreter
from pseudograd_upgrade.schedule import Schedule
from pseudograd_upgrade.upgrade import Question

from .by_hand import run


class Asked(NamedTuple):
    python: Any
    schedule: Schedule
    other_order: bool
    pin: str | None
    lines: list[str] | None


class Runs:
    """In place of a runner. given: what a run gives."""

    program = ("train.py",)

    def __init__(self, given: Callable[[Asked], Recording]) -> None:
        self.given = given
        self.asked: list[Asked] = []

    @property
    def count(self) -> int:
        return len(self.asked)

    def run(
        self, python: Any, schedule: Schedule, *, other_order: bool = False, pin: str | None = None, lines: Any = None
    ) -> Recording:
        self.asked.append(Asked(python, schedule, other_order, pin, lines))
        return replace(self.given(self.asked[-1]), torch=python.label(python.torch))


def trained(slope: float = 1.0, *, loss: float = 0.5, **how: Any) -> Recording:
    """gelu's gradient is `slope`, and so is that of the parameter; then comes the next loss."""
    return run((0, 1.0), (1, 2.0), (2, slope), (3, slope), losses=(1.0, loss), **how)


def as_torch_does(asked: Asked) -> Recording:
    """The newer one has another slope at gelu's line."""
    return trained() if asked.python.torch == "2.13.0" else trained(0.5, loss=0.7)


def between_torches(given: Callable[[Asked], Recording], new: str = "2.15.0") -> tuple[Answer, Runs]:
    runs = Runs(given)
    question = Question(runs, Interpreter("/old/python", "2.13.0"), Interpreter("/new/python", new))  # type: ignore[arg-type]
    return question.answer(), runs


# --- between two torches ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lines", [["train.py:2"], None])
def test_what_a_pin_mends_is_a_convention(lines: list[str] | None) -> None:
    answer, runs = between_torches(
        lambda asked: trained() if asked.pin and asked.lines == lines else as_torch_does(asked)
    )
    assert answer.kind == CONVENTION
    assert answer.difference is not None
    assert answer.difference.old.origin.where == "train.py:2"
    assert answer.why[0].startswith("this line pinned, " if lines else "pinned everywhere, as this line alone is not")
    assert answer.why[1].startswith("the last loss is 0.5 under torch 2.13.0, 0.7 under 2.15.0, 0.5 pinned")
    assert answer.next_steps[-1] == "unedited: pseudograd run --pin 'torch<=2.13' train.py"
    assert [one.lines for one in runs.asked if one.pin] == ([lines] if lines else [["train.py:2"], None])
    assert {one.pin for one in runs.asked} == {None, "torch<=2.13"}


def test_what_no_pin_mends_is_another_op() -> None:
    answer, runs = between_torches(as_torch_does)
    assert answer.kind == OTHER_OP
    assert answer.why == ("apart by 5.0e-01 there; all that was seen before it was rounding",)
    assert [one.lines for one in runs.asked if one.pin] == [["train.py:2"], None]


def test_a_pinned_run_that_fails_proves_nothing() -> None:
    answer, _ = between_torches(lambda asked: trained(status=1) if asked.pin else as_torch_does(asked))
    assert answer.kind == OTHER_OP


def test_no_pin_is_tried_where_both_have_the_same_conventions() -> None:
    answer, runs = between_torches(as_torch_does, new="2.12.1")
    assert answer.kind == OTHER_OP
    assert not any(one.pin for one in runs.asked)


def test_a_value_that_differs_is_no_convention_of_a_gradient() -> None:
    def given(asked: Asked) -> Recording:
        values = (1, 2.0 if asked.python.torch == "2.13.0" else 3.0), (3, values_of_a_leaf(asked))
        return run((0, 1.0), *values, losses=(1.0, values_of_a_leaf(asked)))

    def values_of_a_leaf(asked: Asked) -> float:
        return 0.5 if asked.python.torch == "2.13.0" else 0.7

    answer, runs = between_torches(given)
    assert answer.kind == OTHER_OP
    assert not any(one.pin for one in runs.asked)


def test_a_difference_of_which_nothing_came_is_rounding() -> None:
    answer, _ = between_torches(
        lambda asked: run((0, 1.0), (1, 2.0 if asked.python.torch == "2.13.0" else 3.0), (3, 1.0))
    )
    assert answer.kind == ROUNDING
    assert answer.why == ("apart by 3.3e-01 there, but no loss and no gradient of a parameter is",)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        pytest.param(
            [(1, 2.0, "approximate='none'")],
            [(1, 3.0, "approximate='tanh'")],
            ("called with approximate='none' and with approximate='tanh'",),
            id="an argument",
        ),
        pytest.param(
            [(1, 2.0)],
            [(4, 3.0)],
            (
                "only under torch 2.13.0: gelu at train.py:2",
                "only under torch 2.15.0: silu at train.py:3",
            ),
            id="an op",
        ),
        pytest.param(
            [(1, 2.0), (4, 2.5)],
            [(4, 3.0), (1, 3.5)],
            ("the same ops, in another order: apart by",),
            id="their order",
        ),
    ],
)
def test_what_differs_in_what_is_called_is_said(old: list[Any], new: list[Any], why: tuple[str, ...]) -> None:
    def given(asked: Asked) -> Recording:
        is_old = asked.python.torch == "2.13.0"
        return run(
            (0, 1.0), *(old if is_old else new), (0, 4.0 if is_old else 5.0), losses=(1.0, 0.5 if is_old else 0.7)
        )

    answer, runs = between_torches(given)
    assert answer.kind == OTHER_OP
    assert len(answer.why) == len(why)
    assert all(said.startswith(text) for said, text in zip(answer.why, why, strict=True)), answer.why
    assert not any(one.pin for one in runs.asked)


# --- between two devices ----------------------------------------------------------------------------------------------


def between_devices(given: Callable[[Asked], Recording]) -> tuple[Answer, Runs]:
    runs = Runs(given)
    old, new = (Device("/a/python", "2.13.0", route) for route in ("cpu", "cuda"))
    return BetweenDevices(runs, old, new).answer(), runs  # type: ignore[arg-type]


def is_on_the_device(asked: Asked) -> bool:
    return bool(asked.python.route == "cuda")


def test_a_difference_of_gradients_alone_may_be_a_tie_of_the_device() -> None:
    answer, _ = between_devices(
        lambda asked: trained(0.5, loss=0.7, uses_device=True) if is_on_the_device(asked) else trained()
    )
    assert answer.kind == OTHER_OP
    assert answer.next_steps[-1].startswith("ties and kinks are each device's to choose")
    assert answer.notes == ("TensorFloat-32 is off in the run on cuda; with it on, convolutions keep 10 bits of 23",)


@pytest.mark.parametrize(("dtype", "may_be_a_tie"), [("float32", False), ("int64", True)])
def test_an_index_that_differs_may_be_that_of_a_tie_and_a_value_not(dtype: str, may_be_a_tie: bool) -> None:
    def given(asked: Asked) -> Recording:
        x = 2.0 if is_on_the_device(asked) else 1.0
        return run((1, x), losses=(1.0, x), dtype=dtype, uses_device=True)

    answer, _ = between_devices(given)
    assert answer.kind == OTHER_OP
    assert any("ties and kinks" in step for step in answer.next_steps) == may_be_a_tie


def test_a_device_that_differs_from_itself_is_named_at_the_line_where_it_does() -> None:
    times = iter(range(9))

    def given(asked: Asked) -> Recording:
        if not is_on_the_device(asked):
            return run((0, 1.0), (1, 1.0), (4, 1.0), losses=(1.0, 1.0))
        return run((0, 1.0), (1, 2.0), (4, 3.0 + next(times)), losses=(1.0, 2.0), uses_device=True)

    answer, _ = between_devices(given)
    assert answer.kind == OWN
    assert answer.difference is not None
    assert answer.difference.old.origin.where == "train.py:3"
    assert answer.next_steps[-1].startswith("torch.use_deterministic_algorithms(True)")


def test_a_program_that_puts_nothing_on_the_device_says_so() -> None:
    answer, _ = between_devices(lambda asked: trained())
    assert answer.kind == SAME
    assert answer.notes == ("the run on cuda put nothing on a device",)


# --- between a compiler and none --------------------------------------------------------------------------------------


def between_compilers(given: Callable[[Asked], Recording]) -> tuple[Answer, Runs]:
    runs = Runs(given)
    old, new = (Compiled("/a/python", "2.13.0", route) for route in ("eager", "inductor"))
    return BetweenCompilers(runs, old, new).answer(), runs  # type: ignore[arg-type]


def as_compiled(asked: Asked, step: int = 1) -> Recording:
    """Inductor has another slope at gelu's line, unless that is left out."""
    is_other = asked.python.route == "inductor" and "train.py:2" not in asked.python.out
    return trained(0.5, loss=0.7, step=step, graphs=1) if is_other else trained(step=step, graphs=1)


def test_a_line_that_mends_left_out_is_another_op_where_it_differs_off_its_point_too() -> None:
    answer, runs = between_compilers(as_compiled)
    assert answer.kind == OTHER_OP
    assert answer.why[0].startswith("this line left out of what is compiled, the losses are equal")
    assert answer.next_steps[0] == "put what train.py:2 calls into a function under @torch.compiler.disable"
    assert [one.python.moved for one in runs.asked if one.python.moved] == [("train.py:2",)] * 2


def test_and_a_convention_where_it_does_not() -> None:
    answer, _ = between_compilers(lambda asked: trained(graphs=1) if asked.python.moved else as_compiled(asked))
    assert answer.kind == CONVENTION


def test_a_line_left_out_of_a_run_that_fails_mends_nothing() -> None:
    def given(asked: Asked) -> Recording:
        return trained(status=1, graphs=1) if asked.python.out and not asked.python.is_cut else as_compiled(asked)

    answer, _ = between_compilers(given)
    assert answer.kind == OTHER_OP
    assert answer.why == ("apart by 5.0e-01 there; no line that was left out of what is compiled mends it",)


def test_moved_inputs_that_make_a_run_fail_prove_no_convention() -> None:
    answer, _ = between_compilers(
        lambda asked: trained(status=1, graphs=1) if asked.python.moved else as_compiled(asked)
    )
    assert answer.kind == OTHER_OP


def test_what_dynamo_captures_otherwise_is_not_blamed_on_a_line() -> None:
    answer, _ = between_compilers(
        lambda asked: as_compiled(asked) if not asked.python.is_cut else trained(0.3, loss=0.7, graphs=1)
    )
    assert answer.kind == OTHER_OP
    assert answer.why == ("what Dynamo captures of the code differs already where nothing of it is compiled",)


@pytest.mark.parametrize(("step", "first"), [(1, 1), (6, 1), (7, 6), (25, 24)])
def test_lines_are_heard_from_the_first_step_on_where_it_is_near(step: int, first: int) -> None:
    _, runs = between_compilers(lambda asked: as_compiled(asked, step))
    assert {one.schedule.window for one in runs.asked if one.python.is_cut} == {(first, step)}


def test_a_program_of_which_nothing_was_compiled_says_so() -> None:
    answer, _ = between_compilers(lambda asked: trained())
    assert answer.notes == ("nothing of the program was compiled",)
    answer, _ = between_compilers(lambda asked: trained(graphs=1))
    assert answer.notes == ("the program compiles nothing: each call of a module from outside of others was compiled",)
    answer, _ = between_compilers(lambda asked: trained(graphs=1, is_asked=True))
    assert answer.notes == ()
