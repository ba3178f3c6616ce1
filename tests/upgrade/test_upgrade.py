"""`pseudograd upgrade` on small programs: one interpreter twice, with changes that a test plants, and two torches if there are two.

PSEUDOGRAD_OTHER_PYTHON names an interpreter with a torch of the other era.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import pseudograd
from pseudograd.listen.program import follow
from pseudograd.torch_table.eras import CLOSED_ERA, era_of, installed_era
from pseudograd_upgrade.answer import Answer
from pseudograd_upgrade.cutting.cut import Cut
from pseudograd_upgrade.differences import leaves_of
from pseudograd_upgrade.environments import find_environments
from pseudograd_upgrade.recorder import describe_options
from pseudograd_upgrade.recording import Schedule
from pseudograd_upgrade.runs import Interpreter, LimitError, Limits, Runner, open_runner

from ..commands import answer
from ..written import assert_written

PY = sys.executable
OTHER = os.environ.get("PSEUDOGRAD_OTHER_PYTHON", "")
needs_other = pytest.mark.skipif(not OTHER, reason="PSEUDOGRAD_OTHER_PYTHON names no interpreter with another torch")

# The change comes in line 13, where NEW is true in the run of the newer torch alone.
TRAINING = """\
import os
import torch
from torch import nn
from torch.nn import functional as F

NEW = os.environ.get("ATEN_CPU_CAPABILITY") is None and os.path.exists("ran")
open("ran", "a").close()
model, head = nn.Linear(8, 16), nn.Linear(16, 4)
parameters = [*model.parameters(), *head.parameters()]  # no optimiser, whose import takes as long as the rest
for _ in range(4):
    x = torch.randn(16, 8)
    h = model(x)
    {middle}
    loss = F.cross_entropy(head(h), x[:, :4].argmax(1))
    loss.backward()
    with torch.no_grad():
        for parameter in parameters:
            parameter -= 0.1 * parameter.grad
            parameter.grad = None
"""


# A script that changes torch and then runs a program as python does. The change has the name of a file of torch's optimisers.
_PYTHON = """\
#!{python}
import os, runpy, sys
import torch

CHANGE = '''
import functools
from torch.overrides import handle_torch_function, has_torch_function

def replaced(owner, name):  # modes see a call of the planted function as a call of torch's
    known = getattr(owner, name)
    def replace(function):
        @functools.wraps(known)
        def call(*args, **kwargs):
            tensors = tuple(value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))
            if has_torch_function(tensors):
                return handle_torch_function(call, tensors, *args, **kwargs)
            return function(known, *args, **kwargs)
        setattr(owner, name, call)
    return replace
{change}
'''
file = os.path.join(os.path.dirname(torch.__file__), "optim", "planted.py")
exec(compile(CHANGE, file, "exec"), {{"torch": torch}})
if sys.argv[1] == "-c":
    exec(sys.argv[2], {{"__name__": "__main__"}})
else:
    sys.path[0], sys.argv = os.path.dirname(os.path.abspath(sys.argv[1])), sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def planted(change: str) -> str:
    """The path of an interpreter in which a test changes functions of the installed torch, as if torch itself had changed them.

    change: source in which @replaced(owner, name) decorates a function that gets torch's function first.
    """
    python = Path("planted").absolute()
    python.write_text(_PYTHON.format(python=sys.executable, change=change), encoding="utf-8")
    python.chmod(0o755)
    return str(python)


def write_program(middle: str, changes: dict[str, str] | None = None) -> str:
    text = TRAINING.format(middle=middle)
    for old, new in (changes or {}).items():
        text = text.replace(old, new, 1)
    Path("train.py").write_text(text, encoding="utf-8")
    return "train.py"


def upgrade(capfd: pytest.CaptureFixture[str], *arguments: str, new: str = PY) -> tuple[int, str, str]:
    return answer(capfd, "upgrade", "--from", PY, "--to", new, *arguments)


def test_the_same_torch_twice_differs_in_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    formats = ["--json", "answer.json", "--output-format", "json", "--output-file", "found.json"]
    status, out, err = upgrade(capfd, *formats, write_program("h = F.gelu(h)"))
    assert status == 0, out + err
    cost = r"upgrade: the first run took \d+ s: at least 2 runs, about .+ minutes; at most 17, about .+ minutes"
    assert [bool(re.fullmatch(cost, line)) for line in err.splitlines()] == [False, True, False]
    assert ": nothing differs; 2 runs, 4 backward passes each" in out.splitlines()[0]
    document = json.loads(Path("answer.json").read_text(encoding="utf-8"))
    assert (document["survives"], document["answer"]) == (True, "nothing differs")
    assert document["losses"]["old"] == document["losses"]["new"]
    assert len(document["losses"]["old"]) == 4
    found = json.loads(Path("found.json").read_text(encoding="utf-8"))
    assert (found["command"], found["findings"], found["problems"]) == ("upgrade", [], [])


CHECKPOINT = {"import os": "from torch.utils.checkpoint import checkpoint\nimport os"}
POOL = {"import os": "from concurrent.futures import ThreadPoolExecutor as Pool\nimport os"}
SCALED = """\
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        return grad * (0.5 if NEW else 0.6)
model, head"""


@pytest.mark.program
@pytest.mark.parametrize(
    ("middle", "changes", "texts"),
    [
        ('h = F.gelu(h, approximate="tanh" if NEW else "none")', {}, [": another op; ", "train.py:13  step 1, forward of gelu"]),
        ("assert not NEW, 'no longer there'", {}, [": fails in one of them; ", "AssertionError: no longer there"]),
        ("h = F.gelu(h * (0.5 if NEW else 0.6))", {}, [": another op; ", "train.py:13  step 1, forward of mul"]),
        ("h = F.gelu(h) * (int.from_bytes(os.urandom(2), 'big') / 65536)", {}, [": the program's own; ", "train.py:13"]),
        *(
            (f"h = {call}", CHECKPOINT | {"model, head": SCALED}, ["train.py:15  step 1, forward of mul", "called with 0.6 and with 0.5"])
            for call in ("Scaled.apply(h)", *(f"checkpoint(Scaled.apply, h, use_reentrant={on})" for on in (True, False)))
        ),
    ],
)  # fmt: skip
def test_a_planted_difference_is_named_at_its_line(
    capfd: pytest.CaptureFixture[str], middle: str, changes: dict[str, str], texts: list[str]
) -> None:
    status, out, err = upgrade(capfd, write_program(middle, changes))
    assert status == 1, out + err
    assert all(text in out for text in texts), out


def test_the_command_passes_its_options_and_writes_its_files(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    packages = dict.fromkeys("abcdefghij", ("1", "2"))

    def compare(runner: Runner, *pythons: str | None) -> Answer:
        asked.append((runner.program, runner.seed, runner.limits, *pythons))
        return Answer("another op", ("2.13.0", "2.15.0"), 3, 1, cut=Cut("program\n", ("1", "2")), packages=packages)

    monkeypatch.setattr("pseudograd_upgrade.upgrade.compare_torches", compare)
    options = (
        "--seed 4294967295 --steps 1 --time-limit 0.5 --max-runs 2 -v --cut-out cut.py --json a.json --to torch==2.15.0"
    )
    status, out, err = answer(capfd, "upgrade", *options.split(), write_program("pass"), "--epochs", "1")
    assert (status, out.splitlines()[1][-15:], err.count("-> 2")) == (1, "(-v lists them)", 10)
    assert asked == [(["train.py", "--epochs", "1"], 2**32 - 1, Limits(0.5, 2, True, 1), None, "torch==2.15.0")]
    texts = [Path(file).read_text(encoding="utf-8") for file in ("cut.py", "a.json")]
    assert texts[0] == "program\n# torch 2.13.0 prints 1\n# torch 2.15.0 prints 2\n"
    assert json.loads(texts[1])["answer"] == "another op"


@pytest.mark.program
def test_a_difference_between_the_recorded_steps_is_found(capfd: pytest.CaptureFixture[str]) -> None:
    """At first only the loss of step 9 is recorded; the steps around it run again."""
    middle = 'h = F.gelu(h, approximate="tanh" if os.environ["WHICH"] == "new" and at == 8 else "none")'
    name = write_program(middle, {"for _ in range(4)": "for at in range(12)"})
    for which in ("old", "new"):
        Path(which).write_text(f'#!/bin/sh\nWHICH={which} exec {PY} "$@"\n', encoding="utf-8")
        Path(which).chmod(0o755)
    status, out, err = answer(capfd, "upgrade", "--from", "./old", "--to", "./new", name)
    assert status == 1, out + err
    assert "steps 8 to 9" in err
    assert "train.py:13  step 9, forward of gelu" in out
    assert "called with approximate='none' and with approximate='tanh'" in out


@pytest.mark.program
def test_runs_end_after_some_steps_and_the_answer_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    """A difference of the third step, which is not compared."""
    name = write_program("h = h * (0.5 if NEW and at == 2 else 1.0)", {"for _ in": "for at in"})
    status, out, err = upgrade(capfd, "--steps", "2", name)
    assert status == 0, out + err
    assert ": nothing differs; 2 runs, 2 backward passes each\n" in out
    assert "upgrade: --steps ended the runs after 2 backward passes: what comes later was not compared\n" in out


def test_a_runner_gives_a_run_its_settings_and_reads_what_it_wrote(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked: list[Any] = []
    content = {"torch": "2.13.0+cpu", "steps": {}, "losses": [[1.0]], "errors": ["b"]}
    parts = follow.Part(1, None, False, {"torch": "0"}), follow.Part(2, None, True, content)
    done = follow.Run(3, parts, (), ("a", "a"), b"printed\n", b"line\n" * 13)
    monkeypatch.setattr(follow, "run", lambda *words, **options: asked.append((*words, options)) or done)
    for name, value in {"PYTHONPATH": "/own", "OMP_NUM_THREADS": "1", "PYTEST_PLUGINS": "mine"}.items():
        monkeypatch.setenv(name, value)
    python = Interpreter("python", "2.13.0", route="cpu", environment={"A": "b"})
    runner = Runner(["train.py", "x"], str(tmp_path), 7, Limits(5, 3, is_verbose=True, steps=9))
    run = runner.run(python.but(has_other_order=True), Schedule())
    assert (run.torch, run.status, run.losses, run.errors) == ("2.13.0+cpu cpu", 3, [[1.0]], ("a", "b"))
    assert run.ending == ("printed", *["line"] * 12)
    (command, job, options), threads = asked.pop(), min(2, os.cpu_count() or 1)
    settings = {"seed": 7, "schedule": [6, 25, None, 9, None], "has_other_order": True, "threads": threads}
    assert (command, job) == (
        ["python", "train.py", "x"],
        {"module": "pseudograd_upgrade.recorder", "settings": settings},
    )
    environment = {"PYTHONPATH": f"{tmp_path}{os.pathsep}/own", "PYTHONHASHSEED": "7", "A": "b"}
    order = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}
    assert options["environment"] == {**environment, **order, "OMP_NUM_THREADS": str(threads)}
    assert (options["is_quiet"], options["seconds"]) == (True, 5)
    first, *printed, cost = capfd.readouterr().err.splitlines()
    assert (first, printed) == ("upgrade: run 1: torch 2.13.0 cpu, sums in another order", ["printed", *["line"] * 13])
    assert cost.endswith(": at least 2 runs, about 0.1 minutes; at most 3, about 0.1 minutes")
    monkeypatch.delenv("OMP_NUM_THREADS")
    done = follow.Run(0, (), errors=("c",))
    assert runner.run(python.but(has_other_order=True), Schedule()).torch == "2.13.0 cpu"
    assert asked.pop()[1]["settings"]["threads"] == 1
    runner.count, done = 0, follow.Run(0, parts[:1])
    parts[0].content.update(endings={"t": ("passed", "")}, tests={}, running="t", errors=[])
    suite = runner.run_suite(python, Schedule(), ["t"])
    assert (suite.torch, suite.running, suite.tests["t"].outcome) == ("0", ("t",), "passed")
    plugins = {
        "PYTEST_PLUGINS": "mine,pseudograd_upgrade.suite_plugin",
        "PSEUDOGRAD_UPGRADE_TESTS": str(tmp_path / "tests.json"),
    }
    assert {name: asked[0][2]["environment"][name] for name in plugins} == plugins
    assert json.loads((tmp_path / "tests.json").read_text(encoding="utf-8")) == ["t"]
    assert "A" not in asked[0][2]["environment"]
    lines = capfd.readouterr().err.splitlines()
    assert lines[-4] == "upgrade: run 1: torch 2.13.0 cpu, 1 test"
    assert lines[-1].endswith("; runs after the second have only the tests that differ")
    minutes = [runner._minutes(2) for runner._seconds in (2, 299, 300)]
    assert minutes == ["0.1 minutes", "10.0 minutes", "10 minutes"]
    runner.count = 3
    with pytest.raises(LimitError):
        runner.run(python, Schedule())


@pytest.mark.program
def test_a_line_in_a_thread_of_the_program_is_known_and_pinned() -> None:
    (python, _), edge = find_environments(PY, PY), "open" if installed_era() == CLOSED_ERA else "closed"
    program = write_program("h = Pool(1).submit(lambda: h * scale.clamp(0, 1)).result()", CLAMP | POOL)
    with open_runner(program, [], False, 0) as runner:
        runs = [runner.run(python.but(pin=pin, lines=["train.py:15"]), Schedule()) for pin in (None, edge)]
    for run in runs:
        assert any((event.origin.kind, event.origin.where) == ("backward", "train.py:15") for event in run.steps[1])
    assert leaves_of(runs[0], 1) != leaves_of(runs[1], 1)


@pytest.mark.program
def test_a_program_without_a_backward_is_compared_too(capfd: pytest.CaptureFixture[str]) -> None:
    Path("infer.py").write_text("import torch\nprint(torch.randn(3).exp().sum())\n", encoding="utf-8")
    status, out, err = upgrade(capfd, "infer.py")
    assert status == 0, out + err
    assert ": nothing differs; 2 runs, 0 backward passes each" in out


def test_short_arguments_without_tensors_are_options() -> None:
    x = torch.ones(2)
    options = describe_options((x, 0.5, [1, x], (1,) * 8, (1,) * 9), {"dim": (0, 1), "out": x})
    assert options == "0.5, (1, 1, 1, 1, 1, 1, 1, 1), dim=(0, 1)"
    assert len(describe_options(("x" * 300,), {})) == 200


LOGISTIC = """\
import sys
import torch
which, at, factor = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
with open("ran", "a") as file:
    file.write("x")
is_planted = len(open("ran").read()) == which
w = torch.nn.Parameter(torch.tensor(0.3, dtype=torch.float64))
optimiser = torch.optim.SGD([w], lr=1.0)
for step in range(1, 81):
    with torch.no_grad():
        w.mul_(factor if is_planted and step == at else 1.0)
        move = w - 3.9 * w * (1 - w)
    optimiser.zero_grad()
    (w * move).backward()
    optimiser.step()
"""
ROUNDED = 1 + 2.0**-50  # four roundings


@pytest.mark.program
def test_chaos_is_called_rounding_that_grew(capfd: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text(LOGISTIC, encoding="utf-8")
    status, out, err = upgrade(capfd, "train.py", "2", "3", repr(ROUNDED))
    assert status == 0, out + err
    assert "parameters moved by roundings" in err
    assert ": rounding, magnified by the program; 4 runs," in out.splitlines()[0], out
    assert re.search(r"the losses of the two runs differ from step [2-6]\d on, by up to .+ %", out), out
    status, out, err = upgrade(capfd, "train.py", "6", "3", "1.001")  # a real difference, before chaos
    assert status == 1, out + err
    assert "train.py:11  step 3, forward of mul_" in out


SOFTPLUS = """
import torch.nn.functional as F

@replaced(F, "softplus")
def softplus(known, x, *args, **kwargs):
    y = known(x, *args, **kwargs)
    if y.requires_grad:
        y.register_hook(lambda grad: torch.where(x.detach() > 1, grad * 0.5, grad))
    return y
"""


@pytest.mark.program
def test_a_changed_gradient_is_cut_out(capfd: pytest.CaptureFixture[str]) -> None:
    """Through a checkpoint, which calls the function twice."""
    new = planted(SOFTPLUS)
    call = "h = checkpoint(lambda x: F.softplus(3 * x), h, use_reentrant=False)"
    name = write_program(call, CHECKPOINT)
    status, out, err = upgrade(capfd, "--cut-out", "alone.txt", "--json", "answer.json", name, new=new)
    assert status == 1, out + err
    assert "next: report it upstream, with the program below: SoftplusBackward0 of torch" in out
    cut = json.loads(Path("answer.json").read_text(encoding="utf-8"))["cut"]
    lines = cut["program"].splitlines()
    assert lines[0] == "import torch"
    assert lines[2].startswith("x = torch.tensor(")
    assert lines[3:] == ["y = torch.nn.functional.softplus(x)", "y.backward()", "print(x.grad)"]
    for python, printed in zip((PY, new), cut["prints"], strict=True):
        done = subprocess.run([python, "-c", cut["program"]], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == printed
    old, changed = (float(text.removeprefix("tensor(").removesuffix(")")) for text in cut["prints"])
    assert changed == pytest.approx(old / 2, rel=1e-3)
    assert Path("alone.txt").read_text(encoding="utf-8").startswith(cut["program"])
    for line in lines:
        assert f"  {line}".rstrip() in out


def test_a_wrong_call_gets_the_written_line(capfd: pytest.CaptureFixture[str]) -> None:
    def line_of(*arguments: str) -> str:
        write_program("pass")
        status, out, err = answer(capfd, "upgrade", *arguments)
        assert (status, out) == (2, "")
        return err

    assert_written(Path(__file__).with_name("bad_calls.txt"), {"line_of": line_of, "PY": PY})


@pytest.mark.program
@pytest.mark.usefixtures("own_process")
def test_an_interpreter_without_torch_and_a_program_without_a_call_are_refused(
    capfd: pytest.CaptureFixture[str],
) -> None:
    subprocess.run([PY, "-m", "venv", "--without-pip", "bare"], check=True)
    bare = str(Path("bare", "Scripts" if os.name == "nt" else "bin", "python"))
    Path("plain.py").write_text("print(1)\n", encoding="utf-8")
    for new, message in (
        (bare, f"upgrade: --to must have torch, got {bare!r}."),
        (PY, "upgrade: the program must call torch under --from, got nothing."),
    ):
        status, _, err = upgrade(capfd, "plain.py", new=new)
        assert status == 2
        assert message in err


CLAMP = {"[*model": "[scale, *model", "model, head": "scale = nn.Parameter(torch.ones(1))\nmodel, head"}


@needs_other
@pytest.mark.program
@pytest.mark.parametrize(
    ("middle", "changes", "line"),
    [
        ("h = F.margin_ranking_loss(h - h.detach(), h * 0, h.sign().detach()) + h", {}, "train.py:13  step 1, backward of ClampMin"),
        ("h = h * scale.clamp(0, 1)", CLAMP, "train.py:14  step 1, backward of Clamp"),
        ("h = Pool(1).submit(lambda: h * scale.clamp(0, 1)).result()", CLAMP | POOL, "train.py:15  step 1, backward of Clamp"),
        *(
            (f"h = checkpoint(lambda z: z * scale.clamp(0, 1), h, use_reentrant={on})", CLAMP | CHECKPOINT, "train.py:15  step 1,")
            for on in (True, False)
        ),
    ],
)  # fmt: skip
def test_a_convention_differs_between_two_eras(
    capfd: pytest.CaptureFixture[str], middle: str, changes: dict[str, str], line: str
) -> None:
    command = [OTHER, "-c", "import torch; print(torch.__version__)"]
    assert era_of(subprocess.run(command, capture_output=True, text=True, check=True).stdout) != installed_era()
    status, out, err = upgrade(capfd, "--json", "answer.json", write_program(middle, changes), new=OTHER)
    assert status == 1, out + err
    assert ": a kink's convention; " in out.splitlines()[0], out
    pin = f"pseudograd run --pin '{installed_era()}' train.py"
    for text in (line, "this line pinned, the losses are equal", "judge by a figure" if "F.margin" in middle else pin):
        assert text in out, out
    if middle == "h = h * scale.clamp(0, 1)":
        cut = json.loads(Path("answer.json").read_text(encoding="utf-8"))["cut"]
        prints = ["tensor(1.)", "tensor(0.)"]
        assert cut["prints"] == (prints if installed_era() == "torch<=2.13" else prints[::-1])


PRINTED = {
    "    x = torch": "    torch.manual_seed(0); x = torch",  # the same data in each step, so that the loss falls
    "    loss.backward()": "    print(loss.item())\n    loss.backward()",
    "NEW =": "torch.manual_seed(0); NEW =",
}
REFUSED = {"        for parameter in": "        assert scale.grad.any() or scale.item() != 1\n        for parameter in"}
SIDE = {"scale = nn": "side = nn.Parameter(torch.zeros(16)); scale = nn", "[scale,": "[side, scale,"}


@needs_other
@pytest.mark.program
@pytest.mark.parametrize(
    ("second", "changes", "kind", "pinned"),
    [
        ("h + side.clamp(min=0)", SIDE, "a kink's convention", [15, 14]),
        ("F.gelu(h)", REFUSED, "fails in one of them", [14]),
    ],
    ids=["two sites matter", "one side fails"],
)
def test_the_printed_pin_brings_the_losses_back_where_it_is_pasted(
    capfd: pytest.CaptureFixture[str], second: str, changes: dict[str, str], kind: str, pinned: list[int]
) -> None:
    old, new = (PY, OTHER) if installed_era() == "torch<=2.13" else (OTHER, PY)
    name = write_program(f"h = h * scale.clamp(0, 1)\n    h = {second}", CLAMP | changes | PRINTED)
    status, out, err = answer(capfd, "upgrade", "--from", old, "--to", new, name)
    assert (status, f": {kind}; " in out.splitlines()[0]) == (1, True), out + err
    ((pin, around),) = re.findall(r"next: (with pseudograd.pin_edge\('torch<=2.13'\)): ...  # around (.+)", out)
    assert around == " and ".join(f"train.py:{line}" for line in pinned), out
    lines = enumerate(Path(name).read_text(encoding="utf-8").splitlines(), start=1)
    pasted = [f"    {pin}: {text.strip()}" if line in pinned else text for line, text in lines]
    Path("pasted.py").write_text("\n".join(["import pseudograd", *pasted]), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(Path(pseudograd.__file__).parents[1])}
    losses = []
    for python, file in ((old, name), (new, "pasted.py")):
        done = subprocess.run([python, file], capture_output=True, text=True, env=environment, check=True)
        losses.append([float(line) for line in done.stdout.splitlines()])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert f"the last loss is {losses[0][-1]:.6g} under torch 2.13" in out or kind.startswith("fails")
