"""A report is drawn again from its folder: the same, without running anything, and whole or not at all."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import pseudograd
from pseudograd.cli import main
from pseudograd.comparison.variants import NO_CLAMP
from pseudograd_tasks import TASKS
from pseudograd_tasks.base import Settings
from pseudograd_tasks.report.results import Results
from pseudograd_tasks.report.sources import FolderError, load_results, run_tasks
from pseudograd_tasks.report.write import write
from pseudograd_tasks.retarget import SRGB

pytestmark = pytest.mark.xdist_group("compare")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report that is quickly drawn."""
    return write(run_tasks(["curve"], ["inward"]), tmp_path_factory.mktemp("small") / "report").parent


@pytest.fixture
def copied(small: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small, tmp_path / "report"))


@pytest.mark.program
def test_it_is_the_same_byte_for_byte(folder: Path, tmp_path: Path) -> None:
    again = write(load_results(folder), tmp_path / "again").parent
    names = {path.name for path in folder.iterdir()}
    assert {path.name for path in again.iterdir()} == names
    for name in names:
        assert (again / name).read_bytes() == (folder / name).read_bytes(), name


def test_what_is_read_is_what_was_measured(folder: Path, results: Results) -> None:
    again = load_results(folder)
    assert {name: section.subject for name, section in again.sections.items()} == {
        name: TASKS[name] for name in results.sections
    }
    assert list(again.figure_arrays()) != []
    for (name, there, key), (other, here, also) in zip(again.figure_arrays(), results.figure_arrays(), strict=True):
        assert (name, key) == (other, also)
        assert there[key].dtype == here[key].dtype
        assert torch.equal(there[key].nan_to_num(7), here[key].nan_to_num(7))
        assert torch.equal(there[key].isnan(), here[key].isnan())
    assert again.sections["retarget_srgb"].worlds[SRGB][NO_CLAMP].arrays["picture"].isnan().all()


def test_it_is_small(folder: Path) -> None:
    assert (folder / "arrays.npz").stat().st_size < 8e6


def _runs_away(y: torch.Tensor) -> torch.Tensor:
    return -(y**4)


def test_what_is_infinite_stays_so(tmp_path: Path) -> None:
    settings = Settings(loss=_runs_away, loss_name="mine:cost")
    results = run_tasks(["basin"], ["identity"], settings)
    results.sections["basin"].worlds["mine:cost"]["identity"].numbers |= {"stray": math.inf, "chatter": -math.inf}
    page = write(results, tmp_path / "report")
    again = load_results(page.parent).sections["basin"].worlds["mine:cost"]["identity"].numbers
    assert (again["stray"], again["chatter"]) == (math.inf, -math.inf)
    assert "<td>inf</td><td>-inf</td>" in page.read_text(encoding="utf-8")


@pytest.mark.program
def test_the_command_prints_the_same_tables_and_runs_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "--tasks", "curve", "--rules", "inward"]) == 0
    printed = capsys.readouterr().out
    before = {path.name: path.read_bytes() for path in Path("pseudograd-report").iterdir()}
    monkeypatch.setattr(sys.modules["pseudograd_tasks.experiment"], "variants", pytest.fail)
    assert main(["compare", "--redraw", "pseudograd-report"]) == 0
    again = capsys.readouterr()
    assert again.err == ""
    assert again.out.startswith("What each backward rule makes of the same problem\n")
    assert printed.endswith(again.out)
    assert {path.name: path.read_bytes() for path in Path("pseudograd-report").iterdir()} == before


@pytest.mark.program
def test_another_torch_has_drawn_it(copied: Path) -> None:
    """The page says what it was run on."""
    text = (copied / "results.json").read_text(encoding="utf-8")
    (copied / "results.json").write_text(text.replace(f'"{torch.__version__}"', '"2.99.0"'), encoding="utf-8")
    page = write(load_results(copied), copied)
    assert "on torch 2.99.0, in " in page.read_text(encoding="utf-8")


def _edit(change: Callable[[dict], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        stored = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        change(stored)
        (folder / "results.json").write_text(json.dumps(stored), encoding="utf-8")

    return damage


def _flip(folder: Path) -> None:
    data = bytearray((folder / "arrays.npz").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "arrays.npz").write_bytes(data)


def _cut(size: int) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / "arrays.npz", size)


# What follows "--redraw must", before and after the value.
NO_REPORT = ("be a folder that compare wrote", "Choose another one.")
NUMBERS = ("hold results.json as compare wrote it", "Run compare again.")
NO_ARRAYS = ("hold arrays.npz, from which its figures are drawn", "Run compare again.")
ARRAYS = ("hold arrays.npz as compare wrote it", "Run compare again.")
VERSION = (f"hold a report of pseudograd {pseudograd.__version__}", "got '0.0.1'. Run compare again.")
DAMAGES: dict[str, tuple[Callable[[Path], object], tuple[str, str]]] = {
    "no results.json": (lambda folder: (folder / "results.json").unlink(), NO_REPORT),
    "no JSON": (lambda folder: (folder / "results.json").write_text("{"), NO_REPORT),
    "not UTF-8": (lambda folder: (folder / "results.json").write_bytes(b"\xff"), NO_REPORT),
    "another kind": (_edit(lambda stored: stored.update(kind="pseudograd diagnose")), NO_REPORT),
    "another version": (_edit(lambda stored: stored.update(pseudograd="0.0.1")), VERSION),
    "a task without worlds": (_edit(lambda stored: stored["tasks"]["curve"].pop("worlds")), NUMBERS),
    "a row without a number": (
        _edit(lambda stored: stored["tasks"]["curve"]["worlds"]["y²"]["inward"].pop("at_low")),
        NUMBERS,
    ),
    "a number in words": (
        _edit(lambda stored: stored["tasks"]["curve"]["worlds"]["y²"]["inward"].update(at_low="one")),
        NUMBERS,
    ),
    "no edges": (_edit(lambda stored: stored.update(torch_at_the_bound={})), NUMBERS),
    "no arrays": (lambda folder: (folder / "arrays.npz").unlink(), NO_ARRAYS),
    "empty arrays": (_cut(0), ARRAYS),
    "half the arrays": (_cut(9000), ARRAYS),
    "a bit": (_flip, ARRAYS),
    "text": (lambda folder: (folder / "arrays.npz").write_text("mine"), ARRAYS),
    "a world that was not drawn": (
        _edit(lambda stored: stored["tasks"]["curve"]["worlds"].update(y=stored["tasks"]["curve"]["worlds"]["y²"])),
        ARRAYS,
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_no_whole_report_gets_one_line_and_stays(
    damage: str, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, (requirement, remedy) = DAMAGES[damage]
    change(copied)
    before = {path.name: path.read_bytes() for path in copied.iterdir()}
    assert main(["compare", "--redraw", str(copied)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"pseudograd: compare: --redraw must {requirement}, got ")
    assert shown.err.endswith(f"{remedy}\n")
    assert shown.err.count("\n") == 1
    assert {path.name: path.read_bytes() for path in copied.iterdir()} == before
    assert [path.name for path in copied.parent.iterdir()] == ["report"]


def test_an_unknown_task_is_named(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _edit(lambda stored: stored["tasks"].update(curv=stored["tasks"].pop("curve")))(copied)
    assert main(["compare", "--redraw", str(copied)]) == 2
    text = f"pseudograd: compare: task must be one of {', '.join(sorted(TASKS))}, got 'curv'. Did you mean 'curve'?\n"
    assert capsys.readouterr().err == text


@pytest.mark.program
def test_a_redraw_that_breaks_keeps_the_older_report(
    copied: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_bytes() for path in copied.iterdir()}

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys.modules["pseudograd_tasks.report.write"], "save", no_space)
    assert main(["compare", "--redraw", str(copied)]) == 2
    assert "--redraw must take the whole report, got " in capsys.readouterr().err
    with pytest.raises(FolderError, match="No space left on device: nothing was changed there"):
        write(load_results(copied), copied)
    assert {path.name: path.read_bytes() for path in copied.iterdir()} == before
    assert [path.name for path in copied.parent.iterdir()] == ["report"]
