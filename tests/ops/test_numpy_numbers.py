"""Bounds as NumPy's scalars, and rule objects made by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pseudograd as pg
from pseudograd.rule import RuleChoice


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int64])
def test_numpy_scalars_are_numbers(kind: type) -> None:
    x = torch.tensor([-2.0, 0.5, 2.0], requires_grad=True)
    y = pg.clamp(x, kind(-1), kind(1), rule="zero")
    y.sum().backward()
    assert y.tolist() == [-1, 0.5, 1]
    assert x.grad is not None
    assert x.grad.tolist() == [0, 1, 0]


def test_a_numpy_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="clamp: min must not be NaN, got nan"):
        pg.clamp(torch.zeros(2), np.float32("nan"), 1)


@pytest.mark.parametrize("slope", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rule_object_made_by_hand_is_checked(slope: float) -> None:
    with pytest.raises(ValueError, match="leaky: slope must be finite and above 0"):
        pg.clamp(torch.zeros(2), -1, 1, rule=RuleChoice("leaky", (("slope", slope),)))
