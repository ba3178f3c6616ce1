"""pseudograd audit: its text and files, and one line for a wrong argument."""

import json
from pathlib import Path

import pytest

from pseudograd.cli import main

from ..commands import answer

MODULE = """
import torch
import pseudograd as pg

def bounded(x):
    return pg.clamp(x, -1, 1)

class Kept:
    bounded = staticmethod(bounded)

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
def test_a_function_class_and_further_points(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "audited:Doubled", "--low", "0", "--high", "1", "--at", "0.25,0.5"]) == 0
    assert "exact 100%" in capsys.readouterr().out


RANGE = ("--low", "-2", "--high", "2")
BOUNDED = ("audited:bounded", *RANGE)
NAME = "audit: the function must name a function that can be imported, got"
WRONG = {
    "the following arguments are required: --low, --high. See pseudograd audit --help.": ("audited:bounded",),
    "audit: the function must be MODULE:FUNCTION, got 'audited'.": ("audited", *RANGE),
    f"{NAME} 'no_such_module:f'. No module": ("no_such_module:f", *RANGE),
    f"{NAME} 'audited:nothing'. module 'audited' has no attribute": ("audited:nothing", *RANGE),
    "audit: low must be below high, got low=1.0 and high=0.0.": ("audited:bounded", "--low", "1", "--high", "0"),
    "audit: --at must be numbers with commas between, got '1;2'.": (*BOUNDED, "--at", "1;2"),
    "audit: --plot must end in .png, .svg, .pdf, got 'found.txt'.": (*BOUNDED, "--plot", "found.txt"),
    "audit: --json must lie where files can be written": (*BOUNDED, "--json", "nowhere/found.json"),
}


@pytest.mark.usefixtures("_here")
def test_a_wrong_argument_is_told_in_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for text, arguments in WRONG.items():
        status, out, error = answer(capfd, "audit", *arguments)
        assert (status, out) == (2, "")
        assert error.startswith(f"pseudograd: {text}")
        assert error.count("\n") == 1
        assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["audited.py"]
