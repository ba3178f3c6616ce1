"""What a notebook shows of our records: their text, escaped, and their picture."""

import html
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.migrate import make_migration
from pseudograd.policy import clip_report


def _run(clamp: Callable[..., Tensor], seed: int) -> float:
    x = torch.tensor([2.0], requires_grad=True)
    clamp(x, 0, 1).sum().backward()
    return seed + float(x.grad.sum())  # type: ignore[union-attr]


def _report() -> Any:
    context = pg.override(clamp="inward")
    with context:
        torch.clamp(torch.ones(2, requires_grad=True), 0, 1).sum().backward()
    return context.report()


def _diagnosis() -> Any:
    with pg.diagnose() as d:
        torch.full((2,), 3.0, requires_grad=True).clamp(0, 1).sum().backward()
    return d


def _migration() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        (file := Path(folder, "old.py")).write_text("print('<b>')\n")
        return make_migration(file)


RECORDS: dict[str, tuple[Callable[[], Any], bool]] = {  # and: has it a picture?
    "comparison": (lambda: pg.compare(_run, rules=["inward"], seeds=2), True),
    "tuning": (lambda: pg.tune(_run, rules=["inward", "leaky", "identity"], budget=20), True),
    "audit": (lambda: pg.audit(torch.relu, -1, 1), True),
    "report": (_report, False),
    "conversion": (lambda: pg.convert(torch.nn.Sequential(torch.nn.ReLU()), "leaky"), False),
    "clip report": (lambda: clip_report(torch.tensor([0.5]), torch.ones(1)), False),
    "migration": (_migration, False),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_shows_its_text_and_its_picture(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once: no figure is left for the notebook to show."""
    from matplotlib import pyplot

    make, has_picture = RECORDS[name]
    pyplot.close("all")
    record = make()
    shown = record._repr_html_()
    assert not pyplot.get_fignums()
    text = (
        str(record.final)
        if name == "tuning"
        else "Conversion: 1 module\n0 (ReLU)"
        if name == "conversion"
        else str(record)
    )
    assert html.escape(text) in shown
    assert ("<svg" in shown) == has_picture
    assert "<?xml" not in shown
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    without = record._repr_html_()
    assert html.escape(text) in without
    assert "<svg" not in without


def test_a_diagnosis_is_its_page_in_a_frame() -> None:
    d = _diagnosis()
    shown = d._repr_html_()
    assert shown.startswith("<iframe")
    inside = html.unescape(shown.partition('srcdoc="')[2].rpartition('"></iframe>')[0])
    assert inside.lower().startswith("<!doctype html>")
    assert d.findings[0].code in inside


def test_text_cannot_break_out() -> None:
    from pseudograd.notebook import to_frame, to_html

    assert "<script>" not in to_html("<script>") + to_frame('"><script>')
