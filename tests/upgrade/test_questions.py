"""The runs and answers of `upgrade`, with recordings that a test writes: no program runs here."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest

from pseudograd.listen.program.signals import Stopped
from pseudograd_upgrade.answer import CONVENTION, FAILS, MAGNIFIED, NARROW, OTHER_OP, OWN, ROUNDING, SAME, Answer
from pseudograd_upgrade.cutting.cut import Cut
from pseudograd_upgrade.differences import Difference
from pseudograd_upgrade.recording import Recording, Schedule
from pseudograd_upgrade.routes.question import BetweenCompilers, BetweenDevices, make_route
from pseudograd_upgrade.runs import MOST_RUNS, MOST_RUNS_OF_ROUTES, Interpreter
from pseudograd_upgrade.upgrade import Question

from .made_runs import CLAMP_GRAD, GELU, GELU_GRAD, LEAF, LINEAR, ORIGINS, SGD, SILU, SILU_GRAD
from .made_runs import run as made_run


class Run(NamedTuple):
    python: Interpreter
    schedule: Schedule

    @property
    def pin(self) -> str | None:
        return self.python.settings.get("pin")

    @property
    def lines(self) -> list[str] | None:
        return self.python.settings.get("lines") or None

    @property
    def is_old(self) -> bool:
        return self.python.torch == "2.13.0"

    @property
    def is_on_device(self) -> bool:
        return self.python.route == "cuda"


Record = Callable[[Run], Recording]
OLD, NEW = Interpreter("/old/python", "2.13.0"), Interpreter("/new/python", "2.15.0")


class Runner:
    """Asks `record` for the recording of a run."""

    program = ("train.py",)

    def __init__(self, record: Record) -> None:
        self.record = record
        self.all: list[Run] = []

    @property
    def count(self) -> int:
        return len(self.all)

    def run(self, python: Interpreter, schedule: Schedule) -> Recording:
        self.all.append(Run(python, schedule))
        return replace(self.record(self.all[-1]), torch=python.label(python.torch))

    def settings(self, name: str) -> list[object]:
        """The values of one setting, in the runs that have it."""
        return [run.python.settings[name] for run in self.all if run.python.settings.get(name)]


def ask(kind: type[Question], old: Interpreter, new: Interpreter, record: Record) -> tuple[Answer, Runner]:
    runner = Runner(record)
    answer = kind(runner, old, new).answer()
    assert runner.count <= (MOST_RUNS_OF_ROUTES if old.route else MOST_RUNS - 1)  # one more cuts the call out
    return answer, runner


def compare_torches(record: Record, new: Interpreter = NEW) -> tuple[Answer, Runner]:
    return ask(Question, OLD, new, record)


def compare_routes(kind: type[Question], *routes: str) -> Callable[[Record], tuple[Answer, Runner]]:
    old, new = (make_route(Interpreter("/a/python", "2.13.0"), route) for route in routes)
    return lambda record: ask(kind, old, new, record)


compare_devices = compare_routes(BetweenDevices, "cpu", "cuda")
compare_compilers = compare_routes(BetweenCompilers, "eager", "inductor")


def trained(slope: float = 1.0, *, loss: float = 0.5, **raw: object) -> Recording:
    """The gradient of gelu and of the parameter is `slope`; then comes the next loss."""
    return made_run((LINEAR, 1.0), (GELU, 2.0), (GELU_GRAD, slope), (LEAF, slope), losses=(1.0, loss), **raw)


def other_slope(run: Run) -> Recording:
    """The newer torch has another slope at gelu's line."""
    return trained() if run.is_old else trained(0.5, loss=0.7)


def test_a_run_is_described_by_its_steps_and_changes() -> None:
    changes = {
        "has_other_order": True, "pin": "half", "lines": ["a.py:1", "b.py:2"], "is_shaken": True, "is_repeated": True,
        "targets": [["forward", "cos", "a.py:1"], ["forward", "sin", "a.py:1"]], "is_cut": True, "out": ("a.py:1",), "moved": ("b.py:2",),
    }  # fmt: skip
    cuda = replace(OLD, route="cuda")
    assert cuda.but(**changes).describe(Schedule()) == (
        "torch 2.13.0 cuda, sums in another order, pinned to 'half', at a.py:1, b.py:2 alone, parameters moved by roundings, once more, "
        "for the arguments of sin, each line alone, a.py:1 left out, b.py:2 moved off its point"
    )
    windows = [OLD.but(pin="", lines=[]).describe(Schedule(window=steps)) for steps in ((4, 4), (4, 5))]
    assert windows == ["torch 2.13.0, step 4", "torch 2.13.0, steps 4 to 5"]


# --- between two torches ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lines", [["train.py:2"], None])
def test_a_difference_that_a_pin_mends_is_a_convention(lines: list[str] | None) -> None:
    answer, runner = compare_torches(lambda run: trained() if run.pin and run.lines == lines else other_slope(run))
    assert answer.kind == CONVENTION
    assert answer.difference is not None
    assert answer.difference.old.origin.where == "train.py:2"
    assert answer.why[0].startswith("this line pinned, " if lines else "pinned everywhere, as this line alone is not")
    assert answer.why[1].startswith("the last loss is 0.5 under torch 2.13.0, 0.7 under 2.15.0, 0.5 pinned")
    assert answer.next_steps[-1] == "unedited: pseudograd run --pin 'torch<=2.13' train.py"
    assert [run.lines for run in runner.all if run.pin] == ([lines] if lines else [["train.py:2"], None])
    assert {run.pin for run in runner.all} == {None, "torch<=2.13"}


def test_runs_with_another_number_of_passes_have_both_numbers() -> None:
    """As with early stopping."""
    longer = replace(trained(0.5), losses=[[1.0], [0.7], [0.6]])
    answer, _ = compare_torches(lambda run: trained() if run.is_old or run.pin else longer)
    assert str(answer).splitlines()[0].endswith("; 4 runs, 2 and 3 backward passes")


@pytest.mark.parametrize("alone", [True, False])
def test_a_kink_below_rounding_is_named_and_pinned_and_not_the_op_that_shows_it(alone: bool) -> None:
    """A clamp at another line is pinned, too, and changes nothing."""
    clamp = ["backward", "PseudogradBackward", "package/gate.py:7", "train.py:6", "x.clamp(0, 1)"]
    other = ["backward", "ClampBackward1", "train.py:9", "train.py:9", "x.clamp(0, 9)"]
    origins = [*ORIGINS, other, [*other[:1], "PseudogradBackward", *other[2:]], clamp]

    def record(run: Run) -> Recording:
        is_mended = run.is_old or bool(
            run.pin and (run.lines is None or (alone and run.lines == ["package/gate.py:7"]))
        )
        slope = 1.0 if is_mended else 0.5
        pinned, original = (len(ORIGINS) + 1, len(ORIGINS) + 2), (len(ORIGINS), CLAMP_GRAD)
        first, second = pinned if run.pin and run.lines is None else original
        events = (LINEAR, 1.0), (first, 1.0), (second, 1.0 + 1e-7 * slope), (SILU_GRAD, slope), (LEAF, slope)
        rows = made_run(*events, losses=(1.0, slope), origins=origins)
        clamps = [
            event._replace(tensors=(event.tensors[0]._replace(numbers=(1.0,) * 4), *event.tensors))
            for event in rows.steps[1][1:3]
        ]
        return replace(rows, steps={1: [rows.steps[1][0], *clamps, *rows.steps[1][3:]]})

    answer, runner = compare_torches(record)
    assert answer.difference is not None
    assert (answer.kind, answer.difference.old.origin.where) == (CONVENTION, "package/gate.py:7")
    assert answer.why[0].startswith(
        f"{'package/gate.py:7 pinned' if alone else 'pinned everywhere'}, the losses are equal"
    )
    assert [run.lines for run in runner.all if run.pin][-1] == ["package/gate.py:7"]


@pytest.mark.parametrize(
    ("runs", "known"),
    [
        (0, []),
        (1, ["torch 2.13.0: status 0, the last loss is 0.5"]),
        (2, ["torch 2.15.0: status 0, the last loss is 0.7", "its cause is not known yet:\n  train.py:2  step "]),
    ],
)
def test_a_signal_leaves_what_the_runs_have_shown(runs: int, known: list[str]) -> None:
    asked: list[Run] = []

    def record(run: Run) -> Recording:
        if len(asked) == runs:
            raise Stopped(2)
        asked.append(run)
        return other_slope(run)

    question = Question(Runner(record), OLD, NEW)
    with pytest.raises(Stopped) as stop, question.report_when_stopped():
        question.answer()
    text = stop.value.known
    assert text.startswith(f"upgrade: stopped in run {runs + 1}, before the answer")
    assert all(line in text for line in known), text
    assert len(text.splitlines()) == (1, 2, 6)[runs]


def two_slopes(run: Run, mends: set[str]) -> Recording:
    """The newer torch has another slope at two lines. Only a pin at all of `mends` trains as the older torch does."""
    lines = set(run.lines or ()) if run.pin and run.lines else {"train.py:2", "train.py:3"} if run.pin else set()
    slopes = [1.0 if run.is_old or line in lines else 0.5 for line in ("train.py:2", "train.py:3")]
    is_mended = run.is_old or mends <= lines
    events = [(GELU_GRAD, slopes[0]), (SILU_GRAD, slopes[1]), (LEAF, 1.0 if is_mended else 0.5)]
    return made_run((LINEAR, 1.0), (GELU, 2.0), *events, losses=(1.0, 0.5 if is_mended else 0.7))


@pytest.mark.parametrize(
    ("mends", "named", "pinned", "runs"),
    [
        ({"train.py:2"}, "train.py:2", "this line pinned, the losses", 1),
        ({"train.py:3"}, "train.py:3", "train.py:3 pinned, the losses", 4),
        ({"train.py:2", "train.py:3"}, "train.py:2", "train.py:2 and train.py:3 pinned, the losses", 4),
        ({"train.py:2", "train.py:3", "hidden"}, "", "", 2),
    ],
)
def test_of_two_lines_those_that_matter_are_pinned(mends: set[str], named: str, pinned: str, runs: int) -> None:
    answer, runner = compare_torches(lambda run: two_slopes(run, mends))
    assert sum(run.pin is not None for run in runner.all) == runs
    assert answer.kind == (CONVENTION if named else OTHER_OP)
    if named:
        assert answer.difference is not None
        assert answer.difference.old.origin.where == named
        assert answer.why[0].startswith(pinned)
        assert answer.next_steps[0].endswith(
            f"# around {pinned.partition(' pinned')[0].replace('this line', 'train.py:2')}"
        )


@pytest.mark.parametrize(
    ("old", "new", "pinned", "end", "step"),
    [
        (0, 1, 0, "it ends well: the losses are equal", "pseudograd.pin_edge('torch<=2.13'): ...  # around train.py:2"),
        (1, 0, 1, "it fails in the same way", "pseudograd.pin_edge('torch>=2.14'): ...  # keeps"),
        (0, 1, 1, "", ""),
        (1, 0, 0, "", ""),
    ],
)
def test_a_side_that_fails_by_a_convention_gets_the_pin(old: int, new: int, pinned: int, end: str, step: str) -> None:
    def record(run: Run) -> Recording:
        status = pinned if run.pin else old if run.is_old else new
        return trained(status=status) if run.is_old or run.pin else trained(0.5, loss=0.7, status=status)

    answer, _ = compare_torches(record)
    assert answer.kind == (CONVENTION if end else OTHER_OP)
    assert answer.why[-1] == f"it ends with status 1 under torch {'2.13.0' if old else '2.15.0'} alone:"
    assert end in answer.why[0]
    assert step in " ".join(answer.next_steps)


@pytest.mark.parametrize(("old", "new"), [(0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("seen", ["all alike", "other loss", "shorter"])
def test_a_program_that_fails_is_compared_like_any_other(old: int, new: int, seen: str) -> None:
    """Up to the step in which one of them fails."""

    def record(run: Run) -> Recording:
        status = old if run.is_old else new
        x = 3.0 if seen == "other loss" and not run.is_old else 2.0
        losses = (1.0,) if seen == "shorter" and status else (1.0, x)
        return replace(
            made_run((LINEAR, 1.0), (GELU, x), losses=losses, status=status), ending=("FAILED test_training",)
        )

    is_alone = old != new
    if not is_alone and seen != "other loss":
        with pytest.raises(ValueError, match="must end well in one of them, got 1 and 1"):
            compare_torches(record)
        return
    answer, _ = compare_torches(record)
    assert answer.kind == (OTHER_OP if seen == "other loss" else FAILS)
    failure = f"it ends with status 1 under torch {'2.13.0' if old else '2.15.0'} alone:"
    assert answer.why[-2:] == (failure, "FAILED test_training") if is_alone else "under both" in answer.why[-1]


@pytest.mark.parametrize(("apart", "is_rounding"), [(0.0, True), (1e-7, True), (0.5, False)])
@pytest.mark.parametrize("has_earlier", [True, False])
def test_an_evaluation_behind_the_last_backward_counts(apart: float, is_rounding: bool, has_earlier: bool) -> None:
    def record(run: Run) -> Recording:
        earlier, last = (0.0, 0.0) if run.is_old else (0.5 * has_earlier, apart)
        training = made_run((LINEAR, 1.0), (GELU, 2.0 + earlier), (LEAF, 1.0), losses=(1.0,))
        return replace(training, steps={**training.steps, 2: made_run((SILU, 1.0 + last)).steps[1]})

    answer, _ = compare_torches(record)
    assert answer.survives == is_rounding
    if not is_rounding:
        assert answer.difference is not None
        assert answer.difference.old.origin.where == "train.py:3"
        assert "after the last backward pass; the training before it is the same" in answer.why[0]
        assert answer.next_steps == ("compare by hand what train.py:3 computes under both torches",)


def test_an_evaluation_that_uses_a_gradient_whose_convention_changed_is_that_convention() -> None:
    """As a saliency map of torch.autograd.grad: no parameter gets this gradient."""

    def record(run: Run) -> Recording:
        x = 1.0 if run.is_old or run.pin else 0.0
        training = made_run((LINEAR, 1.0), (LEAF, 1.0), losses=(1.0,))
        return replace(training, steps={**training.steps, 2: made_run((SILU, 2.0 + x)).steps[1]})

    answer, _ = compare_torches(record)
    assert (answer.kind, answer.pin) == (CONVENTION, "torch<=2.13")
    assert answer.why == ("pinned everywhere, what is computed after the last backward pass is equal, too",)


@pytest.mark.parametrize("last", [(SILU, 1.5), (GELU, 1.5), (SILU, 1.0)], ids=["other value", "other op", "mended"])
def test_an_evaluation_that_differs_though_a_pin_mends_the_training_is_told(last: tuple[int, float]) -> None:
    def record(run: Run) -> Recording:
        training = other_slope(run)
        if run.pin:  # another value in the training, without a consequence, is not told
            training = made_run((LINEAR, 1.5), (GELU, 2.0), (GELU_GRAD, 1.0), (LEAF, 1.0), losses=(1.0, 0.5))
        return replace(training, steps={**training.steps, 3: made_run((SILU, 1.0) if run.is_old else last).steps[1]})

    answer, _ = compare_torches(record)
    assert answer.kind == CONVENTION
    still = "it still differs after the last backward pass, first at train.py:"
    assert any(line.startswith(still) for line in answer.why) == (last != (SILU, 1.0))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ([(SILU, 1.0)], [(SILU, 1.0), (GELU, 2.0)], None),  # another call that nothing follows
        ([(SILU, 1.0), (LINEAR, 3.0)], [(SILU, 1.0), (GELU, 3.0)], None),  # the same value by another op
        (
            [(SILU, 1.0), (LINEAR, 3.0)],
            [(SILU, 1.0), (GELU, 2.0)],
            ["2.13.0: linear at train.py:1", "2.15.0: gelu at train.py:2", "no call"],
        ),
        ([(SILU, 1.0)], [(GELU, 2.0), (SILU, 2.0)], ["2.15.0: gelu at train.py:2, after the last backward pass"]),
    ],
)  # fmt: skip
def test_calls_that_differ_behind_the_last_backward_are_named(
    old: list[tuple[int, float]], new: list[tuple[int, float]], why: list[str] | None
) -> None:
    def record(run: Run) -> Recording:
        training = made_run((LINEAR, 1.0), (LEAF, 1.0), losses=(1.0,))
        return replace(training, steps={**training.steps, 2: made_run(*(old if run.is_old else new)).steps[1]})

    answer, _ = compare_torches(record)
    assert answer.survives == (why is None)
    assert [text in line for text, line in zip(why or [], answer.why, strict=False)] == [True] * len(why or [])
    assert all(text in " ".join(answer.why) for text in why or [])


@pytest.mark.parametrize(
    ("apart", "kind", "distance"),
    [(0.0, SAME, "equal to the last bit of our sums"), (1e-7, ROUNDING, "apart by at most 1.0e-07")],
)
def test_an_answer_says_how_much_was_compared(apart: float, kind: str, distance: str) -> None:
    def record(run: Run) -> Recording:
        op, x = (GELU, 3.0) if run.is_old else (SILU, 3.0 * (1 + apart))
        return made_run((LINEAR, 1.0), (op, 2.0), (LINEAR, x), losses=(1.0, 1.0))

    answer, _ = compare_torches(record)
    ops = "the same values by other ops at 1 line: train.py:2"
    assert (answer.kind, answer.why) == (kind, (f"2 events in 1 of 2 steps compared, {distance}", ops))


@pytest.mark.parametrize(("raw", "is_missing"), [({"full_step": 1}, True), ({"is_ended": True}, False), ({}, False)])
def test_the_json_says_what_was_not_compared_unless_the_command_asked_for_it(
    raw: dict[str, object], is_missing: bool
) -> None:
    answer, _ = compare_torches(lambda run: trained(**raw))
    assert ("what comes later was not compared" in str(answer)) == bool(raw)
    assert answer.to_json()["not_compared"] == (answer.notes if is_missing else ())


@pytest.mark.parametrize("has_more", [True, False])
def test_a_call_under_one_of_the_two_alone_is_not_to_be_reported(has_more: bool) -> None:
    def record(run: Run) -> Recording:
        more = [(GELU, 2.0)] if has_more and not run.is_old else []
        return made_run(
            (LINEAR, 1.0), *more, (SILU, 1.0 if run.is_old else 3.0), losses=(1.0, 1.0 if run.is_old else 3.0)
        )

    answer, _ = compare_torches(record)
    assert (answer.why == ("only under torch 2.15.0: gelu at train.py:2",)) == has_more
    step = "find out why train.py:2 calls gelu under one of the two alone" if has_more else "report it upstream: silu"
    assert step in answer.next_steps[0]


@pytest.mark.parametrize(
    ("torches", "op", "change"),
    [
        (("2.13.0+cpu", "2.15.0"), "ClampBackward1", "torch 2.14 changed this gradient at a bound or a tie"),
        (("2.15.0", "2.13.0"), "FmaxBackward0", "torch 2.14 changed this gradient at a bound or a tie"),
        (("2.14.1", "2.15.0"), "FmaxBackward0", "torch 2.15 changed this gradient of NaN"),
        (("2.8.0", "2.13.0"), "Atan2Backward0", "torch 2.10 changed this gradient at (0, 0)"),
        (("2.15.0", "2.13.0"), "GatherBackward0 of nanquantile", "torch 2.14 changed this gradient of equal entries"),
        (("2.15.0", "2.13.0"), "GatherBackward0 of gather", ""),
        (("2.8.0", "2.13.0"), "ClampBackward1", ""),
        (("2.13.0", "2.15.0"), "GeluBackward0", ""),
    ],
)
def test_a_known_change_is_never_to_be_reported(torches: tuple[str, str], op: str, change: str) -> None:
    name, _, call = op.partition(" of ")
    origins = [
        ["forward", call or "f", "train.py:2", "train.py:2", "f(x)"],
        ["backward", name, "train.py:2", "train.py:2", "f(x)"],
        ["forward", "quantile", "train.py:9", "train.py:9", "quantile(x)"],
    ]

    def record(run: Run) -> Recording:
        x = 1.0 if run.python.torch == torches[0] else 0.5
        return made_run((2, 1.0), (LINEAR, 1.0), (GELU, x), losses=(1.0, x), origins=origins)

    old, new = (Interpreter("python", torch) for torch in torches)
    answer, _ = ask(Question, old, new, record)
    assert answer.kind == (CONVENTION if change else OTHER_OP)
    assert answer.next_steps[0].startswith(change or "if train.py:2 asks both torches for the same, report it upstream")


@pytest.mark.parametrize(("origin", "is_known"), [(CLAMP_GRAD, True), (GELU_GRAD, False)])
def test_a_convention_without_an_effect_is_in_the_first_line(origin: int, is_known: bool) -> None:
    """A clamp at its bound behind which all is cut, and another op."""
    answer, _ = compare_torches(
        lambda request: made_run((LINEAR, 1.0), (origin, 2.0 if request.is_old else 3.0), (LEAF, 1.0))
    )
    assert answer.kind == ROUNDING
    assert ("rounding only, and a kink's convention without effect on the training; " in str(answer)) == is_known
    assert ("  torch 2.14 changed this gradient at a bound or a tie\n" in f"{answer}\n") == is_known
    assert bool(answer.to_json()["convention"]) == is_known


@pytest.mark.parametrize("status", [0, 1])
def test_a_difference_that_no_pin_mends_is_another_op(status: int) -> None:
    """A pinned run that fails proves nothing."""
    answer, runner = compare_torches(lambda run: trained(status=1) if run.pin and status else other_slope(run))
    assert answer.kind == OTHER_OP
    assert answer.why == ("apart by 5.0e-01 there; all that was seen before it was rounding",)
    assert [run.lines for run in runner.all if run.pin] == [["train.py:2"], None]


@pytest.mark.parametrize(("status", "kind"), [(0, MAGNIFIED), (1, OTHER_OP)])
def test_losses_that_a_move_by_roundings_drives_as_far_apart_are_rounding(status: int, kind: str) -> None:
    """A run that fails shows nothing."""

    def record(run: Run) -> Recording:
        is_shaken = bool(run.python.settings.get("is_shaken"))
        last = 1.2 if is_shaken else 1.0 if run.is_old else 1.3
        return made_run((LINEAR, 1.0), (LEAF, 1.0), losses=(1.0, 1.0, last), status=status * is_shaken)

    answer, runner = compare_torches(record)
    assert answer.kind == kind
    assert runner.settings("is_shaken") == [True]


@pytest.mark.parametrize(
    ("kind", "excerpt", "step"),
    [
        (OTHER_OP, Cut("program"), "report it upstream, with the program below: gelu of torch 2.15.0"),
        (OTHER_OP, Cut(is_same_alone=True), "look at what reaches train.py:2: the difference came with its arguments, or with a "
         "setting of torch"),
        (OTHER_OP, Cut(why="a reason"), "as it was"),
        (CONVENTION, Cut("program"), "as it was"),
        (ROUNDING, None, "as it was"),
    ],
)  # fmt: skip
def test_the_next_step_depends_on_the_call_that_was_cut_out(
    kind: str, excerpt: Cut | None, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pseudograd_upgrade.upgrade.cut", lambda runner, *_: runner.run(OLD, Schedule()) and excerpt)
    (event,) = made_run((GELU, 1.0)).steps[1]
    answer = Answer(
        kind, ("2.13.0", "2.15.0"), 0, 1, next_steps=("as it was",), difference=Difference(1, event, event, 1.0)
    )
    answer = Question(Runner(lambda run: made_run()), OLD, NEW).cut_out(answer)
    assert (answer.cut, answer.next_steps, answer.runs) == (excerpt, (step,), excerpt is not None)


def test_a_program_that_does_not_repeat_is_named_so() -> None:
    times = iter(range(9))
    answer, _ = compare_torches(lambda run: trained(1.0 + next(times), loss=0.5 + next(times)))
    assert answer.kind == OWN
    assert answer.why == ("the same run twice under torch 2.13.0, with the same seeds, differs there already",)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ([(GELU, 2.0, "approximate='none'")], [(GELU, 3.0, "a=1")], ["called with approximate='none' and with a=1"]),
        ([(SGD, 2.0, "lr=1.0, momentum=0")], [(SGD, 3.0, "lr=2.0, momentum=0")], ["called with lr=1.0 and with lr=2.0"]),
        ([(GELU, 2.0)], [(SILU, 3.0)], [f"only under torch {op}" for op in ("2.13.0: gelu at train.py:2", "2.15.0: silu at train.py:3")]),
        ([(GELU, 2.0), (SILU, 2.5)], [(SILU, 3.0), (GELU, 3.5)], ["the same ops, in another order: apart by"]),
    ],
    ids=["an argument", "a rate", "an op", "their order"],
)  # fmt: skip
def test_calls_that_differ_are_named(
    old: list[tuple[int, float]], new: list[tuple[int, float]], why: list[str]
) -> None:
    def record(request: Run) -> Recording:
        events, last, loss = (old, 4.0, 0.5) if request.is_old else (new, 5.0, 0.7)
        return made_run((LINEAR, 1.0), *events, (LINEAR, last), losses=(1.0, loss))

    answer, runner = compare_torches(record)
    assert answer.kind == OTHER_OP
    assert all(line.startswith(text) for line, text in zip(answer.why, why, strict=True)), answer.why
    assert [run.lines for run in runner.all if run.pin] == [None]


@pytest.mark.parametrize(("leaf", "relation"), [(1.0, ""), (0.5, "differ"), (None, "may differ")])
def test_an_update_that_differs_may_come_from_the_gradients_before_it(leaf: float | None, relation: str) -> None:
    def record(run: Run) -> Recording:
        x = 0.0 if run.is_old else 1.0
        leaves = {} if leaf is None else made_run((LEAF, 1.0 if run.is_old else leaf)).steps
        return replace(made_run(losses=(1.0, 1.0, 1.0 + x)), steps={**leaves, **made_run((SGD, 2.0 + x), step=2).steps})

    answer, _ = compare_torches(record)
    report = "if train.py:4 asks both torches for the same, report it upstream: SGD.step of torch 2.15.0"
    other = f"the gradients that reach it {relation} already: look for lines that one of the two runs alone has"
    assert answer.next_steps == (other if relation else report,)


def test_gradients_that_no_parameter_keeps_are_compared_by_the_values_that_follow() -> None:
    """As under torch.func: no loss can be read, and no call in there has a name."""

    def record(request: Run) -> Recording:
        x = 2.0 if request.is_old or (request.pin and request.lines is None) else 3.0
        return replace(made_run((LINEAR, 1.0), (GELU, x)), losses=[[]])

    answer, _ = compare_torches(record)
    assert answer.kind == CONVENTION
    assert answer.why == ("pinned everywhere, all values are equal, except for rounding",)


# --- between two devices ----------------------------------------------------------------------------------------------


def test_a_difference_of_gradients_alone_can_be_a_tie_of_the_device() -> None:
    answer, runner = compare_devices(
        lambda run: trained(0.5, loss=0.7, uses_device=True) if run.is_on_device else trained()
    )
    assert answer.kind == OTHER_OP
    assert answer.next_steps[-1].startswith("ties and kinks are each device's to choose")
    assert answer.notes == ("TensorFloat-32 is off in the run on cuda; with it on, convolutions keep 10 bits of 23",)
    environments = [run.python.environment for run in runner.all if run.is_on_device]
    assert environments == [{"NVIDIA_TF32_OVERRIDE": "0"}] * 2


def test_a_device_that_does_not_repeat_is_named_at_that_line() -> None:
    times = iter(range(9))

    def record(request: Run) -> Recording:
        if not request.is_on_device:
            return made_run((LINEAR, 1.0), (GELU, 1.0), (SILU, 1.0), losses=(1.0, 1.0))
        return made_run((LINEAR, 1.0), (GELU, 2.0), (SILU, 3.0 + next(times)), losses=(1.0, 2.0), uses_device=True)

    answer, _ = compare_devices(record)
    assert answer.kind == OWN
    assert answer.difference is not None
    assert answer.difference.old.origin.where == "train.py:3"
    assert answer.next_steps[-1].startswith("torch.use_deterministic_algorithms(True)")


def test_a_program_that_puts_nothing_on_the_device_gets_a_note() -> None:
    answer, _ = compare_devices(lambda run: trained())
    assert (answer.kind, answer.notes) == (SAME, ("the run on cuda put nothing on a device",))


# --- between a compiler and none --------------------------------------------------------------------------------------


def compiled(run: Run, step: int = 1, **raw: object) -> Recording:
    """Inductor has another slope at gelu's line, unless that line is left out."""
    is_other = run.python.route == "inductor" and "train.py:2" not in run.python.settings.get("out", ())
    return trained(0.5 if is_other else 1.0, loss=0.7 if is_other else 0.5, step=step, graphs=1, **raw)


def test_a_line_that_mends_left_out_is_another_op_if_it_differs_off_its_point_too() -> None:
    answer, runner = compare_compilers(compiled)
    assert answer.kind == OTHER_OP
    assert answer.why[0].startswith("this line left out of what is compiled, the losses are equal")
    assert answer.next_steps[0] == "put what train.py:2 calls into a function under @torch.compiler.disable"
    assert runner.settings("moved") == [("train.py:2",)] * 2
    assert all(run.python.settings["is_cut"] for run in runner.all if run.python.settings.get("moved"))


@pytest.mark.parametrize(("status", "kind"), [(0, CONVENTION), (1, OTHER_OP)])
def test_it_is_a_convention_if_it_does_not(status: int, kind: str) -> None:
    """Moved inputs that make a run fail prove nothing."""
    answer, _ = compare_compilers(
        lambda run: trained(graphs=1, status=status) if run.python.settings.get("moved") else compiled(run)
    )
    assert answer.kind == kind


def test_at_most_four_lines_are_left_out_together() -> None:
    def record(run: Run) -> Recording:
        out, is_eager = run.python.settings.get("out", ()), run.python.route == "eager"
        numbers = LINEAR, GELU, SILU, CLAMP_GRAD, SGD
        events = [(number, 1.0 if is_eager or ORIGINS[number][2] in out else 0.5) for number in numbers]
        return made_run(*events, losses=(1.0, 0.5 if is_eager else 0.7), graphs=1)

    answer, runner = compare_compilers(record)
    assert [len(out) for out in runner.settings("out")] == [1, 1, 2, 2, 3, 3, 4]
    assert answer.why == ("apart by 5.0e-01 there; no line that was left out of what is compiled mends it",)


@pytest.mark.parametrize("status", [0, 1])
def test_no_line_is_said_to_be_left_out_where_none_was(status: int) -> None:
    answer, _ = compare_compilers(
        lambda run: trained(status=status) if run.python.settings.get("is_cut") else compiled(run)
    )
    assert answer.why == (
        f"apart by 5.0e-01 there{'' if status else '; where each line is compiled alone, none differs'}",
    )


def test_a_difference_that_dynamo_captures_is_not_blamed_on_a_line() -> None:
    answer, _ = compare_compilers(
        lambda run: trained(0.3, loss=0.7, graphs=1) if run.python.settings.get("is_cut") else compiled(run)
    )
    assert answer.kind == OTHER_OP
    assert answer.why == ("what Dynamo captures of the code differs already where nothing of it is compiled",)


@pytest.mark.parametrize(
    ("dtype", "slope", "is_mended", "kind"),
    [
        ("bfloat16", 0.5, False, NARROW),
        ("float16", 0.5, False, NARROW),
        ("float32", 0.5, False, OTHER_OP),
        ("float16", 0.87, True, NARROW),
        ("float16", 0.5, True, OTHER_OP),
    ],
)
def test_a_difference_in_16_bits_can_be_rounding(dtype: str, slope: float, is_mended: bool, kind: str) -> None:
    """If a line mends it that is left out, it is no larger than such a rounding."""

    def record(run: Run) -> Recording:
        is_eager = run.python.route == "eager" or (is_mended and run.python.settings.get("out"))
        x, loss = (1.0, 0.5) if is_eager else (slope, 0.7)
        return made_run((LINEAR, 1.0), (GELU_GRAD, x), (LEAF, x), losses=(1.0, loss), dtype=dtype, graphs=1)

    answer, _ = compare_compilers(record)
    assert answer.kind == kind
    apart = "apart by 5.0e-01 there; no line that was left out of what is compiled mends it"
    assert answer.why[0].startswith("this line left out" if is_mended else apart)


@pytest.mark.parametrize(("step", "first"), [(1, 1), (6, 1), (7, 6), (25, 24)])
def test_lines_are_recorded_from_the_first_step_on_if_it_is_near(step: int, first: int) -> None:
    _, runner = compare_compilers(lambda run: compiled(run, step))
    assert {run.schedule.window for run in runner.all if run.python.settings.get("is_cut")} == {(first, step)}


@pytest.mark.parametrize(
    ("raw", "notes"),
    [
        ({}, ("nothing of the program was compiled",)),
        ({"graphs": 1}, ("the program compiles nothing: each call of a module from outside of others was compiled",)),
        ({"graphs": 1, "is_asked": True}, ()),
    ],
)
def test_the_answer_has_a_note_about_what_was_compiled(raw: dict[str, object], notes: tuple[str, ...]) -> None:
    answer, _ = compare_compilers(lambda run: trained(**raw))
    assert answer.notes == notes
