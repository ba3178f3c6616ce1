"""Thresholds of jumprelu whose window holds no x: found, counted, and told what would help."""

from __future__ import annotations

import functools
import re

import pytest
import torch
from torch import Tensor, nn

import pseudograd as pg
from pseudograd.diagnosis.context import Diagnosis
from pseudograd.diagnosis.records import Finding


class Autoencoder(nn.Module):
    def __init__(self, features: int = 512, start: float = 0.1) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(64, features), nn.Linear(features, 64)
        self.threshold = nn.Parameter(torch.full((features,), start))

    def forward(self, x: Tensor, bandwidth: float, rule: str = "window") -> Tensor:
        return self.decoder(pg.jumprelu(self.encoder(x), self.threshold, bandwidth=bandwidth, rule=rule))


@functools.cache
def _diagnosed(bandwidth: float, rule: str = "window", steps: int = 4) -> Diagnosis:
    torch.manual_seed(0)
    model = Autoencoder()
    with pg.diagnose(model) as d:
        for _ in range(steps):
            x = torch.randn(32, 64)
            (model(x, bandwidth, rule) - x).square().mean().backward()
    assert d.errors == []
    return d


def _narrow(d: Diagnosis) -> list[Finding]:
    return [finding for finding in d.findings if "window of jumprelu" in finding.cause]


def _starving(d: Diagnosis) -> int:
    (window,) = [window for tally in d._recorder.tallies.values() for window in tally.windows.values()]
    return window.starving


def test_a_narrow_window_starves_most_thresholds() -> None:
    """At bandwidth 1e-3, the default of the papers, with values of x near 1. The count is that of the gradients."""
    torch.manual_seed(0)
    model, moved = Autoencoder(), torch.zeros(512, dtype=torch.bool)
    for _ in range(4):
        x = torch.randn(32, 64)
        model.zero_grad()
        (model(x, 1e-3) - x).square().mean().backward()
        assert model.threshold.grad is not None
        moved |= model.threshold.grad != 0
    d = _diagnosed(1e-3)
    (finding,) = _narrow(d)
    assert finding.code == "starved"
    assert finding.expression.startswith("pg.jumprelu(self.encoder(x), self.threshold")
    assert re.search(r"test_windows\.py:\d+$", finding.where)
    starving = 512 - int(moved.sum())
    assert finding.share == starving / 512 > 0.9
    assert finding.evidence.startswith(f"{starving} of 512 thresholds of threshold (")
    assert "got no gradient in any of 4 backward calls" in finding.evidence
    assert finding.cause.endswith("bandwidth=0.001")
    assert finding.next_step.startswith("bandwidth=")


def test_what_it_advises_helps() -> None:
    (finding,) = _narrow(_diagnosed(1e-3))
    advised = float(finding.next_step.split()[0].removeprefix("bandwidth="))
    assert not _narrow(_diagnosed(advised))
    assert _starving(_diagnosed(advised)) <= 0.11 * 512 < _starving(_diagnosed(1e-3))


@pytest.mark.parametrize(("bandwidth", "rule"), [(0.2, "window"), (1e-3, "arctan"), (1e-3, "zero")])
def test_no_finding_where_the_window_is_wide_or_none_was_asked_for(bandwidth: float, rule: str) -> None:
    """ "zero" is what somebody chose: it has no window that could be too narrow."""
    assert not _narrow(_diagnosed(bandwidth, rule))


@pytest.mark.parametrize("shape", [(), (8, 1), (6,)])
def test_thresholds_of_every_shape(shape: tuple[int, ...]) -> None:
    threshold = nn.Parameter(torch.full(shape, 30.0))
    x = torch.linspace(-1, 1, 192).reshape(4, 8, 6).requires_grad_()
    with pg.diagnose() as d:
        pg.jumprelu(x, threshold, bandwidth=0.5).sum().backward()
    assert d.errors == []
    (finding,) = _narrow(d)
    assert finding.evidence.startswith(f"{threshold.numel()} of {threshold.numel()} thresholds")
    assert finding.next_step.startswith(("bandwidth=5", "bandwidth=6"))  # from about 1 to 30, and twice that


def test_a_module_and_infinite_thresholds() -> None:
    layer = pg.nn.JumpReLU(nn.Parameter(torch.full((4,), torch.inf)), bandwidth=0.5)
    with pg.diagnose(layer) as d:
        layer(torch.randn(8, 4, requires_grad=True)).sum().backward()
    (finding,) = _narrow(d)
    assert finding.next_step.startswith("Compare the range of x with the thresholds")
