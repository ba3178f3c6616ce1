"""Where max - min is not positive and finite, or a width makes it so, elastic and inverting act as inward."""

from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.testing.contract.equality import assert_same_values

from ..choices import folded

X = torch.tensor([-torch.inf, -1e38, -2.0, 0.0, 0.5, 2.0, 1e38, torch.inf, torch.nan])
RANGES: dict[str, tuple[Any, Any]] = {
    "one point": (0.5, 0.5),
    "infinite": (-torch.inf, torch.inf),
    "half infinite": (0.5, torch.inf),
    "too wide for the dtype": (-3e38, 3e38),
    "crossed": (torch.tensor(1.0), torch.tensor(-1.0)),
    "one point, as tensors": (torch.tensor(0.5), torch.tensor(0.5)),
}


def _gradient(low: Any, high: Any, rule: Any, grad: float) -> Tensor:
    return pg.gradient(lambda x: pg.clamp(x, low, high, rule=rule), X, grad)


@folded
@pytest.mark.parametrize("grad", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("rule", ["elastic", "inverting"])
@pytest.mark.parametrize("name", RANGES)
def test_acts_as_inward(name: str, rule: str, grad: float) -> None:
    low, high = RANGES[name]
    assert_same_values(_gradient(low, high, rule, grad), _gradient(low, high, "inward", grad), name, x=X)


@pytest.mark.parametrize("grad", [1.0, -1.0])
def test_a_width_too_wide_for_the_dtype_is_no_push_at_all(grad: float) -> None:
    """1e39 is infinite in single precision: at every distance, an infinite one too, nothing pushes back."""
    assert_same_values(_gradient(-1, 1, pg.rules.elastic(1e39), grad), _gradient(-1, 1, "inward", grad), "width", x=X)


@pytest.mark.parametrize("grad", [1.0, -1.0])
def test_a_width_too_small_for_the_dtype_is_the_whole_push(grad: float) -> None:
    """1e-50 is 0 in single precision: every distance is a whole width."""
    found = _gradient(-1, 1, pg.rules.elastic(1e-50), grad)
    outside = torch.where(X.abs() > 1, X.sign() * 1.0, grad)
    assert_same_values(found, torch.where(X.isnan(), grad, outside), "width", x=X)
