"""What a logger gets: a flat dict of floats, with the numbers of the records."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from pseudograd import diagnose
from pseudograd.diagnosis.judge.findings import KINDS
from pseudograd.diagnosis.processes import fields_of
from pseudograd.diagnosis.tell.metrics import metrics_of
from pseudograd.diagnosis.tell.readable import ProgramReport


class Gated(nn.Module):
    """Of four gains one stands inside its clamp; the last weight is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor([0.5, 2.0, 3.0, -1.0]))
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self) -> torch.Tensor:
        return (self.gain.clamp(0, 1) * torch.tensor([1.0, 2.0, -2.0, 1.0])).relu().sum()


def _diagnosed(**how: Any) -> Any:
    torch.manual_seed(0)
    net = Gated()
    with diagnose(net, **how) as d:
        net().backward()
    return d


def test_the_numbers_are_those_of_the_records() -> None:
    d = _diagnosed()
    found = d.metrics()
    (line,) = {site.where for site in d.sites if site.op == "clamp"}
    site = next(site for site in d.sites if site.op == "clamp")
    # What arrives: 1 and 2 (relu cuts the third and the fourth, which are -2 and 0); of these 2 is cut, and leads back inside.
    assert (site.arrived, site.cut) == (2, 1)
    assert found[f"pseudograd/cut/{line}"] == 0.5
    assert found[f"pseudograd/recoverable/{line}"] == 1.0
    assert found[f"pseudograd/at_bound/{line}"] == 0.0
    assert found["pseudograd/backwards"] == 1.0
    assert found["pseudograd/starved"] == 1.0
    assert found["pseudograd/norm/gain"] == 1.0
    assert found["pseudograd/findings"] == len(d.findings) > 0
    for kind in KINDS:
        assert found[f"pseudograd/findings/{kind.code}"] == sum(one.code == kind.code for one in d.findings)


def test_it_is_flat_and_of_floats_and_a_relu_is_no_news() -> None:
    found = _diagnosed().metrics()
    assert all(type(key) is str and type(value) is float for key, value in found.items())
    assert json.loads(json.dumps(found)) == found
    assert sum(key.startswith("pseudograd/cut/") for key in found) == 1


def test_counts_alone_have_no_sides_and_no_norms() -> None:
    found = _diagnosed(detail="counts").metrics()
    assert any(key.startswith("pseudograd/cut/") for key in found)
    assert not any(key.startswith(("pseudograd/recoverable/", "pseudograd/norm/")) for key in found)


def test_nothing_seen_has_the_same_counts_and_they_are_zero() -> None:
    with diagnose() as d:
        pass
    found = d.metrics()
    assert set(found) <= set(_diagnosed().metrics())
    assert set(found.values()) == {0.0}


def test_a_sensitivity_is_that_of_all_lines_of_the_last_step() -> None:
    """|x| at 0: JAX hands on grad, torch 0; the rest of the gradient is 2 in the first step, 4 in the second. At two lines."""
    net = nn.Module()
    net.p, net.q = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    with diagnose(net, sensitivity=True) as d:
        for rest in (2.0, 4.0):
            net.zero_grad()
            first = net.p.abs()
            second = net.q.abs() * 3
            (first + second + rest * (net.p + net.q)).sum().backward()
    found = {key: value for key, value in d.metrics().items() if key.startswith("pseudograd/sensitivity/")}
    assert found == pytest.approx(
        {
            "pseudograd/sensitivity/abs": (1**2 + 3**2) ** 0.5 / (4**2 + 4**2) ** 0.5,
            "pseudograd/sensitivity/abs/p": 1 / 4,
            "pseudograd/sensitivity/abs/q": 3 / 4,
        }
    )


def test_ops_at_one_line_are_counted_together() -> None:
    x = torch.tensor([2.0, 0.5, 0.5], requires_grad=True)
    with diagnose() as d:
        (x.clamp(0, 1) + x.clamp(0, 0.6)).sum().backward()
    cuts = [value for key, value in d.metrics().items() if key.startswith("pseudograd/cut/")]
    assert cuts == [2 / 6]


def test_a_path_says_no_machine() -> None:
    code = compile("y = x.clamp(0, 1)", "/somewhere/else/models/gate.py", "exec")
    names: dict[str, Any] = {"x": torch.tensor([2.0], requires_grad=True)}
    with diagnose() as d:
        exec(code, names)
        names["y"].sum().backward()
    assert "pseudograd/cut/models/gate.py:1" in d.metrics()


def test_what_processes_found_together_has_them_too() -> None:
    d = _diagnosed()
    assert ProgramReport(fields_of(d)).metrics() == metrics_of(d) == d.metrics()
