"""The report folder: whole or not at all, self-contained, every number in a sentence computed."""

import ast
import copy
import html
import json
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from string import Formatter

import pytest
import torch

import pseudograd as pg
from pseudograd.comparison.variants import INSTALLED, eras
from pseudograd_tasks import report, sentences
from pseudograd_tasks.base import Settings
from pseudograd_tasks.report import figures, terminal
from pseudograd_tasks.report.figures import display_name, strip
from pseudograd_tasks.report.results import Results, cell, results_text
from pseudograd_tasks.report.sources import own_results, run_tasks
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
    files = {"basin.png", "strip.png", "index.html", "results.json"}
    assert {path.name for path in folder.iterdir()} == files
    assert all(path.stat().st_size > 1000 for path in folder.iterdir())
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
        "did not come back where the gradient at a bound passes (8 dB) and came back in part where it does not",
        "With inward the photo did not come back (12 dB). These runs differ only in the backward rule of the clamp. "
        "The best variant was zero/open, at 20 dB.",
    ):
        assert part in first.sentence
    closed, opened = (display_name(era, results.era) for era in ("zero/closed", "zero/open"))
    start = ["start, and what to come back to", "sent here first, as a screen shows it"]
    assert [tile.title for tile in first.tiles] == [*start, closed, opened, "inward", f"best here: {opened}"]
    assert len({tile.picture.shape for tile in first.tiles}) == 1
    second = strip(set_decibels(results, 1.0, zero_closed=8.0, zero_open=8.0, inward=45.0))
    assert second is not None
    assert [tile.text for tile in second.tiles][2:] == ["torch.clamp, on any torch, 8 dB", "inward, 45 dB"]
    part = "With torch.clamp the photo did not come back (8 dB), whichever torch is installed. With inward the photo came back"
    assert part in second.sentence
    assert "best variant" not in second.sentence


def test_panels_stand_in_rows_of_four() -> None:
    figure, panels = figures._gallery(5, 1, 2)
    shown = [panel.get_visible() for panel in figure.axes]
    assert (figure.get_size_inches().tolist(), len(panels), shown) == ([4, 4], 5, [True] * 5 + [False] * 3)
    assert figures.pixels(torch.tensor([[[1.5]], [[0.5]], [[math.nan]]])).tolist() == [[[255, 128, 0]]]


def test_verdicts_follow_the_numbers(results: Results) -> None:
    first = set_decibels(results, 0.5, era=5.7, inward=1.25, no_clamp=49.2).sections["retarget"].verdicts
    assert first[0].startswith("Both eras of torch.clamp end alike, at 5.7 dB")  # the name of an only world is left out
    assert first[1].startswith("inward ends at 1.2 dB and does not beat")
    assert first[2].startswith("Better than inward here: no clamp (49.2 dB)")
    second = set_decibels(results, 0.5, era=8.5, inward=40.25).sections["retarget"].verdicts
    assert "inward ends at 40.2 dB, 31.8 dB above the better" in " ".join(second)
    canvas = results.sections["canvas"].verdicts
    assert all(sentence.startswith(("from black: ", "over-exposed: ")) for sentence in canvas)


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
@pytest.mark.program
@pytest.mark.parametrize("width", [400, 1600])
def test_the_page_fits_a_window_and_opens_by_keyboard(folder: Path, tmp_path: Path, width: int) -> None:
    script = """
    const all = [...document.querySelectorAll("summary")];
    all[0].focus();
    const focused = document.activeElement === all[0];
    document.querySelectorAll("details").forEach((details) => { details.open = true; });
    const page = document.documentElement;
    document.title = [page.scrollWidth <= window.innerWidth, focused, all.length > 4].join(" ");
    """
    document = shown(folder / "index.html", script, tmp_path, f"--window-size={width},900")
    assert title_of(document) == "true true true"


def test_the_style_stands_in_the_page_as_it_is_written(folder: Path) -> None:
    """Quotes that are escaped are no CSS: the frames of the photos were gone by that."""
    style = (Path(report.__file__).parent / "style.css").read_text(encoding="utf-8")
    assert f"<style>{style}</style>" in (folder / "index.html").read_text(encoding="utf-8")


@needs_browser
@pytest.mark.program
def test_charts_are_dark_on_a_dark_page_and_rules_keep_one_colour(folder: Path, tmp_path: Path) -> None:
    """The swatches of the tables and the frames of the photos are turned as the charts are; the photos are not."""
    script = """
    const filter = (selector, part) => getComputedStyle(document.querySelector(selector), part).filter;
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const alike = [filter(".swatch"), filter(".frame", "::after")].every((turned) => turned === filter(".chart"));
    document.title = [dark, filter(".chart"), alike, filter(".tile img")].join(" ");
    """
    file = folder / "index.html"
    assert title_of(shown(file, script, tmp_path)) == "false none true none"
    dark = title_of(shown(file, script, tmp_path, "--force-dark-mode"))
    assert re.fullmatch(r"true invert\(0\.\d+\) hue-rotate\(180deg\) true none", dark), dark


# --- the folder -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_results() -> Results:
    """Of a report that is quickly drawn: one figure."""
    return run_tasks(["basin"], ["inward"], Settings(loss=torch.square, loss_name="y²"))


@pytest.fixture(scope="module")
def small_report(small_results: Results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(small_results, tmp_path_factory.mktemp("small") / "report").parent


@pytest.fixture
def copied(small_report: Path, tmp_path: Path) -> Path:
    return shutil.copytree(small_report, tmp_path / "report")


def test_an_older_report_of_equal_numbers_is_replaced(copied: Path, small_results: Results) -> None:
    before = contents(copied)
    (copied / "basin.png").write_text("old")
    write(small_results, copied)
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
        with pytest.raises(ValueError, match=f"compare: --out must {requirement}"):
            check_folder(folder)
    assert contents(tmp_path) == {"thesis.tex": b"mine"}


@pytest.mark.parametrize("step", ["results_text", "page"])
def test_a_write_that_breaks_leaves_nothing_and_keeps_the_old(
    step: str, copied: Path, small_results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(copied)

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    module = sys.modules["pseudograd_tasks.report.write"]
    monkeypatch.setattr(module, step, no_space)
    monkeypatch.setattr(module, "figures", lambda results: ())
    for target in (copied, copied.parent / "new"):
        with pytest.raises(ValueError, match="No space left on device: nothing was changed there"):
            write(small_results, target)
    assert contents(copied) == before
    assert [path.name for path in copied.parent.iterdir()] == ["report"]


def test_stored_numbers_are_those_that_were_measured(folder: Path, results: Results) -> None:
    stored = json.loads((folder / "results.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert (stored["kind"], stored["pseudograd"]) == ("pseudograd compare", pg.__version__)
    assert stored["seconds"] > 0
    assert stored == results.to_json()


def test_infinite_numbers_and_nan_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["pseudograd_tasks.report.write"], "figures", lambda results: ())
    results = run_tasks(["basin"], ["identity"], Settings(loss=lambda y: -(y**4), loss_name="mine:cost"))
    outcome = results.sections["basin"].worlds["mine:cost"]["identity"]
    outcome.numbers |= {"stray": math.inf, "chatter": -math.inf}
    page = write(results, tmp_path / "report")
    stored = json.loads((page.parent / "results.json").read_text(encoding="utf-8"))["tasks"]["basin"]["worlds"]
    assert {key: stored["mine:cost"]["identity"][key] for key in ("stray", "chatter")} == {
        "stray": "inf",
        "chatter": "-inf",
    }
    assert "<td>inf</td><td>-inf</td>" in page.read_text(encoding="utf-8")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no results.json": lambda file: file.unlink(),
    "no JSON": lambda file: file.write_text("{"),
    "not UTF-8": lambda file: file.write_bytes(b"\xff"),
    "another kind": lambda file: file.write_text('{"kind": "pseudograd diagnose"}'),
    "a list": lambda file: file.write_text("[]"),
}


@folded
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_folder_that_is_no_report_is_left_alone(damage: str, small_results: Results, tmp_path: Path) -> None:
    folder = tmp_path / "report"
    folder.mkdir()
    (folder / "results.json").write_text(results_text(small_results), encoding="utf-8")
    (folder / "basin.png").write_text("old")
    check_folder(folder)
    DAMAGES[damage](folder / "results.json")
    before = contents(folder)
    with pytest.raises(
        ValueError, match=r"compare: --out must be empty, new, or an older report, got .* Choose another"
    ):
        write(small_results, folder)
    assert contents(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == ["report"]


# --- the user's own training ------------------------------------------------------------------------------------------


def test_a_run_with_variants_is_on_the_page(tmp_path: Path) -> None:
    def run(step: Callable[[float], float], seed: int) -> float:
        return step(seed)

    comparison = pg.compare(run, variants={"a": abs, "b": lambda x: 2.0 + x}, seeds=2)
    text = write(own_results(comparison), tmp_path / "report").read_text(encoding="utf-8")
    assert "Same training. Same seeds. One function changed." in text
    assert "run was run with each variant" in text


def test_runs_without_a_number_are_counted() -> None:
    def run(clamp: Callable[..., torch.Tensor], seed: int) -> float:
        return math.nan if seed == 1 else float(clamp(torch.tensor(2.0), 0, 1)) + seed

    (section,) = own_results(pg.compare(run, rules=["inward"], seeds=3)).sections.values()
    numbers = section.worlds["result"]["inward"].numbers
    assert (numbers["lost"], numbers["median"]) == (1, 3)  # of 1, 3 and what is worse than any number


@pytest.mark.parametrize(
    ("run", "name"), [("mine", "mine"), ("basin", "own_case"), ("my run", "own_case"), ("größe", "own_case")]
)
def test_a_run_names_its_files_if_it_can(run: str, name: str) -> None:
    comparison = pg.compare(lambda step, seed: step(seed), variants={"a": float, "b": abs}, seeds=2)
    assert list(own_results(replace(comparison, run=run)).sections) == [name]


# --- the terminal -----------------------------------------------------------------------------------------------------


def test_the_terminal_shows_every_number_and_the_sentences_of_the_page(
    results: Results, page: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "COLUMNS", "1000")  # no line is wrapped
    show(results)
    text = capsys.readouterr().out
    opening = strip(results)
    assert opening is not None
    blocks = text.split("\n\n")
    assert blocks[-1] == f"{opening.sentence}\n"
    for block, section in zip(blocks[1:], results.sections.values(), strict=False):
        title, heading, ruler, *rows = block.splitlines()
        key, unit = section.subject.headline
        assert title == f"{section.subject.title}: {unit}"
        assert set(ruler) == {"-", " "}
        names = list(next(iter(section.worlds.values())))
        assert re.split("  +", heading) == ["rule", *section.worlds]
        assert [re.split("  +", row) for row in rows[: len(names)]] == [
            [name, *(cell(world[name].numbers[key]) for world in section.worlds.values())] for name in names
        ]
        assert rows[len(names) :] == [f"- {sentence}" for sentence in section.verdicts]
        assert all(sentence in html.unescape(page) for sentence in section.verdicts)
    assert blocks[-2].startswith("The torch.clamp installed here")
    monkeypatch.setitem(os.environ, "COLUMNS", "60")
    show(results)
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines if not line.startswith("The torch.clamp installed here")) <= 60


def test_each_world_gets_a_line_and_so_do_ten_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "_SILENCE", 0.3)
    with terminal.progress() as on_step:
        for world, done in (("y²", 0), ("y²", 1), ("|y|", 2), ("|y|", 3)):
            on_step("curve", world, "a", done, 4)
        assert capsys.readouterr().out == "curve, y² (0 of 4 runs done)\ncurve, |y| (2 of 4 runs done)\n"
        time.sleep(0.5)
    assert capsys.readouterr().out.startswith("curve, |y| (3 of 4 runs done)\n")
