"""The published JSON is what its schema says, and a wrong row is not."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import jsonschema
import pytest

from pseudograd_kinks.numbers import Outcome
from pseudograd_kinks.table import FILE, load

KEPT: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(json.loads(FILE.with_name("schema.json").read_text(encoding="utf-8")))


def test_the_table_is_as_the_schema_says() -> None:
    VALIDATOR.validate(KEPT)
    assert len(KEPT["points"]) >= 250


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "corner"},
        {"id": "abs"},
        {"expressions": {}},
        {"gradients": {"torch": [{"versions": "2.8", "gradient": [["one"]]}]}},
        {"gradients": {"torch": [{"versions": "new", "gradient": [[1.0]]}]}},
        {"gradients": {"torch": [{"versions": "2.8"}]}},
        {"remark": "a key that nobody knows"},
    ],
)
def test_a_wrong_row_is_found(wrong: dict[str, Any]) -> None:
    row = {**KEPT["points"][0], **wrong}
    assert not VALIDATOR.is_valid({**KEPT, "points": [row]})


def test_every_change_between_versions_is_explained() -> None:
    for point in load().points.values():
        starts = {".".join(map(str, span.first)) for span in point.spans["torch"][1:]}
        assert set(point.changes) == starts, point.id


def test_versions_of_a_point_follow_one_another_and_differ() -> None:
    for point in load().points.values():
        for spans in point.spans.values():
            for one, next_one in itertools.pairwise(spans):
                assert one.last < next_one.first
                assert not one.outcome.same_as(next_one.outcome)


@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
        ([[1.0]], [[1.00001]], True),
        ([[1.0]], [[1.01]], False),
        ([[0.0]], [[-0.0]], True),
        ([[math.nan]], [[math.nan]], True),
        ([[math.inf]], [[-math.inf]], False),
        ([[math.inf]], [[math.nan]], False),
        ([None], [[0.0]], False),
        ([[0.0, 1.0]], [[0.0]], False),
    ],
)
def test_when_two_gradients_are_the_same(one: list[Any], other: list[Any], are_same: bool) -> None:
    a, b = (Outcome(tuple(None if row is None else tuple(row) for row in rows)) for rows in (one, other))
    assert a.same_as(b) == b.same_as(a) == are_same
    assert Outcome.of_json(a.as_json()).same_as(a)


def test_no_gradient_has_the_effect_of_zeros_and_errors_are_compared_by_type() -> None:
    assert Outcome((None,)).has_same_effect_as(Outcome(((0.0, 0.0),)))
    assert not Outcome((None,)).has_same_effect_as(Outcome(((0.0, 1.0),)))
    assert Outcome(error="RuntimeError: old words").same_as(Outcome(error="RuntimeError: new words"))
    assert not Outcome(error="RuntimeError: x").same_as(Outcome(((0.0,),)))
