"""The runner asks an experiment for a name, variants and trials, an executor for `submit`, and keeps numbers and arrays alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

from pseudograd.comparison.reached import Reached
from pseudograd.comparison.runs import Outcome, Run, Runner, Setup, Workers, _pool
from pseudograd.comparison.store import Store

pytest.importorskip("cloudpickle")


class Steps:
    """What a variant's name, a seed and steps make, as a number and as a curve."""

    name = "steps"
    variants = ("a", "bb")
    rules = ()

    def __init__(self, factor: float = 1.0) -> None:
        self.factor, self.made = factor, 0

    @property
    def depends_on(self) -> Any:
        return [self.factor]

    def measure(self, run: Run) -> Outcome:
        variant, seed, steps = run
        self.made += 1
        value = self.factor * (100 * len(variant) + 10 * seed + (steps or 0))
        curve = {"curve": torch.arange(3.0) * value}
        return Outcome({"value": value}, curve, (value, value), reached=Reached(own=(("f", "a.py:1"),)))

    def check_travels(self) -> None:
        raise AssertionError("nothing travels here")


class Backwards:
    """Makes what was submitted last first, once it is asked for."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: function(*arguments)))
        return future

    def run(self) -> None:
        while self.waiting:
            future, call = self.waiting.pop()
            future.set_result(call())


def plan(one: Steps) -> list[tuple[Steps, Run]]:
    return [(one, Run(variant, seed)) for seed in (3, 1) for variant in one.variants]


def test_outcomes_come_in_the_order_of_the_plan_from_whatever_submits() -> None:
    executor = Backwards()
    setup = Setup("compare", ("another", 0), torch.get_num_threads(), (), ())
    runner = Runner("compare", [Steps()], lambda *_: executor.run(), Workers(executor, setup), None)  # type: ignore[arg-type]
    found = list(runner.outcomes(plan(Steps())))
    assert [asked for _, asked, _ in found] == [("a", 3, None), ("bb", 3, None), ("a", 1, None), ("bb", 1, None)]
    assert [outcome.numbers["value"] for *_, outcome in found] == [130.0, 230.0, 110.0, 210.0]
    assert [outcome.arrays["curve"].tolist() for *_, outcome in found][:2] == [[0.0, 130.0, 260.0], [0.0, 230.0, 460.0]]


def test_what_was_kept_is_found_whole_and_not_made_again(tmp_path: Path) -> None:
    told: list[tuple[Any, ...]] = []
    first = Steps()
    runner = Runner("compare", [first], lambda _, *rest: told.append(rest), None, Store(tmp_path, "compare"))
    made = [outcome for *_, outcome in runner.outcomes(plan(first)[:3], done=2, total=9)]
    assert told == [(Run("a", 3), 2, 9), (Run("bb", 3), 3, 9), (Run("a", 1), 4, 9)]
    again = Steps()
    told.clear()
    runner = Runner("compare", [again], lambda _, *rest: told.append(rest), None, Store(tmp_path, "compare"))
    found = [outcome for *_, outcome in runner.outcomes(plan(again))]
    assert told == [(Run("bb", 1), 3, 4)]
    for one, other in zip(made, found[:3], strict=True):
        assert torch.equal(one.arrays.pop("curve"), other.arrays.pop("curve"))
        assert one == other
    assert (first.made, again.made) == (3, 1)


def test_another_length_and_another_experiment_are_other_trials(tmp_path: Path) -> None:
    def value(one: Steps, *asked: Run) -> list[float]:
        runner = Runner("compare", [one], lambda *_: None, None, Store(tmp_path, "compare"))
        return [outcome.numbers["value"] for *_, outcome in runner.outcomes([(one, each) for each in asked])]

    assert value(Steps(), Run("a", 0), Run("a", 0, 5)) == [100.0, 105.0]
    assert value(Steps(2.0), Run("a", 0), Run("a", 0, 5)) == [200.0, 210.0]
    again = Steps()
    assert value(again, Run("a", 0, 5), Run("a", 0)) == [105.0, 100.0]
    assert again.made == 0


def test_after_an_error_nobody_waits_for_what_other_processes_have_begun() -> None:
    def fails() -> None:
        with _pool("compare", 1) as processes:
            begun = processes.submit(time.sleep, 60)
            while not begun.running():
                time.sleep(0.01)
            raise ZeroDivisionError

    start = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        fails()
    assert time.monotonic() - start < 30
