"""The picture over the steps: its numbers, and what the page draws of them."""

import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from pseudograd import diagnose
from pseudograd.diagnosis.context import Diagnosis
from pseudograd.diagnosis.count.norms import share_of_zeros

from .. import browser
from .trainers import Parts


def _trained(steps: int = 12) -> tuple[Diagnosis, list[float], list[float]]:
    torch.manual_seed(0)
    gain, last = nn.Parameter(torch.zeros(1)), nn.Linear(3, 2).to(torch.bfloat16)
    net, x = Parts(first=nn.Linear(4, 3), gain=gain, last=last), torch.randn(8, 4)
    optimizer = torch.optim.SGD(net.parameters(), 1e-5)
    norms, still = [], []
    with diagnose(net, sensitivity=4) as d:
        for _ in range(steps):
            optimizer.zero_grad()
            inner = net.first(x) * (1 + net.gain.abs())
            net.last(inner.bfloat16()).float().square().sum().backward()
            norms.append(float(net.first.weight.grad.norm()))
            before = net.last.weight.detach().clone()
            optimizer.step()
            still.append(float((net.last.weight.detach() == before).float().mean()))
    return d, norms, still


def test_the_numbers_are_those_of_the_program() -> None:
    d, norms, still = _trained()
    rows = {row.parameter: row for row in d.history}
    assert [row.parameter for row in d.history] == [norm.parameter for norm in d.norms]
    assert next(iter(rows)).startswith("last.")
    steps = range(1, 13)
    assert rows["first.weight"].norm == tuple(zip(steps, map(pytest.approx, norms), strict=True))
    assert rows["gain"].zero == tuple((step, 1.0) for step in steps)
    assert rows["first.weight"].zero == tuple((step, 0.0) for step in steps)
    assert rows["gain"].sensitivity == tuple((step, float("inf")) for step in (1, 5, 9))
    assert rows["first.weight"].sensitivity == ()
    assert rows["last.weight"].stalled == tuple(zip(steps, map(pytest.approx, still), strict=True))
    assert max(still) > 0.5


def test_the_share_of_zeros_is_that_of_each_gradient() -> None:
    """In every pass, in the last one too, with two diagnoses at once. That of one number is none or all."""
    assert [share_of_zeros(torch.tensor([value])) for value in (2.0, 0.0)] == [0.0, 1.0]
    weight = nn.Parameter(torch.ones(5, 8))
    cut = [0, 3, 40, 17, 1]
    with diagnose() as d, diagnose(detail="counts") as counts:
        for zeros in cut:
            weight.grad = None
            (weight.reshape(-1)[zeros:] * 2).sum().backward()
    assert counts.history == counts.stalled == []
    (row,) = d.history
    assert row.zero == tuple((step, pytest.approx(zeros / 40)) for step, zeros in enumerate(cut, 1))
    assert row.norm == tuple((step, pytest.approx(2 * (40 - zeros) ** 0.5)) for step, zeros in enumerate(cut, 1))


def test_a_long_history_is_thinned_out() -> None:
    rows = _trained(70)[0].history
    assert all(len(row.norm) <= 66 and row.norm[0][0] == 1 and row.norm[-1][0] == 70 for row in rows)


def test_the_page_holds_json_that_a_browser_reads(tmp_path: Path) -> None:
    text = _trained()[0].write_html(tmp_path / "page.html").read_text(encoding="utf-8")
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert "Infinity" not in data[1]
    assert {"parameter", "norm", "zero", "sensitivity", "stalled"} == set(json.loads(data[1])["history"][0])


@pytest.mark.program
@browser.needs_browser
def test_the_page_draws_a_row_for_each_parameter(tmp_path: Path) -> None:
    page = _trained()[0].write_html(tmp_path / "page.html")
    script = (
        "document.title = JSON.stringify([...document.querySelectorAll('#history tr')].map((row) => [row.cells[0].textContent, "
        "...[...row.querySelectorAll('svg')].map((svg) => svg.getAttribute('aria-label'))]));"
    )
    rows = json.loads(browser.title_of(browser.shown(page, script, tmp_path)).replace("&amp;", "&"))
    by_name = {row[0]: row[1:] for row in rows}
    assert list(by_name) == [row[0] for row in rows]
    assert by_name["gain"] == [
        "norm of gain: 0 at backward 1, 0 at backward 12",
        "zero of gain: 100 % at backward 1, 100 % at backward 12",
        "sensitivity of gain: all at backward 1, all at backward 9",
        "stalled of gain: 0 % at backward 1, 0 % at backward 9",
    ]
    assert by_name["last.weight"][-1].startswith("stalled of last.weight: ")
