"""A task is one file, or none: what a report needs of it stands in its record."""

import json
import math
import re
from pathlib import Path

import pytest
import torch

from pseudograd_tasks import TASKS, Gallery, Outcome, Task, Variant, Worlds, report
from pseudograd_tasks.base import KINDS, Settings
from pseudograd_tasks.report.figures import PICTURES
from pseudograd_tasks.report.sources import run_tasks
from pseudograd_tasks.report.terminal import show
from pseudograd_tasks.report.write import write

pytestmark = pytest.mark.xdist_group("compare")


def _pulled(world: str, variant: Variant, settings: Settings) -> Outcome:
    """Three numbers, one outside, pulled to 0."""
    x = torch.tensor([-0.5, 0.5, 2.0], requires_grad=True)
    path = [x.detach().clone()]
    for _ in range(4):
        (grad,) = torch.autograd.grad(variant.clamp(x, -1.0, 1.0).pow(2).sum() / 2, x)
        x = (x - grad / 2).detach().requires_grad_()
        path.append(x.detach())
    arrays = {"range": torch.tensor([-1.0, 1.0]), "path": torch.stack(path)}
    return Outcome({"inside": float((x.abs() < 1).sum())}, arrays)


def _stuck(worlds: Worlds, context: object) -> list[str]:
    return [f"{name} lets go." for name, measured in worlds["home"].items() if measured.numbers["inside"] == 3]


MINE = Task(
    name="mine",
    title="Three numbers go home",
    worlds=lambda settings: ("home",),
    run=_pulled,
    columns={"inside": "numbers inside"},
    headline=("inside", "at home"),
    has_leaves=False,
    setting="{count} numbers are pulled.",
    context=lambda settings: {"count": 3},
    after=_stuck,
    figure=Gallery("paths", title="three numbers, {world}"),
)


def test_a_task_of_ones_own_is_run_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = run_tasks([MINE], ["inward"])
    page = write(results, tmp_path / "report")
    show(results)
    printed = capsys.readouterr().out
    assert "\nThree numbers go home: at home\n" in printed
    assert re.search(r"^zero/open +2$", printed, re.MULTILINE)
    assert re.search(r"^inward +3$", printed, re.MULTILINE)
    text = page.read_text(encoding="utf-8")
    for part in (
        "<h2>Three numbers go home</h2>\n<p>3 numbers are pulled.</p>",
        'alt="Three numbers go home: home"',
        "<li>inward lets go.</li>\n<li>no clamp lets go.</li>\n</ul>",
        ">numbers inside</th></tr>",
        "leave the clamp out while you train.",
    ):
        assert part in text
    assert "zero/open lets go" not in text
    assert (page.parent / "mine.png").stat().st_size > 1000
    stored = json.loads((page.parent / "results.json").read_text(encoding="utf-8"))["tasks"]["mine"]
    assert stored["settings"] == {"count": 3}
    assert stored["worlds"]["home"]["inward"] == {"inside": 3}


def _changed(**changes: object) -> Task:
    return Task(**{**vars(MINE), **changes})  # type: ignore[arg-type]


def test_a_task_can_have_numbers_and_seeds_only(tmp_path: Path) -> None:
    def run(world: str, variant: Variant, settings: Settings) -> Outcome:
        is_ours = variant.name == "inward"
        return Outcome({"inside": math.nan}, seeds=(0.1, math.nan, math.inf) if is_ours else ())

    def spread(worlds: Worlds, context: object) -> list[str]:
        return [f"Seeds: {worlds['home']['inward'].seeds}.", f"None: {worlds['home']['no clamp'].seeds}."]

    with_seeds = _changed(figure=None, run=run, after=spread)
    page = write(run_tasks([with_seeds], ["inward"]), tmp_path / "report")
    assert {path.name for path in page.parent.iterdir()} == {"index.html", "results.json"}
    stored = json.loads((page.parent / "results.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert stored["tasks"]["mine"]["seeds"] == {"home": {"inward": [0.1, None, "inf"]}}
    text = page.read_text(encoding="utf-8")
    assert "<li>Seeds: (0.1, nan, inf).</li>" in text
    assert "<li>None: ().</li>" in text


def test_a_task_that_leaves_out_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="compare: mine: arrays must have range, path, got ''"):
        run_tasks([_changed(run=lambda *_: Outcome({"inside": 1.0}))], [])
    with pytest.raises(ValueError, match="compare: mine: numbers must have inside, got 'outside'"):
        run_tasks([_changed(run=lambda *_: Outcome({"outside": 1.0}))], [])


def test_names_and_kinds_are_checked() -> None:
    with pytest.raises(ValueError, match=r"Task: name must be a name as Python writes them, got '\.\./mine'"):
        _changed(name="../mine")
    with pytest.raises(ValueError, match=r"Gallery: kind must be one of paths, pictures, got 'path'\. Did you mean"):
        Gallery("path")
    with pytest.raises(ValueError, match="compare: tasks must have names of their own, got 'basin'"):
        run_tasks(["basin", _changed(name="basin")])
    assert list(run_tasks([MINE, MINE], []).sections) == ["mine"]


def test_report_knows_kinds_and_no_task() -> None:
    assert {"paths", PICTURES} == set(KINDS)
    assert {task.figure.kind for task in TASKS.values() if task.figure} == set(KINDS)
    for path in Path(report.__file__).parent.glob("*"):
        if path.is_file():
            assert not re.search(rf"\b({'|'.join(TASKS)})\b", path.read_text(encoding="utf-8")), path.name
