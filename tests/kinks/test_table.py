"""The table is what its points and their measurements make of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pseudograd_kinks import table
from pseudograd_kinks.joining import joined
from pseudograd_kinks.points import defined

TABLE = table.load()


def test_every_point_that_is_defined_is_in_the_table_as_it_is_defined() -> None:
    kept = {row["id"]: row for row in joined(defined(), {}, {})["points"]}
    assert list(kept) == list(TABLE.points)
    for id, point in TABLE.points.items():
        row = joined({id: point}, {}, {})["points"][0]
        assert row == kept[id]


@pytest.mark.parametrize(
    ("id", "framework", "version", "expected"),
    [
        ("clamp(0,1)@0", "torch", "2.13", [[1.0]]),
        ("clamp(0,1)@0", "torch", "2.9", [[1.0]]),  # between two that do the same
        ("clamp(0,1)@0", "torch", "2.14.1+cpu", [[0.0]]),
        ("clamp(0,1)@0", "torch", None, [[0.0]]),
        ("clamp(0,1)@0", "torch", "2.7", None),
        ("clamp(0,1)@0", "torch", "2.99", None),
        ("clamp(0,1)@0", "jax", "0.10", [[0.5]]),
        ("clamp(0,1)@0", "tensorflow", None, [[1.0]]),
        ("clamp(tensors)@min", "torch", "2.15", [[0.5], [0.5], [0.0]]),
        ("maximum@tie", "tensorflow", None, [[1.0], [0.0]]),
        ("heaviside@0", "torch", None, None),  # it raises
        ("fmax@tie", "tensorflow", None, None),  # it has none
    ],
)
def test_a_gradient_is_looked_up(id: str, framework: str, version: str | None, expected: object) -> None:
    assert TABLE.points[id].gradient(framework, version) == expected


def test_bad_lookups_say_what_is_known() -> None:
    point = TABLE.points["abs@0"]
    with pytest.raises(
        ValueError, match=r"^kinks: framework must be one of jax, tensorflow, torch, got 'jaxs'. Did you mean 'jax'\?"
    ):
        point.gradient("jaxs")
    with pytest.raises(ValueError, match=r"^kinks: version must be two numbers, such as '2.13', got 'new'."):
        point.gradient("torch", "new")


def test_infinity_and_nan_come_back_from_json() -> None:
    assert TABLE.points["sqrt(clamp(min=0))@0"].gradient("torch", "2.13") == [[math.inf]]
    assert math.isnan(TABLE.points["maximum@nan,0"].inputs[0][0])


def test_where_nothing_was_measured_anew_the_table_stays_as_it_is(script: Callable[[str], Any], tmp_path: Path) -> None:
    """A machine without JAX can measure torch, and keep the rest."""
    assert script("collect_kinks")._joined(tmp_path) == json.loads(table.FILE.read_text(encoding="utf-8"))
