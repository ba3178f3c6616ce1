"""`pseudograd run`: a program that nobody edits; exact texts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pseudograd.cli import main
from pseudograd.torch_facts import CLOSED_ERA, OPEN_ERA, installed_era

PROGRAM = """\
import sys
import torch

def main():
    x = torch.tensor([-2.0, -1.0, 0.0], requires_grad=True)
    torch.clamp(x, -1.0, 1.0).sum().backward()
    print(__name__, sys.argv[1:], x.grad.tolist())

if __name__ == "__main__":
    main()
    if "--fail" in sys.argv:
        raise KeyError("of the program")
    if "--exit" in sys.argv:
        sys.exit(7)
    if "--say" in sys.argv:
        sys.exit("said")
"""
OTHER = OPEN_ERA if installed_era() == CLOSED_ERA else CLOSED_ERA
AT_EDGE = {CLOSED_ERA: 1.0, OPEN_ERA: 0.0}


@pytest.fixture(autouse=True)
def _program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = main(("run", *arguments))
    except SystemExit as stop:
        code = int(stop.code or 0)
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_a_pin_and_its_report(capsys: pytest.CaptureFixture[str]) -> None:
    path, argv = list(sys.path), list(sys.argv)
    assert run(capsys, "--pin", OTHER, "train.py", "--lr", "0.1") == (
        0,
        f"__main__ ['--lr', '0.1'] [0.0, {AT_EDGE[OTHER]}, 1.0]\n",
        f"pseudograd: pin_edge('{OTHER}'): 1 call rewritten at 1 line\n"
        f"          1  clamp        zero/{OTHER} train.py:6\n",
    )
    assert (sys.path, sys.argv) == (path, argv)


def test_a_pin_to_the_installed_era(capsys: pytest.CaptureFixture[str]) -> None:
    era = installed_era()
    assert run(capsys, "--pin", era, "train.py") == (
        0,
        f"__main__ [] [0.0, {AT_EDGE[era]}, 1.0]\n",
        f"pseudograd: pin_edge('{era}'): this torch is of that era, nothing is rewritten\n",
    )


def test_override_and_pin_together(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capsys, "--override", "clamp=identity", "--override", "relu=inward", "--pin", "half", "train.py"
    )
    assert (code, out) == (0, "__main__ [] [0.0, 0.5, 1.0]\n")
    assert err.startswith("pseudograd: override(clamp='identity', relu='inward'): 0 calls rewritten at 0 lines\n")
    assert "pseudograd: pin_edge('half'): 1 call rewritten at 1 line\n" in err
    assert run(capsys, "--override", "clamp=identity", "train.py")[1] == "__main__ [] [1.0, 1.0, 1.0]\n"


def test_a_module(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--pin", "half", "-m", "train", "--epochs", "2")
    assert (code, out) == (0, "__main__ ['--epochs', '2'] [0.0, 0.5, 1.0]\n")


def test_the_exit_status_is_the_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--pin", "half", "train.py", "--exit")[0] == 7
    code, _, err = run(capsys, "--pin", "half", "train.py", "--say")
    assert code == 1
    assert err.startswith("said\n")


def test_an_error_of_the_program_is_shown_as_python_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "--pin", "half", "train.py", "--fail")
    assert code == 1
    lines = err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "train.py" in lines[1]
    assert "KeyError: 'of the program'" in lines
    assert "pseudograd: pin_edge('half'): 1 call rewritten at 1 line" in lines


WRONG = {
    ("train.py",): "pseudograd: run: one of --pin and --override must be given, got neither.\n",
    ("--pin", "shut", "train.py"): (
        "pseudograd: pin_edge: edge must be one of closed, half, open, torch<=2.13, torch>=2.14, got 'shut'.\n"
    ),
    ("--pin", "closed", "none.py"): "pseudograd: run: the script must be a file, got 'none.py'.\n",
    ("--override", "clamp", "train.py"): (
        "pseudograd: run: --override must be FAMILY=RULE, such as clamp=inward, got 'clamp'.\n"
    ),
    ("--override", "clamp=ste", "train.py"): (
        "pseudograd: clamp: rule must be one of elastic, identity, inverting, inward, leaky, sign, zero, got 'ste'. "
        "'ste' is 'identity' here.\n"
    ),
    ("--pin", "closed"): (
        "pseudograd: the following arguments are required: SCRIPT, .... See pseudograd run --help.\n"
    ),
}


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_a_wrong_call_gets_one_line(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.replace("required: SCRIPT. See", "required: SCRIPT, .... See") == WRONG[arguments]


def test_as_a_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pseudograd", "run", "--pin", "half", "train.py", "a"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "__main__ ['a'] [0.0, 0.5, 1.0]\n")
