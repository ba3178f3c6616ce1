"""The arm: where its hand is, SciPy's success, and who gets out of a far start."""

from __future__ import annotations

import math

import pytest
import torch

from pseudograd_tasks import kinematics
from pseudograd_tasks.kinematics import KINEMATICS

from .running import headline, run


def test_where_the_hand_is() -> None:
    straight = kinematics.hand(torch.zeros(5, dtype=torch.float64))
    assert torch.allclose(straight, torch.tensor([3.1, 0.0], dtype=torch.float64))
    bent = kinematics.hand(torch.tensor([1.0, 0, 0, 0, -1.0], dtype=torch.float64))
    x = 2.8 * math.cos(1.2) + 0.3 * math.cos(0.2)
    y = 2.8 * math.sin(1.2) + 0.3 * math.sin(0.2)
    assert torch.allclose(bent, torch.tensor([x, y], dtype=torch.float64))


@pytest.mark.program
def test_scipy_reaches_nearly_all() -> None:
    assert float(kinematics.scipy_reaches().double().mean()) == pytest.approx(0.96, abs=0.02)


@pytest.mark.program
def test_inward_and_project_get_out_of_a_far_start() -> None:
    assert headline(KINEMATICS, "Adam", "inward") >= 0.65
    assert headline(KINEMATICS, "Adam", "project") >= 0.88
    assert headline(KINEMATICS, "Adam", "zero/closed") <= 0.1


def test_a_seed_is_a_group_of_targets() -> None:
    measured = run(KINEMATICS, "gradient descent", "inward")
    assert measured.numbers["reached"] == pytest.approx(0.445, abs=0.011)
    assert len(measured.seeds) == kinematics.DRAWS
    assert all(math.isclose(value * 10, round(value * 10)) for value in measured.seeds)
