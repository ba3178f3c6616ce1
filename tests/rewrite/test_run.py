"""`pseudograd run`: a program that nobody edits; exact texts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pseudograd.torch_table.eras import CLOSED_ERA, OPEN_ERA, installed_era

from ..choices import slow_but
from ..commands import answer

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
    if "--interrupt" in sys.argv:
        raise KeyboardInterrupt
    if "--close" in sys.argv:
        sys.stdout.close()
"""
OTHER = OPEN_ERA if installed_era() == CLOSED_ERA else CLOSED_ERA
AT_EDGE = {CLOSED_ERA: 1.0, OPEN_ERA: 0.0}


@pytest.fixture(autouse=True)
def _program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_copies: None) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    return answer(capfd, "run", *arguments)


def test_a_pin_and_its_report(capfd: pytest.CaptureFixture[str]) -> None:
    path, argv = list(sys.path), list(sys.argv)
    assert run(capfd, "--pin", OTHER, "train.py", "--lr", "0.1") == (
        0,
        f"__main__ ['--lr', '0.1'] [0.0, {AT_EDGE[OTHER]}, 1.0]\n",
        f"pseudograd: pin_edge('{OTHER}'): 1 call rewritten at 1 line\n"
        f"          1  clamp        zero/{OTHER} train.py:6\n",
    )
    assert (sys.path, sys.argv) == (path, argv)


def test_a_pin_to_the_installed_era(capfd: pytest.CaptureFixture[str]) -> None:
    era = installed_era()
    assert run(capfd, "--pin", era, "train.py") == (
        0,
        f"__main__ [] [0.0, {AT_EDGE[era]}, 1.0]\n",
        f"pseudograd: pin_edge('{era}'): this torch is of that era, nothing is rewritten\n",
    )


def test_override_and_pin_together(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capfd, "--override", "clamp=identity", "--override", "relu=inward", "--pin", "half", "train.py"
    )
    assert (code, out) == (0, "__main__ [] [0.0, 0.5, 1.0]\n")
    assert err.startswith("pseudograd: override(clamp='identity', relu='inward'): 0 calls rewritten at 0 lines\n")
    assert "pseudograd: pin_edge('half'): 1 call rewritten at 1 line\n" in err
    assert run(capfd, "--override", "clamp=identity", "train.py")[1] == "__main__ [] [1.0, 1.0, 1.0]\n"


def test_the_exit_status_is_the_programs(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(capfd, "--pin", "half", "train.py", "--exit")[0] == 7
    code, _, err = run(capfd, "--pin", "half", "train.py", "--say")
    assert code == 1
    assert err.startswith("said\n")


def test_an_error_of_the_program_is_shown_as_python_shows_it(capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capfd, "--pin", "half", "train.py", "--fail")
    assert code == 1
    lines = err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "train.py" in lines[1]
    assert "KeyError: 'of the program'" in lines
    assert "pseudograd: pin_edge('half'): 1 call rewritten at 1 line" in lines


def test_ctrl_c_is_shown_as_python_shows_it(capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capfd, "--pin", "half", "train.py", "--interrupt")
    assert code == 130
    assert err.splitlines()[0] == "Traceback (most recent call last):"
    assert "KeyboardInterrupt" in err.splitlines()
    assert "pseudograd: pin_edge('half'): 1 call rewritten at 1 line\n" in err


# --- rules with parameters, and rules of one's own --------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", slow_but(["clamp = leaky( slope = 0.2 )"], ["clamp=leaky(0.2)", "clamp = leaky( slope = 0.2 )"])
)
def test_a_rule_with_a_parameter(capfd: pytest.CaptureFixture[str], text: str) -> None:
    code, out, err = run(capfd, "--override", text, "train.py")
    assert (code, out) == (0, f"__main__ [] {[float(torch.tensor(0.2)), 1.0, 1.0]}\n")
    assert err.startswith("pseudograd: override(clamp=leaky(slope=0.2)): 1 call rewritten at 1 line\n")


@pytest.mark.usefixtures("table_as_it_was")
def test_a_rule_of_an_imported_module(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "programs").mkdir()
    (tmp_path / "train.py").rename(tmp_path / "programs" / "train.py")
    (tmp_path / "rules_for_run.py").write_text(
        "import pseudograd as pg\n"
        '@pg.register_rule("clamp", formula="grad * share", source="a test", is_linear=True)\n'
        "def a_share(grad, x, y, min, max, *, share=0.5):\n"
        "    return grad * share\n"
    )
    monkeypatch.delitem(sys.modules, "rules_for_run", raising=False)
    code, out, _ = run(capfd, "--import", "rules_for_run", "--override", "clamp=a_share(0.25)", "programs/train.py")
    assert (code, out) == (0, "__main__ [] [0.25, 1.0, 1.0]\n")


# --- the reports as JSON ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "status"),
    slow_but(
        [("--well", 0), ("--fail", 1)],
        [("--well", 0), ("--exit", 7), ("--say", 1), ("--fail", 1), ("--interrupt", 130)],
    ),
)
def test_the_reports_as_json(capfd: pytest.CaptureFixture[str], tmp_path: Path, argument: str, status: int) -> None:
    (tmp_path / "found.json").write_text("older")
    code, _, _ = run(capfd, "--override", "relu=inward", "--pin", OTHER, "--json", "found.json", "train.py", argument)
    assert code == status
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert (found["kind"], found["torch"]) == ("pseudograd run", torch.__version__)
    overridden, pinned = found["contexts"]
    assert overridden == {"label": "override(relu='inward')", "rewritten": [], "missed": [], "is_torchs_own": False}
    site = {
        "op": "clamp",
        "rule": f"zero/{OTHER}",
        "where": "train.py:6",
        "user_where": "train.py:6",
        "calls": 1,
        "compiled": False,
    }
    assert "torch.clamp(" in pinned["rewritten"][0].pop("expression")
    assert pinned == {"label": f"pin_edge('{OTHER}')", "rewritten": [site], "missed": [], "is_torchs_own": False}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["found.json", "train.py"]


def test_json_that_cannot_be_written_in_the_end(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "sweeper.py").write_text(
        "import pathlib, sys; pathlib.Path('results').rmdir(); sys.exit(int(sys.argv[1]))"
    )
    code, _, err = run(capfd, "--pin", "half", "--json", "results/found.json", "sweeper.py", "0")
    assert code == 2
    assert "\npseudograd: run: --json must lie where files can be written, got " in err
    assert err.endswith("No such file or directory: choose another path.\n")
    (tmp_path / "results").mkdir()
    assert run(capfd, "--pin", "half", "--json", "results/found.json", "sweeper.py", "5")[0] == 5


# --- --require --------------------------------------------------------------------------------------------------------


def test_require_wants_every_context_to_have_rewritten_something(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(capfd, "--require", "--pin", "half", "train.py")[0] == 0
    code, out, err = run(capfd, "--require", "--override", "relu=inward", "--pin", "half", "train.py")
    assert (code, out) == (3, "__main__ [] [0.0, 0.5, 1.0]\n")
    assert err.endswith("pseudograd: run: --require: nothing was rewritten by override(relu='inward')\n")
    code, _, err = run(capfd, "--require", "--override", "relu=inward", "train.py")
    assert code == 3
    assert run(capfd, "--override", "relu=inward", "train.py")[0] == 0


def test_require_takes_a_pin_to_the_installed_era_for_done(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(capfd, "--require", "--pin", installed_era(), "train.py")[0] == 0
    assert run(capfd, "--require", "--pin", OTHER, "train.py")[0] == 0
    assert run(capfd, "--require", "--pin", installed_era(), "--override", "relu=inward", "train.py")[0] == 3


def test_a_program_that_closes_its_output(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd, "--pin", "half", "--require", "train.py", "--close")
    assert (code, out) == (0, "__main__ ['--close'] [0.0, 0.5, 1.0]\n")
    assert err.startswith("pseudograd: pin_edge('half'): 1 call rewritten")


WRONG = {
    ("train.py",): "pseudograd: run: one of --pin and --override must be given, got neither.\n",
    ("--pin", "closed", "none.py"): "pseudograd: run: the script must be a file, got 'none.py'.\n",
    ("--override", "clamp", "train.py"): (
        "pseudograd: run: --override must be FAMILY=RULE, such as clamp=inward, got 'clamp'.\n"
    ),
    ("--pin", "closed", "-m", "no_such_module"): (
        "pseudograd: run: the module must be one that python can run, got 'no_such_module'. No module named no_such_module.\n"
    ),
    ("--override", "clump=inward", "train.py"): (
        "pseudograd: override: family must be one of clamp, fake_quantize, gelu, hardsigmoid, leaky_relu, relu, round, "
        "sign, silu, got 'clump'. "
        "Did you mean 'clamp'?\n"
    ),
    ("--override", "clamp=leaky(0.2)/open", "train.py"): (
        "pseudograd: run: --override must name no edge, got 'leaky(0.2)/open'. "
        "Each family has its own; --pin changes that of torch's clamps.\n"
    ),
    ("--pin", "closed", "--json", "none/found.json", "train.py"): (
        "pseudograd: run: --json must lie where files can be written, got 'none/found.json'. "
        "No such file or directory: choose another path.\n"
    ),
    ("--import", "no_such_module", "--pin", "closed", "train.py"): (
        "pseudograd: run: --import must name a module that can be imported, got 'no_such_module'. "
        "No module named 'no_such_module'.\n"
    ),
}


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_a_wrong_call_gets_one_line(
    capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], tmp_path: Path
) -> None:
    code, out, err = run(capfd, *arguments)
    assert (code, out) == (2, "")
    assert err == WRONG[arguments]
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.program
def test_as_a_process(tmp_path: Path) -> None:
    """The report comes after all that the program prints, into one pipe too."""
    command = [sys.executable, "-m", "pseudograd", "run", "--pin", "half", "train.py", "a"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=environment
    )
    assert done.returncode == 0
    assert done.stdout.startswith("__main__ ['a'] [0.0, 0.5, 1.0]\npseudograd: pin_edge('half'): 1 call rewritten")
