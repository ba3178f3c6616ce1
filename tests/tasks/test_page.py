"""The report folder: whole or not at all, self-contained, and every number in a sentence computed."""

from __future__ import annotations

import ast
import copy
import html
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import pytest

from pseudograd.comparison.variants import INSTALLED, eras
from pseudograd_tasks import report, sentences
from pseudograd_tasks.report.pictures import display_name, strip
from pseudograd_tasks.report.results import Results, cell
from pseudograd_tasks.report.sources import FolderError
from pseudograd_tasks.report.terminal import show
from pseudograd_tasks.report.write import check_folder, write

from ..browser import needs_browser, shown, title_of

pytestmark = pytest.mark.xdist_group("compare")


@pytest.fixture(scope="session")
def basin_alone(results: Results) -> Results:
    """For what is the same whatever the folder holds: one figure is drawn faster than seven."""
    alone = copy.copy(results)
    alone.sections = {"basin": results.sections["basin"]}
    return alone


def test_the_folder_holds_the_page_the_figures_and_the_numbers(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    figures = {
        "basin.png",
        "curve-1.png",
        "curve-2.png",
        "strip.png",
    }
    assert names == figures | {"index.html", "results.json", "arrays.npz"}
    assert all(path.stat().st_size > 1000 for path in folder.iterdir())


def test_the_page_needs_nothing_from_outside(folder: Path) -> None:
    page = (folder / "index.html").read_text(encoding="utf-8")
    sources = re.findall(r'(?:src|href)="([^"]{0,40})', page)
    assert len(sources) > 40
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "http" not in re.sub(r"base64,[A-Za-z0-9+/=]+", "", page)


def test_the_page_opens_and_closes_as_promised(folder: Path) -> None:
    page = (folder / "index.html").read_text(encoding="utf-8")
    headings = re.findall(r"<h[12]>([^<]+)</h[12]>", page)
    assert headings[0] == "Same picture. Same loss. One backward rule changed."
    assert headings[-1] == "When you do not need us"


def test_every_picture_says_what_it_is_a_picture_of(folder: Path, results: Results) -> None:
    """And how near it came: the numbers are those of the table, the target stands among them, and no era stands there twice."""
    page = (folder / "index.html").read_text(encoding="utf-8")
    alts = re.findall(r'<img [^>]*alt="([^"]+)"', page)
    assert len(alts) == page.count("<img ")
    for task, target in (("retarget", "start, and what to come back to"), ("canvas", "the target, unblurred")):
        section = page[
            page.index(f'<section id="{task}">') : page.index("</section>", page.index(f'<section id="{task}">'))
        ]
        for gallery, rows in zip(section.split("<h3>")[1:], results.sections[task].worlds.values(), strict=True):
            shown = re.findall(r'alt="([^"]+)"', gallery)
            assert target in shown
            for name, measured in rows.items():
                said = f"{display_name(name, results.era)}, {cell(measured.numbers['psnr'], 'dB')}"
                assert (html.escape(said) in shown) == (name != INSTALLED), name


def test_the_opening_is_computed(results: Results) -> None:
    changed = copy.copy(results)
    changed.sections = copy.deepcopy(results.sections)
    rows = changed.sections["retarget"].worlds["plain"]
    for name, psnr in (
        ("zero/closed", 8.0),
        ("zero/open", 20.0),
        ("inward", 12.0),
        ("sign", 13.0),
        ("no clamp", float("nan")),
    ):
        rows[name].numbers["psnr"] = psnr
    for name in set(rows) - {"zero/closed", "zero/open", "inward", "sign", "no clamp"}:
        rows[name].numbers["psnr"] = 1.0
    opening = strip(changed)
    assert opening is not None
    assert (
        "did not come back where the gradient at a bound passes (8.0 dB) and came back in part where it does not"
        in opening.sentence
    )
    assert (
        "with inward it did not come back (12.0 dB). Between these only the backward rule of the clamp differs. "
        "Best of all tried was zero/open, at 20.0 dB."
    ) in opening.sentence
    assert [tile.title for tile in opening.tiles][:2] == [
        "start, and what to come back to",
        "sent here first, as a screen shows it",
    ]
    assert opening.tiles[0].picture.shape == opening.tiles[1].picture.shape == opening.tiles[2].picture.shape
    assert [tile.title for tile in opening.tiles][2:] == [
        display_name("zero/closed", results.era),
        display_name("zero/open", results.era),
        "inward",
        f"best here: {display_name('zero/open', results.era)}",
    ]
    for era in eras():
        rows[era].numbers["psnr"] = 8.0
    rows["inward"].numbers["psnr"] = 45.0
    opening = strip(changed)
    assert opening is not None
    assert [tile.text for tile in opening.tiles][2:] == ["torch.clamp, on any torch, 8.0 dB", "inward, 45.0 dB"]
    assert (
        "With torch.clamp it did not come back (8.0 dB), whichever torch is installed; with inward it came back"
        in opening.sentence
    )
    assert "Best" not in opening.sentence


def test_the_page_and_the_terminal_say_the_same(
    folder: Path, results: Results, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    show(results)
    printed = capsys.readouterr().out
    page = html.unescape((folder / "index.html").read_text(encoding="utf-8"))
    opening = strip(results)
    assert opening is not None
    for sentence in (opening.sentence, *(one for section in results.sections.values() for one in section.verdicts)):
        assert sentence in printed
        assert sentence in page


@needs_browser
@pytest.mark.parametrize("width", [400, 1000, 1600])
def test_the_page_in_a_browser(folder: Path, tmp_path: Path, width: int) -> None:
    """Nothing stands outside the window, and tables open by keyboard."""
    script = """
    const all = [...document.querySelectorAll("summary")];
    all[0].focus();
    const focused = document.activeElement === all[0];
    document.querySelectorAll("details").forEach((one) => { one.open = true; });
    const page = document.documentElement;
    document.title = [page.scrollWidth <= window.innerWidth, focused, all.length > 5].join(" ");
    """
    document = shown(folder / "index.html", script, tmp_path, f"--window-size={width},900")
    assert title_of(document) == "true true true"


def test_results_are_json_without_nan_and_hold_what_was_measured(folder: Path, results: Results) -> None:
    stored = json.loads((folder / "results.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    for task, section in results.sections.items():
        for world, by_variant in section.worlds.items():
            for name, measured in by_variant.items():
                row = stored["tasks"][task]["worlds"][world][name]
                for key, value in measured.numbers.items():
                    assert row[key] == value or (row[key] is None and value != value)


def _sentences(path: Path) -> Iterator[str]:
    """The words of every sentence in a file, without docstrings, and without what a sentence is filled with."""
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


def test_no_digit_in_a_sentence_outside_its_placeholders() -> None:
    found = [sentence for path in Path(sentences.__file__).parent.glob("*.py") for sentence in _sentences(path)]
    assert len(found) > 25
    for sentence in found:
        assert not re.search(r"\d", sentence), sentence
    page = Path(report.__file__).with_name("page.html").read_text(encoding="utf-8")
    text = re.sub(r"\{\{.*?\}\}|\{%.*?%\}|<[^>]*>", "", page, flags=re.DOTALL)
    assert not re.search(r"\d", text)


def test_verdicts_follow_the_numbers(results: Results) -> None:
    changed = copy.copy(results)
    changed.sections = copy.deepcopy(results.sections)
    world = changed.sections["retarget"].worlds["plain"]
    ends = {**dict.fromkeys(world, 0.5), **dict.fromkeys(eras(), 5.7), "inward": 1.25, "no clamp": 49.2}
    for name, measured in world.items():
        measured.numbers["psnr"] = ends[name]
    told = changed.sections["retarget"].verdicts
    assert told[0].startswith("Both eras of torch.clamp end alike, at 5.7 dB")  # one world: its name would tell nothing
    assert told[1].startswith("inward ends at 1.2 dB and does not beat")
    assert told[2].startswith("Better than inward here: no clamp (49.2 dB)")
    assert all(one.startswith(("from black: ", "over-exposed: ")) for one in changed.sections["canvas"].verdicts)
    world["inward"].numbers["psnr"] = 40.25
    for era in eras():
        world[era].numbers["psnr"] = 8.5
    told = " ".join(changed.sections["retarget"].verdicts)
    assert "inward ends at 40.2 dB, 31.8 dB above the better" in told
    assert "Both eras of torch.clamp end alike, at 8.5 dB." in told


def test_what_beats_us_is_named(results: Results) -> None:
    told = " ".join(results.sections["retarget"].verdicts)
    row = {name: measured.numbers["psnr"] for name, measured in results.sections["retarget"].worlds["plain"].items()}
    for name, value in row.items():
        if value > row["inward"] + 0.05:
            assert f"{name} ({value:.1f} dB)" in told
    assert "project was as good or better here (from black and over-exposed)" in " ".join(results.when_not_to)


@pytest.mark.program
def test_an_older_report_is_replaced_and_nothing_else(basin_alone: Results, tmp_path: Path) -> None:
    out = tmp_path / "report"
    write(basin_alone, out)
    (out / "basin.png").write_text("old")
    write(basin_alone, out)
    assert (out / "basin.png").read_bytes()[:4] == b"\x89PNG"
    assert [path.name for path in tmp_path.iterdir()] == ["report"]


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(
        FolderError, match=r"compare: --out must be empty, new, or an older report, got .* Choose another"
    ):
        check_folder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "report"
    file.write_text("mine")
    with pytest.raises(FolderError, match="--out must be a folder"):
        check_folder(file)
    with pytest.raises(FolderError, match="--out must lie where files can be written"):
        check_folder(file / "below")
    assert file.read_text() == "mine"


@pytest.mark.slow
def test_a_write_that_breaks_leaves_nothing_and_keeps_the_old(
    basin_alone: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "report"
    write(basin_alone, out)
    before = (out / "index.html").read_bytes()

    def no_space(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys.modules["pseudograd_tasks.report.write"], "page", no_space)
    for target in (out, tmp_path / "new"):
        with pytest.raises(FolderError, match="No space left on device: nothing was changed there"):
            write(basin_alone, target)
    assert [path.name for path in tmp_path.iterdir()] == ["report"]
    assert (out / "index.html").read_bytes() == before


@needs_browser
def test_charts_are_dark_on_a_dark_page_and_rules_keep_one_colour(folder: Path, tmp_path: Path) -> None:
    """The swatches of the tables are turned as the charts are; photos are not."""
    script = """
    const filter = (selector) => getComputedStyle(document.querySelector(selector)).filter;
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    document.title = [dark, filter(".chart"), filter(".swatch") === filter(".chart"), filter(".tile img")].join(" ");
    """
    page = folder / "index.html"
    assert title_of(shown(page, script, tmp_path)) == "false none true none"
    dark = title_of(shown(page, script, tmp_path, "--force-dark-mode"))
    assert re.fullmatch(r"true invert\(0\.\d+\) hue-rotate\(180deg\) true none", dark), dark
