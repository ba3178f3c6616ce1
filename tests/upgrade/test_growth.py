"""Rounding that a training magnifies is called that, with figures; a difference before it is still named. References are plain Python."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pseudograd_upgrade.changing import shake
from pseudograd_upgrade.differences import Comparison, compare_events, first_loss
from pseudograd_upgrade.growth import explain_equality, explain_growth, may_have_grown
from pseudograd_upgrade.recording import Recording

from ..commands import answer
from . import by_hand

NOTHING = Comparison(None, 0.0, 0)


def run(*losses: float, more: tuple[Recording, ...] = (), event: float = 1.0) -> Recording:
    """losses: by step. event: what the one call of step 2 returned."""
    return replace(by_hand.run((0, event), losses=losses, step=2), more=more)


OLD = run(1.0, 1.0, 1.0, 1.0)
GRADUAL = run(1.0, 1.0 + 9e-6, 1.0 + 9e-5, 1.0 + 9e-4)


def test_further_runs_of_rounding_count_as_the_first_does() -> None:
    new, quiet = run(1.0, 1.0, 1.3, 1.3, event=1.5), run(1.0, 1.0, 1.0, 1.0)
    assert first_loss(OLD, new, quiet) == 3
    assert compare_events(OLD, new, quiet).first is not None
    both = run(1.0, 1.0, 1.0, 1.0, more=(run(1.0, 1.0, 1.1, 1.2, event=1.2),))
    assert first_loss(OLD, new, both) is None
    assert compare_events(OLD, new, both).first is None
    assert first_loss(OLD, run(1.0, 1.0, 1.0)) == 4
    assert first_loss(OLD, run(1.0, 1.0, 1.0), run(1.0, 1.0)) is None, "a run of rounding that ends sooner explains it"


def test_a_further_run_is_made_only_where_rounding_can_have_grown() -> None:
    late = compare_events(OLD, run(1.0, event=2.0))  # the event of step 2
    assert may_have_grown(OLD, OLD, OLD, NOTHING, 3)
    assert may_have_grown(OLD, OLD, OLD, late, None)
    assert not may_have_grown(OLD, OLD, OLD, NOTHING, 1)
    assert not may_have_grown(OLD, OLD, OLD, NOTHING, None)
    assert first_loss(OLD, GRADUAL) is None
    assert may_have_grown(OLD, GRADUAL, OLD, NOTHING, None)
    assert not may_have_grown(OLD, GRADUAL, GRADUAL, NOTHING, None)


def test_the_figures_are_those_of_the_losses() -> None:
    new, noise = run(1.0, 1.0, 1.25, 0.9), run(1.0, 1.0, 1.0, 1.0, more=(run(1.0, 0.96, 0.75, 0.8),))
    growth = explain_growth(OLD, new, noise)
    assert growth is not None
    assert growth.is_rounding
    assert growth.why == (
        "the losses of the two part from step 3 on, by up to 20 %",
        "under torch 2.13.0 alone they do, too: with parameters moved by roundings from step 2 on, by up to 25 %",
        "before step 3 they are alike to 1e-05; what else differs from step 3 on, and no further, cannot be told from this",
    )
    assert explain_equality(OLD, OLD).startswith("the losses are equal")
    assert "the losses by up to 25 %" in explain_equality(OLD, run(1.0, 0.75, 1.0, 1.0))


def test_a_difference_that_rounding_does_not_explain_is_not_called_rounding() -> None:
    shaken = run(1.0, 1.0, 1.0, 1.0 + 1e-6)
    growth = explain_growth(OLD, GRADUAL, run(1.0, 1.0, 1.0, 1.0, more=(shaken,)))
    assert growth is not None
    assert not growth.is_rounding
    assert growth.why[0].startswith("the losses of the two part from step 3 on, by up to 0.09 %, little by little")
    assert explain_growth(OLD, run(1.0, 1.0, 1.0 + 1e-6, 1.0), shaken) is None


@pytest.mark.parametrize(("dtype", "epsilon"), [(torch.float32, 2.0**-23), (torch.float64, 2.0**-52)])
def test_a_parameter_moves_by_sixteen_roundings_at_most(dtype: torch.dtype, epsilon: float) -> None:
    before = torch.linspace(-3, 5, 1000, dtype=dtype)
    after = torch.nn.Parameter(before.clone())
    state = torch.get_rng_state()
    shake(after, torch.Generator().manual_seed(1))
    assert torch.equal(torch.get_rng_state(), state)
    moves = [abs(b - a) / abs(a) for a, b in zip(before.tolist(), after.tolist(), strict=True)]
    assert 14 * epsilon < max(moves) <= 17 * epsilon
    assert sum(moves) / len(moves) == pytest.approx(8 * epsilon, rel=0.1)
    assert 400 < sum(abs(a) < abs(b) for a, b in zip(before.tolist(), after.tolist(), strict=True)) < 600


def test_sixteen_bits_stay() -> None:
    parameter = torch.nn.Parameter(torch.ones(100, dtype=torch.bfloat16))
    shake(parameter, torch.Generator().manual_seed(1))
    assert torch.equal(parameter.detach(), torch.ones(100, dtype=torch.bfloat16))


# --- whole programs ---------------------------------------------------------------------------------------------------

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
ROUNDED = 1 + 2.0**-50  # four roundings


def losses(at: int = 0, factor: float = 1.0) -> list[float]:
    """Of the logistic map: chaos, in which a rounding doubles every second step."""
    w, losses = 0.3, []
    for step in range(1, 81):
        w *= factor if step == at else 1.0
        move = w - 3.9 * w * (1 - w)
        losses.append(w * move)
        w -= move
    return losses


def parting() -> str:
    """From which step on the losses part, and how far."""
    apart = [abs(a - b) / max(abs(a), abs(b)) for a, b in zip(losses(), losses(3, ROUNDED), strict=True)]
    step = next(at for at, far in enumerate(apart, start=1) if far > 1e-5)
    assert 20 < step < 70
    assert max(apart) > 0.5
    return f"the losses of the two part from step {step} on, by up to {100 * max(apart):.2g} %"


@pytest.fixture(autouse=True)
def _train(_folder: None) -> None:
    Path("train.py").write_text(LOGISTIC, encoding="utf-8")


@pytest.mark.program
@pytest.mark.parametrize(
    ("factor", "status", "texts"),
    [
        (ROUNDED, 0, [": rounding, magnified by the program; 4 runs", parting(), "alone they do, too: with parameters moved"]),
        (1.001, 1, [": another op; ", "train.py:11  step 3, forward of mul_"]),
    ],
    ids=["chaos", "a real difference before chaos"],
)  # fmt: skip
def test_chaos_is_called_rounding_that_grew(
    capfd: pytest.CaptureFixture[str], factor: float, status: int, texts: list[str]
) -> None:
    both = ("--from", sys.executable, "--to", sys.executable)
    code, out, err = answer(capfd, "upgrade", *both, "train.py", "2", "3", repr(factor))
    assert code == status, out + err
    assert all(text in out for text in texts), out


@pytest.mark.program
def test_a_file_of_digests_knows_what_rounding_becomes(capfd: pytest.CaptureFixture[str]) -> None:
    program = ("train.py", "4", "3", repr(ROUNDED))
    status, out, err = answer(capfd, "upgrade", "--from", sys.executable, "--keep", "kept", *program)
    assert status == 0, out + err
    assert "run 3: " in err
    assert "parameters moved by roundings" in err
    status, out, err = answer(capfd, "upgrade", "--against", "kept", "--to", sys.executable, *program)
    assert status == 0, out + err
    assert ": rounding, magnified by the program; 1 run," in out.splitlines()[0], out
    assert parting() in out
