"""The table of findings: whatever speaks of a code reads it, and a new kind is one row."""

from __future__ import annotations

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
from pseudograd.diagnosis.records import Finding
from pseudograd.diagnosis.run import condition

from .. import browser
from ..browser import needs_browser

# A number is given once: a row may be added here, and none changed or taken away.
GIVEN = {
    "guard": "PG201",
    "kink": "PG202",
    "starved": "PG203",
    "cut": "PG204",
    "dead": "PG205",
    "edge": "PG206",
    "wind-up": "PG207",
    "stalled": "PG208",
    "vanish": "PG209",
}


def test_a_number_stays_with_its_code() -> None:
    found = {kind.code: kind.number for kind in findings.KINDS}
    assert {code: found.get(code) for code in GIVEN} == GIVEN


def test_no_two_rows_share_a_code_a_number_or_an_order() -> None:
    for name in ("code", "number", "order"):
        values = [getattr(kind, name) for kind in findings.KINDS]
        assert len(set(values)) == len(values), name
    assert [kind.order for kind in findings.KINDS] == sorted(kind.order for kind in findings.KINDS)


@pytest.mark.parametrize("kind", findings.KINDS, ids=lambda kind: kind.code)
def test_a_row_can_be_read(kind: Kind) -> None:
    assert re.fullmatch(r"PG2\d\d", kind.number)
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", kind.code)
    assert kind.code != "any"
    for text in (kind.meaning, kind.next_step):
        assert text
        assert text == text.strip()
        assert not text.endswith(".")
        assert "|" not in text  # it stands in a table
    assert condition(kind.code) is not None


# --- a row that nobody knew -------------------------------------------------------------------------------------------


def _huge(code: str = "huge", order: int = 35) -> Kind:
    def find(evidence: Evidence) -> Iterator[Finding]:
        for site in evidence.sites:
            if site.op == "clamp":
                yield row.site_finding(site, f"{site.arrived} arrived", "it is said so", "Make it smaller.", 0.75)

    row = Kind(code, "PG299", order, find, "something is huge", "make it smaller", "Really", protects=True)
    return row


def _added(monkeypatch: pytest.MonkeyPatch, row: Kind) -> None:
    monkeypatch.setattr(findings, "KINDS", tuple(sorted((*findings.KINDS, row), key=lambda kind: kind.order)))


def _half_is_cut() -> Diagnosis:
    w = nn.Parameter(torch.tensor([0.2, 5.0]))
    with diagnose() as d:
        w.clamp(0, 1).sum().backward()
    return d


@pytest.mark.parametrize(("order", "code"), [(35, "huge"), (45, "cut")])
def test_a_new_row_is_told_in_its_order(monkeypatch: pytest.MonkeyPatch, order: int, code: str) -> None:
    _added(monkeypatch, _huge(order=order))
    (one,) = _half_is_cut().findings
    assert one.code == code
    assert one.number == {"huge": "PG299", "cut": "PG204"}[code]
    assert len(one.also) == 1
    assert ("2 arrived" in one.also) == (code == "cut")


def test_what_is_of_a_whole_network_stands_beside_what_is_at_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    _added(monkeypatch, dataclasses.replace(_huge(order=45), is_alone=True))
    assert [(one.code, one.also) for one in _half_is_cut().findings] == [("cut", ()), ("huge", ())]


def test_a_new_row_is_in_text_json_and_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _added(monkeypatch, _huge())
    d = _half_is_cut()
    assert re.search(r"^ 1\. huge  tests/diagnosis/test_kinds\.py:\d+$", str(d), re.M)
    found = d.to_json()
    assert [(one["code"], one["number"]) for one in found["findings"]] == [("huge", "PG299")]
    assert "is_muted" not in found["findings"][0]
    row = {"code": "huge", "number": "PG299", "meaning": "something is huge", "next_step": "make it smaller"}
    assert found["kinds"] == [{**row, "protects": True}]
    text = d.write_html(tmp_path / "page.html").read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])  # type: ignore[index]
    assert data["kinds"] == found["kinds"]


@needs_browser
@pytest.mark.parametrize("is_new", [True, False])
def test_the_page_says_what_a_code_means(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_new: bool) -> None:
    if is_new:
        _added(monkeypatch, _huge())
    page = _half_is_cut().write_html(tmp_path / "page.html")
    shown = browser.shown(page, "document.title = 'drawn';", tmp_path)
    expected = "PG299: something is huge" if is_new else "PG204: a clamp cuts 5 % or more of what arrives"
    assert f'<p class="soft meaning">{expected}' in shown
    assert ('<article class="finding protects"' in shown) == is_new  # as a guard is


def test_fail_on_takes_a_new_row(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="got 'huge'"):
        condition("huge")
    _added(monkeypatch, _huge())
    d = _half_is_cut()
    assert len(condition("huge")(d)) == len(condition("huge > 0.5")(d)) == 1
    assert condition("huge>0.8")(d) == []


def test_the_docs_have_a_line_for_a_new_row(monkeypatch: pytest.MonkeyPatch, script: Any) -> None:
    docs = script("generate_docs")
    monkeypatch.setattr(docs, "KINDS", (*findings.KINDS, _huge()))
    assert docs._kinds().splitlines()[-1] == "| `huge` | PG299 | something is huge. Really | make it smaller |"


# --- fail-on ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["loss", "cut>1e", "", "cut>", "cut > 0.5 > 0.1", "PG204"])
def test_what_is_no_condition_is_told_the_codes(text: str) -> None:
    codes = ", ".join(kind.code for kind in findings.KINDS)
    with pytest.raises(ValueError, match="must be a finding's code, with a share if wanted, got ") as error:
        condition(text)
    assert str(error.value).endswith(f"The codes are {codes} and any; a share stands behind as in 'cut>0.5'.")


def test_cut_asks_every_clamp() -> None:
    """Also one that cuts too little for a finding, and none that is deliberate."""
    x = torch.linspace(0, 1, 100).requires_grad_()
    with diagnose() as d:
        (x.clamp(0.025, 2) + x.clamp(0.5, 2)).sum().backward()  # pseudograd: deliberate
        x.clamp(0.025, 2).sum().backward()
    assert d.findings == []
    assert len(condition("cut>0.01")(d)) == 1
    assert condition("cut>0.05")(d) == []


# --- what is deliberate -----------------------------------------------------------------------------------------------


def test_what_is_deliberate_is_counted_as_it_would_be_told() -> None:
    """Of one line once, whatever was found there, and of any kind."""
    p, q = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.tensor([5.0, 0.5]))
    with diagnose() as d:
        y = p.clamp(-6.28, 0.0)  # pseudograd: deliberate
        z = q.clamp(0.0, 1.0)  # pseudograd: deliberate
        (y.sum() + z.sum()).backward()
    assert d.findings == []
    assert d.muted == 2
