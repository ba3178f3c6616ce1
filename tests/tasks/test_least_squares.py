"""Box least squares, standing and moving: the problems, SciPy's answers, and who reaches them."""

from __future__ import annotations

import pytest
import torch

from pseudograd_tasks import least_squares, moving_target
from pseudograd_tasks.least_squares import LEAST_SQUARES, WORLD
from pseudograd_tasks.moving_target import MOVING_TARGET

from .running import headline, run


def test_the_answers_are_minima_of_the_box() -> None:
    """The gradient vanishes inside, and at a bound points out of the box: the conditions of Karush, Kuhn and Tucker."""
    for given in (least_squares.problems(), *moving_target.phases()):
        best = given.best
        residual = torch.stack([a @ c - b for a, c, b in zip(given.matrix, best, given.observed, strict=True)])
        grad = torch.stack([a.T @ r for a, r in zip(given.matrix, residual, strict=True)])
        rounding = 1e-9
        assert ((best >= -rounding) & (best <= 1 + rounding)).all()
        at_low, at_high = best < rounding, best > 1 - rounding
        assert grad[~at_low & ~at_high].abs().max() < 1e-8
        assert (grad[at_low] >= -1e-8).all()
        assert (grad[at_high] <= 1e-8).all()
        assert 0.5 < float((at_low | at_high).double().mean()) < 0.8


def test_the_problems_are_as_said() -> None:
    given = least_squares.problems()
    sizes = torch.linalg.svdvals(given.matrix)
    assert torch.allclose(sizes[:, 0], torch.ones(60, dtype=torch.float64))
    found = (sizes[:, 0] / sizes[:, -1]) ** 2
    assert torch.allclose(found, torch.tensor([10.0, 100.0, 1000.0], dtype=torch.float64).repeat_interleave(20))
    assert torch.equal(given.gap(given.best), torch.zeros(60, dtype=torch.float64))
    assert torch.allclose(given.gap(torch.full_like(given.best, 0.5)), torch.ones(60, dtype=torch.float64))
    later = moving_target.phases()
    assert all(torch.equal(later[0].matrix, one.matrix) for one in later[1:])
    assert not torch.equal(later[0].observed, later[1].observed)


@pytest.mark.parametrize(
    ("given", "rate"),
    [
        (least_squares.problems(), least_squares.RATE),
        (moving_target.phases()[0], moving_target.RATES["gradient descent"]),
    ],
    ids=["standing", "moving"],
)
def test_plain_descent_has_the_inverse_of_the_largest_curvature(given: least_squares.Problems, rate: float) -> None:
    """So what does not arrive is held up by the rule, and by no step that is too long."""
    curvatures = torch.linalg.eigvalsh(given.matrix.mT @ given.matrix)
    assert rate == pytest.approx(1 / float(curvatures.max()))


def test_arrivals() -> None:
    gap = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    assert least_squares.arrivals(gap).tolist() == [2, 3, 1]


@pytest.mark.program
def test_inward_and_project_solve_them_and_torch_clamp_none() -> None:
    found = {name: run(LEAST_SQUARES, WORLD, name) for name in ("inward", "project", "identity", "zero/closed")}
    solved = {name: measured.numbers["converged"] * 60 for name, measured in found.items()}
    assert solved["inward"] >= 58
    assert solved["project"] >= 58
    assert solved["identity"] >= 50
    assert solved["zero/closed"] == 0
    steps = {name: measured.numbers["steps"] for name, measured in found.items()}
    assert steps["project"] < 30 < steps["inward"] < 110
    assert all(len(measured.seeds) == 20 for measured in found.values())


@pytest.mark.program
def test_only_who_stays_near_keeps_up() -> None:
    inward, identity = (run(MOVING_TARGET, "gradient descent", name) for name in ("inward", "identity"))
    assert inward.numbers["kept_up"] == 1
    assert inward.numbers["stray"] < 2
    assert identity.numbers["kept_up"] == 0
    assert identity.numbers["steps_1"] < 30
    assert identity.numbers["stray"] > 100


@pytest.mark.slow
@pytest.mark.parametrize("world", moving_target.RATES)
def test_who_keeps_up(world: str) -> None:
    found = {name: headline(MOVING_TARGET, world, name) for name in ("inward", "project", "elastic", "leaky", "sign")}
    assert found == {"inward": 1, "project": 1, "elastic": 1, "leaky": 0, "sign": 0}
    for era in ("zero/closed", "zero/open"):
        assert headline(MOVING_TARGET, world, era) == 0
