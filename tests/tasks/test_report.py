"""The report folder: whole or not at all, self-contained, every number in a sentence computed, and drawn again the same."""

from __future__ import annotations

import ast
import copy
import html
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from string import Formatter
from typing import Any

import pytest
import torch

import pseudograd as pg
from pseudograd.cli import main
from pseudograd.comparison.variants import INSTALLED, eras
from pseudograd_tasks import TASKS, report, sentences
from pseudograd_tasks.base import Settings
from pseudograd_tasks.report import terminal
from pseudograd_tasks.report.figures import display_name, strip
from pseudograd_tasks.report.results import Results, cell
from pseudograd_tasks.report.sources import FolderError, load_results, own_results, run_tasks
from pseudograd_tasks.report.terminal import show
from pseudograd_tasks.report.write import check_folder, write

from ..browser import needs_browser, shown, title_of
from ..choices import folded

pytestmark = pytest.mark.xdist_group("compare")


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return (folder / "index.html").read_text(encoding="utf-8")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_folder_holds_a_page_that_needs_nothing_from_outside(folder: Path, page: str) -> None:
    files = {"basin.png", "strip.png", "index.html", "results.json", "arrays.npz"}
    assert {path.name for path in folder.iterdir()} == files
    assert all(path.stat().st_size > 1000 for path in folder.iterdir())
    assert (folder / "arrays.npz").stat().st_size < 8e6
    links = re.findall(r'(?:src|href)="([^"]{0,40})', page)
    assert len(links) > 20
    assert all(link.startswith("data:image/png;base64,") for link in links)
    assert "http" not in re.sub(r"base64,[A-Za-z0-9+/=]+", "", page)
    headings = re.findall(r"<h[12]>([^<]+)</h[12]>", page)
    assert headings[0] == "Same picture. Same loss. One backward rule changed."
    assert headings[-1] == "When you do not need us"


def test_every_picture_has_a_text_with_its_number(page: str, results: Results) -> None:
    """The numbers are those of the table, the target is among the pictures, and no era appears twice."""
    assert len(re.findall(r'<img [^>]*alt="([^"]+)"', page)) == page.count("<img ")
    for task, target in (("retarget", "start, and what to come back to"), ("canvas", "the target, unblurred")):
        start = page.index(f'<section id="{task}">')
        section = page[start : page.index("</section>", start)]
        for gallery, rows in zip(section.split("<h3>")[1:], results.sections[task].worlds.values(), strict=True):
            texts = re.findall(r'alt="([^"]+)"', gallery)
            assert target in texts
            for name, outcome in rows.items():
                text = f"{display_name(name, results.era)}, {cell(outcome.numbers['psnr'], 'dB')}"
                assert (html.escape(text) in texts) == (name != INSTALLED), name


def set_decibels(results: Results, default: float, **decibels: float) -> Results:
    """The results with other numbers for the photo; `era` stands for all eras."""
    changed = copy.copy(results)
    changed.sections = copy.deepcopy(results.sections)
    for name, outcome in changed.sections["retarget"].worlds["plain"].items():
        key = "era" if name in eras() and "era" in decibels else re.sub(r"\W", "_", name)
        outcome.numbers["psnr"] = decibels.get(key, default)
    return changed


def test_the_opening_is_computed(results: Results) -> None:
    first = strip(
        set_decibels(results, 1.0, zero_closed=8.0, zero_open=20.0, inward=12.0, sign=13.0, no_clamp=math.nan)
    )
    assert first is not None
    for part in (
        "did not come back where the gradient at a bound passes (8.0 dB) and came back in part where it does not",
        "With inward the photo did not come back (12.0 dB). These runs differ only in the backward rule of the clamp. "
        "The best variant was zero/open, at 20.0 dB.",
    ):
        assert part in first.sentence
    closed, opened = (display_name(era, results.era) for era in ("zero/closed", "zero/open"))
    start = ["start, and what to come back to", "sent here first, as a screen shows it"]
    assert [tile.title for tile in first.tiles] == [*start, closed, opened, "inward", f"best here: {opened}"]
    assert len({tile.picture.shape for tile in first.tiles}) == 1
    second = strip(set_decibels(results, 1.0, zero_closed=8.0, zero_open=8.0, inward=45.0))
    assert second is not None
    assert [tile.text for tile in second.tiles][2:] == ["torch.clamp, on any torch, 8.0 dB", "inward, 45.0 dB"]
    part = "With torch.clamp the photo did not come back (8.0 dB), whichever torch is installed. With inward the photo came back"
    assert part in second.sentence
    assert "best variant" not in second.sentence


def test_verdicts_follow_the_numbers(results: Results) -> None:
    first = set_decibels(results, 0.5, era=5.7, inward=1.25, no_clamp=49.2).sections["retarget"].verdicts
    assert first[0].startswith("Both eras of torch.clamp end alike, at 5.7 dB")  # the name of an only world is left out
    assert first[1].startswith("inward ends at 1.2 dB and does not beat")
    assert first[2].startswith("Better than inward here: no clamp (49.2 dB)")
    second = set_decibels(results, 0.5, era=8.5, inward=40.25).sections["retarget"].verdicts
    assert "inward ends at 40.2 dB, 31.8 dB above the better" in " ".join(second)
    canvas = results.sections["canvas"].verdicts
    assert all(sentence.startswith(("from black: ", "over-exposed: ")) for sentence in canvas)
    assert "project was as good or better here (from black and over-exposed)" in " ".join(results.when_not_to)


def find_sentences(path: Path) -> Iterator[str]:
    """The words of every sentence in a file, without docstrings and without the values that fill a sentence."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    formats = [node.format_spec for node in nodes if isinstance(node, ast.FormattedValue)]
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr) and node not in formats:
            yield "".join(part.value for part in node.values if isinstance(part, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts | docstrings:
            text = "".join(literal for literal, *_ in Formatter().parse(node.value))
            if text.endswith("."):
                yield text


def test_no_sentence_has_a_digit_outside_its_placeholders() -> None:
    words = [sentence for path in Path(sentences.__file__).parent.glob("*.py") for sentence in find_sentences(path)]
    assert len(words) > 25
    for sentence in words:
        assert not re.search(r"\d", sentence), sentence
    template = Path(report.__file__).with_name("page.html").read_text(encoding="utf-8")
    assert not re.search(r"\d", re.sub(r"\{\{.*?\}\}|\{%.*?%\}|<[^>]*>", "", template, flags=re.DOTALL))


@needs_browser
@pytest.mark.parametrize("width", [400, 1600])
def test_the_page_fits_a_window_and_opens_by_keyboard(folder: Path, tmp_path: Path, width: int) -> None:
    script = """
    const all = [...document.querySelectorAll("summary")];
    all[0].focus();
    const focused = document.activeElement === all[0];
    document.querySelectorAll("details").forEach((details) => { details.open = true; });
    const page = document.documentElement;
    document.title = [page.scrollWidth <= window.innerWidth, focused, all.length > 5].join(" ");
    """
    document = shown(folder / "index.html", script, tmp_path, f"--window-size={width},900")
    assert title_of(document) == "true true true"


@needs_browser
def test_charts_are_dark_on_a_dark_page_and_rules_keep_one_colour(folder: Path, tmp_path: Path) -> None:
    """The swatches of the tables are turned as the charts are; photos are not."""
    script = """
    const filter = (selector) => getComputedStyle(document.querySelector(selector)).filter;
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    document.title = [dark, filter(".chart"), filter(".swatch") === filter(".chart"), filter(".tile img")].join(" ");
    """
    file = folder / "index.html"
    assert title_of(shown(file, script, tmp_path)) == "false none true none"
    dark = title_of(shown(file, script, tmp_path, "--force-dark-mode"))
    assert re.fullmatch(r"true invert\(0\.\d+\) hue-rotate\(180deg\) true none", dark), dark


# --- the folder -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report that is quickly drawn: one figure."""
    results = run_tasks(["curve"], ["inward"], Settings(loss=torch.square, loss_name="y²"))
    return write(results, tmp_path_factory.mktemp("small") / "report").parent


@pytest.fixture
def copied(small: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small, tmp_path / "report"))


def test_an_older_report_is_replaced_and_drawn_again_byte_for_byte(copied: Path) -> None:
    before = contents(copied)
    (copied / "curve.png").write_text("old")
    write(load_results(copied), copied)
    assert contents(copied) == before
    assert [path.name for path in copied.parent.iterdir()] == ["report"]


def test_other_files_and_folders_are_refused(tmp_path: Path) -> None:
    thesis = tmp_path / "thesis.tex"
    thesis.write_text("mine")
    for folder, requirement in (
        (tmp_path, "be empty, new, or an older report, got .* Choose another"),
        (thesis, "be a folder"),
        (thesis / "below", "lie where files can be written"),
    ):
        with pytest.raises(FolderError, match=f"compare: --out must {requirement}"):
            check_folder(folder)
    assert contents(tmp_path) == {"thesis.tex": b"mine"}


@pytest.mark.parametrize("step", ["save", "page"])
def test_a_write_that_breaks_leaves_nothing_and_keeps_the_old(
    step: str, copied: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, results = contents(copied), load_results(copied)

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    module = sys.modules["pseudograd_tasks.report.write"]
    monkeypatch.setattr(module, step, no_space)
    monkeypatch.setattr(module, "figures", lambda results: ())
    for target in (copied, copied.parent / "new"):
        with pytest.raises(FolderError, match="No space left on device: nothing was changed there"):
            write(results, target)
    assert main(["compare", "--redraw", str(copied)]) == 2
    assert "--redraw must take the whole report, got " in capsys.readouterr().err
    assert contents(copied) == before
    assert [path.name for path in copied.parent.iterdir()] == ["report"]


def test_stored_numbers_and_arrays_are_those_that_were_measured(folder: Path, results: Results) -> None:
    stored = json.loads((folder / "results.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    again = load_results(folder)
    assert (stored["kind"], stored["pseudograd"]) == ("pseudograd compare", pg.__version__)
    assert stored["seconds"] > 0
    assert again.to_json() == stored == results.to_json()
    for (name, ours, key), (other, theirs, also) in zip(again.figure_arrays(), results.figure_arrays(), strict=True):
        assert (name, key, ours[key].dtype) == (other, also, theirs[key].dtype)
        assert torch.equal(ours[key].nan_to_num(7), theirs[key].nan_to_num(7))
        assert torch.equal(ours[key].isnan(), theirs[key].isnan())


def test_infinite_numbers_and_nan_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["pseudograd_tasks.report.write"], "figures", lambda results: ())
    results = run_tasks(["basin"], ["identity"], Settings(loss=lambda y: -(y**4), loss_name="mine:cost"))
    outcome = results.sections["basin"].worlds["mine:cost"]["identity"]
    outcome.numbers |= {"stray": math.inf, "chatter": -math.inf}
    outcome.arrays["path"][3:] = math.nan
    page = write(results, tmp_path / "report")
    again = load_results(page.parent).sections["basin"].worlds["mine:cost"]["identity"]
    assert (again.numbers["stray"], again.numbers["chatter"]) == (math.inf, -math.inf)
    assert again.arrays["path"][3:].isnan().all()
    assert "<td>inf</td><td>-inf</td>" in page.read_text(encoding="utf-8")


def test_a_redraw_runs_nothing_and_names_the_torch_of_the_run(
    copied: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (copied / "results.json").read_text(encoding="utf-8")
    (copied / "results.json").write_text(text.replace(f'"{torch.__version__}"', '"2.99.0"'), encoding="utf-8")
    monkeypatch.setattr(sys.modules["pseudograd_tasks.experiment"], "variants", pytest.fail)
    assert main(["compare", "--redraw", str(copied)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("What each backward rule makes of the same problem\n")
    assert printed.err == ""
    assert "on torch 2.99.0, in " in (copied / "index.html").read_text(encoding="utf-8")


def edit(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        stored = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        change(stored)
        (folder / "results.json").write_text(json.dumps(stored), encoding="utf-8")

    return damage


def edit_worlds(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    return edit(lambda stored: change(stored["tasks"]["curve"]["worlds"]))


def flip_bit(folder: Path) -> None:
    data = bytearray((folder / "arrays.npz").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "arrays.npz").write_bytes(data)


# The text after "--redraw must", before and after the value.
NO_REPORT = ("be a folder that compare wrote", "Choose another one.")
NUMBERS = ("hold results.json as compare wrote it", "Run compare again.")
NO_ARRAYS = ("hold arrays.npz, from which its figures are drawn", "Run compare again.")
ARRAYS = ("hold arrays.npz as compare wrote it", "Run compare again.")
VERSION = (f"hold a report of pseudograd {pg.__version__}", "got '0.0.1'. Run compare again.")
NAMES = (f"task must be one of {', '.join(sorted(TASKS))}", "got 'curv'. Did you mean 'curve'?")
DAMAGES: dict[str, tuple[Callable[[Path], object], tuple[str, str]]] = {
    "no results.json": (lambda folder: (folder / "results.json").unlink(), NO_REPORT),
    "no JSON": (lambda folder: (folder / "results.json").write_text("{"), NO_REPORT),
    "not UTF-8": (lambda folder: (folder / "results.json").write_bytes(b"\xff"), NO_REPORT),
    "another kind": (edit(lambda stored: stored.update(kind="pseudograd diagnose")), NO_REPORT),
    "another version": (edit(lambda stored: stored.update(pseudograd="0.0.1")), VERSION),
    "a task without worlds": (edit(lambda stored: stored["tasks"]["curve"].pop("worlds")), NUMBERS),
    "an unknown task": (edit(lambda stored: stored["tasks"].update(curv=stored["tasks"].pop("curve"))), NAMES),
    "a row without a number": (edit_worlds(lambda worlds: worlds["y²"]["inward"].pop("at_low")), NUMBERS),
    "a number in words": (edit_worlds(lambda worlds: worlds["y²"]["inward"].update(at_low="one")), NUMBERS),
    "no edges": (edit(lambda stored: stored.update(torch_at_the_bound={})), NUMBERS),
    "no arrays": (lambda folder: (folder / "arrays.npz").unlink(), NO_ARRAYS),
    "empty arrays": (lambda folder: os.truncate(folder / "arrays.npz", 0), ARRAYS),
    "half the arrays": (lambda folder: os.truncate(folder / "arrays.npz", 9000), ARRAYS),
    "a bit": (flip_bit, ARRAYS),
    "text": (lambda folder: (folder / "arrays.npz").write_text("mine"), ARRAYS),
    "a world that was not drawn": (edit_worlds(lambda worlds: worlds.update(y=worlds["y²"])), ARRAYS),
}


@folded
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_report_gets_one_line_and_stays(
    damage: str, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied = Path(shutil.copytree(small, tmp_path / "report"))
    change, (requirement, remedy) = DAMAGES[damage]
    change(copied)
    before = contents(copied)
    assert main(["compare", "--redraw", str(copied)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    start = requirement if requirement.startswith("task") else f"--redraw must {requirement}"
    assert err.startswith(f"pseudograd: compare: {start}, got ")
    assert err.endswith(f"{remedy}\n")
    assert contents(copied) == before
    assert [path.name for path in copied.parent.iterdir()] == ["report"]


# --- the user's own training ------------------------------------------------------------------------------------------


def test_curves_and_pictures_of_a_run_are_on_the_page_and_drawn_again(tmp_path: Path) -> None:
    def run(step: Callable[[float], float], seed: int) -> dict[str, object]:
        return {"loss": step(seed), "curve": [1.0, 0.5, step(seed)], "picture": torch.rand(3, 4, 5)}

    comparison = pg.compare(run, variants={"a": abs, "b": lambda x: 2.0 + x}, seeds=2)
    page = write(own_results(comparison), tmp_path / "report")
    for part in (
        "Same training. Same seeds. One function changed.",
        "run was run with each variant",
        "run: curve of every variant",
        "run: picture of every variant",
    ):
        assert part in page.read_text(encoding="utf-8")
    again = load_results(page.parent)
    assert again.own is not None
    for name, by_variant in comparison.arrays.items():
        for variant, by_seed in by_variant.items():
            for seed, array in by_seed.items():
                assert torch.equal(again.own.arrays[name][variant][seed], array)
    assert contents(write(again, tmp_path / "again").parent) == contents(page.parent)


def test_runs_without_a_number_are_counted() -> None:
    def run(clamp: Callable[..., torch.Tensor], seed: int) -> float:
        return math.nan if seed == 1 else float(clamp(torch.tensor(2.0), 0, 1)) + seed

    (section,) = own_results(pg.compare(run, rules=["inward"], seeds=3)).sections.values()
    numbers = section.worlds["result"]["inward"].numbers
    assert (numbers["lost"], numbers["median"]) == (1, 3)  # of 1, 3 and what is worse than any number


# --- the terminal -----------------------------------------------------------------------------------------------------


def read_tables(text: str) -> list[tuple[list[str], list[list[str]]]]:
    """The heading lines and the rows of each table. The rulers under the headings show where columns end."""
    blocks = [list(lines) for is_blank, lines in groupby(text.splitlines(), lambda line: not line) if not is_blank]
    tables = []
    for block in blocks:
        for ruler in [number for number, line in enumerate(block) if line.startswith("----")]:
            ends = [end for end in range(1, len(block[ruler]) + 1) if block[ruler][end - 1 : end + 1] in ("- ", "-")]
            starts = [0, *[end + 2 for end in ends[:-1]]]
            split = [[line[a:b].strip() for a, b in zip(starts, ends, strict=True)] for line in block]
            headings = [" ".join(part for part in column if part) for column in zip(*split[:ruler], strict=True)]
            tables.append((headings, split[ruler + 1 :]))
    return tables


@pytest.mark.parametrize(("columns", "sizes"), [(30, None), (60, [3, 1]), (1000, None)])
def test_the_terminal_shows_every_number_whole(
    results: Results,
    page: str,
    columns: int,
    sizes: list[int] | None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(os.environ, "COLUMNS", str(columns))
    show(results)
    text = capsys.readouterr().out
    cells: dict[str, dict[str, str]] = {}
    for (first, *headings), rows in read_tables(text):
        assert first == "rule"
        for position, heading in enumerate(headings, start=1):
            cells[heading] = {row[0]: row[position] for row in rows if row[position]}
    expected = {}
    for task, section in results.sections.items():
        key, unit = section.subject.headline
        for world, by_variant in section.worlds.items():
            numbers = {rule: cell(outcome.numbers[key]) for rule, outcome in by_variant.items()}
            expected[f"{task} {world} {unit}"] = numbers
    assert cells == expected
    before = text[: text.index("\nThe torch.clamp installed here")]
    assert max(map(len, before.splitlines())) <= columns
    assert sizes in (None, [len(headings) - 1 for headings, _ in read_tables(text)])
    if columns == 1000:  # no line is wrapped: the page has the same sentences
        opening = strip(results)
        assert opening is not None
        for sentence in (opening.sentence, *(line for part in results.sections.values() for line in part.verdicts)):
            assert sentence in text
            assert sentence in html.unescape(page)


def test_each_world_gets_one_line_outside_of_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    on_step = terminal._lines()
    for variant, done in (("a", 0), ("b", 1)):
        on_step("curve", "y²", variant, done, 2)
    on_step("curve", "|y|", "a", 2, 4)
    assert capsys.readouterr().out == "curve, y² (0 of 2 runs done)\ncurve, |y| (2 of 4 runs done)\n"
