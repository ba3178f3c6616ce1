"""`pseudograd compare` and `tune` from the command line: a training of one's own, kept, in processes."""

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pseudograd.comparison.variants import variants
from pseudograd_tasks import TASKS, Task, basin
from pseudograd_tasks.base import ElementByElement, Settings
from pseudograd_tasks.cli.compare import _find_loss
from pseudograd_tasks.report.results import Results
from pseudograd_tasks.report.sources import run_tasks

from ..choices import folded
from ..commands import answer as run

pytestmark = pytest.mark.xdist_group("compare")

MODULE = """\
import os
import torch

def step_out(clamp, seed):
    x = torch.full((4,), 2.0) + torch.rand(4)
    for _ in range(30):
        x = x.detach().requires_grad_()
        clamp(x, -1, 1).pow(2).sum().backward()
        x = x - 0.1 * x.grad
    loss = clamp(x, -1, 1).pow(2).sum().item() + seed / 1000
    return {"loss": loss, "score": -loss}

def unedited(seed):
    return step_out(torch.clamp, seed)["loss"]

STEPS = {"a": torch.clamp, "b": "inward"}

def no_number(clamp):
    clamp(torch.zeros(1), 0, 1)

def total(y):
    return ((y - 0.25) ** 2).sum()

def mean(y):
    return ((y - 0.25) ** 2).mean()

def of_each(y):
    return (y - 0.25) ** 2

def of_two(y):
    return y[:2]
"""
MINE = "training_of_mine"
OWN = ("compare", "--task", f"{MINE}:step_out", "--rules", "inward,leaky(0.2)", "--seeds", "6")
WAYS = ("--better", "loss=lower,score=higher")


@pytest.fixture(autouse=True)
def _module_of_mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / f"{MINE}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop(MINE, None)


def stored(folder: str = "pseudograd-report") -> Any:
    return json.loads((Path(folder) / "results.json").read_text(encoding="utf-8"))


def works(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the command printed."""
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, "")
    return out


def test_a_training_of_ones_own_is_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    path = list(sys.path)
    works(capsys, *OWN, *WAYS, "--out", "report")
    assert sys.path == path
    folder = Path("report")
    files = {"index.html", "results.json", "step_out-1.png", "step_out-2.png"}
    assert {file.name for file in folder.iterdir()} == files
    assert {file.name for file in Path().iterdir()} - {"__pycache__"} == {"report", f"{MINE}.py"}
    own, task = stored("report")["own"], stored("report")["tasks"]["step_out"]
    assert list(own["values"]) == ["loss", "score"]
    assert own["verdicts"]["loss"]["inward"]["mean"] == pytest.approx(-4, abs=0.1)  # four elements come home
    world = task["worlds"]["loss"]
    assert list(world) == ["zero/closed", "zero/open", "inward", "leaky(0.2)", "torch.clamp", "no clamp"]
    assert world["torch.clamp"]["mean"] == pytest.approx(4 + 2.5 / 1000)
    assert task["seeds"]["loss"]["torch.clamp"] == pytest.approx([4 + seed / 1000 for seed in range(6)])
    page = (folder / "index.html").read_text(encoding="utf-8")
    for part in (
        "<h1>Same training. Same seeds. One backward rule changed.</h1>",
        "<h2>Your own case: step_out</h2>\n<p>step_out was run with the clamp of each rule, over 6 seeds. "
        "Better is a lower loss and a higher score.</p>",
        "<li>loss: Edge: equal on all 6 seeds.</li>",
        'alt="step_out: loss of every variant, a dot for each seed"',
        ">standard deviation over seeds</th>",
    ):
        assert part in page


@pytest.mark.program
def test_an_unedited_training_and_variants_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    unedited = ("compare", "--task", f"{MINE}:unedited", "--replace", "clamp", "--rules", "inward", "--seeds", "2")
    assert "unedited, clamp replaced: 2 seeds" in works(capsys, *unedited)
    rows = stored()["own"]["values"]["the number"]
    assert list(rows) == ["zero/closed", "zero/open", "inward", "torch.clamp"]
    assert rows["inward"][0] < 0.1 < rows["torch.clamp"][0]
    own = ("--variants", f"{MINE}:STEPS", "--baseline", "b", "--seeds", "2", "--out", "own")
    assert "less b" in works(capsys, *OWN[:3], *own)
    rows = stored("own")["own"]["values"]["loss"]
    assert list(rows) == ["a", "b"]
    assert rows["b"][0] < 0.1 < rows["a"][0]


@pytest.mark.program
def test_an_older_report_of_other_numbers_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (*OWN[:3], *WAYS, "--seeds", "2", "--rules")
    assert "older report" not in works(capsys, *arguments, "inward")
    before = stored()
    out = works(capsys, *arguments, "leaky")
    assert "\nThe older report, of other numbers, is kept: pseudograd-report-1\n" in out
    assert stored("pseudograd-report-1") == before
    assert "older report" not in works(capsys, *arguments, "leaky")  # the same numbers again
    assert "kept: pseudograd-report-2\n" in works(capsys, *arguments, "inward")
    assert "leaky" in stored("pseudograd-report-2")["rules"]
    assert "inward" in stored()["rules"]


def test_tune_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    out = works(capsys, "tune", *OWN[1:5], "--budget", "40", *WAYS, "--json", "tuned.json")
    tuned = json.loads(Path("tuned.json").read_text(encoding="utf-8"))
    assert (tuned["kind"], tuned["budget"]) == ("pseudograd tuning", 40)
    assert out.startswith("Last round, on seeds of its own: 36 of 40 runs spent in all.\n")


NO_NUMBER = (
    "run must return a number, or numbers by name, with zero/closed and seed 0, got None. "
    "Return what the training ends with, such as its loss."
)
NO_FUNCTION = f"--task must name a function that can be imported, got '{MINE}:nothing'. module '{MINE}' has no attribute 'nothing'."
NO_LOSS = "--loss must return numbers with a gradient, one or one for each element, got a Tensor of torch.float64 and shape (2,)."
# By the arguments: the line on stderr, after the name of the command.
WRONG = {
    f"compare --task {MINE}": f"--task must be MODULE:FUNCTION, got '{MINE}'.",
    f"compare --task {MINE}:nothing": NO_FUNCTION,
    f"compare --task {MINE}:no_number": NO_NUMBER,
    f"compare --task {MINE}:step_out --tasks basin": "--tasks must be left out with --task, got 'basin'.",
    "compare --seeds 3": "--seeds must come with --task, got 3.",
    "compare --replace clamp": "--replace must come with --task, got 'clamp'.",
    f"compare --variants {MINE}:STEPS": f"--variants must come with --task, got '{MINE}:STEPS'.",
    "compare --keep runs": "--keep must come with --task, got 'runs'.",
    "compare --jobs 0": "--jobs must be at least 1, got 0.",
    f"compare --loss {MINE}:of_two": NO_LOSS,
    f"compare --task {MINE}:step_out --out .": (
        "--out must be a folder of its own, got '.'. Name a new one, such as report."
    ),
    "tune --budget 30": "--task must be given, got none. Name your training as MODULE:FUNCTION.",
}


@folded
@pytest.mark.parametrize("arguments", WRONG)
def test_a_wrong_call_gets_one_line(capsys: pytest.CaptureFixture[str], arguments: str) -> None:
    code, _, err = run(capsys, *arguments.split())
    assert (code, err) == (2, f"pseudograd: {arguments.split()[0]}: {WRONG[arguments]}\n")
    assert not Path("pseudograd-report").exists()


def test_a_loss_may_return_a_number_for_each_element_or_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend("")
    y = torch.tensor([0.5, -1.0], requires_grad=True)
    for name in ("of_each", "total"):
        assert torch.equal(_find_loss(f"{MINE}:{name}")(y), _loss("of_each")(y))


def _loss(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    return getattr(importlib.import_module(MINE), name)


@pytest.mark.program
def test_a_scalar_loss_is_asked_of_each_element_by_itself(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend("")
    of_each, scalar = _loss("of_each"), [ElementByElement(_loss(name)) for name in ("total", "mean")]
    for loss in scalar:
        for y in (torch.linspace(-2, 2, 7, dtype=torch.float64), torch.rand(2, 3)):
            point = y.clone().requires_grad_()
            assert torch.equal(loss(point), of_each(y))
            loss(point).sum().backward()
            assert torch.equal(point.grad, 2 * (y - 0.25))
    variant = next(variant for variant in variants(["inward"], has_leaves=True) if variant.name == "inward")
    ends = [basin._run("mine", variant, Settings(-1.0, 1.0, loss, "mine")) for loss in (scalar[1], of_each)]
    assert torch.equal(ends[0].arrays["path"], ends[1].arrays["path"])
    assert ends[0].numbers["reached"] == 400
    works(capsys, "compare", "--tasks", "basin", "--rules", "inward", "--loss", f"{MINE}:mean")
    assert stored()["loss"] == f"{MINE}:mean"
    coupled = ElementByElement(lambda y: y.sum() ** 2)
    y = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
    coupled(y).sum().backward()
    assert y.grad.tolist() == [2.0, -4.0, 6.0]
    settings = Settings(-1.0, 1.0, coupled, "mine")
    assert basin.minimum(basin.loss_of(settings)[1], settings) == pytest.approx((0, 0), abs=1e-9)


def same(first: Results, second: Results) -> None:
    """Everything that was measured, to the bit; not how long it took."""
    assert {**first.to_json(), "seconds": 0} == {**second.to_json(), "seconds": 0}
    for task, section in first.sections.items():
        for world, rows in section.worlds.items():
            for name, outcome in rows.items():
                theirs = second.sections[task].worlds[world][name].arrays
                for key, array in outcome.arrays.items():
                    assert torch.equal(array.nan_to_num(7), theirs[key].nan_to_num(7)), key


@pytest.mark.program
def test_finished_runs_are_kept_and_found_again(capsys: pytest.CaptureFixture[str]) -> None:
    command = (*OWN[:3], *WAYS, "--rules", "inward", "--keep", "kept", "--seeds")
    assert "step_out, seed 1" in works(capsys, *command, "2")
    assert len(list(Path("kept").iterdir())) == 10
    out = works(capsys, *command, "3", "--out", "again")
    assert "seed 1 (" not in out
    assert "seed 2 (10 of 15 runs done)" in out
    assert len(stored("again")["own"]["seeds"]) == 3


@pytest.mark.slow
def test_processes_measure_the_same_to_the_bit() -> None:
    arguments = (["basin"], ["inward"], Settings(-1.0, 1.0, ElementByElement(torch.sum), "mine"))
    same(run_tasks(*arguments, jobs=2), run_tasks(*arguments))


def test_tasks_of_ones_own_stay_in_this_process() -> None:
    mine = Task(**{**vars(TASKS["basin"]), "name": "mine"})
    with pytest.raises(ValueError, match=r"compare: jobs must be 1 for tasks of your own, .*, got \['mine'\]"):
        run_tasks([mine], ["inward"], jobs=2)
