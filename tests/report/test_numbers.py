"""What `compare` measures: the promises of the tasks, on every torch."""

from __future__ import annotations

import pytest
import torch

from pseudograd.report import Results
from pseudograd.tasks.base import DEFAULT_RULES, ERAS, INSTALLED, NO_CLAMP, PROJECT

pytestmark = pytest.mark.xdist_group("compare")
# dB, halfway between runs on two processors, which sum in other orders and end up to 0.08 apart; one gives the same on every torch.
# 0.05 either way makes 0.1 between any two.
DECIBELS = {
    ("retarget", "plain"): {
        "zero/closed": 6.99,
        "zero/open": 6.99,
        "inward": 38.61,
        "identity": 9.09,
        "elastic": 41.46,
    },
    ("retarget", "sRGB curve"): {"zero/closed": 7.95, "inward": 23.11, "identity": 5.32},
    ("canvas", "from black"): {
        "zero/closed": 26.46,
        "zero/open": 3.74,
        "inward": 46.06,
        "leaky": 33.08,
        PROJECT: 46.26,
    },
    ("canvas", "over-exposed"): {"zero/closed": 12.91, "zero/open": 12.91, "inward": 39.15, "identity": 38.68},
}


def decibels(results: Results, task: str, world: str) -> dict[str, float]:
    return {name: measured.numbers["psnr"] for name, measured in results.tasks[task][world].items()}


def numbers(results: Results, task: str) -> dict[str, dict[str, float]]:
    (world,) = results.tasks[task].values()
    return {name: measured.numbers for name, measured in world.items()}


def test_every_task_shows_every_rule_both_eras_the_installed_torch_and_no_clamp(results: Results) -> None:
    for worlds in results.tasks.values():
        for by_variant in worlds.values():
            assert set(by_variant) >= {*DEFAULT_RULES, *ERAS, INSTALLED, NO_CLAMP}


def test_basin_reaches_the_minimum(results: Results) -> None:
    rows = numbers(results, "basin")
    for name in (INSTALLED, *ERAS):
        assert abs(rows[name]["reached"] - 150) <= 2, name
    for name in ("inward", "sign", "identity"):
        assert abs(rows[name]["reached"] - 250) <= 2, name


def test_basin_strays_and_chatters(results: Results) -> None:
    rows = numbers(results, "basin")
    assert rows["identity"]["stray"] > 8
    assert rows["inward"]["stray"] <= 2
    assert rows["sign"]["chatter"] >= 0.002
    assert abs(rows["inward"]["chatter"]) < 1e-4


def test_canvas(results: Results) -> None:
    black, over = (decibels(results, "canvas", world) for world in ("from black", "over-exposed"))
    assert black["inward"] >= 44
    assert over["inward"] >= 37
    assert black["zero/open"] < 5
    assert 25 <= black["zero/closed"] <= 28


def test_retarget_plain_leads_by_15_decibels(results: Results) -> None:
    row = decibels(results, "retarget", "plain")
    assert row["inward"] >= max(row[name] for name in ("identity", *ERAS)) + 15


@pytest.mark.parametrize(("task", "world"), DECIBELS)
def test_explicit_rules_give_the_same_on_every_torch(results: Results, task: str, world: str) -> None:
    found = decibels(results, task, world)
    expected = DECIBELS[task, world]
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=0.05)


def test_the_era_of_the_installed_torch_is_bit_equal_to_it(results: Results) -> None:
    assert results.era in ERAS
    for task, key in (("retarget", "picture"), ("canvas", "picture"), ("basin", "path"), ("curve", "dL_dx")):
        for by_variant in results.tasks[task].values():
            ours, theirs = (by_variant[name].arrays[key] for name in (results.era, INSTALLED))
            assert torch.equal(ours, theirs), task


def test_curve_measures_the_slope_at_the_bounds(results: Results) -> None:
    for by_variant in results.tasks["curve"].values():
        assert by_variant["zero/open"].numbers["at_low"] == 0
        assert by_variant["zero/closed"].numbers["at_low"] != 0
        assert by_variant["zero/closed"].numbers["no_signal_outside"] == 1
        assert by_variant["identity"].numbers["no_signal_outside"] == 0
