"""Ranges of a rule's parameter in tune: what is asked of Optuna, what it costs, and what comes of it."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
import torch

import pseudograd as pg
from pseudograd.comparison.tune import SEARCH_SEEDS
from pseudograd.ops.bounds import CLAMP
from pseudograd.rule_ranges import range_of


def _run(clamp: Any, seed: int) -> float:
    """Least where the slope outside is 0.2."""
    x = torch.tensor([2.0], requires_grad=True)
    clamp(x, 0, 1).sum().backward()
    assert x.grad is not None
    slope = max(x.grad.item(), 1e-3)
    return math.log(slope / 0.2) ** 2 + 1e-3 * torch.rand(()).item()


@pytest.mark.parametrize(
    ("text", "at", "expected"),
    [
        ("leaky(0.01..1)", (0.1234,), "leaky(slope=0.123)"),
        ("leaky(slope = 0.01 .. 1)/open", (1.0,), "leaky(slope=1)/open"),
        ("leaky(1e-3..1)", (0.001,), "leaky(slope=0.001)"),
        ("elastic(width=0.5..2)", (0.75,), "elastic(width=0.75)"),
    ],
)
def test_a_range_is_a_rule_with_two_dots(text: str, at: tuple[float, ...], expected: str) -> None:
    found = range_of("tune", text, CLAMP)
    assert found is not None
    assert found.at(at) == expected


@pytest.mark.parametrize("text", ["leaky", "leaky(0.1)", "zero/open", "inward"])
def test_other_rules_have_none(text: str) -> None:
    assert range_of("tune", text, CLAMP) is None


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("leaky(1..0.1)", "tune: rules must have ranges of two numbers, got 'leaky\\(1..0.1\\)'"),
        ("leaky(a..b)", "tune: rules must have ranges of two numbers"),
        ("leaky(0.1..inf)", "tune: rules must have ranges of two numbers"),
        ("leaky(-1..1)", "slope"),
        ("leakt(0.1..1)", "Did you mean 'leaky'"),
        ("leaky(slpe=0.1..1)", "Did you mean 'slope'"),
        ("inward(0.1..1)", "inward"),
        ("leaky(0.1..1)/opne", "Did you mean 'open'"),
    ],
)
def test_wrong_ranges_are_told_before_any_run(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        pg.tune(lambda clamp: pytest.fail("it is told before"), rules=[text], budget=100)


def test_a_budget_that_a_search_would_use_up() -> None:
    with pytest.raises(ValueError, match=r"tune: budget must exceed 8, got 8\. Each range takes 8 runs or more"):
        pg.tune(_run, rules=["leaky(0.01..1)"], budget=8)


def test_without_optuna_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match="tune: optuna, for a range of a rule, must be installed"):
        pg.tune(_run, rules=["leaky(0.01..1)"], budget=100)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning" if "optuna" in sys.modules else "ignore")
def test_the_number_is_found_within_the_budget() -> None:
    pytest.importorskip("optuna")
    calls: list[float] = []

    def run(clamp: Any, seed: int) -> float:
        calls.append(seed)
        return _run(clamp, seed)

    found = pg.tune(run, rules=["inward", "leaky(0.01..1)"], budget=160)
    (one,) = found.searches
    assert one.text == "leaky(0.01..1)"
    assert len(one.tried) * SEARCH_SEEDS <= 40
    assert one.best is not None
    assert 0.1 < float(one.best[len("leaky(slope=") : -1]) < 0.4
    assert one.tried[one.best] == min(one.tried.values())
    assert found.best == (one.best,)
    assert len(calls) == found.spent <= 160
    assert not set(found.final.seeds) & set(range(SEARCH_SEEDS))
    assert f"Search of leaky(0.01..1): {len(one.tried)} points with 2 seeds each: best {one.best}" in str(found)
    assert found.to_json()["searches"][0]["best"] == one.best
    again = pg.tune(_run, rules=["inward", "leaky(0.01..1)"], budget=160)
    assert again.searches == found.searches


@pytest.mark.filterwarnings("ignore")
def test_points_that_fail_are_passed_over() -> None:
    pytest.importorskip("optuna")

    def run(clamp: Any, seed: int) -> float:
        value = _run(clamp, seed)
        if value > 4:
            raise ArithmeticError("diverged")
        return value

    found = pg.tune(run, rules=["identity", "leaky(0.001..1)"], budget=120, better="lower")
    (one,) = found.searches
    assert one.best is not None
    assert any(math.isnan(value) for value in one.tried.values())
