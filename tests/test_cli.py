"""The command line: exact text for what is asked wrongly, and a small run of each command."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pseudograd
from pseudograd.cli import main
from pseudograd.look.rule_table import rules_text
from pseudograd.rule import OPS
from pseudograd.torch_table.eras import CLOSED_ERA, installed_era
from pseudograd_tasks import DEFAULT_TASKS, TASKS
from pseudograd_tasks.cli.compare import _task_names
from pseudograd_tasks.report.write import write

from .choices import folded, one_in
from .commands import answer as run

TASK_NAMES = ", ".join(sorted(TASKS))
RULES = ", ".join(sorted(OPS["clamp"].rules))

RELU = """\
relu: default rule zero, edge open (or closed, half, inward)

  zero
    grad_x outside   0
    saves            1 bit or x
    linear in grad   yes
    source           the true gradient; torch.clamp
    also called      true gradient, tfc disconnected, clipped straight-through
  identity
    grad_x outside   grad
    saves            nothing
    linear in grad   yes
    source           straight-through estimator (Bengio, Léonard & Courville, 2013)
    also called      straight-through, clamp_ste, preserve-gradient
"""

PROGRAM = """\
import torch


def f(x):
    return torch.clamp(x, -1.0, 1.0)


def train(clamp, seed):
    x = torch.full((2,), 2.0, requires_grad=True)
    clamp(x, -1.0, 1.0).sum().backward()
    return float(x.grad.sum())


if __name__ == "__main__":
    f(torch.full((2,), 2.0, requires_grad=True) * 1).sum().backward()
"""


def test_rules_of_one_op(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "rules", "relu")
    assert (code, err) == (0, "")
    assert out.startswith(RELU)
    assert "elastic" not in out


def test_ops_with_one_bound_have_a_block_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    """elastic and inverting need two."""
    _, out, _ = run(capsys, "rules")
    heads = [block.split("\n\n")[0] for block in re.split(r"\n\n(?=\w)", out)]
    names = [re.findall(r"^(\w+):", head, re.MULTILINE) for head in heads]
    assert ["clamp", "relu6", "hardtanh"] in names
    assert ["lower_bound", "upper_bound", "relu"] in names
    assert sorted(name for block in names for name in block) == sorted(OPS)


def test_rules_lists_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "rules")
    for op in OPS.values():
        assert re.search(rf"^{op.name}: (default )?rule {op.default_rule}\b", out, re.MULTILINE)
        for rule in op.rules.values():
            assert rule.formula in out
            assert rule.source in out
    assert out == rules_text(list(OPS.values())) + "\n"


WRONG = {
    ("rules", "clmp"): (
        f"pseudograd: rules: op must be one of {', '.join(sorted(OPS))}, got 'clmp'. Did you mean 'clamp'?\n"
    ),
    ("compare", "--tasks", "canvass"): (
        f"pseudograd: compare: task must be one of {TASK_NAMES}, got 'canvass'. Did you mean 'canvas'?\n"
    ),
    ("compare", "--rules", "inward,ste"): (
        f"pseudograd: clamp: rule must be one of {RULES}, got 'ste'. 'ste' is 'identity' here.\n"
    ),
    ("compare", "--rules", "zero/opened"): (
        "pseudograd: clamp: edge must be one of closed, half, inward, open, got 'opened'. Did you mean 'open'?\n"
    ),
    (
        "compare",
        "--min",
        "2",
    ): "pseudograd: compare: --min and --max must be finite, --min below --max, got (2.0, 1.0).\n",
    (
        "compare",
        "--max",
        "nan",
    ): "pseudograd: compare: --min and --max must be finite, --min below --max, got (-1.0, nan).\n",
    ("compare", "--loss", "torch"): "pseudograd: compare: --loss must be MODULE:FUNCTION, got 'torch'.\n",
    ("compare", "--loss", "torch:nothing"): (
        "pseudograd: compare: --loss must name a function that can be imported, got 'torch:nothing'. "
        "module 'torch' has no attribute 'nothing'.\n"
    ),
    ("compare", "--loss", "torch:isnan"): (
        "pseudograd: compare: --loss must return numbers with a gradient, one or one for each element, "
        "got a Tensor of torch.bool and shape (5,).\n"
    ),
    ("compare", "--out", "/dev/null/report"): (
        "pseudograd: compare: --out must lie where files can be written, got '/dev/null/report'. "
        "Not a directory: choose another folder.\n"
    ),
    ("compare", "--tusks", "canvas"): ("pseudograd: unrecognized arguments: --tusks canvas. See pseudograd --help.\n"),
    ("compare", "--min", "low"): (
        "pseudograd: argument --min: invalid float value: 'low'. See pseudograd compare --help.\n"
    ),
    ("compare", "--out", "/dev/null"): (
        "pseudograd: compare: --out must be a folder, got '/dev/null'. Choose another path.\n"
    ),
    ("compare", "--out", "x" * 300): (
        f"pseudograd: compare: --out must lie where files can be written, got '{'x' * 76}.... "
        "File name too long: choose another folder.\n"
    ),
    ("compare", "--tasks", "curve,"): (f"pseudograd: compare: task must be one of {TASK_NAMES}, got ''.\n"),
    ("compare", "--rules", ""): (
        "pseudograd: compare: --rules must be NAME, NAME(VALUE) or NAME(KEY=VALUE, ...), got ''.\n"
    ),
    ("compare", "--rules", "leaky(0.2"): (
        "pseudograd: compare: --rules must be NAME, NAME(VALUE) or NAME(KEY=VALUE, ...), got 'leaky(0.2'.\n"
    ),
    ("compare", "--rules", "leeky(0.2)"): (
        f"pseudograd: clamp: rule must be one of {RULES}, got 'leeky'. Did you mean 'leaky'?\n"
    ),
    ("compare", "--rules", "leaky(slop=0.2)"): (
        "pseudograd: leaky: parameter must be one of slope, got 'slop'. Did you mean 'slope'?\n"
    ),
    ("compare", "--loss", "nowhere:cost"): (
        "pseudograd: compare: --loss must name a function that can be imported, got 'nowhere:cost'. No module named 'nowhere'.\n"
    ),
    ("compare", "--loss", "json:dumps"): (
        "pseudograd: compare: --loss must be a function of y, got 'json:dumps'. "
        "TypeError: Object of type Tensor is not JSON serializable.\n"
    ),
    ("compare", "--import", "nowhere"): (
        "pseudograd: compare: --import must name a module that can be imported, got 'nowhere'. No module named 'nowhere'.\n"
    ),
    ("compare", "--redraw", "nowhere"): (
        "pseudograd: compare: --redraw must be a folder that compare wrote, got 'nowhere'. Choose another one.\n"
    ),
    ("compare", "--redraw", "report", "--tasks", "curve"): (
        "pseudograd: compare: --redraw must stand alone, got '--tasks'. What it draws was run before.\n"
    ),
    ("rules", "--import", "nowhere"): (
        "pseudograd: rules: --import must name a module that can be imported, got 'nowhere'. No module named 'nowhere'.\n"
    ),
    ("rules", "relu", "clamp"): "pseudograd: unrecognized arguments: clamp. See pseudograd --help.\n",
    ("doctor", "--expect", "opened"): (
        "pseudograd: doctor: --expect must be one of closed, open, got 'opened'. Did you mean 'open'?\n"
    ),
    ("doctor", "torch"): "pseudograd: unrecognized arguments: torch. See pseudograd --help.\n",
}


@folded
@pytest.mark.parametrize("arguments", WRONG, ids=lambda arguments: " ".join(arguments)[:40])
def test_a_wrong_call_gets_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(capsys, *arguments) == (2, "", WRONG[arguments])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.program
def test_compare_with_a_loss_of_ones_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("def cost(y):\n    return (y - 3) ** 2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = ("--tasks", "basin,curve", "--loss", "mine:cost", "--min", "0", "--max", "4", "--rules", "inward")
    code, out, err = run(capsys, "compare", *arguments)
    assert (code, err) == (0, "")
    assert out.endswith("The report: pseudograd-report/index.html\n")
    stored = json.loads((tmp_path / "pseudograd-report" / "results.json").read_text(encoding="utf-8"))
    basin = stored["tasks"]["basin"]["worlds"]["mine:cost"]
    assert set(basin) == {"zero/closed", "zero/open", "inward", "torch.clamp", "no clamp", "project"}
    assert basin["inward"]["reached"] == 400
    assert stored["tasks"]["basin"]["settings"]["best"] == pytest.approx(3, abs=1e-3)


def test_bare_it_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    assert out.startswith("usage: pseudograd [-h] [--version] COMMAND ...\n")
    assert all(f"\n    {command} " in out for command in ("rules", "compare", "run", "doctor"))
    assert run(capsys, "--help") == (0, out, "")


def test_a_mistyped_command_gets_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "lnit", "x.py")
    assert (code, out) == (2, "")
    assert re.fullmatch(
        r"pseudograd: COMMAND must be one of rules, .*, got 'lnit' \(did you mean 'lint'\?\)\. See .*\n", err
    )


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"pseudograd {pseudograd.__version__}\n", "")


WITH_TORCH_ALONE = {
    "": (0, "usage: pseudograd"),
    "rules relu": (0, "relu: default rule zero"),
    "doctor": (0, "portable    active"),
    "run --override clamp=inward program.py": (0, "1 call rewritten at 1 line"),
    "diagnose program.py": (0, "diagnose: 1 backward pass"),
    "audit program:f --low -2 --high 2": (0, "the same as clamp(x, -1, 1"),
    "bisect --override clamp=identity program.py": (1, "the change decides nothing"),
    "tune --task program:train --rules zero,inward --budget 10": (0, "inward"),
    "compare": (2, "must be installed, got none. Run pip install"),
}


ALONE = """\
import json, sys
sys.modules.update(dict.fromkeys(("numpy", "matplotlib", "rich", "sklearn", "scipy")))
from pseudograd.cli import main
for words in json.loads(sys.argv[1]):
    try:
        status = main(words.split())
    except SystemExit as stop:
        status = stop.code or 0
    for stream in (sys.stdout, sys.stderr):
        print("answered", status, file=stream, flush=True)
"""


@pytest.mark.slow
def test_only_compare_needs_more_than_torch(tmp_path: Path) -> None:
    """NumPy is more, too: torch only suggests it. One process answers all."""
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-W", "ignore", "-c", ALONE, json.dumps(list(WITH_TORCH_ALONE))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    answers = [re.split(r"answered (\d+)\n", stream) for stream in (done.stdout, done.stderr)]
    for at, (words, (status, text)) in enumerate(WITH_TORCH_ALONE.items()):
        assert text in answers[0][2 * at] + answers[1][2 * at], words
        assert int(answers[0][2 * at + 1]) == status, words


def test_what_is_not_installed_is_named_with_an_install_that_exists(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("rich", "scipy") else find(name))
    text = 'pseudograd: compare: rich, scipy must be installed, got none. Run pip install "pseudograd[report]".\n'
    assert run(capsys, "compare") == (2, "", text)
    root = Path(pseudograd.__file__).parent
    assert not [path for path in root.rglob("*.py") if "pseudograd[report]" in path.read_text(encoding="utf-8")]


# --- rules of one's own -----------------------------------------------------------------------------------------------

RULE = """\
import pseudograd as pg

@pg.register_rule("clamp", formula="grad * share", source="a test", is_linear=True)
def some_of_it(grad, x, y, min, max, *, share=0.5):
    return grad * share
"""


@pytest.fixture
def _module_of_mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table_as_it_was: None) -> None:
    (tmp_path / "rules_of_mine.py").write_text(RULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "rules_of_mine", raising=False)


@pytest.mark.usefixtures("_module_of_mine")
def test_rules_lists_those_of_an_imported_module(capsys: pytest.CaptureFixture[str]) -> None:
    path = list(sys.path)
    code, out, err = run(capsys, "rules", "clamp", "--import", "rules_of_mine")
    assert (code, err) == (0, "")
    assert "  some_of_it(share=0.5)\n    grad_x outside   grad * share\n" in out
    assert sys.path == path


@pytest.mark.program
@pytest.mark.usefixtures("_module_of_mine")
def test_compare_runs_rules_with_parameters_and_imported_ones(capsys: pytest.CaptureFixture[str]) -> None:
    rules = "leaky(0.2)/open, elastic(width=0.5),some_of_it(share=0.25)"
    code, out, err = run(capsys, "compare", "--tasks", "curve, basin", "--rules", rules, "--import", "rules_of_mine")
    assert (code, err) == (0, "")
    stored = json.loads(Path("pseudograd-report/results.json").read_text(encoding="utf-8"))
    assert stored["rules"] == ["leaky(0.2)/open", "elastic(width=0.5)", "some_of_it(share=0.25)"]
    worlds = stored["tasks"]["curve"]["worlds"]["y²"]
    assert worlds["leaky(0.2)/open"]["at_high"] == 0
    assert worlds["elastic(width=0.5)"]["at_high"] == 2
    assert all(f"\n{name} " in out for name in stored["rules"])


def test_a_module_that_fails_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_module_of_mine.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "rules", "--import", "broken_module_of_mine") == (
        2,
        "",
        "pseudograd: rules: --import must name a module that can be imported, got 'broken_module_of_mine'. "
        "ZeroDivisionError: division by zero.\n",
    )


# --- doctor -----------------------------------------------------------------------------------------------------------


def test_doctor_expects_an_edge(capsys: pytest.CaptureFixture[str]) -> None:
    edge, other = ("closed", "open") if installed_era() == CLOSED_ERA else ("open", "closed")
    code, out, err = run(capsys, "doctor", "--expect", edge)
    assert (code, err) == (0, "")
    assert re.fullmatch(rf"torch \S+: the edge of number bounds is {edge}, as expected\n", out)
    code, out, err = run(capsys, "doctor", "--expect", other)
    assert (code, err) == (1, "")
    assert re.fullmatch(rf"torch \S+: the edge of number bounds is {edge}, expected {other}\n", out)
    code, out, err = run(capsys, "doctor", "--expect", other, "--json")
    assert (code, json.loads(out)["era"]) == (1, installed_era())
    assert err.endswith(f"is {edge}, expected {other}\n")


# --- terminals and pipes ----------------------------------------------------------------------------------------------

COMMAND = [sys.executable, "-m", "pseudograd"]
POOR = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "cp1252": {"PYTHONIOENCODING": "cp1252"},
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}


def test_a_stream_that_lacks_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert main(["rules", "clamp"]) == 0
    assert b"Leonard" in raw.getvalue()


@pytest.mark.parametrize("terminal", [pytest.param(name, marks=pytest.mark.slow) for name in ("ascii", "cp1252", "C")])
def test_a_terminal_that_lacks_characters(terminal: str, tmp_path: Path) -> None:
    encoding = {"C": "ascii"}.get(terminal, terminal)
    env = {key: value for key, value in os.environ.items() if key != "PYTHONIOENCODING"} | POOR[terminal]
    listed = subprocess.run([*COMMAND, "rules", "clamp"], env=env, capture_output=True, check=False)
    assert (listed.returncode, listed.stderr) == (0, b"")
    assert ("Léonard" if encoding == "cp1252" else "Leonard") in listed.stdout.decode(encoding)
    arguments = ["compare", "--tasks", "curve", "--rules", "inward", "--out", str(tmp_path / "report")]
    done = subprocess.run([*COMMAND, *arguments], env=env, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert ("curve, y²" if encoding == "cp1252" else "curve, y2") in done.stdout.decode(encoding)
    assert '"y²"' in (tmp_path / "report" / "results.json").read_text(encoding="utf-8")


def _buffered() -> dict[str, str]:
    """As for most people: what Python still holds when it ends is written then, and fails once more."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}


@pytest.mark.skipif(os.name == "nt", reason="a pipe without a reader is another error there")
@pytest.mark.parametrize(
    "arguments",
    [("rules", "clamp"), *(pytest.param((word,), marks=pytest.mark.slow) for word in ("rules", "doctor", "--help"))],
    ids=" ".join,
)
def test_a_reader_who_leaves(arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*COMMAND, *arguments], stdout=writing, stderr=subprocess.PIPE, env=_buffered(), check=False)
    os.close(writing)
    assert done.stderr == b""
    assert done.returncode == 141 or arguments == ("--help",)  # some versions of argparse do not tell


@pytest.mark.program
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_full_disk() -> None:
    with open("/dev/full", "wb") as full:
        pipes = {"stdout": full, "stderr": subprocess.PIPE, "env": _buffered()}
        done = subprocess.run([*COMMAND, "rules", "clamp"], **pipes, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "pseudograd: [Errno 28] No space left on device\n")


# --- stopped ----------------------------------------------------------------------------------------------------------


def test_which_tasks_run() -> None:
    assert _task_names(None) == DEFAULT_TASKS
    assert _task_names(" all ") == tuple(TASKS)
    assert list(_task_names("curve, basin")) == ["curve", "basin"]


SMALL = ("compare", "--tasks", "curve", "--rules", "inward", "--out")
STOPS = {signal.SIGTERM: (143, "SIGTERM"), signal.SIGINT: (130, "Ctrl-C")}


def stopping(number: int, function: Callable[..., object], *, after: bool = False) -> Callable[..., object]:
    """The function, with a signal before it or after it."""

    def stopped(*given: object) -> object:
        if not after:
            signal.raise_signal(number)
        result = function(*given)
        signal.raise_signal(number)
        return result

    return stopped


@pytest.fixture
def ctrl_c_is_heard() -> Iterator[None]:
    """As on a terminal; a shell that runs the tests in the background lets them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.program
@pytest.mark.usefixtures("ctrl_c_is_heard")
@pytest.mark.parametrize(("moment", "number"), one_in(2, ["edges_now", "page", "_fill"], STOPS))
def test_a_signal_leaves_the_older_report_and_nothing_else(
    moment: str, number: int, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = tmp_path / "older"
    older.mkdir()
    (older / "results.json").write_text('{"kind": "pseudograd compare"}')
    module = sys.modules[
        "pseudograd_tasks.report.results" if moment == "edges_now" else "pseudograd_tasks.report.write"
    ]
    monkeypatch.setattr(module, moment, stopping(number, getattr(module, moment), after=moment == "_fill"))
    status, name = STOPS[signal.Signals(number)]
    for out in (older, tmp_path / "new" / "folders" / "report"):
        code, _, err = run(capsys, *SMALL, str(out))
        kept = f"{out}.unfinished"
        runs = len(os.listdir(kept)) if os.path.exists(kept) else 0
        assert bool(runs) == (moment != "edges_now")
        told = f"pseudograd: {runs} finished runs are in {kept}; --resume goes on with them\n" if runs else ""
        assert (code, err) == (status, f"{told}pseudograd: stopped by {name}; nothing is left half-written\n")
        shutil.rmtree(kept, ignore_errors=True)
    shutil.rmtree(tmp_path / "new", ignore_errors=moment == "edges_now")
    assert [path.name for path in tmp_path.iterdir()] == ["older"]
    assert [path.name for path in older.iterdir()] == ["results.json"]


def test_a_signal_waits_until_the_report_is_in_its_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules[write.__module__]
    monkeypatch.setattr(module, "_swap", stopping(signal.SIGTERM, module._swap))
    assert run(capsys, *SMALL, str(tmp_path / "report"))[0] == 143
    assert [path.name for path in tmp_path.iterdir()] == ["report"]
    assert (tmp_path / "report" / "index.html").is_file()


def test_outside_the_main_thread_nothing_asks_for_signals(tmp_path: Path, results_of_curve: object) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        page = pool.submit(write, results_of_curve, tmp_path / "report").result()
    assert page.is_file()


@pytest.fixture
def results_of_curve() -> object:
    from pseudograd_tasks.report.sources import run_tasks

    return run_tasks(["curve"], ["inward"])


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="terminate() ends a process at once there")
def test_sigterm_while_figures_are_drawn(tmp_path: Path) -> None:
    command = [*COMMAND, "compare", "--tasks", "curve", "--out", "report"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until = time.monotonic() + 240
    while not list(tmp_path.glob(".report-*/new")) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    process.terminate()
    _, err = process.communicate(timeout=120)
    told = b"pseudograd: 20 finished runs are in report.unfinished; --resume goes on with them\n"
    assert (process.returncode, err) == (143, told + b"pseudograd: stopped by SIGTERM; nothing is left half-written\n")
    assert [path.name for path in tmp_path.iterdir()] == ["report.unfinished"]


def test_the_version_of_what_was_never_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", unknown)
    assert pseudograd.__version__ == "unknown"
