"""The values of the table by hand and by finite differences: neither uses torch."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from pseudograd_kinks.table import load

TABLE = load()
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
    "clip(0,1)": lambda x: min(max(x, 0.0), 1.0),
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


@pytest.mark.parametrize("point", SLOPES, ids=lambda point: point.id)
def test_every_convention_at_a_kink_is_between_the_slopes_of_its_sides(point) -> None:  # type: ignore[no-untyped-def]
    f, (x,) = FUNCTIONS[point.id.partition("@")[0]], point.inputs[0]
    slopes = sorted([(f(x) - f(x - _STEP)) / _STEP, (f(x + _STEP) - f(x)) / _STEP])
    assert point.spans
    for framework, spans in point.spans.items():
        for span in spans:
            assert span.outcome.gradient is not None
            ((found,),) = span.outcome.gradient
            if (point.id, framework) in OUTSIDE:
                assert found == OUTSIDE[point.id, framework]
                continue
            assert slopes[0] - 1e-5 <= found <= slopes[1] + 1e-5, (span, slopes)


INF = math.inf
BY_HAND = [
    ("relu@0", "torch", "2.8", [[0.0]]),
    ("leaky_relu(0.1)@0", "jax", None, [[1.0]]),
    ("leaky_relu(0.1)@0", "torch", "2.15", [[0.1]]),
    ("abs@0", "jax", None, [[1.0]]),
    ("clamp(0,1)@1", "torch", "2.10", [[1.0]]),
    ("clamp(0,1)@1", "torch", "2.15", [[0.0]]),
    ("clamp(0,1)@1", "jax", None, [[0.5]]),
    ("clamp(tensors)@max", "torch", "2.13", [[1.0], [0.0], [0.0]]),
    ("clamp(tensors)@max", "torch", "2.14", [[0.5], [0.0], [0.5]]),
    ("maximum@tie", "torch", "2.8", [[0.5], [0.5]]),
    ("maximum@tie", "tensorflow", None, [[1.0], [0.0]]),
    ("fmax@tie", "torch", "2.13", [[1.0], [0.0]]),
    ("fmax@tie", "jax", None, [[0.0], [1.0]]),
    ("fmax@nan,0", "torch", "2.14", [[1.0], [1.0]]),
    ("fmax@nan,0", "torch", "2.15", [[0.0], [1.0]]),
    ("sqrt(clamp(min=0))@0", "torch", "2.8", [[INF]]),
    ("sqrt(clamp(min=0))@0", "torch", "2.15", [[0.0]]),
    ("sqrt(clamp(min=0))@0", "tensorflow", None, [[INF]]),
    ("amax@tie", "torch", None, [[0.5, 0.5, 0.0]]),
    ("max(dim)@tie", "torch", None, [[1.0, 0.0, 0.0]]),
    ("max(dim)@tie", "jax", None, [[0.5, 0.5, 0.0]]),
    ("prod@one zero", "torch", None, [[6.0, 0.0, 0.0]]),
    ("cumprod@two zeros", "torch", None, [[1.0, 2.0, 0.0, 0.0]]),
    ("cumprod@two zeros", "tensorflow", None, [[1.0, 0.0, 0.0, 0.0]]),
    ("vector_norm(2)@one zero", "torch", None, [[1.0, 0.0]]),
    ("vector_norm(2)@0", "torch", None, [[0.0, 0.0]]),
    ("margin_ranking_loss@tie", "torch", "2.13", [[-1.0], [1.0]]),
    ("margin_ranking_loss@tie", "torch", "2.15", [[0.0], [0.0]]),
    ("hinge_embedding_loss@margin", "torch", "2.13", [[-1.0]]),
    ("hinge_embedding_loss@margin", "torch", "2.14", [[0.0]]),
    ("normalize(eps=5)@norm=eps", "torch", "2.13", [[0.128, -0.096]]),
    ("normalize(eps=5)@norm=eps", "torch", "2.15", [[0.2, 0.0]]),
    ("huber_loss(2)@delta", "torch", None, [[2.0], [-2.0]]),
    ("logsumexp@-inf", "torch", None, [[0.0, 1.0]]),
    ("pow@0,1", "torch", None, [[1.0], [0.0]]),
]


@pytest.mark.parametrize(("id", "framework", "version", "expected"), BY_HAND)
def test_values_that_are_known_by_hand(
    id: str, framework: str, version: str | None, expected: list[list[float]]
) -> None:
    found = TABLE.points[id].gradient(framework, version)
    assert found is not None
    assert [len(row) for row in found] == [len(row) for row in expected]
    for row, numbers in zip(found, expected, strict=True):
        assert row == pytest.approx(numbers, rel=1e-5, abs=1e-6)


def test_where_slopes_are_infinite_they_are_kept_so() -> None:
    assert TABLE.points["sqrt@0"].gradient("torch") == [[INF]]
    assert TABLE.points["sqrt@0"].gradient("jax") == [[INF]]
    assert TABLE.points["vector_norm(2)@0"].gradient("jax") is not None
    assert all(math.isnan(value) for value in TABLE.points["vector_norm(2)@0"].gradient("jax")[0])  # type: ignore[index]
