"""The command line: exact text for what is asked wrongly, and a small run of each command."""

import contextlib
import importlib.metadata
import importlib.util
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pseudograd
from pseudograd.cli import main
from pseudograd.listen.program.signals import Stopped
from pseudograd.look.rule_table import rules_text
from pseudograd.rule import OPS
from pseudograd.torch_table.eras import CLOSED_ERA, installed_era
from pseudograd_notices import command_line
from pseudograd_notices.command_line import command_files
from pseudograd_tasks import DEFAULT_TASKS, TASKS
from pseudograd_tasks.cli.compare import _task_names
from pseudograd_tasks.report.write import write

from .choices import folded, one_in
from .commands import answer as run

TASK_NAMES = ", ".join(sorted(TASKS))

RELU = """\
relu: default rule zero, edge open (or closed, half, inward)

  zero
    grad_x outside   0
    saves            1 bit or x
    linear in grad   yes
    source           the true gradient; torch.clamp
    also called      true gradient, tensorflow-compression's disconnected, clipped straight-through
  identity
"""


def test_rules_lists_every_row_in_blocks_of_ops_that_have_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """elastic and inverting need two bounds."""
    code, out, err = run(capsys, "rules", "relu")
    assert (code, err) == (0, "")
    assert out.startswith(RELU)
    assert "elastic" not in out
    _, out, _ = run(capsys, "rules")
    assert out == rules_text(list(OPS.values())) + "\n"
    heads = [block.split("\n\n")[0] for block in re.split(r"\n\n(?=\w)", out)]
    names = [re.findall(r"^(\w+):", head, re.MULTILINE) for head in heads]
    assert ["clamp", "relu6", "hardtanh"] in names
    assert ["lower_bound", "upper_bound", "relu"] in names
    assert sorted(name for block in names for name in block) == sorted(OPS)
    for op in OPS.values():
        assert re.search(rf"^{op.name}: (default )?rule {op.default_rule}\b", out, re.MULTILINE)
        for rule in op.rules.values():
            assert rule.formula in out
            assert rule.source in out


WRONG = {
    "rules clmp": f"rules: op must be one of {', '.join(sorted(OPS))}, got 'clmp'. Did you mean 'clamp'?",
    "rules --import nowhere": "rules: --import must name a module that can be imported, got 'nowhere'. No module named 'nowhere'.",
    "doctor --expect opened": "doctor: --expect must be one of closed, open, got 'opened'. Did you mean 'open'?",
    "compare --tasks canvass": f"compare: task must be one of {TASK_NAMES}, got 'canvass'. Did you mean 'canvas'?",
    "compare --tasks basin,": f"compare: task must be one of {TASK_NAMES}, got ''.",
    "compare --tusks canvas": "unrecognized arguments: --tusks canvas. See pseudograd --help.",
    "compare --rules leaky(slop=0.2)": "leaky: parameter must be one of slope, got 'slop'. Did you mean 'slope'?",
    "compare --min low": "argument --min: invalid float value: 'low'. See pseudograd compare --help.",
    "compare --min 2": "compare: --min and --max must be finite, --min below --max, got (2.0, 1.0).",
    "compare --loss torch": "compare: --loss must be MODULE:FUNCTION, got 'torch'.",
    "compare --loss torch:nothing": (
        "compare: --loss must name a function that can be imported, got 'torch:nothing'. "
        "module 'torch' has no attribute 'nothing'."
    ),
    "compare --loss nowhere:cost": (
        "compare: --loss must name a function that can be imported, got 'nowhere:cost'. No module named 'nowhere'."
    ),
    "compare --loss torch:isnan": (
        "compare: --loss must return numbers with a gradient, one or one for each element, "
        "got a Tensor of torch.bool and shape (5,)."
    ),
    "compare --loss json:dumps": (
        "compare: --loss must be a function of y, got 'json:dumps'. "
        "TypeError: Object of type Tensor is not JSON serializable."
    ),
    "compare --out /dev/null": "compare: --out must be a folder, got '/dev/null'. Choose another path.",
    f"compare --out {'x' * 300}": (
        f"compare: --out must lie where files can be written, got '{'x' * 76}.... "
        "File name too long: choose another folder."
    ),
}


@folded
@pytest.mark.parametrize("words", WRONG, ids=lambda words: words[:40])
def test_a_wrong_call_gets_a_line(
    capsys: pytest.CaptureFixture[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(capsys, *shlex.split(words)) == (2, "", f"pseudograd: {WRONG[words]}\n")
    assert list(tmp_path.iterdir()) == []


def test_help_version_and_a_hint_for_a_mistyped_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    assert out.startswith("usage: pseudograd [-h] [--version] [--completion SHELL] COMMAND ...\n")
    assert all(f"\n    {command} " in out for command in ("rules", "compare", "run", "doctor"))
    assert run(capsys, "--help") == (0, out, "")
    code, out, err = run(capsys, "lnit", "x.py")
    assert (code, out) == (2, "")
    assert re.fullmatch(
        r"pseudograd: COMMAND must be one of rules, .*, got 'lnit' \(did you mean 'lint'\?\)\. See .*\n", err
    )
    assert run(capsys, "--version") == (0, f"pseudograd {pseudograd.__version__}\n", "")

    def unknown(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", unknown)
    assert pseudograd.__version__ == "unknown"


def test_completion(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell completes every command and option; without the library that writes it, one line says what to install."""
    shtab = pytest.importorskip("shtab")
    for shell in ("bash", "zsh", "fish"):
        status, out, err = run(capsys, "--completion", shell)
        assert (status, err) == (0, "")
        assert all(name in out for name in command_files())
        assert "side-by-side" in out
    assert run(capsys, "--completion", "sh")[::2] == (
        2,
        f"pseudograd: --completion must be one of {', '.join(shtab.SUPPORTED_SHELLS)}, got 'sh'\n",
    )
    monkeypatch.setitem(sys.modules, "shtab", None)
    status, out, err = run(capsys, "--completion", "bash")
    assert (status, out, err) == (
        2,
        "",
        'pseudograd: --completion: shtab must be installed, got none. Run pip install "pseudograd[completion]".\n',
    )


@pytest.mark.parametrize(
    ("words", "is_ours"), [("-m pseudograd", True), ("-mpseudograd", True), ("-m other", False), ("other.py", False)]
)
def test_a_module_whose_torch_is_missing_runs_its_command(
    words: str, is_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", *words.split(), "--version"])
    for name, argument in (("torch", "-m"), ("torch", "x.py"), ("numpy", "-m")):
        monkeypatch.setattr(sys, "argv", [argument, "--version"])
        is_run = is_ours and (name, argument) == ("torch", "-m")
        with pytest.raises(SystemExit) if is_run else contextlib.nullcontext():
            command_line.run_without_torch(ModuleNotFoundError(name=name))
        assert sys.argv[0] == ("pseudograd" if is_run else argument)


@pytest.mark.parametrize("name", ["torch", "numpy"])
def test_a_command_that_needs_torch_says_which_python_lacks_it(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ModuleNotFoundError(f"no {name}", name=name)

    monkeypatch.setattr(command_line, "build_parser", fail)
    text = f"rules: {sys.executable} must have torch, got none. Install it" if name == "torch" else "no numpy"
    assert run(capsys, "rules") == (2, "", f"pseudograd: {text}\n")


def test_no_help_text_waits_for_torch() -> None:
    program = """
import sys
from pseudograd_notices.command_line import command_files, main
for name in command_files():
    try:
        main([name, "--help"])
    except SystemExit as end:
        assert end.code == 0
    assert not {"torch", "pseudograd"} & sys.modules.keys(), name
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert len(re.findall(r"^usage: ", done.stdout, flags=re.M)) == len(command_files())
    assert f"'all', or some of {', '.join(TASKS)} (default: {','.join(DEFAULT_TASKS)}," in " ".join(done.stdout.split())


def test_what_is_not_installed_is_named_with_an_install_that_exists(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("sklearn", "scipy") else find(name))
    text = 'pseudograd: compare: sklearn, scipy must be installed, got none. Run pip install "pseudograd[report]".\n'
    assert run(capsys, "compare") == (2, "", text)
    root = Path(pseudograd.__file__).parent
    assert not [path for path in root.rglob("*.py") if "pseudograd[report]" in path.read_text(encoding="utf-8")]


# --- rules of one's own -----------------------------------------------------------------------------------------------

RULE = """\
import pseudograd as pg

@pg.register_rule("clamp", formula="grad * share", source="a test", is_linear=True)
def share_of_it(grad, x, y, min, max, *, share=0.5):
    return grad * share

def cost(y):
    return (y - 3) ** 2
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
    assert "  share_of_it(share=0.5)\n    grad_x outside   grad * share\n" in out
    assert sys.path == path


@pytest.mark.program
@pytest.mark.usefixtures("_module_of_mine")
def test_compare_runs_rules_with_parameters_imported_rules_and_a_loss(capsys: pytest.CaptureFixture[str]) -> None:
    rules = "leaky(0.2)/open, elastic(width=0.5),share_of_it(share=0.25)"
    words = ["--import", "rules_of_mine", "--loss", "rules_of_mine:cost", "--min", "0", "--max", "4"]
    code, out, err = run(capsys, "compare", "--tasks", "basin", "--rules", rules, *words)
    assert (code, err) == (0, "")
    page = Path("pseudograd-report/index.html")
    assert out.endswith(f"The report: {page}\n{page.resolve().as_uri()}\n")
    stored = json.loads(Path("pseudograd-report/results.json").read_text(encoding="utf-8"))
    assert stored["rules"] == ["leaky(0.2)/open", "elastic(width=0.5)", "share_of_it(share=0.25)"]
    assert all(f"\n{name} " in out for name in stored["rules"])
    basin = stored["tasks"]["basin"]
    others = {"zero/closed", "zero/open", "torch.clamp", "no clamp", "project"}
    assert set(basin["worlds"]["rules_of_mine:cost"]) == {*stored["rules"], *others}
    assert basin["settings"]["best"] == pytest.approx(3, abs=1e-3)


@pytest.mark.usefixtures("_module_of_mine")
def test_a_module_that_fails_is_told_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken_module_of_mine.py").write_text("1 / 0\n")
    text = "got 'broken_module_of_mine'. ZeroDivisionError: division by zero.\n"
    code, out, err = run(capsys, "rules", "--import", "broken_module_of_mine")
    assert (code, out) == (2, "")
    assert err == f"pseudograd: rules: --import must name a module that can be imported, {text}"


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


def test_a_stream_that_lacks_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert main(["rules", "clamp"]) == 0
    assert b"Leonard" in raw.getvalue()


def _buffered() -> dict[str, str]:
    """As for most people: what Python still holds when it ends is written then, and fails once more."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}


@pytest.mark.skipif(os.name == "nt", reason="a pipe without a reader is another error there")
@pytest.mark.parametrize(("command", "status"), [(["rules", "clamp"], 141), (["bisect", "--pin", "open", "a.py"], 143)])
def test_a_reader_who_leaves(command: list[str], status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a signal stopped the command, its status tells that, not that the reader left."""

    def stop(*_: object, **__: object) -> None:
        stopped = Stopped(signal.SIGTERM)
        stopped.known = "what is known"
        raise stopped

    monkeypatch.setattr("pseudograd.rewrite.bisect.bisect", stop)
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(command) == status


@pytest.mark.program
@pytest.mark.skipif(os.name == "nt", reason="a pipe without a reader is another error there")
def test_a_process_whose_reader_leaves() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*COMMAND, "rules", "clamp"], stdout=writing, stderr=subprocess.PIPE, env=_buffered(), check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


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
    assert list(_task_names("canvas, basin")) == ["canvas", "basin"]


SMALL = ("compare", "--tasks", "basin", "--rules", "inward", "--out")
STOPS = {signal.SIGTERM: (143, "SIGTERM"), signal.SIGINT: (130, "Ctrl-C")}


def _stop(number: int, function: Callable[..., object], *, after: bool = False) -> Callable[..., object]:
    """The function, with a signal before it, too, or after it alone."""

    def stopped(*arguments: object) -> object:
        if not after:
            signal.raise_signal(number)
        result = function(*arguments)
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
@pytest.mark.parametrize(("moment", "number"), one_in(2, ["installed_era", "page", "_fill"], STOPS))
def test_a_signal_leaves_the_older_report_and_nothing_else(
    moment: str, number: int, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = tmp_path / "older"
    older.mkdir()
    (older / "results.json").write_text('{"kind": "pseudograd compare"}')
    module = sys.modules[
        "pseudograd_tasks.report.results" if moment == "installed_era" else "pseudograd_tasks.report.write"
    ]
    monkeypatch.setattr(module, moment, _stop(number, getattr(module, moment), after=moment == "_fill"))
    status, name = STOPS[signal.Signals(number)]
    for out in (older, tmp_path / "new" / "folders" / "report"):
        code, _, err = run(capsys, *SMALL, str(out))
        assert (code, err) == (status, f"pseudograd: stopped by {name}; nothing is left half-written\n")
    assert [path.name for path in tmp_path.iterdir()] == ["older"]
    assert [path.name for path in older.iterdir()] == ["results.json"]


@pytest.mark.program
@pytest.mark.usefixtures("ctrl_c_is_heard")
def test_ctrl_c_while_the_module_imports_torch_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-m", "pseudograd", "rules"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "pseudograd: stopped by Ctrl-C\n")


def test_a_signal_waits_until_the_report_is_in_its_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules[write.__module__]
    monkeypatch.setattr(module, "_swap", _stop(signal.SIGTERM, module._swap))
    monkeypatch.setattr(module, "figures", lambda results: ())
    assert run(capsys, *SMALL, str(tmp_path / "report"))[0] == 143
    assert [path.name for path in tmp_path.iterdir()] == ["report"]
    assert (tmp_path / "report" / "index.html").is_file()


@pytest.mark.program
@pytest.mark.skipif(os.name == "nt", reason="needs groups of processes")
@pytest.mark.parametrize("number", STOPS, ids=lambda number: number.name)
@pytest.mark.parametrize(
    "command",
    [["bisect", "--pin", "open"], ["upgrade", "--from", sys.executable, "--to", sys.executable]],
    ids=lambda command: command[0],
)
def test_a_signal_ends_a_command_of_many_runs_with_the_run_in_progress(
    tmp_path: Path, command: list[str], number: signal.Signals
) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import pathlib, sys, time, torch\n"
        "torch.zeros(3, requires_grad=True).clamp(0, 1).sum().backward()\n"
        "with pathlib.Path(sys.argv[1]).open('a') as runs:\n    runs.write('.')\n"
        "time.sleep(600)\n"
    )
    runs = tmp_path / "runs"
    process = subprocess.Popen(
        [sys.executable, "-m", "pseudograd", *command, str(program), str(runs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # ignored where the tests run in the background
    )
    try:
        while not runs.exists():
            assert process.poll() is None
            time.sleep(0.2)
        os.killpg(process.pid, number)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
        process.communicate()
    status, name = STOPS[number]
    assert process.returncode == status
    assert out.startswith(f"{command[0]}: stopped ")
    assert err.splitlines()[-1] == f"pseudograd: stopped by {name}; nothing is left half-written"
    assert runs.read_text() == "."
