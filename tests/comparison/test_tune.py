"""tune(run): the worse half is dropped, the eras of torch.clamp stay to the end, and the last round has seeds of its own."""

import json
import math
import random
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, zeros

import pseudograd as pg
from pseudograd.comparison.tune import _plan
from pseudograd.listen.program.signals import Stopped

from ..choices import folded

ALWAYS = ("zero/closed", "zero/open", "torch.clamp", "no clamp")
Clamp = Callable[..., Tensor]
LOSSES = {"inward": 1.0, "identity": 2.0, "leaky": 3.0, "elastic": 4.0, "inverting": 5.0, "sign": 6.0}


class Recorded:
    """A training whose end is known: a loss for each rule, 2.5 for every other variant, and noise of the seed."""

    def __init__(self, noise: float = 0.0, failing: tuple[str, ...] = ()) -> None:
        self.calls: list[tuple[str, int, int | None]] = []
        self.noise, self.failing = noise, failing

    def __call__(self, clamp: Clamp, seed: int) -> float:
        return self._run(clamp, seed, None)

    def _run(self, clamp: Clamp, seed: int, steps: int | None) -> float:
        name: str = clamp.name  # type: ignore[attr-defined]
        clamp(zeros(1), 0, 1)
        self.calls.append((name, seed, steps))
        if name in self.failing:
            raise ArithmeticError("gone")
        noise = "zero/closed" if name == "torch.clamp" else name  # it is one of its eras, to the bit
        return LOSSES.get(name, 2.5) + self.noise * random.Random(f"{noise} {seed}").gauss(0, 1)

    def seeds(self, *names: str) -> set[int]:
        return {seed for name, seed, _ in self.calls if name in names}


class Stepped(Recorded):
    def __call__(self, clamp: Clamp, seed: int, steps: int) -> float:  # type: ignore[override]
        return self._run(clamp, seed, steps)


@pytest.mark.parametrize("budget", [15, 90])
def test_the_worse_half_goes_in_each_round_and_the_rest_is_within_the_budget(budget: int) -> None:
    run = Recorded(noise=0.1)
    tuning = pg.tune(run, budget=budget)
    assert [row.remaining for row in tuning.rounds] == [("inward", "identity", "leaky"), ("inward", "identity")]
    assert [set(row.dropped) for row in tuning.rounds] == [{"elastic", "inverting", "sign"}, {"leaky"}]
    assert tuning.final.variants == (*ALWAYS[:2], "inward", "identity", *ALWAYS[2:])
    assert budget - 6 < len(run.calls) == tuning.spent <= budget
    assert tuning.rounds[0].medians["inward"] == pytest.approx(1, abs=0.2)


def test_the_last_round_has_seeds_of_its_own_and_enough_to_tell() -> None:
    run = Recorded(noise=0.1)
    tuning = pg.tune(run, budget=70)
    assert not run.seeds("sign", "leaky") & set(tuning.final.seeds)
    assert run.seeds("torch.clamp") == set(tuning.final.seeds)
    assert (tuning.best, tuning.final.verdict("inward").verdict) == (("inward",), "better")
    assert not any(tuning.final.verdict(name).too_few_seeds for name in ("inward", "zero/closed"))
    assert "Round 1: 6 rules, " in str(tuning)
    assert ": dropped elastic (" in str(tuning)
    stored = json.loads(json.dumps(tuning.to_json(), allow_nan=False))
    assert (stored["kind"], stored["best"]) == ("pseudograd tuning", ["inward"])
    assert stored["final"]["kind"] == "pseudograd comparison"
    assert stored["rounds"][1]["kept"] == ["inward", "identity"]


def test_early_rounds_are_shorter_where_run_takes_steps() -> None:
    run = Stepped(noise=0.1)
    tuning = pg.tune(run, budget=60, steps=100)
    assert [row.steps for row in tuning.rounds] == [25, 50]
    assert {steps for name, _, steps in run.calls if name == "sign"} == {25}
    assert {steps for name, _, steps in run.calls if name == "torch.clamp"} == {100}
    assert sum(steps or 0 for _, _, steps in run.calls) / 100 == tuning.spent <= 60
    assert "of 25 steps: dropped" in str(tuning)
    assert [row.steps for row in pg.tune(run, budget=60, steps=1).rounds] == [1, 1]


def test_a_tie_and_a_budget_that_can_tell_nothing_are_said() -> None:
    tie = pg.tune(Recorded(noise=50.0), budget=100)
    assert len(tie.best) == 6
    assert str(tie).endswith("The best rule is not told apart from torch.clamp, so there is no reason to change it.")
    without_rounds = pg.tune(Recorded(noise=0.1), budget=45, rules=["inward"])
    assert (without_rounds.rounds, len(without_rounds.final.seeds), without_rounds.best) == ((), 9, ("inward",))
    few = pg.tune(Recorded(noise=0.1), budget=20)
    assert "too few seeds to tell" in str(few)
    assert str(few).endswith(f"A larger budget gives the last round more seeds than {len(few.final.seeds)}.")


def test_a_third_era_is_compared_with_the_second_which_needs_more_seeds() -> None:
    """Seven seeds for each of four variants; eight for each of five."""
    for eras, enough in ((2, 7 * 4), (3, 8 * 5)):
        with pytest.raises(ValueError, match=f"got 1. Fewer rules need less; {enough} give the last round seeds"):
            _plan(2, eras, eras, 1, None)


def test_what_fails_is_dropped() -> None:
    tuning = pg.tune(Recorded(failing=("inward", "identity")), budget=80)
    assert {"inward", "identity"} <= {name for row in tuning.rounds for name in row.dropped}
    assert math.isnan(tuning.rounds[0].medians["inward"])
    assert "\n  Failed with 2 of 2 seeds: inward and identity: ArithmeticError: gone\n" in str(tuning)
    assert "inward (failed)" in str(tuning)
    assert json.loads(json.dumps(tuning.to_json(), allow_nan=False))["rounds"][0]["medians"]["inward"] is None


def test_a_signal_leaves_what_is_known() -> None:
    """After 20 trials: two rounds of tune, and of compare the two seeds that all ten variants have."""

    def known(function: Callable[..., object], **options: int) -> str:
        run = Recorded(noise=0.1)

        def stop(*_: object) -> None:
            if len(run.calls) == 20:
                raise Stopped(signal.SIGTERM)

        with pytest.raises(Stopped) as stopped:
            function(run, on_trial=stop, **options)
        return stopped.value.known

    first, *rounds = known(pg.tune, budget=80).splitlines()
    assert first == "tune: stopped after 20 trials"
    assert [line.partition(", 2 seeds: dropped ")[0] for line in rounds] == ["Round 1: 6 rules", "Round 2: 3 rules"]
    head, heading = known(pg.compare, seeds=12).splitlines()[:2]
    assert head == "compare: stopped after 20 of 120 runs; the seeds that every variant has finished:"
    assert heading.startswith("Recorded: 2 seeds, torch ")


def test_unedited_programs_are_tuned_too() -> None:
    def run(seed: int) -> float:
        x = torch.tensor([2.0], requires_grad=True)
        (torch.clamp(x, -1, 1) * 2).sum().backward()
        return -float(x.grad[0]) + torch.rand(()).item() / 10  # type: ignore[index]

    tuning = pg.tune(run, budget=60, replace="clamp", rules=["inward", "leaky", "leaky(0.2)", "sign"])
    assert tuning.best[0] == "inward"
    assert set(tuning.final.variants) >= {"zero/closed", "zero/open", "torch.clamp"}


def test_own_variants_are_dropped_and_their_baseline_stays() -> None:
    def run(step: Callable[[], float], seed: int) -> float:
        return step() + 1e-3 * torch.rand(()).item()

    variants = {name: partial(float, value) for value, name in enumerate("dabcef")}
    tuning = pg.tune(run, variants=variants, baseline="f", budget=60)
    assert (tuning.final.baseline, tuning.best) == ("f", ("d",))
    assert "f" in tuning.final.variants
    assert all("f" not in row.medians for row in tuning.rounds)


FEW = "budget must pay for one run of each, at least 15, got 14. Fewer rules need less; 69 give the last round"
TAKES_STEPS = "steps must be given for a run that takes them, got None. Say how long"
WRONG: list[tuple[type[Exception], str, Any, dict[str, Any]]] = [
    (ValueError, FEW, Recorded(), {"budget": 14}),
    (ValueError, "budget must be at least 1, got 0.", Recorded(), {"budget": 0}),
    (TypeError, "budget must be a whole number, got 2.5.", Recorded(), {"budget": 2.5}),
    (TypeError, TAKES_STEPS, Stepped(), {"budget": 50}),
    (TypeError, "run must have an argument `steps` if steps are given", Recorded(), {"budget": 50, "steps": 10}),
    (ValueError, "steps must be at least 1, got 0", Stepped(), {"budget": 50, "steps": 0}),
    (ValueError, "run must end without an error in at least one", Recorded(failing=tuple(LOSSES)), {"budget": 50}),
    (ValueError, "replace must be one of", lambda: 1.0, {"budget": 50, "replace": "clmp"}),
    (
        ValueError,
        "leaky: slope must be a number, got '0.01..1'",
        Recorded(),
        {"budget": 50, "rules": ["leaky(0.01..1)"]},
    ),
]


@folded
@pytest.mark.parametrize(("error", "text", "run", "arguments"), WRONG)
def test_bad_calls(error: type[Exception], text: str, run: Any, arguments: dict[str, Any]) -> None:
    with pytest.raises(error) as raised:
        pg.tune(run, **arguments)
    assert text in str(raised.value)
