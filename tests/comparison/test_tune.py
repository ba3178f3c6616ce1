"""tune(run): the hopeless are dropped, what people have stays to the end, and the last round's seeds chose nobody."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, zeros

import pseudograd as pg
from pseudograd.comparison.tune import _plan

ALWAYS = ("zero/closed", "zero/open", "torch.clamp", "no clamp")
Clamp = Callable[..., Tensor]
LOSSES = {"inward": 1.0, "identity": 2.0, "leaky": 3.0, "elastic": 4.0, "inverting": 5.0, "sign": 6.0}


class Recorded:
    """A training whose end is known: a loss for each rule, and noise of the seed. Everything else is at 2.5."""

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

    def seeds(self, name: str) -> set[int]:
        return {seed for own, seed, _ in self.calls if own == name}


class Stepped(Recorded):
    def __call__(self, clamp: Clamp, seed: int, steps: int) -> float:  # type: ignore[override]
        return self._run(clamp, seed, steps)


@pytest.mark.parametrize("budget", [15, 70, 200])
def test_the_worse_half_goes_in_each_round_and_the_rest_is_within_the_budget(budget: int) -> None:
    run = Recorded(noise=0.1)
    found = pg.tune(run, budget=budget)
    assert [one.kept for one in found.rounds] == [("inward", "identity", "leaky"), ("inward", "identity")]
    assert [set(one.dropped) for one in found.rounds] == [{"elastic", "inverting", "sign"}, {"leaky"}]
    assert found.final.variants == (*ALWAYS[:2], "inward", "identity", *ALWAYS[2:])
    assert len(run.calls) == found.spent <= budget
    assert found.spent > budget - 6
    assert found.rounds[0].medians["inward"] == pytest.approx(1, abs=0.2)


def test_the_last_round_has_seeds_of_its_own_and_enough_to_tell() -> None:
    run = Recorded(noise=0.1)
    found = pg.tune(run, budget=70)
    earlier = {seed for one in ("sign", "leaky") for seed in run.seeds(one)}
    assert not earlier & set(found.final.seeds)
    assert run.seeds("torch.clamp") == set(found.final.seeds)
    assert found.best == ("inward",)
    assert found.final.verdict("inward").verdict == "better"
    assert not any(found.final.verdict(name).too_few_seeds for name in ("inward", "zero/closed"))
    assert "Round 1: 6 rules, " in str(found)
    assert ": dropped elastic (" in str(found)


def test_early_rounds_are_shorter_where_run_takes_steps() -> None:
    run = Stepped(noise=0.1)
    found = pg.tune(run, budget=60, steps=100)
    assert [one.steps for one in found.rounds] == [25, 50]
    assert {steps for name, _, steps in run.calls if name == "sign"} == {25}
    assert {steps for name, _, steps in run.calls if name == "torch.clamp"} == {100}
    assert sum(steps or 0 for _, _, steps in run.calls) / 100 == found.spent <= 60
    assert "of 25 steps: dropped" in str(found)
    assert [one.steps for one in pg.tune(run, budget=60, steps=1).rounds] == [1, 1]


def test_an_honest_tie() -> None:
    run = Recorded(noise=50.0)
    found = pg.tune(run, budget=100)
    assert len(found.best) == 6
    assert str(found).endswith("torch.clamp is not told apart from the best: there is no reason here to change it.")


def test_a_budget_that_can_tell_nothing_says_so() -> None:
    found = pg.tune(Recorded(noise=0.1), budget=20)
    assert "too few seeds to tell" in str(found)
    assert str(found).endswith(f"A larger budget gives the last round more seeds than {len(found.final.seeds)}.")


def test_a_third_era_is_compared_with_the_second_which_needs_more_seeds() -> None:
    """Seven seeds for each of four variants; eight for each of five."""
    for eras, enough in ((2, 7 * 4), (3, 8 * 5)):
        with pytest.raises(ValueError, match=f"got 1. Fewer rules need less; {enough} give the last round seeds"):
            _plan(2, eras, eras, 1, None)


def test_what_fails_is_dropped() -> None:
    found = pg.tune(Recorded(failing=("inward", "identity")), budget=80)
    assert {"inward", "identity"} <= {name for one in found.rounds for name in one.dropped}
    assert math.isnan(found.rounds[0].medians["inward"])
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["rounds"][0]["medians"]["inward"] is None


def test_few_rules_need_no_rounds() -> None:
    run = Recorded(noise=0.1)
    found = pg.tune(run, budget=45, rules=["inward"])
    assert found.rounds == ()
    assert len(found.final.seeds) == 9
    assert found.best == ("inward",)


def test_json_has_all_of_it() -> None:
    stored = json.loads(json.dumps(pg.tune(Recorded(noise=0.1), budget=70).to_json(), allow_nan=False))
    assert stored["kind"] == "pseudograd tuning"
    assert stored["best"] == ["inward"]
    assert stored["final"]["kind"] == "pseudograd comparison"
    assert stored["rounds"][1]["kept"] == ["inward", "identity"]


def test_unedited_programs_are_tuned_too() -> None:
    def run(seed: int) -> float:
        x = torch.tensor([2.0], requires_grad=True)
        (torch.clamp(x, -1, 1) * 2).sum().backward()
        return -float(x.grad[0]) + torch.rand(()).item() / 10  # type: ignore[index]

    found = pg.tune(run, budget=60, replace="clamp", rules=["inward", "leaky", "leaky(0.2)", "sign"])
    assert found.best[0] == "inward"
    assert set(found.final.variants) >= {"zero/closed", "zero/open", "torch.clamp"}


def test_bad_calls() -> None:
    run = Recorded()
    with pytest.raises(
        ValueError,
        match=r"tune: budget must pay for one run of each, at least 15, got 14\. Fewer rules need less; 69 give the last round seeds",
    ):
        pg.tune(run, budget=14)
    with pytest.raises(ValueError, match=r"tune: budget must be at least 1, got 0\."):
        pg.tune(run, budget=0)
    with pytest.raises(TypeError, match=r"tune: budget must be a whole number, got 2\.5\."):
        pg.tune(run, budget=2.5)  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"tune: steps must be given for a run that takes them, got None\. Say how long"
    ):
        pg.tune(Stepped(), budget=50)
    with pytest.raises(TypeError, match="tune: run must have an argument `steps` if steps are given, got 'Recorded'"):
        pg.tune(run, budget=50, steps=10)
    with pytest.raises(ValueError, match="tune: steps must be at least 1, got 0"):
        pg.tune(Stepped(), budget=50, steps=0)
    with pytest.raises(
        ValueError, match="tune: run must end without an error in at least one variant, got 'ArithmeticError: gone'"
    ):
        pg.tune(Recorded(failing=tuple(LOSSES)), budget=50)
    with pytest.raises(ValueError, match="tune: replace must be one of"):
        pg.tune(lambda: 1.0, budget=50, replace="clmp")
