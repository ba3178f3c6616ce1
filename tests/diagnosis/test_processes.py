"""`pseudograd diagnose` of programs with several processes, and of programs that do not end at their last line."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pseudograd.diagnosis import Diagnosis
from pseudograd.diagnosis.processes import fields_of, merge
from pseudograd.listen.program import follow as programs
from pseudograd.listen.program.follow import Part

from ..choices import slow_but
from ..commands import answer

PSEUDOGRAD = [sys.executable, "-m", "pseudograd"]
BASE = """\
import time
import torch

def train(steps=2, wait=0.0):
    gain = torch.nn.Parameter(torch.tensor(5.0))
    for step in range(steps):
        gain.clamp(0, 2).backward()
    if wait:
        print("ready", flush=True)
        time.sleep(wait)
"""


@pytest.fixture(autouse=True)
def _program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "base.py").write_text(BASE)
    monkeypatch.chdir(tmp_path)


def command(source: str, *options: str) -> list[str]:
    Path("train.py").write_text(source)
    return ["diagnose", *options, "--json", "report.json", "train.py"]


Ran = Callable[..., tuple[int, str, dict[str, Any]]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Ran:
    """Status, standard error, and the JSON. The command itself is no process of its own, the program is."""

    def run_program(source: str, *options: str) -> tuple[int, str, dict[str, Any]]:
        status, _, err = answer(capfd, *command(source, *options))
        return status, err, json.loads(Path("report.json").read_text())

    return run_program


SPAWN = """\
import base, torch.multiprocessing
def train(number):
    base.train(number + 2)
if __name__ == "__main__":
    torch.multiprocessing.spawn(train, nprocs=1)
"""
CHILDREN = {
    "spawned": SPAWN,
    "a command": "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import base; base.train()'])",
    "forked by multiprocessing": (
        "import base, multiprocessing\nchild = multiprocessing.get_context('fork').Process(target=base.train)\n"
        "child.start(); child.join()"
    ),
    "forked": "import base, os\nif not os.fork():\n    base.train(); os._exit(0)\nos.wait()",
}


@pytest.mark.program
@pytest.mark.parametrize("how", slow_but(["spawned"], CHILDREN))
def test_children_are_followed(how: str, run: Ran) -> None:
    if "fork" in how and not hasattr(os, "fork"):
        pytest.skip("no fork here")
    status, err, report = run(CHILDREN[how], "--fail-on", "starved")
    assert status == 4
    assert "diagnose: --fail-on holds at base.py:7" in err
    assert (report["backwards"], [process["backwards"] for process in report["processes"]]) == (2, [2])
    assert not report["processes"][0]["is_main"]
    assert "diagnose: backward passes by process: process " in err


ENDINGS = {
    "os._exit": ("import base, os; base.train(); os._exit(0)", 4, 2),
    "killed": ("import base, os; base.train(); os.kill(os.getpid(), 9)", 137, 0),
    "a text": ("import base, sys; base.train(); sys.exit('said')", 1, 2),
    "interrupted": (
        "import base, torch\nw = torch.nn.Parameter(torch.tensor([0.5, 3.0]))\noptimizer = torch.optim.SGD([w], 0.01)\n"
        "for _ in range(2):\n    w.clamp(0, 1).sum().backward()\n    optimizer.step()\nraise KeyboardInterrupt",
        130,
        2,
    ),
    "at exit": ("import base, atexit; atexit.register(base.train)", 4, 2),
    "nothing": ("import torch", 4, 0),
}


@pytest.mark.program
@pytest.mark.parametrize("how", slow_but(["killed", "os._exit", "nothing", "interrupted"], ENDINGS))
@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_however_it_ends(how: str, run: Ran) -> None:
    source, expected, backwards = ENDINGS[how]
    status, err, report = run(source, "--fail-on", "any")
    assert (status, report["backwards"]) == (expected, backwards)
    assert bool(report["unseen"]) == (how == "killed")
    assert ("ended without a report: it was killed" in err) == (how == "killed")
    assert ("no backward started" in err) == (how == "nothing")


@pytest.mark.program
@pytest.mark.skipif(os.name == "nt", reason="signals")
@pytest.mark.parametrize(
    ("sent", "status"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_signals_end_it_as_without_us_and_the_report_is_written(sent: int, status: int) -> None:
    process = subprocess.Popen(
        [*PSEUDOGRAD, *command("import base\nbase.train(2, 60)")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(sent)
    _, err = process.communicate(timeout=60)
    assert process.returncode == status
    assert "diagnose: 2 backward passes" in err
    assert json.loads(Path("report.json").read_text())["backwards"] == 2


def test_a_process_without_torch_is_left_alone(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("sitecustomize.py").write_text("import builtins; builtins.theirs = 1")
    source = "import sys; print(theirs, [name for name in sys.modules if name.startswith(('torch', 'pseudograd.'))])"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")]))
    status, out, err = answer(capfd, *command(source))
    assert (status, out) == (0, "1 []\n"), err


def _part(process: int, share: float, rank: int | None = None, entries: int = 1) -> Part:
    import torch

    names = {"gain" if entries == 1 else "wider": torch.nn.Parameter(torch.tensor([5.0] * entries + [share]))}
    with Diagnosis(None, None, "full") as d:
        next(iter(names.values())).clamp(0, 2).sum().backward()
    return Part(process, rank, False, fields_of(d))


def test_what_only_one_rank_has_is_said_to_be_its_own() -> None:
    nothing = Diagnosis(None, None, "full")
    healthy, cut = _part(1, 1.0, 0), _part(2, 3.0, 1)  # half is cut, and all
    report = merge([healthy, cut], [], nothing)
    assert [(process["name"], process["backwards"]) for process in report.to_json()["processes"]] == [
        ("rank 0", 1),
        ("rank 1", 1),
    ]
    assert [(site.calls, site.elements, site.cut) for site in report.sites] == [(2, 4, 3)]
    assert [record.parameter for record in report.starved] == ['rank 1: names["gain"]']
    starved = next(finding for finding in report.findings if finding.code == "starved")
    assert starved.also[0] == "in rank 1 alone"
    both = merge([cut, _part(3, 3.0, 2)], [], nothing)
    assert str(both).count("starved  ") == 1
    assert [finding.also[0] for finding in both.findings] == ["in each of 2 processes alike"] * len(both.findings)


def test_parameters_of_two_models_bear_the_name_of_their_process() -> None:
    nothing, name = Diagnosis(None, None, "full"), 'names["{}"]'
    alike = merge([_part(1, 1.0, 0), _part(2, 3.0, 1)], [], nothing)
    assert list(alike.parameters) == [name.format("gain")]
    assert [norm.parameter for norm in alike.norms] == [name.format("gain")]
    other = merge([_part(1, 1.0, 0), _part(2, 3.0, 1, entries=2)], [], nothing)
    expected = ["rank 0: " + name.format("gain"), "rank 1: " + name.format("wider")]
    assert list(other.parameters) == expected
    assert [norm.parameter for norm in other.norms] == expected


@pytest.mark.program
def test_a_process_that_cannot_be_followed_is_said_so_and_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("train.py").write_text("import torch; print('ran')")
    done = programs.run(programs.command_of("train.py", [], False), {"module": "pseudograd.no_such_module"})
    assert done.status == 0
    assert done.errors == ("ModuleNotFoundError: No module named 'pseudograd.no_such_module'",)
