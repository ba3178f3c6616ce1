"""The kink table: its values by hand and by finite differences, neither of which uses torch; its schema; how it is read and joined."""

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pseudograd_kinks import table
from pseudograd_kinks.outcome import Outcome

from ..choices import folded

TABLE = table.load()
STORED: dict[str, Any] = json.loads(table.FILE.read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(json.loads(table.FILE.with_name("schema.json").read_text(encoding="utf-8")))


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


def test_without_new_measurements_the_table_stays_as_it_is(script: Callable[[str], Any], tmp_path: Path) -> None:
    """A machine without JAX can measure torch, and keep the rest."""
    assert script("collect_kinks")._join(tmp_path) == STORED


@pytest.mark.parametrize(
    ("value", "dtype", "apart"),
    [
        (1.0, "float32", 1e-4),
        (0.0, "float32", 1e-5),
        (1.0, "float16", 4e-3),
        (1.0, "bfloat16", 3e-2),
    ],
)
def test_gradients_are_the_same_up_to_rounding(value: float, dtype: str, apart: float) -> None:
    for share, are_same in ((0.97, True), (1.05, False)):
        other = Outcome(((value + share * apart,),))
        assert Outcome(((value,),)).same_as(other, dtype) == are_same


def test_the_table_is_as_the_schema_says() -> None:
    VALIDATOR.validate(STORED)
    assert len(STORED["points"]) >= 250


def test_a_wrong_row_is_found() -> None:
    for wrong in (
        {"kind": "corner"},
        {"id": "abs"},
        {"expressions": {}},
        *({"gradients": {"torch": [span]}} for span in (
            {"versions": "2.8", "gradient": [["one"]]}, {"versions": "new", "gradient": [[1.0]]}, {"versions": "2.8"},
        )),
        {"remark": "a key that nobody knows"},
    ):  # fmt: skip
        assert not VALIDATOR.is_valid({**STORED, "points": [{**STORED["points"][0], **wrong}]}), wrong


def test_every_change_between_versions_is_explained() -> None:
    for point in TABLE.points.values():
        starts = {".".join(map(str, span.first)) for span in point.spans["torch"][1:]}
        assert set(point.changes) == starts, point.id


def test_versions_of_a_point_follow_one_another_and_differ() -> None:
    for point in TABLE.points.values():
        for spans in point.spans.values():
            for span, later in itertools.pairwise(spans):
                assert span.last < later.first
                assert not span.outcome.same_as(later.outcome)


@pytest.mark.parametrize(
    ("mine", "theirs", "are_same"),
    [
        ([[0.0]], [[-0.0]], True),
        ([[math.nan]], [[math.nan]], True),
        ([[math.inf]], [[-math.inf]], False),
        ([[math.inf]], [[math.nan]], False),
        ([None], [[0.0]], False),
        ([[0.0, 1.0]], [[0.0]], False),
    ],
)
def test_when_two_gradients_are_the_same(mine: list[Any], theirs: list[Any], are_same: bool) -> None:
    a, b = (Outcome(tuple(None if row is None else tuple(row) for row in rows)) for rows in (mine, theirs))
    assert a.same_as(b) == b.same_as(a) == are_same
    assert Outcome.from_json(a.as_json()).same_as(a)


def test_no_gradient_has_the_effect_of_zeros_and_errors_are_compared_by_type() -> None:
    assert Outcome((None,)).has_same_effect_as(Outcome(((0.0, 0.0),)))
    assert not Outcome((None,)).has_same_effect_as(Outcome(((0.0, 1.0),)))
    assert not Outcome((None,)).has_same_effect_as(Outcome((None, (0.0,))))
    assert not Outcome((None,)).has_same_effect_as(Outcome(error="RuntimeError: x"))
    assert Outcome((None, (1.0,))).has_same_effect_as(Outcome(((0.0,), (1.0,))))
    assert Outcome(error="RuntimeError: old words").same_as(Outcome(error="RuntimeError: new words"))
    assert not Outcome(error="RuntimeError: x").same_as(Outcome(((0.0,),)))


_STEP = 1e-7
_SELU_SCALE, _SELU_ALPHA = 1.0507009873554805, 1.6732632423543772
# Keras writes celu with a maximum and a minimum, and TensorFlow passes the whole gradient through both where they tie.
OUTSIDE = {("celu(2)@0", "tensorflow"): 2.0}
# The functions for one number, written apart.
FUNCTIONS: dict[str, Callable[[float], float]] = {
    "abs": abs,
    "relu": lambda x: x if x > 0 else 0.0,
    "relu6": lambda x: min(max(x, 0.0), 6.0),
    "leaky_relu(0.1)": lambda x: x if x > 0 else 0.1 * x,
    "elu(2)": lambda x: x if x > 0 else 2 * math.expm1(x),
    "celu(2)": lambda x: x if x > 0 else 2 * math.expm1(x / 2),
    "selu": lambda x: _SELU_SCALE * (x if x > 0 else _SELU_ALPHA * math.expm1(x)),
    "hardtanh": lambda x: min(max(x, -1.0), 1.0),
    "hardsigmoid": lambda x: min(max(x / 6 + 0.5, 0.0), 1.0),
    "hardswish": lambda x: x * min(max(x / 6 + 0.5, 0.0), 1.0),
    "softshrink(0.5)": lambda x: x - 0.5 if x > 0.5 else x + 0.5 if x < -0.5 else 0.0,
    "clamp(0,1)": lambda x: min(max(x, 0.0), 1.0),
    "clamp(min=0)": lambda x: max(x, 0.0),
    "clamp(max=0)": lambda x: min(x, 0.0),
    "maximum(x,0)": lambda x: max(x, 0.0),
    "minimum(x,0)": lambda x: min(x, 0.0),
    "max(x,-x)": abs,
    "logit(eps=0.25)": lambda x: math.log(min(max(x, 0.25), 0.75) / (1 - min(max(x, 0.25), 0.75))),
    "softplus": lambda x: math.log1p(math.exp(x)),
    "sinc": lambda x: math.sin(math.pi * x) / (math.pi * x) if x else 1.0,
}
SLOPES = [
    point
    for point in TABLE.points.values()
    if point.id.partition("@")[0] in FUNCTIONS and math.isfinite(point.inputs[0][0])
]


@folded
@pytest.mark.parametrize("point", SLOPES, ids=lambda point: point.id)
def test_every_convention_at_a_kink_is_between_the_slopes_of_its_sides(point) -> None:  # type: ignore[no-untyped-def]
    f, (x,) = FUNCTIONS[point.id.partition("@")[0]], point.inputs[0]
    slopes = sorted([(f(x) - f(x - _STEP)) / _STEP, (f(x + _STEP) - f(x)) / _STEP])
    assert point.spans
    for framework, spans in point.spans.items():
        for span in spans:
            ((slope,),) = span.outcome.gradient
            if (point.id, framework) in OUTSIDE:
                assert slope == OUTSIDE[point.id, framework]
                continue
            assert slopes[0] - 1e-5 <= slope <= slopes[1] + 1e-5, (span, slopes)


INF = math.inf
# By point, and by framework and version.
BY_HAND: dict[str, dict[str, list[list[float]] | None]] = {
    "clamp(0,1)@0": {
        "torch 2.13": [[1.0]], "torch 2.9": [[1.0]], "torch 2.14.1+cpu": [[0.0]], "torch": [[0.0]], "torch 2.7": None, "torch 2.99": None,
        "jax 0.10": [[0.5]], "tensorflow": [[1.0]],
    },
    "clamp(tensors)@min": {"torch 2.15": [[0.5], [0.5], [0.0]]},
    "maximum@tie": {"tensorflow": [[1.0], [0.0]], "torch 2.8": [[0.5], [0.5]]}, "heaviside@0": {"torch": None},
    "fmax@tie": {"tensorflow": None, "torch 2.13": [[1.0], [0.0]], "jax": [[0.0], [1.0]]}, "relu@0": {"torch 2.8": [[0.0]]},
    "leaky_relu(0.1)@0": {"jax": [[1.0]], "torch 2.15": [[0.1]]}, "abs@0": {"jax": [[1.0]]},
    "clamp(0,1)@1": {"torch 2.10": [[1.0]], "torch 2.15": [[0.0]], "jax": [[0.5]]},
    "clamp(tensors)@max": {"torch 2.13": [[1.0], [0.0], [0.0]], "torch 2.14": [[0.5], [0.0], [0.5]]},
    "fmax@nan,0": {"torch 2.14": [[1.0], [1.0]], "torch 2.15": [[0.0], [1.0]]},
    "sqrt(clamp(min=0))@0": {"torch 2.8": [[INF]], "torch 2.15": [[0.0]], "tensorflow": [[INF]]},
    "amax@tie": {"torch": [[0.5, 0.5, 0.0]]}, "max(dim)@tie": {"torch": [[1.0, 0.0, 0.0]], "jax": [[0.5, 0.5, 0.0]]},
    "prod@one zero": {"torch": [[6.0, 0.0, 0.0]]},
    "cumprod@two zeros": {"torch": [[1.0, 2.0, 0.0, 0.0]], "tensorflow": [[1.0, 0.0, 0.0, 0.0]]},
    "vector_norm(2)@one zero": {"torch": [[1.0, 0.0]]}, "vector_norm(2)@0": {"torch": [[0.0, 0.0]]},
    "margin_ranking_loss@tie": {"torch 2.13": [[-1.0], [1.0]], "torch 2.15": [[0.0], [0.0]]},
    "hinge_embedding_loss@margin": {"torch 2.13": [[-1.0]], "torch 2.14": [[0.0]]},
    "normalize(eps=5)@norm=eps": {"torch 2.13": [[0.128, -0.096]], "torch 2.15": [[0.2, 0.0]]},
    "huber_loss(2)@delta": {"torch": [[2.0], [-2.0]]}, "logsumexp@-inf": {"torch": [[0.0, 1.0]]}, "pow@0,1": {"torch": [[1.0], [0.0]]},
}  # fmt: skip


@folded
@pytest.mark.parametrize("id", BY_HAND)
def test_values_that_are_known_by_hand(id: str) -> None:
    """None where the framework raises, lacks the function, or was not measured. A version between two that do the same does the same."""
    for version, expected in BY_HAND[id].items():
        gradient = TABLE.points[id].gradient(*version.split())
        assert (gradient is None) == (expected is None), version
        for row, numbers in zip(gradient or (), expected or (), strict=True):
            assert row == pytest.approx(numbers, rel=1e-5, abs=1e-6), version


def test_where_slopes_are_infinite_they_are_kept_so() -> None:
    assert TABLE.points["sqrt@0"].gradient("torch") == TABLE.points["sqrt@0"].gradient("jax") == [[INF]]
    (row,) = TABLE.points["vector_norm(2)@0"].gradient("jax") or [[]]
    assert row
    assert all(map(math.isnan, row))
