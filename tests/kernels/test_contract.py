"""The contract of the clamp family, whoever computes it and whatever it keeps."""

from __future__ import annotations

import pytest
import torch

from pseudograd.kernels.native import FROM_X
from pseudograd.rule import OPS
from pseudograd.testing.contract import values
from pseudograd.testing.contract.cases import Case, cases_of

from ..choices import one_in
from .ways import WAYS, way

SERVED = {name for _, name in FROM_X}
CASES = [
    case
    for op in ("clamp", "lower_bound", "upper_bound", "relu", "relu6", "hardtanh")
    for case in cases_of(OPS[op])
    if case.rule.name in SERVED
]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(("case", "dtype"), one_in(4, CASES, DTYPES))
def test_values_and_gradients(case: Case, dtype: torch.dtype, how: str) -> None:
    with way(how):
        values.check_forward(case, dtype)
        values.check_gradient(case, dtype)
        values.check_random(case, dtype)
        values.check_reduced(case, dtype)


@pytest.mark.parametrize("how", WAYS[:3])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_saved(case: Case, how: str) -> None:
    with way(how):
        values.check_saved(case)
