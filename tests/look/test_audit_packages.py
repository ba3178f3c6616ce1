"""Hand-written Functions of published packages, as they are installed: what an audit says of each."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

import pseudograd as pg


def _surrogate(name: str) -> Any:
    return getattr(pytest.importorskip("snntorch.surrogate"), name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("straight_through_estimator", 'heaviside(x, at_zero=0, rule="identity")'),
        ("atan", 'heaviside(x, at_zero=0, rule="arctan")'),
        ("fast_sigmoid", "heaviside(x, at_zero=0, rule=rules.fast_sigmoid(scale=0.04))"),
        ("triangular", None),  # its slope is 1 below the threshold and -1 above
        ("heaviside", None),
        ("spike_rate_escape", None),  # whose slope has its peak at 1
    ],
)
def test_surrogates_of_snntorch(name: str, expected: str | None) -> None:
    found = pg.audit(_surrogate(name)(), -1, 1)
    assert found.rule == expected
    assert [kink.low for kink in found.kinks] == [0]
    assert set(found.shares["grad > 0"]) <= {"pseudo", "flat"}


def test_the_sigmoid_of_snntorch_loses_gradients_in_float16() -> None:
    """exp(25 * 0.42), squared, is infinite there."""
    found = pg.audit(_surrogate("sigmoid")(), -1, 1)
    assert found.rule is None
    assert found.rule_note.startswith(
        "as heaviside(x, at_zero=0, rule=rules.sigmoid(scale=0.04)) in float64, but float16 loses"
    )
    assert found.float16.word == "underflows"
    assert found.bfloat16.word == "as float64"


def _lower_bound(bound: float) -> torch.nn.Module:
    """From its file alone: the package imports more than most people install."""
    spec = importlib.util.find_spec("compressai")
    if spec is None or spec.origin is None:
        pytest.skip("needs compressai")
    file = Path(spec.origin).parent / "ops" / "bound_ops.py"
    of_file = importlib.util.spec_from_file_location("bound_ops", file)
    assert of_file is not None
    assert of_file.loader is not None
    module = importlib.util.module_from_spec(of_file)
    of_file.loader.exec_module(module)
    made: torch.nn.Module = module.LowerBound(bound)
    return made


def test_the_lower_bound_of_compressai_is_inward() -> None:
    found = pg.audit(_lower_bound(0.5), -1, 2)
    assert found.rule == 'clamp(x, 0.5, rule="inward", edge="closed")'
    assert found.rule_note.startswith("at x = nan the slope is 0 instead of 1; grad = inf gives nan instead of 0")
    assert [(kink.low, kink.positive.least, kink.negative.least) for kink in found.kinks] == [(0.5, 1, 1)]
    assert (found.vmap.word, found.infinite_grad.word) == ("refused", "makes NaN")
    of_float32 = pg.audit(_lower_bound(0.11), -1, 2)
    assert [kink.low for kink in of_float32.kinks] == [torch.tensor(0.11).item()]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("RoundSteFn", 'round(x, rule="identity")'),
        ("FloorSteFn", 'floor(x, rule="identity")'),
        ("RoundToZeroSteFn", 'trunc(x, rule="identity")'),
        ("BinarySignSteFn", 'sign(x, at_zero=1, rule="identity")'),
        ("AbsBinarySignGradFn", "abs(x, edge=1)"),
        ("DPURoundSteFn", None),  # which rounds halves otherwise
    ],
)
def test_functions_of_brevitas(name: str, expected: str | None) -> None:
    ops = pytest.importorskip("brevitas.ops.autograd_ste_ops")
    assert pg.audit(getattr(ops, name), -3, 3, points=201).rule == expected


def test_clamps_of_brevitas_pass_everything() -> None:
    ops = pytest.importorskip("brevitas.ops.autograd_ste_ops")
    found = pg.audit(lambda x: ops.ScalarClampSteFn.apply(x, -1, 1), -3, 3, points=201)
    assert (found.rule, found.rule_note) == ('clamp(x, -1, 1, rule="identity")', "")
    ends = torch.tensor(-1.0), torch.tensor(1.0)
    in_place = pg.audit(lambda x: ops.InplaceTensorClampSteFn.apply(x, *ends), -3, 3, points=201)
    assert in_place.rule == found.rule
