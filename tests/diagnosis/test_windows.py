"""Thresholds of jumprelu whose window holds no x: found, counted, and told what would help."""

import functools

import pytest
import torch
from torch import nn

import pseudograd as pg
from pseudograd.diagnosis.context import Diagnosis
from pseudograd.diagnosis.count.windows import Windows
from pseudograd.diagnosis.records import Finding

from .checks import line_of


@functools.cache
def _diagnosed(bandwidth: float, rule: str = "window") -> tuple[Diagnosis, int]:
    """Of an autoencoder with values of x near 1; and the number of thresholds that never got a gradient."""
    torch.manual_seed(0)
    encoder, decoder, threshold = nn.Linear(64, 512), nn.Linear(512, 64), nn.Parameter(torch.full((512,), 0.1))
    moved = torch.zeros(512, dtype=torch.bool)
    with pg.diagnose(nn.ParameterDict({"threshold": threshold})) as d:
        for _ in range(4):
            x, threshold.grad = torch.randn(32, 64), None
            y = pg.jumprelu(encoder(x), threshold, bandwidth=bandwidth, rule=rule)
            (decoder(y) - x).square().mean().backward()
            moved |= threshold.grad != 0
    return d, 512 - int(moved.sum())


def _narrow(d: Diagnosis) -> list[Finding]:
    return [finding for finding in d.findings if "window of jumprelu" in finding.cause]


def test_a_narrow_window_starves_most_thresholds_and_the_advised_one_does_not() -> None:
    """At bandwidth 1e-3, the default of the papers."""
    d, starving = _diagnosed(1e-3)
    (finding,) = _narrow(d)
    assert finding.code == "starved"
    assert finding.expression.startswith("pg.jumprelu(encoder(x), threshold")
    assert finding.where.endswith(f":{line_of('y = pg.jumprelu')}")
    assert finding.share == starving / 512 > 0.9
    assert finding.evidence.startswith(f"{starving} of 512 thresholds of threshold (")
    assert "got no gradient in any of 4 backward calls" in finding.evidence
    assert finding.cause.endswith("bandwidth=0.001")
    better, starving = _diagnosed(float(finding.next_step.split()[0].removeprefix("bandwidth=")))
    assert (_narrow(better), starving <= 0.11 * 512) == ([], True)


@pytest.mark.parametrize(("bandwidth", "rule"), [(0.2, "window"), (1e-3, "arctan"), (1e-3, "zero")])
def test_no_finding_where_the_window_is_wide_or_none_was_asked_for(bandwidth: float, rule: str) -> None:
    """ "zero" is what somebody chose: it has no window that could be too narrow."""
    assert not _narrow(_diagnosed(bandwidth, rule)[0])


@pytest.mark.parametrize("shape", [(), (8, 1), (6,)])
def test_thresholds_of_every_shape(shape: tuple[int, ...]) -> None:
    threshold = nn.Parameter(torch.full(shape, 30.0))
    x = torch.linspace(-1, 1, 192).reshape(4, 8, 6).requires_grad_()
    with pg.diagnose() as d:
        pg.jumprelu(x, threshold, bandwidth=0.5).sum().backward()
    (finding,) = _narrow(d)
    assert finding.evidence.startswith(f"{threshold.numel()} of {threshold.numel()} thresholds")
    assert finding.next_step.startswith(("bandwidth=5", "bandwidth=6"))  # from about 1 to 30, and twice that


def test_what_a_window_reaches_is_not_starved_by_it() -> None:
    windows = Windows(torch.zeros(6))
    for far in (9.0, 0.0):
        x = torch.tensor([0.5, 0.5, 0.6, 2.0, 3.0, 4.0]) + far
        windows.add(torch.stack([x, -x - 1]), torch.zeros(6), 1.0, torch.tensor([far - 9, 0, 0, 0, far, 0]))
    assert (windows.calls, windows.thresholds, windows.starving, windows.is_narrow) == (2, 6, 3, True)
    assert (windows.distance, windows.wider) == (2.0, pytest.approx(7))


def test_a_module_and_infinite_thresholds() -> None:
    layer = pg.nn.JumpReLU(nn.Parameter(torch.full((4,), torch.inf)), bandwidth=0.5)
    with pg.diagnose(layer) as d:
        layer(torch.randn(8, 4, requires_grad=True)).sum().backward()
    (finding,) = _narrow(d)
    assert finding.next_step.startswith("Compare the range of x with the thresholds")
