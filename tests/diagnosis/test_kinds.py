"""The table of findings: whatever speaks of a code reads it, and a new kind is one row."""

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.context import Diagnosis
from pseudograd.diagnosis.judge import findings
from pseudograd.diagnosis.judge.findings import Evidence, Kind
from pseudograd.diagnosis.judge.findings.kind import CODES
from pseudograd.diagnosis.records import Finding
from pseudograd.diagnosis.run import parse_condition
from pseudograd.rewrite.pin_edge import pin_edge
from pseudograd.torch_table.eras import ERAS
from pseudograd_notices.code import Code

from .. import browser
from ..browser import needs_browser
from .checks import diagnosed

# PG201 and so on: a row is added, and none changed
NAMES = "guard kink starved cut dead edge wind-up stalled vanish convention nonfinite unused no-effect flat"


def test_a_number_stays_with_its_code_and_no_two_rows_share_one() -> None:
    numbers = {kind.code: kind.number for kind in findings.KINDS}
    assert {code: numbers.get(code) for code in NAMES.split()} == {
        code: f"PG{number}" for number, code in enumerate(NAMES.split(), 201)
    }
    for name in ("code", "number", "order"):
        values = [getattr(kind, name) for kind in findings.KINDS]
        assert len(set(values)) == len(values), name
    assert [kind.order for kind in findings.KINDS] == sorted(kind.order for kind in findings.KINDS)


def test_a_row_can_be_read() -> None:
    for kind in findings.KINDS:
        assert re.fullmatch(r"PG2\d\d [a-z]+(-[a-z]+)*", f"{kind.number} {kind.code}")
        assert kind.code != "any"
        for text in (kind.about.meaning, kind.about.mend):  # a cell of a table
            assert re.fullmatch(r"[^|\s]([^|]*[^|.\s])?", text)
        assert parse_condition(kind.code) is not None


HUGE = Code("PG299", "huge", "something is huge", "Really.", "make it smaller", from_source=False)


@pytest.fixture(autouse=True)
def _two_codes_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CODES, "PG299", HUGE)
    monkeypatch.setitem(CODES, "PG298", HUGE._replace(number="PG298", name="alone"))


def _huge(number: str = "PG299", order: int = 35) -> Kind:
    def find(evidence: Evidence) -> Iterator[Finding]:
        for site in evidence.sites:
            if site.op == "clamp":
                yield row.site_finding(site, f"{site.arrived} arrived", "it is said so", "Make it smaller.", 0.75)

    row = Kind(number, order, find, protects=True)
    return row


def _added(monkeypatch: pytest.MonkeyPatch, row: Kind) -> None:
    monkeypatch.setattr(findings, "KINDS", tuple(sorted((*findings.KINDS, row), key=lambda kind: kind.order)))


def _half_is_cut() -> Diagnosis:
    w = nn.Parameter(torch.tensor([0.2, 5.0]))
    return diagnosed(lambda: w.clamp(0, 1).sum())


@pytest.mark.parametrize(("order", "code"), [(35, "huge"), (45, "cut")])
def test_the_order_of_a_row_decides_between_findings(monkeypatch: pytest.MonkeyPatch, order: int, code: str) -> None:
    _added(monkeypatch, _huge(order=order))
    (finding,) = _half_is_cut().findings
    assert (finding.code, finding.number) == (code, {"huge": "PG299", "cut": "PG204"}[code])
    assert len(finding.also) == 1
    assert ("2 arrived" in finding.also) == (code == "cut")
    _added(monkeypatch, dataclasses.replace(_huge("PG298", order=45), is_alone=True))
    assert [finding.code for finding in _half_is_cut().findings] == [code, "alone"]


def test_a_new_row_is_in_text_json_page_and_condition(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="got 'huge'"):
        parse_condition("huge")
    _added(monkeypatch, _huge())
    d = _half_is_cut()
    assert re.search(r"^ 1\. huge  tests/diagnosis/test_kinds\.py:\d+$", str(d), re.M)
    report: Any = d.to_json()
    assert [(finding["code"], finding["number"]) for finding in report["findings"]] == [("huge", "PG299")]
    assert "is_muted" not in report["findings"][0]
    row = {"code": "huge", "number": "PG299", "meaning": "something is huge", "next_step": "make it smaller"}
    assert report["kinds"] == [{**row, "protects": True}]
    text = d.write_html(tmp_path / "page.html").read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])
    assert data["kinds"] == report["kinds"]
    assert len(parse_condition("huge")(d)) == len(parse_condition("huge > 0.5")(d)) == 1
    assert parse_condition("huge>0.8")(d) == []


@needs_browser
@pytest.mark.program
def test_the_page_shows_the_meaning_of_a_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _added(monkeypatch, _huge())
    page = _half_is_cut().write_html(tmp_path / "page.html")
    shown = browser.shown(page, "document.title = 'drawn';", tmp_path)
    assert '<p class="soft meaning">PG299: something is huge' in shown
    assert '<article class="finding protects"' in shown  # as a guard is


@pytest.mark.parametrize("text", ["loss", "cut>1e", "", "cut>", "cut > 0.5 > 0.1", "PG204"])
def test_the_error_of_a_wrong_condition_lists_the_codes(text: str) -> None:
    codes = ", ".join(kind.code for kind in findings.KINDS)
    with pytest.raises(ValueError, match="must be a finding's code, with a share if wanted, got ") as error:
        parse_condition(text)
    assert str(error.value).endswith(f"The codes are {codes} and any; a share follows the code, as in 'cut>0.5'.")


def test_the_condition_cut_reads_every_clamp() -> None:
    """Also a clamp that cuts too little for a finding, but none that is deliberate."""
    x = torch.linspace(0, 1, 100).requires_grad_()
    with diagnose() as d:
        (x.clamp(0.025, 2) + x.clamp(0.5, 2)).sum().backward()  # pseudograd: deliberate
        x.clamp(0.025, 2).sum().backward()
    assert d.findings == []
    assert len(parse_condition("cut>0.01")(d)) == 1
    assert parse_condition("cut>0.05")(d) == []


@pytest.mark.parametrize("era", ERAS)
def test_the_condition_cut_reads_a_clamp_under_a_pin(era: str) -> None:
    """As in a suite that is pinned as a whole. Under the pin to another torch, an op of ours takes the place of the clamp."""
    with pin_edge(era), diagnose() as d:
        torch.full((3,), 2.0, requires_grad=True).clamp(0, 1).sum().backward()
    assert len(parse_condition("cut>0.5")(d)) == 1
