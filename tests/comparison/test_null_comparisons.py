"""At most 5 % of reports claim a difference where there is none: by the simulation that docs quote, and by a small one here."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def stored() -> Any:
    return json.loads((ROOT / "docs" / "compare" / "null_comparisons.json").read_text(encoding="utf-8"))


def test_false_claims_are_within_the_level_for_every_kind_of_numbers(stored: Any) -> None:
    assert stored["null"]["all"]["comparisons"] >= 1000
    for kind, counts in {**stored["null"], "partial": stored["partial"]}.items():
        assert counts["claiming"] / counts["comparisons"] <= counts["at_most"] <= 0.05, kind


def test_the_page_quotes_the_simulation(stored: Any) -> None:
    page = " ".join(PAGE.split())
    null, partial = stored["null"]["all"], stored["partial"]
    assert f"in {null['comparisons']:,} comparisons" in page
    assert f"{null['rate']:.1%} of the reports claim a difference anywhere (at most {null['at_most']:.1%}," in page
    assert (
        f"{partial['rate']:.1%} of the reports separate two that are alike (at most {partial['at_most']:.1%})" in page
    )
    for seeds, variants in {(row["seeds"], row["variants"]) for row in stored["power"]}:
        cells = [
            f"{row['told']:.0%}, {row['best']:.0%}"
            for row in stored["power"]
            if (row["seeds"], row["variants"]) == (seeds, variants)
        ]
        assert f"| {seeds} | {variants} | {' | '.join(cells)} |" in PAGE


def test_a_small_simulation_agrees(script: Callable[[str], Any]) -> None:
    pytest.importorskip("scipy")
    counts = script("null_comparisons").null(30)
    claiming = sum(count["claiming"] for count in counts.values())
    assert claiming <= 5  # of 30 at 5 %: more in one of 200 simulations
