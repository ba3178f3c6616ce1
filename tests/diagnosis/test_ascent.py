"""An optimiser that maximises adds the gradient: what leads back inside, and what to paste, is the other way round."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import pseudograd as pg
from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.context import Diagnosis

from . import trainers
from .checks import codes, only, site_of

TARGET = torch.linspace(-0.5, 0.5, 8)


def climb(bound: Callable[[Tensor], Tensor], steps: int = 40) -> tuple[Diagnosis, Tensor]:
    """Raise a value whose best argument is TARGET, from outside the range."""
    w = nn.Parameter(torch.full((8,), 1.5))
    optimizer = torch.optim.SGD([w], 0.1, maximize=True)
    d = trainers.steps(None, lambda: -(bound(w * 1) - TARGET).square().sum(), steps, optimizer)
    return d, w.detach()


def test_what_a_climb_would_bring_back_is_counted_and_the_pasted_call_brings_it_back() -> None:
    d, w = climb(lambda x: x.clamp(-1, 1))
    site = site_of(d, "clamp")
    assert (site.cut, site.recoverable) == (site.arrived, site.arrived)
    assert bool((w == 1.5).all())
    step = only(d, "starved").next_step
    assert step.startswith("pseudograd.clamp(..., maximize=True)")
    after, w = climb(lambda x: pg.clamp(x, -1, 1, maximize=True))
    assert codes(after) == []
    assert torch.allclose(w, TARGET, atol=0.05)


def test_a_multiplier_that_starts_at_its_bound_is_told_what_climbs() -> None:
    multiplier = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([multiplier], 0.1, maximize=True)
    d = trainers.steps(None, lambda: (multiplier.clamp(min=0) * 1.0 + 1.0).sum(), 3, optimizer)
    assert not any("leads further outside" in line for line in d.calm)
    assert all("inward passes" not in finding.evidence for finding in d.findings)


@pytest.mark.parametrize(("is_asked", "is_parameter"), [(True, True), (False, False), (False, True)])
def test_a_gradient_that_the_program_itself_uses_may_be_added(is_asked: bool, is_parameter: bool) -> None:
    x, shift = torch.linspace(-2, 2, 16), torch.zeros(16)
    shift = nn.Parameter(shift) if is_parameter else shift.requires_grad_()
    with diagnose() as d:
        for _ in range(3):
            loss = (x + shift).clamp(0, 1).square().sum()
            if is_asked:
                torch.autograd.grad(loss, shift)
            else:
                loss.backward()
    (finding,) = d.findings
    assert finding.next_step.startswith("If the program adds this gradient to x") == (is_asked or not is_parameter)
    evidence = " ".join((finding.evidence, *finding.also))
    assert ("inside, if the program subtracts this gradient" in evidence) == (is_asked or not is_parameter)
