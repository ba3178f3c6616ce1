"""Rounding that a training magnifies is called that, with figures; what differs before it is still named. References are plain Python."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch

from pseudograd_upgrade.changing import shake
from pseudograd_upgrade.differences import Comparison, compare_events, first_loss
from pseudograd_upgrade.growth import explain_equality, explain_growth, may_have_grown
from pseudograd_upgrade.recording import Recording, read_content

from ..commands import answer

SITE = ["forward", "sign", "train.py:1", "train.py:1", "sign(x)"]
NOTHING = Comparison(None, 0.0, 0)


def run(*losses: float, more: tuple[Recording, ...] = (), event: float = 1.0) -> Recording:
    """losses: by step. event: what the one call of step 2 returned."""
    kept = [(0, "", [(1, "float32 [4]", (event, abs(event), event / 2, 4.0))])]
    found = read_content({"torch": "2.13.0", "sites": [SITE], "steps": {2: kept}, "losses": [[one] for one in losses]})
    return Recording(found.torch, found.losses, found.steps, more=more)


OLD = run(1.0, 1.0, 1.0, 1.0)


def test_further_runs_of_rounding_count_as_the_first_does() -> None:
    new, quiet = run(1.0, 1.0, 1.3, 1.3, event=1.5), run(1.0, 1.0, 1.0, 1.0)
    assert first_loss(OLD, new, quiet) == 3
    assert compare_events(OLD, new, quiet).first is not None
    both = run(1.0, 1.0, 1.0, 1.0, more=(run(1.0, 1.0, 1.1, 1.2, event=1.2),))
    assert first_loss(OLD, new, both) is None
    assert compare_events(OLD, new, both).first is None


def test_a_run_of_rounding_that_ends_sooner_explains_what_does() -> None:
    shorter = run(1.0, 1.0)
    assert first_loss(OLD, run(1.0, 1.0, 1.0)) == 4
    assert first_loss(OLD, run(1.0, 1.0, 1.0), shorter) is None


def test_asked_only_where_rounding_can_have_grown() -> None:
    early, late = (compare_events(OLD, run(1.0, event=2.0)).first, 1), (None, 3)
    assert may_have_grown(OLD, OLD, OLD, NOTHING, late[1])
    assert not may_have_grown(OLD, OLD, OLD, NOTHING, early[1])
    assert may_have_grown(OLD, OLD, OLD, Comparison(early[0], 0.0, 0), None)  # the event of step 2
    assert not may_have_grown(OLD, OLD, OLD, NOTHING, None)
    gradual = run(1.0, 1.0 + 9e-6, 1.0 + 9e-5, 1.0 + 9e-4)
    assert first_loss(OLD, gradual) is None
    assert may_have_grown(OLD, gradual, OLD, NOTHING, None)
    assert not may_have_grown(OLD, gradual, gradual, NOTHING, None)


def test_the_figures_are_those_of_the_losses() -> None:
    new, noise = run(1.0, 1.0, 1.25, 0.9), run(1.0, 1.0, 1.0, 1.0, more=(run(1.0, 0.96, 0.75, 0.8),))
    found = explain_growth(OLD, new, noise)
    assert found is not None
    assert found.is_rounding
    assert found.why == (
        "the losses of the two part from step 3 on, by up to 20 %",
        "under torch 2.13.0 alone they do, too: with parameters moved by roundings from step 2 on, by up to 25 %",
        "before step 3 they are alike to 1e-05; what else differs from step 3 on, and no further, cannot be told from this",
    )


def test_what_rounding_does_not_explain_is_not_called_rounding() -> None:
    gradual = run(1.0, 1.0 + 9e-6, 1.0 + 9e-5, 1.0 + 9e-4)
    shaken = run(1.0, 1.0, 1.0, 1.0 + 1e-6)
    found = explain_growth(OLD, gradual, run(1.0, 1.0, 1.0, 1.0, more=(shaken,)))
    assert found is not None
    assert not found.is_rounding
    assert found.why[0].startswith("the losses of the two part from step 3 on, by up to 0.09 %, little by little")
    assert explain_growth(OLD, run(1.0, 1.0, 1.0 + 1e-6, 1.0), shaken) is None


def test_mended_is_equal_or_it_is_said_how_far_not() -> None:
    assert explain_equality(OLD, OLD).startswith("the losses are equal")
    assert "no more than by another order of sums: the losses by up to 25 %" in explain_equality(
        OLD, run(1.0, 0.75, 1.0, 1.0)
    )


@pytest.mark.parametrize(("dtype", "epsilon"), [(torch.float32, 2.0**-23), (torch.float64, 2.0**-52)])
def test_a_parameter_moves_by_sixteen_roundings_at_most(dtype: torch.dtype, epsilon: float) -> None:
    before = torch.linspace(-3, 5, 1000, dtype=dtype)
    after = torch.nn.Parameter(before.clone())
    state = torch.get_rng_state()
    shake(after, torch.Generator().manual_seed(1))
    assert torch.equal(torch.get_rng_state(), state)
    moved = [abs(b - a) / abs(a) for a, b in zip(before.tolist(), after.tolist(), strict=True)]
    assert 14 * epsilon < max(moved) <= 17 * epsilon
    assert sum(moved) / len(moved) == pytest.approx(8 * epsilon, rel=0.1)
    up = sum(abs(b) < abs(a) for b, a in zip(before.tolist(), after.tolist(), strict=True))
    assert 400 < up < 600


def test_sixteen_bits_stay() -> None:
    parameter = torch.nn.Parameter(torch.ones(100, dtype=torch.bfloat16))
    shake(parameter, torch.Generator().manual_seed(1))
    assert torch.equal(parameter.detach(), torch.ones(100, dtype=torch.bfloat16))


# --- whole programs ---------------------------------------------------------------------------------------------------

STEPS, STRENGTH = 80, 3.9
LOGISTIC = """\
import sys
import torch
which, at, factor = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
with open("ran", "a") as file:
    file.write("x")
is_planted = len(open("ran").read()) == which
w = torch.nn.Parameter(torch.tensor(0.3, dtype=torch.float64))
optimiser = torch.optim.SGD([w], lr=1.0)
for step in range(1, 81):
    with torch.no_grad():
        w.mul_(factor if is_planted and step == at else 1.0)
        move = w - 3.9 * w * (1 - w)
    optimiser.zero_grad()
    (w * move).backward()
    optimiser.step()
"""


def losses(at: int = 0, factor: float = 1.0) -> list[float]:
    """Of the logistic map: chaos, in which a rounding doubles every second step."""
    w, found = 0.3, []
    for step in range(1, STEPS + 1):
        w *= factor if step == at else 1.0
        move = w - STRENGTH * w * (1 - w)
        found.append(w * move)
        w -= move
    return found


def parting(one: list[float], other: list[float]) -> tuple[int, float]:
    apart = [abs(a - b) / max(abs(a), abs(b)) for a, b in zip(one, other, strict=True)]
    return next(at for at, far in enumerate(apart, start=1) if far > 1e-5), max(apart)


@pytest.fixture(autouse=True)
def _train(_folder: None) -> None:
    Path("train.py").write_text(LOGISTIC, encoding="utf-8")


ROUNDED = 1 + 2.0**-50  # four roundings


@pytest.mark.program
def test_chaos_is_called_rounding_that_grew(capfd: pytest.CaptureFixture[str]) -> None:
    both = ("--from", sys.executable, "--to", sys.executable)
    status, out, err = answer(capfd, "upgrade", *both, "train.py", "2", "3", repr(ROUNDED))
    step, most = parting(losses(), losses(3, ROUNDED))
    assert 20 < step < 70
    assert most > 0.5
    assert status == 0, out + err
    assert ": rounding, magnified by the program; 4 runs" in out.splitlines()[0], out
    assert f"the losses of the two part from step {step} on, by up to {100 * most:.2g} %" in out
    assert "alone they do, too: with parameters moved by roundings from step " in out
    assert f"before step {step} they are alike to 1e-05; " in out


@pytest.mark.program
def test_a_real_difference_before_chaos_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    both = ("--from", sys.executable, "--to", sys.executable)
    status, out, err = answer(capfd, "upgrade", *both, "train.py", "2", "3", "1.001")
    assert math.isclose(abs(losses(3, 1.001)[2] / losses()[2]), 1.0, rel_tol=0.1)
    assert status == 1, out + err
    assert ": another op; " in out.splitlines()[0], out
    assert "train.py:11  step 3, forward of mul_" in out


@pytest.mark.program
def test_a_file_of_digests_knows_what_rounding_becomes(capfd: pytest.CaptureFixture[str]) -> None:
    program = ("train.py", "4", "3", repr(ROUNDED))
    status, out, err = answer(capfd, "upgrade", "--from", sys.executable, "--keep", "kept", *program)
    assert status == 0, out + err
    assert "run 3: " in err
    assert "parameters moved by roundings" in err
    status, out, err = answer(capfd, "upgrade", "--against", "kept", "--to", sys.executable, *program)
    step, most = parting(losses(), losses(3, ROUNDED))
    assert status == 0, out + err
    assert ": rounding, magnified by the program; 1 run," in out.splitlines()[0], out
    assert f"from step {step} on, by up to {100 * most:.2g} %" in out
