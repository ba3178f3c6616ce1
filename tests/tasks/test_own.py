"""compare on one's own training, from the command line: the report, drawn again, resumed, in processes, beside another one; and tune."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from pseudograd.comparison.variants import variants
from pseudograd.listen.program.signals import Stopped
from pseudograd_tasks import TASKS, Task, basin, curve
from pseudograd_tasks.base import Settings
from pseudograd_tasks.report.against import Other, Row, common_rows, read_other, side_by_side
from pseudograd_tasks.report.results import Results
from pseudograd_tasks.report.sources import load_results, run_tasks
from pseudograd_tasks.report.write import runs_so_far, write
from pseudograd_tasks.scalar_loss import ElementByElement

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


@pytest.fixture(autouse=True)
def _module_of_mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "training_of_mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("training_of_mine", None)


OWN = ("compare", "--task", "training_of_mine:step_out", "--rules", "inward,leaky(0.2)", "--seeds", "6")
WAYS = ("--better", "loss=lower,score=higher", "--out", "report")


def test_a_training_of_ones_own_is_a_report_that_can_be_drawn_again(capsys: pytest.CaptureFixture[str]) -> None:
    path = list(sys.path)
    code, out, err = run(capsys, *OWN, *WAYS)
    assert (code, err, sys.path) == (0, "", path)
    folder = Path("report")
    assert {file.name for file in folder.iterdir()} == {
        "index.html",
        "results.json",
        "arrays.npz",
        "step_out-1.png",
        "step_out-2.png",
    }
    assert {file.name for file in Path().iterdir()} - {"__pycache__"} == {"report", "training_of_mine.py"}
    stored = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert list(stored["own"]["values"]) == ["loss", "score"]
    assert stored["own"]["verdicts"]["loss"]["inward"]["mean"] == pytest.approx(-4, abs=0.1)  # four elements come home
    world = stored["tasks"]["step_out"]["worlds"]["loss"]
    assert list(world) == ["zero/closed", "zero/open", "inward", "leaky(0.2)", "torch.clamp", "no clamp"]
    assert world["torch.clamp"]["mean"] == pytest.approx(4 + 2.5 / 1000)
    assert stored["tasks"]["step_out"]["seeds"]["loss"]["torch.clamp"] == pytest.approx(
        [4 + s / 1000 for s in range(6)]
    )
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
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    code, again, err = run(capsys, "compare", "--redraw", "report")
    assert (code, err) == (0, "")
    assert out.endswith(again)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_an_unedited_training_and_its_edges(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capsys,
        "compare",
        "--task",
        "training_of_mine:unedited",
        "--replace",
        "clamp",
        "--rules",
        "inward",
        "--seeds",
        "2",
    )
    assert (code, err) == (0, "")
    own = json.loads(Path("pseudograd-report/results.json").read_text(encoding="utf-8"))["own"]
    assert list(own["values"]["the number"]) == ["zero/closed", "zero/open", "inward", "torch.clamp"]
    assert own["values"]["the number"]["inward"][0] < 0.1 < own["values"]["the number"]["torch.clamp"][0]
    assert "unedited, clamp replaced: 2 seeds" in out
    code, out, err = run(
        capsys, *OWN[:3], "--rules", "inward", "--edges", "open,half", "--seeds", "1", "--out", "edges"
    )
    assert (code, err) == (0, "")
    assert "inward/open" in out
    assert "inward/half" in out


def test_variants_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    name = "training_of_mine:"
    options = ("--variants", f"{name}STEPS", "--baseline", "b", "--time-limit", "60", "--seeds", "2")
    code, out, err = run(capsys, *OWN[:2], f"{name}step_out", *options)
    assert (code, err) == (0, "")
    assert "less b" in out
    own = json.loads(Path("pseudograd-report/results.json").read_text(encoding="utf-8"))["own"]
    assert list(own["values"]["loss"]) == ["a", "b"]
    assert own["values"]["loss"]["b"][0] < 0.1 < own["values"]["loss"]["a"][0]


@pytest.mark.program
def test_an_older_report_of_other_numbers_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    given = (*OWN[:3], "--better", "loss=lower,score=higher", "--seeds", "2", "--rules")

    def rules(folder: str) -> set[str]:
        return set(json.loads((Path(folder) / "results.json").read_text(encoding="utf-8"))["rules"])

    assert "older report" not in run(capsys, *given, "inward")[1]
    before = (Path("pseudograd-report") / "results.json").read_bytes()
    out = run(capsys, *given, "leaky")[1]
    assert "\nThe older report, of other numbers, is kept: pseudograd-report-1\n" in out
    assert (Path("pseudograd-report-1") / "results.json").read_bytes() == before
    assert "leaky" in rules("pseudograd-report")
    assert "older report" not in run(capsys, *given, "leaky")[1]  # the same numbers again
    assert "kept: pseudograd-report-2\n" in run(capsys, *given, "inward")[1]
    assert ("leaky" in rules("pseudograd-report-2"), "inward" in rules("pseudograd-report")) == (True, True)
    assert "older report" not in run(capsys, "compare", "--redraw", "pseudograd-report-2")[1]


def test_a_report_does_not_take_the_place_of_the_folder_that_one_is_in(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, *OWN, *WAYS[:2], "--out", ".")
    assert (code, err) == (
        2,
        "pseudograd: compare: --out must be a folder of its own, got '.'. Name a new one, such as report.\n",
    )


def test_tune_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("tune", *OWN[1:5], "--budget", "40", "--better", "loss=lower,score=higher", "--json", "tuned.json")
    code, out, err = run(capsys, *given)
    assert (code, err) == (0, "")
    stored = json.loads(Path("tuned.json").read_text(encoding="utf-8"))
    assert (stored["kind"], stored["budget"]) == ("pseudograd tuning", 40)
    assert out.startswith("Last round, on seeds of its own: 36 of 40 runs spent in all.\n")


WRONG = {
    ("compare", "--task", "training_of_mine"): "compare: --task must be MODULE:FUNCTION, got 'training_of_mine'.",
    ("compare", "--task", "training_of_mine:nothing"): (
        "compare: --task must name a function that can be imported, got 'training_of_mine:nothing'. "
        "module 'training_of_mine' has no attribute 'nothing'."
    ),
    ("compare", "--task", "training_of_mine:no_number"): (
        "compare: run must return a number, or numbers by name, with zero/closed and seed 0, got None. "
        "Return what the training ends with, such as its loss."
    ),
    ("compare", "--task", "training_of_mine:step_out", "--tasks", "curve"): (
        "compare: --tasks must be left out with --task, got 'curve'."
    ),
    ("compare", "--seeds", "3"): "compare: --seeds must come with --task, got 3.",
    ("compare", "--replace", "clamp"): "compare: --replace must come with --task, got 'clamp'.",
    ("compare", "--time-limit", "3"): "compare: --time-limit must come with --task, got 3.0.",
    ("compare", "--variants", "training_of_mine:STEPS"): (
        "compare: --variants must come with --task, got 'training_of_mine:STEPS'."
    ),
    (*OWN[:3], "--variants", "training_of_mine:STEPS", "--baseline", "c"): (
        "compare: baseline must be one of a, b, got 'c'."
    ),
    ("compare", "--jobs", "0"): "compare: --jobs must be at least 1, got 0.",
    (*OWN[:5], "--seeds", "0"): "compare: seeds must be at least 1, got 0.",
    (*OWN[:5], "--better", "up"): "compare: better must be one of higher, lower, got 'up'.",
    (*OWN[:5], "--better", "loss=lower"): "compare: better must say which is better of score, got {'loss': 'lower'}.",
    ("compare", "--task", "training_of_mine:unedited", "--replace", "clmp"): (
        "compare: replace must be one of clamp, fake_quantize, gelu, hardsigmoid, leaky_relu, relu, round, sign, silu, got 'clmp'. "
        "Did you mean 'clamp'?"
    ),
    ("compare", "--against", "nowhere.json"): (
        "compare: --against must be results.json as compare wrote it, got 'nowhere.json'. "
        "No such file or directory: name the results.json of a report."
    ),
    ("compare", "--against", "training_of_mine.py"): (
        "compare: --against must be results.json as compare wrote it, got 'training_of_mine.py'. "
        "Name the results.json of a report."
    ),
    ("compare", "--loss", "training_of_mine:of_two"): (
        "compare: --loss must return numbers with a gradient, one or one for each element, "
        "got a Tensor of torch.float64 and shape (2,)."
    ),
    ("tune", "--budget", "30"): "tune: --task must be given, got none. Name your training as MODULE:FUNCTION.",
    ("tune", "--task", "training_of_mine:step_out", "--budget", "3"): (
        "tune: budget must pay for one run of each, at least 15, got 3. Fewer rules need less; 69 give the last round seeds "
        "enough to tell."
    ),
}


@pytest.mark.parametrize("arguments", WRONG, ids=lambda arguments: " ".join(arguments)[:60])
def test_a_wrong_call_gets_one_line(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    code, _, err = run(capsys, *arguments)
    assert (code, err) == (2, f"pseudograd: {WRONG[arguments]}\n")
    assert not Path("pseudograd-report").exists()


# --- a loss of one number ---------------------------------------------------------------------------------------------


def _loss(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    return getattr(importlib.import_module("training_of_mine"), name)  # type: ignore[no-any-return]


@pytest.mark.program
def test_a_scalar_loss_is_asked_of_each_element_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    sys.path.insert(0, "")
    try:
        of_each, of_one = _loss("of_each"), [ElementByElement(_loss(name)) for name in ("total", "mean")]
    finally:
        sys.path.remove("")
    for loss in of_one:
        for y in (torch.linspace(-2, 2, 7, dtype=torch.float64), torch.rand(2, 3)):
            point = y.clone().requires_grad_()
            assert torch.equal(loss(point), of_each(y))
            loss(point).sum().backward()
            assert torch.equal(point.grad, 2 * (y - 0.25))  # type: ignore[arg-type]
    (variant,) = (one for one in variants(["inward"], has_leaves=True) if one.name == "inward")
    ends = [basin._run("mine", variant, Settings(-1.0, 1.0, loss, "mine")) for loss in (of_one[1], of_each)]
    assert torch.equal(ends[0].arrays["path"], ends[1].arrays["path"])
    assert ends[0].numbers["reached"] == 400
    given = ("--tasks", "curve", "--rules", "inward", "--loss", "training_of_mine:mean")
    assert run(capsys, "compare", *given)[0] == 0
    assert load_results(Path("pseudograd-report")).loss == "training_of_mine:mean"


def test_the_losses_of_a_scalar_loss_are_not_coupled() -> None:
    def coupled(y: torch.Tensor) -> torch.Tensor:
        return y.sum() ** 2

    y = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
    ElementByElement(coupled)(y).sum().backward()
    assert y.grad.tolist() == [2.0, -4.0, 6.0]  # type: ignore[union-attr]
    settings = Settings(-1.0, 1.0, ElementByElement(coupled), "mine")
    assert basin.minimum(curve.losses(settings)["mine"], settings) == pytest.approx((0, 0), abs=1e-9)


# --- resumed, and in processes ----------------------------------------------------------------------------------------


def test_a_report_that_was_broken_off_goes_on_where_it_stopped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("compare", "--tasks", "curve", "--rules", "inward")
    task, log, stops = (
        curve._run,
        Path("log"),
        Path("stops"),
    )  # in files: what a run holds is part of what it is kept by
    log.touch()
    stops.touch()

    def interrupted(*given: object) -> object:
        log.write_text(log.read_text() + ".")
        if len(log.read_text()) == 4 and stops.exists():
            raise Stopped(15)
        return task(*given)  # type: ignore[arg-type]

    monkeypatch.setitem(TASKS, "curve", _with_run(interrupted))
    code, _, err = run(capsys, *arguments)
    assert (code, err) == (
        143,
        "pseudograd: 3 finished runs are in pseudograd-report.unfinished; --resume goes on with them\n"
        "pseudograd: stopped by SIGTERM; nothing is left half-written\n",
    )
    assert len(list(Path("pseudograd-report.unfinished").iterdir())) == 3
    stops.unlink()
    assert run(capsys, *arguments, "--resume")[0] == 0
    assert len(log.read_text()) == 4 + 10 - 3
    assert not Path("pseudograd-report.unfinished").exists()
    _same(load_results(Path("pseudograd-report")), run_tasks(["curve"], ["inward"]))


def _with_run(function: object) -> Task:
    return Task(**{**vars(TASKS["curve"]), "run": function})


def _same(one: Results, other: Results) -> None:
    """All that was measured, to the bit; not how long it took."""
    assert {**one.to_json(), "seconds": 0} == {**other.to_json(), "seconds": 0}
    for (name, here, key), (_, there, _) in zip(one.figure_arrays(), other.figure_arrays(), strict=True):
        assert torch.equal(here[key].nan_to_num(7), there[key].nan_to_num(7)), name


def test_without_resume_an_older_run_is_forgotten() -> None:
    left = Path("report.unfinished")
    left.mkdir()
    (left / "0.run").write_bytes(b"older")
    assert runs_so_far(Path("report"), goes_on=True).count == 1
    assert runs_so_far(Path("report"), goes_on=False).count == 0
    assert not left.exists()
    left.mkdir()
    (left / "thesis.tex").write_text("mine")
    with pytest.raises(ValueError, match=r"compare: --out must hold finished runs alone, got 'report\.unfinished'\."):
        runs_so_far(Path("report"), goes_on=False)
    assert (left / "thesis.tex").read_text() == "mine"


def test_a_damaged_run_is_made_again_and_another_loss_is_another_run() -> None:
    kept = runs_so_far(Path("report"))
    settings = Settings(-1.0, 1.0, torch.square, "mine")
    first = run_tasks(["curve"], ["inward"], settings, store=kept)
    assert kept.count == 5
    damaged = next(kept.folder.iterdir())
    damaged.write_bytes(damaged.read_bytes()[:40])
    _same(run_tasks(["curve"], ["inward"], settings, store=kept), first)
    run_tasks(["curve"], ["inward"], Settings(-1.0, 1.0, torch.sin, "mine"), store=kept)
    assert kept.count == 10
    run_tasks(["curve"], ["inward"], Settings(-1.0, 2.0, torch.sin, "mine"), store=kept)
    assert kept.count == 15


@pytest.mark.slow
def test_processes_measure_the_same_to_the_bit() -> None:
    settings = Settings(-1.0, 1.0, ElementByElement(torch.sum), "mine")
    given = (["curve", "basin"], ["inward"], settings)
    _same(run_tasks(*given, jobs=2), run_tasks(*given))


def test_tasks_of_ones_own_stay_in_this_process() -> None:
    mine = Task(**{**vars(TASKS["curve"]), "name": "mine"})
    with pytest.raises(ValueError, match=r"compare: jobs must be 1 for tasks of your own, .*, got \['mine'\]"):
        run_tasks([mine], ["inward"], jobs=2)


# --- beside another one -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(run_tasks(["curve"], ["inward"]), tmp_path_factory.mktemp("small") / "report").parent


def _rewritten(folder: Path, numbers: object) -> Other:
    (folder / "results.json").write_text(json.dumps(numbers), encoding="utf-8")
    return read_other(folder)


@pytest.mark.program
def test_two_versions_of_torch_side_by_side(small: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    other = Path(shutil.copytree(small, tmp_path / "other"))
    numbers = json.loads((other / "results.json").read_text(encoding="utf-8"))
    numbers["torch"] = "2.99.0"
    (other / "results.json").write_text(json.dumps(numbers), encoding="utf-8")
    results = load_results(small)
    text = side_by_side(results, read_other(other))
    assert text.splitlines()[2] == "curve, sin(pi y) + 1: outside, no gradient"
    assert f"here, torch {torch.__version__}" in text
    assert "there, torch 2.99.0" in text
    assert text.endswith("Explicit rules are equal in both, to the bit.\nNothing else differs.")
    world = numbers["tasks"]["curve"]["worlds"]["y²"]
    world["torch.clamp"]["no_signal_outside"] = 0.5
    world["zero/closed"]["no_signal_outside"] -= 1e-7
    (other / "results.json").write_text(json.dumps(numbers), encoding="utf-8")
    text = side_by_side(results, read_other(other / "results.json"))
    assert "Explicit rules are equal in both, to the digits shown; the largest difference is 1e-07." in text
    assert text.endswith("Beside them differ: torch.clamp (curve, y²: 1 here, 0.5 there).")
    assert re.search(r"^torch\.clamp +1 +0\.5 +\+0\.5$", text, re.MULTILINE)
    world["torch.clamp"]["at_high"] = 7.0
    assert "; curve, y², dL/dx exactly at max: " in side_by_side(results, _rewritten(other, numbers))
    world["zero/open"]["no_signal_outside"] = None
    numbers["tasks"]["mine"] = {}
    (other / "results.json").write_text(json.dumps(numbers), encoding="utf-8")
    code, out, err = run(capsys, "compare", "--redraw", str(small), "--against", str(other))
    assert (code, err) == (0, "")
    assert "Explicit rules should be equal, and differ: zero/open (curve, y²: 1 here, not a number there)." in out
    assert "Only there: mine." in out
    assert {row.variant for row in common_rows(results, read_other(other)) if row.differs} == {
        "torch.clamp",
        "zero/open",
    }


@pytest.mark.program
def test_nothing_in_common_is_told(small: Path, tmp_path: Path) -> None:
    numbers = json.loads((small / "results.json").read_text(encoding="utf-8"))
    numbers["tasks"] = {"mine": {}}
    (tmp_path / "results.json").write_text(json.dumps(numbers), encoding="utf-8")
    with pytest.raises(
        ValueError, match="compare: --against must have a task and a rule in common with this run, got "
    ):
        side_by_side(load_results(small), read_other(tmp_path))
    assert Row("a", "b", "inward", float("nan"), float("nan")).differs is False
