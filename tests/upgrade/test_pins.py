"""Which pin is advised: from the losses and gradients of the two runs."""

import math
from dataclasses import replace

import pytest

from pseudograd_upgrade.pins import may_be_pinned, pin_steps, unpinned_steps
from pseudograd_upgrade.recording import Recording

from .made_runs import ADAM, CLAMP_GRAD, GELU_GRAD, LEAF, OTHER_CLAMP_GRAD, SGD, run

NAN, INF = math.nan, math.inf
OLD_PIN, NEW_PIN = "with pseudograd.pin_edge('torch<=2.13')", "with pseudograd.pin_edge('torch>=2.14')"
LOWER = "the loss ends lower under torch 2.15.0; if this loss is what you judge by, keep its convention"
FIGURE = "so they do not say which is better: judge by a figure of your own before you pin anything"


def steps(old: Recording, new: Recording, lines: tuple[str, ...] = ("train.py:2",)) -> list[str]:
    return pin_steps(replace(old, torch="2.13.0"), replace(new, torch="2.15.0"), lines, ["train.py"])


def advice(old: tuple[float, ...], new: tuple[float, ...], origin: int = GELU_GRAD, text: str = "") -> list[str]:
    return steps(*(run((origin, 1.0, text), (GELU_GRAD, 1.0), losses=losses) for losses in (old, new)))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ((1.0, NAN), (1.0, 0.5), "the last loss is nan under torch 2.13.0 and not under torch 2.15.0: keep its convention"),
        ((1.0, INF), (1.0, 0.5), "the last loss is inf under torch 2.13.0 and not under torch 2.15.0: keep its convention"),
        ((1.0, 0.9), (1.0, 0.5), LOWER),
        ((1.0, 0.5 * (1 + 2e-5)), (1.0, 0.5), LOWER),
        ((1.0,) + (0.9, 0.8) * 4, (1.0,) + (0.6, 0.7) * 4, LOWER),
        ((1.0, 0.5 * (1 + 0.9e-5)), (1.0, 0.5), OLD_PIN),
        ((1.0, 0.9, 0.8, 0.5), (1.0,) * 6 + (0.4, 0.4), LOWER),
        ((1.0, 0.5), (1.0, 0.9), OLD_PIN),
        ((1.0, 0.5), (1.0, NAN), OLD_PIN),
        ((1.0,), (1.0,), OLD_PIN),
        ((), (), OLD_PIN),
        ((), (1.0,), OLD_PIN),
        ((1.0,), (), OLD_PIN),
        ((1.0, NAN), (NAN, INF), "the last loss is nan under torch 2.13.0, and the last loss is inf under torch 2.15.0: no pin"),
        ((1.0, 2.0), (1.0, 3.0), f"the loss does not fall under torch 2.13.0, where it ends better, {FIGURE}"),
        # An attack that ascends by hand, and under torch 2.15 does not begin.
        ((1.0, 1.5), (1.0, 1.0), f"the loss does not fall under torch 2.15.0, where it ends better, {FIGURE}"),
        ((9.0,) * 5 + (0.1, 0.1, 0.9), (9.0,) * 5 + (0.8, 0.8, 0.8), f"the losses cross, {FIGURE}"),
        # A program that stops at nan, before a part of the data that is harder; and one that stops at its goal.
        ((1.0, 0.5), (1.0, 0.5, 0.8), f"the program stops earlier under torch 2.13.0, and is not ahead there, {FIGURE}"),
        ((1.0, 0.1), (1.0, 0.5, 0.4), OLD_PIN),
    ],
)  # fmt: skip
def test_the_losses_decide_which_pin_is_advised(old: tuple[float, ...], new: tuple[float, ...], reason: str) -> None:
    lines = advice(old, new)
    assert lines[0].startswith(reason)
    if reason.endswith("keep its convention"):
        assert lines[1:] == [f"{NEW_PIN}: ...  # keeps what torch 2.15.0 does"]
    elif reason == OLD_PIN:
        assert lines == [
            f"{OLD_PIN}: ...  # around train.py:2",
            "unedited: pseudograd run --pin 'torch<=2.13' train.py",
        ]
    else:
        assert len(lines) == 1


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            (1.0, 1.5),
            (1.0, 2.0),
            "the loss ends higher under torch 2.15.0; if this loss is what you judge by, keep its convention",
        ),
        ((1.0, 2.0), (1.0, 1.5), OLD_PIN),
        ((1.0, 0.5), (1.0, 0.7), f"the loss does not rise under torch 2.15.0, where it ends better, {FIGURE}"),
    ],
)
def test_an_ascent_is_better_where_it_is_higher(old: tuple[float, ...], new: tuple[float, ...], reason: str) -> None:
    assert advice(old, new, SGD, "lr=0.1, maximize=True")[0].startswith(reason)


@pytest.mark.parametrize(
    ("old", "new", "losses", "reason"),
    [
        ((NAN,), (1.0,), ([1.0], [1.0]), "1 recorded step under torch 2.13.0 and in 0 under torch 2.15.0: keep its convention"),
        ((INF, NAN), (1.0, NAN), ([1.0, 0.5], [1.0, 0.4]), "2 recorded steps under torch 2.13.0 and in 1 under torch 2.15.0: keep"),
        ((1.0,), (NAN,), ([1.0], [1.0]), ""),
        ((INF,), (INF,), ([1.0], [1.0]), ""),
        ((NAN, 1.0), (1.0, 1.0), ([1.0, 0.5], [1.0, 0.9]), "1 recorded step under torch 2.13.0 and in 0 under torch 2.15.0, and the"),
    ],
)  # fmt: skip
def test_gradients_that_are_not_finite_count_before_a_loss_shows_them(
    old: tuple[float, ...], new: tuple[float, ...], losses: tuple[list[float], list[float]], reason: str
) -> None:
    runs = []
    for gradients, values in zip((old, new), losses, strict=True):
        by_step = [run((LEAF, x), step=step, losses=values).steps for step, x in enumerate(gradients, start=1)]
        runs.append(
            replace(run(losses=tuple(values)), steps={step: row[step] for step, row in enumerate(by_step, start=1)})
        )
    text = steps(*runs, ())[0]
    assert text.startswith(f"gradients of parameters are not finite in {reason}" if reason else "unedited: ")


@pytest.mark.parametrize(("old", "new", "is_clear"), [(1.0, 0.0, False), (1.0, 1.0, True), (0.0, 0.0, True)])
def test_a_torch_that_gives_no_gradient_is_not_the_better_one(old: float, new: float, is_clear: bool) -> None:
    """As with margin_ranking_loss of a scorer that starts at 0: under torch 2.15 the loss is 0, and nothing learns."""
    text = steps(run((LEAF, old), losses=(0.1, 0.4)), run((LEAF, new), losses=(0.1, 0.0)))[0]
    better = "the losses end better under torch 2.15.0, but no parameter gets a gradient there"
    assert text == (LOWER if is_clear else f"{better}, {FIGURE}")


@pytest.mark.parametrize(("second", "are_several"), [(2, True), (1, False)])
def test_losses_that_are_trained_in_turn_do_not_say_which_is_better(second: int, are_several: bool) -> None:
    """Two optimisers that step after the same backward are those of one loss."""

    def record(*losses: float) -> Recording:
        both = [run((origin, 1.0), step=step, losses=losses) for origin, step in ((SGD, 1), (ADAM, second))]
        events = both[0].steps[1] + both[1].steps[1] if second == 1 else None
        return replace(both[0], steps={1: events} if events else both[0].steps | both[1].steps)

    text = steps(record(1.0, 0.9), record(1.0, 0.5))[0]
    several, lower = (
        f"several losses are trained in turn, {FIGURE}",
        LOWER,
    )
    assert text == (several if are_several else lower)


@pytest.mark.parametrize(
    ("options", "moves", "makes_graph", "reason"),
    [
        ("maximize=False/True", {}, False, "some parameters go down the loss, and others up, "),
        ("maximize=False", {"float32 [1]": 3}, False, "some parameters go down the loss, and others up, "),
        ("maximize=True", {"float32 [1]": 3}, True, "the loss does not rise under"),
        ("maximize=False", {"float32 [1]": 1, "float32 [4]": 3}, False, "several losses are trained in turn, "),
        ("maximize=False", {}, True, "the loss ends lower"),
    ],
)
def test_a_loss_that_some_parameters_ascend_does_not_say_which_is_better(
    options: str, moves: dict[str, int], makes_graph: bool, reason: str
) -> None:
    """The second backward pass is that of an attack, which gives no parameter a gradient; or of a gradient penalty."""

    def record(last: float) -> Recording:
        first = run((LEAF, 1.0), (SGD, 1.0, options), losses=(1.0, last), moves=moves, graph_steps=[2] * makes_graph)
        return replace(first, steps=first.steps | run((GELU_GRAD, 1.0), step=2).steps)

    assert steps(record(0.9), record(0.5))[0].startswith(reason)


def test_of_a_line_in_a_package_all_lines_of_the_program_that_lead_there_are_named() -> None:
    old, new = run((CLAMP_GRAD, 1.0), (OTHER_CLAMP_GRAD, 1.0)), run((CLAMP_GRAD, 0.5), (OTHER_CLAMP_GRAD, 0.5))
    assert steps(old, new, ("package/gate.py:7",))[0] == f"{OLD_PIN}: ...  # around train.py:6 and train.py:8"
    assert steps(old, new, ())[0].startswith("unedited: ")


@pytest.mark.parametrize(
    ("losses", "steps"),
    [
        (((1.0, NAN), (1.0, 0.5)), ["changed; the last loss is nan under torch 2.8.0 and not under torch 2.10.0: stay with torch 2.10.0"]),
        (((1.0, 0.5), (1.0, NAN)), ["changed, and no pin mends it here: a.py:1"]),
        (((1.0, NAN), (1.0, NAN)), ["changed, and no pin mends it here: a.py:1", "the last loss is nan under torch 2.8.0, and "
                                    "the last loss is nan under torch 2.10.0: no pin mends that"]),
    ],
)  # fmt: skip
def test_a_change_that_no_pin_takes_back_keeps_the_torch_that_trains(
    losses: tuple[tuple[float, ...], tuple[float, ...]], steps: list[str]
) -> None:
    """As atan2 at (0, 0), whose gradient is NaN on torch 2.8."""
    old, new = (
        replace(run((GELU_GRAD, 1.0), losses=values), torch=torch)
        for values, torch in zip(losses, ("2.8.0", "2.10.0"), strict=True)
    )
    assert unpinned_steps(old, new, "changed", "a.py:1") == steps


@pytest.mark.parametrize(
    ("old", "new", "may_be"),
    [
        ("2.13.0", "2.15.0", True),
        ("2.10.0", "2.13.0", False),
        ("2.10.0", "2.8.0", False),
        ("2.15.0", "2.14.0", True),  # fmin and fmax of NaN
        ("2.14.0", "2.15.0", False),
    ],
)
def test_a_pin_to_the_same_era_may_bring_the_gradients_of_2_15_to_2_14(old: str, new: str, may_be: bool) -> None:
    assert may_be_pinned(replace(run(), torch=old), replace(run(), torch=new)) is may_be
