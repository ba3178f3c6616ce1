"""The contract of the clamp family and of steps, whoever computes it and whatever it keeps."""

from __future__ import annotations

import os

import pytest
import torch

from pseudograd.kernels import native
from pseudograd.rule import OPS
from pseudograd.testing.contract import values
from pseudograd.testing.contract.cases import Case, cases_of
from pseudograd.testing.measure.gradients import gradient_by_backward, gradient_by_backward_of_first
from pseudograd.testing.measure.inputs import special_pairs

from ..choices import folded
from ..contract.cases import cells_of, with_a_third_of_the_samples
from .ways import DTYPES, WAYS, way

CASES = [
    case
    for op in ("clamp", "lower_bound", "upper_bound", "relu", "relu6", "hardtanh", "sign", "heaviside")
    for case in cases_of(OPS[op])
    if case.rule.sides is not None or case.rule.curve is not None
]


@folded
@pytest.mark.parametrize(("case", "dtype", "how"), [*with_a_third_of_the_samples(cells_of(CASES, DTYPES, WAYS))])
def test_values_and_gradients(case: Case, dtype: torch.dtype, how: str) -> None:
    """Of what this way prefers; tests/contract compares each kernel alone."""
    units = values.Units(case.ulps, 0.0)
    with way(how):
        values.check_forward(case, dtype)
        values.check_reduced(case, dtype)
        for sample in case.samples()[:1]:
            inputs, grad = special_pairs(sample.build(dtype), dtype)
            expected = values.reference_gradients(case, inputs, grad)
            for gradient in (gradient_by_backward_of_first, gradient_by_backward):
                ours = gradient(case.function(), inputs, grad)
                what = f"{sample.name}, {gradient.__name__}"
                values.assert_equals_reference(ours, expected[: len(ours)], inputs, grad, what, units)


@folded
@pytest.mark.parametrize(("case", "how"), cells_of(CASES, WAYS[:3]))
def test_what_is_saved(case: Case, how: str) -> None:
    with way(how):
        values.check_saved(case)


def test_a_native_library_for_this_torch_is_used() -> None:
    """Else every test of it would be left out, and nobody would know."""
    if native.LIBRARY.exists() and os.environ.get("PSEUDOGRAD_NATIVE", "") != "0" and torch.__version__ >= (2, 10):
        assert native.status()["state"] == "active", native.status()["why"]
