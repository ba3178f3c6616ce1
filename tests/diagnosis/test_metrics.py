"""What a logger gets: a flat dict of floats, with the numbers of the records."""

import json
from typing import Any

import pytest
import torch
from torch import nn

from pseudograd import diagnose
from pseudograd.diagnosis.context import Diagnosis
from pseudograd.diagnosis.judge.findings import KINDS
from pseudograd.diagnosis.processes import ProgramReport, fields_of

from .checks import diagnosed, site_of


def _diagnosed(**options: Any) -> Diagnosis:
    """Of four gains one stands inside its clamp; the last weight is never used."""
    net = nn.ParameterDict({"gain": torch.tensor([0.5, 2.0, 3.0, -1.0]), "unused": torch.ones(2)})
    weights = torch.tensor([1.0, 2.0, -2.0, 1.0])
    return diagnosed(lambda: (net["gain"].clamp(0, 1) * weights).relu().sum(), net, **options)


def _named(numbers: dict[str, float], start: str) -> dict[str, float]:
    return {key: value for key, value in numbers.items() if key.startswith(f"pseudograd/{start}/")}


def test_the_numbers_are_those_of_the_records() -> None:
    d = _diagnosed()
    numbers, site = d.metrics(), site_of(d, "clamp")
    # What arrives: 1 and 2 (relu cuts the third and the fourth, which are -2 and 0); of these 2 is cut, and leads back inside.
    assert (site.arrived, site.cut) == (2, 1)
    expected = {f"cut/{site.where}": 0.5, f"recoverable/{site.where}": 1.0, f"at_bound/{site.where}": 0.0}
    expected |= {"backwards": 1.0, "starved": 1.0, "norm/gain": 1.0, "findings": float(len(d.findings))}
    for kind in KINDS:
        expected[f"findings/{kind.code}"] = float(sum(finding.code == kind.code for finding in d.findings))
    assert {name: numbers[f"pseudograd/{name}"] for name in expected} == expected
    assert len(_named(numbers, "cut")) == 1  # a relu is no news
    assert all(type(key) is str and type(value) is float for key, value in numbers.items())
    assert json.loads(json.dumps(numbers)) == numbers
    assert ProgramReport(fields_of(d)).metrics() == numbers


def test_counts_alone_have_no_sides_and_no_norms() -> None:
    numbers = _diagnosed(detail="counts").metrics()
    assert [bool(_named(numbers, name)) for name in ("cut", "recoverable", "norm")] == [True, False, False]


def test_nothing_seen_has_the_same_counts_and_they_are_zero() -> None:
    with diagnose() as d:
        pass
    assert set(d.metrics()) <= set(_diagnosed().metrics())
    assert set(d.metrics().values()) == {0.0}


def test_a_sensitivity_is_that_of_all_lines_of_the_last_step() -> None:
    """|x| at 0: JAX hands on grad, torch 0; the rest of the gradient is 2 in the first step, 4 in the second. At two lines."""
    net = nn.ParameterDict({"p": torch.zeros(1), "q": torch.zeros(1)})
    with diagnose(net, sensitivity=True) as d:
        for rest in (2.0, 4.0):
            net.zero_grad()
            first = net["p"].abs()
            second = net["q"].abs() * 3
            (first + second + rest * (net["p"] + net["q"])).sum().backward()
    expected = {"abs": (1**2 + 3**2) ** 0.5 / (4**2 + 4**2) ** 0.5, "abs/p": 1 / 4, "abs/q": 3 / 4}
    numbers = {f"pseudograd/sensitivity/{name}": value for name, value in expected.items()}
    assert _named(d.metrics(), "sensitivity") == pytest.approx(numbers)


def test_a_path_says_no_machine() -> None:
    code = compile("x.clamp(0, 1).sum().backward()", "/somewhere/else/models/gate.py", "exec")
    with diagnose() as d:
        exec(code, {"x": torch.tensor([2.0], requires_grad=True)})
    assert "pseudograd/cut/models/gate.py:1" in d.metrics()
