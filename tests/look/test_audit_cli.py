"""pseudograd audit: what it prints and writes, and one line for what is asked wrongly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pseudograd.cli import main

MODULE = """
import torch
import pseudograd as pg

def bounded(x):
    return pg.clamp(x, -1, 1)

class Kept:
    bounded = staticmethod(bounded)

def softmax(x):
    return torch.softmax(x, -1)

class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x
    @staticmethod
    def backward(ctx, grad):
        return 2 * grad
"""


@pytest.fixture
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "audited.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_here")
def test_it_prints_the_audit_and_writes_both_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    command = ["audit", "audited:Kept.bounded", "--low", "-2", "--high", "2", "--points", "101"]
    assert main([*command, "--json", "found.json", "--plot", "found.svg"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("audit: bounded on -2 to 2, torch ")
    assert 'the same as clamp(x, -1, 1, rule="inward", edge="closed")' in printed
    written = json.loads((tmp_path / "found.json").read_text())
    assert written["rule"] == 'clamp(x, -1, 1, rule="inward", edge="closed")'
    assert "<svg" in (tmp_path / "found.svg").read_text()
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == ["audited.py", "found.json", "found.svg"]


@pytest.mark.usefixtures("_here")
def test_a_function_class_further_points_and_a_shape(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "audited:Doubled", "--low", "0", "--high", "1", "--at", "0.25,0.5"]) == 0
    assert "exact 100%" in capsys.readouterr().out
    command = ["audit", "audited:softmax", "--low", "-1", "--high", "1", "--shape", "2,3", "--points", "33"]
    assert main(command) == 0
    assert "along 3 random lines" in capsys.readouterr().out


_ASKED = ["audit", "audited:bounded", "--low", "-2", "--high", "2"]


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["audit", "audited:bounded"],
            "the following arguments are required: --low, --high. See pseudograd audit --help.",
        ),
        (
            ["audit", "audited", "--low", "0", "--high", "1"],
            "audit: the function must be MODULE:FUNCTION, got 'audited'.",
        ),
        (
            ["audit", "no_such_module:f", "--low", "0", "--high", "1"],
            "audit: the function must name a function that can be imported, got 'no_such_module:f'. No module named",
        ),
        (
            ["audit", "audited:nothing", "--low", "0", "--high", "1"],
            "audit: the function must name a function that can be imported, got 'audited:nothing'. "
            "module 'audited' has no attribute 'nothing'.",
        ),
        (
            ["audit", "audited:bounded", "--low", "1", "--high", "0"],
            "audit: low must be below high, got low=1.0 and high=0.0.",
        ),
        (["audit", "audited:bounded", "--low", "nan", "--high", "0"], "audit: low must be finite, got nan."),
        ([*_ASKED, "--points", "3"], "audit: points must be at least 33, got 3."),
        ([*_ASKED, "--at", "1;2"], "audit: --at must be numbers with commas between, got '1;2'."),
        ([*_ASKED, "--shape", "2.5"], "audit: --shape must be integers with commas between, got '2.5'."),
        ([*_ASKED, "--plot", "found.txt"], "audit: --plot must end in .png, .svg, .pdf, got 'found.txt'."),
        ([*_ASKED, "--json", "nowhere/found.json"], "audit: --json must lie where files can be written"),
        (
            ["audit", "audited:torch", "--low", "0", "--high", "1"],
            "audit: f must be a function, a module or an autograd",
        ),
    ],
)
def test_what_is_asked_wrongly_is_told_in_one_line(
    arguments: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(arguments)
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 1
    printed = capsys.readouterr()
    assert status == 2
    assert printed.err.startswith(f"pseudograd: {text}")
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["audited.py"]
