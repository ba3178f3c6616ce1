"""`pseudograd run`: a program that nobody edits; exact texts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pseudograd.torch_table.eras import CLOSED_ERA, OPEN_ERA, installed_era

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
    if "--close" in sys.argv:
        sys.stdout.close()
"""
OTHER = OPEN_ERA if installed_era() == CLOSED_ERA else CLOSED_ERA
AT_EDGE = {CLOSED_ERA: 1.0, OPEN_ERA: 0.0}
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_copies: None) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)


def run(capfd: Capture, *arguments: str) -> tuple[int, str, str]:
    return answer(capfd, "run", *arguments)


def test_a_pin_and_its_report(capfd: Capture) -> None:
    path, argv = list(sys.path), list(sys.argv)
    assert run(capfd, "--require", "--pin", OTHER, "train.py", "--lr", "0.1") == (
        0,
        f"__main__ ['--lr', '0.1'] [0.0, {AT_EDGE[OTHER]}, 1.0]\n",
        f"pseudograd: pin_edge('{OTHER}'): 1 call rewritten at 1 line\n"
        f"          1  clamp        zero/{OTHER} train.py:6\n",
    )
    assert (sys.path, sys.argv) == (path, argv)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_program_runs_where_a_stream_of_the_command_is_closed(
    stream: str, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, stream, None)
    code, out, err = run(capfd, "--pin", OTHER, "train.py")
    assert (code, out) == (0, f"__main__ [] [0.0, {AT_EDGE[OTHER]}, 1.0]\n")
    assert ("1 call rewritten" in err) == (stream == "stdout")


def test_a_pin_reaches_the_threads_of_the_program(capfd: Capture, tmp_path: Path) -> None:
    call = "import threading; thread = threading.Thread(target=main); thread.start(); thread.join()"
    (tmp_path / "train.py").write_text(PROGRAM.replace("    main()\n", f"    {call}\n", 1))
    code, out, err = run(capfd, "--require", "--pin", OTHER, "train.py")
    assert (code, out) == (0, f"__main__ [] [0.0, {AT_EDGE[OTHER]}, 1.0]\n"), err
    assert f"zero/{OTHER} train.py:6" in err


def test_a_pin_to_the_installed_era_has_nothing_to_rewrite_and_counts_as_done(capfd: Capture) -> None:
    era = installed_era()
    assert run(capfd, "--require", "--pin", era, "train.py") == (
        0,
        f"__main__ [] [0.0, {AT_EDGE[era]}, 1.0]\n",
        f"pseudograd: pin_edge('{era}'): this torch is of that era, nothing is rewritten\n",
    )


def test_override_and_pin_together_and_what_is_required_of_each(capfd: Capture) -> None:
    overrides = ("--override", "clamp=identity", "--override", "relu=inward")
    code, out, err = run(capfd, "--require", *overrides, "--pin", "half", "train.py")
    assert (code, out) == (3, "__main__ [] [0.0, 0.5, 1.0]\n")
    label = "override(clamp='identity', relu='inward')"
    assert err.startswith(f"pseudograd: {label}: 0 calls rewritten at 0 lines\n")
    assert "pseudograd: pin_edge('half'): 1 call rewritten at 1 line\n" in err
    assert err.endswith(f"pseudograd: run: --require: nothing was rewritten by {label}\n")
    assert run(capfd, "--override", "relu=inward", "train.py")[0] == 0


@pytest.mark.parametrize(
    ("argument", "status", "first", "named"),
    [
        ("--exit", 7, "pseudograd: pin_edge('half'): 1 call rewritten at 1 line", ""),
        ("--fail", 1, "Traceback (most recent call last):", "KeyError: 'of the program'"),
        ("--close", 0, "pseudograd: pin_edge('half'): 1 call rewritten at 1 line", ""),
    ],
)
def test_the_program_ends_as_by_python_and_then_comes_the_report(
    capfd: Capture, argument: str, status: int, first: str, named: str
) -> None:
    code, out, err = run(capfd, "--pin", "half", "train.py", argument)
    lines = err.splitlines()
    assert (code, out, lines[0]) == (status, f"__main__ ['{argument}'] [0.0, 0.5, 1.0]\n", first)
    assert "pseudograd: pin_edge('half'): 1 call rewritten at 1 line" in lines
    assert not named or named in lines


@pytest.mark.usefixtures("table_as_it_was")
def test_a_rule_of_an_imported_module(capfd: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(("argument", "status"), [("--well", 0), ("--fail", 1)])
def test_the_reports_as_json(capfd: Capture, tmp_path: Path, argument: str, status: int) -> None:
    (tmp_path / "found.json").write_text("older")
    code, _, _ = run(capfd, "--override", "relu=inward", "--pin", OTHER, "--json", "found.json", "train.py", argument)
    assert code == status
    stored = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert (stored["kind"], stored["torch"]) == ("pseudograd run", torch.__version__)
    overridden, pinned = stored["contexts"]
    empty = {"rewritten": [], "missed": [], "is_torchs_own": False, "left": []}
    assert overridden == {"label": "override(relu='inward')", **empty}
    lines = {"where": "train.py:6", "user_where": "train.py:6"}
    site = {"op": "clamp", "rule": f"zero/{OTHER}", **lines, "calls": 1, "compiled": False}
    assert "torch.clamp(" in pinned["rewritten"][0].pop("expression")
    assert pinned == {**empty, "label": f"pin_edge('{OTHER}')", "rewritten": [site]}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["found.json", "train.py"]


def test_json_that_cannot_be_written_in_the_end(capfd: Capture, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "sweeper.py").write_text("import pathlib; pathlib.Path('results').rmdir()")
    code, _, err = run(capfd, "--pin", "half", "--json", "results/found.json", "sweeper.py")
    assert code == 2
    assert "\npseudograd: run: --json must lie where files can be written, got " in err
    assert err.endswith("No such file or directory: choose another path.\n")


WRONG = {
    "train.py": "one of --pin and --override must be given, got neither.",
    "--pin closed none.py": "the script must be a file, got 'none.py'.",
    "--override clamp train.py": "--override must be FAMILY=RULE, such as clamp=inward, got 'clamp'.",
    "--pin closed -m no_such_module": (
        "the module must be one that python can run, got 'no_such_module'. No module named no_such_module."
    ),
    "--override clamp=leaky(0.2)/open train.py": (
        "--override must name no edge, got 'leaky(0.2)/open'. Each family has its own; --pin changes that of torch's clamps."
    ),
    "--pin closed --json none/found.json train.py": (
        "--json must lie where files can be written, got 'none/found.json'. No such file or directory: choose another path."
    ),
    "--import no_such_module --pin closed train.py": (
        "--import must name a module that can be imported, got 'no_such_module'. No module named 'no_such_module'."
    ),
}


@pytest.mark.parametrize("arguments", WRONG)
def test_a_wrong_call_gets_one_line(capfd: Capture, arguments: str, tmp_path: Path) -> None:
    code, out, err = run(capfd, *arguments.split())
    assert (code, out, err) == (2, "", f"pseudograd: run: {WRONG[arguments]}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.program
def test_as_a_process() -> None:
    """The report comes after all that the program prints, into one pipe too."""
    command = [sys.executable, "-m", "pseudograd", "run", "--pin", "half", "train.py", "a"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True, env=environment
    )
    assert done.stdout.startswith("__main__ ['a'] [0.0, 0.5, 1.0]\npseudograd: pin_edge('half'): 1 call rewritten")
