"""What `compare` prints in the end: every number whole, at any width."""

from __future__ import annotations

import copy
import os
from itertools import groupby

import pytest

from pseudograd_tasks.report import terminal
from pseudograd_tasks.report.results import Results, cell
from pseudograd_tasks.report.terminal import show

pytestmark = pytest.mark.xdist_group("compare")


def printed(results: Results, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(os.environ, "COLUMNS", str(columns))
    show(results)
    return capsys.readouterr().out


def tables(text: str) -> list[tuple[list[str], list[list[str]]]]:
    """For each table its heading lines and its rows of numbers, read by where the rulers under the headings stand."""
    blocks = [list(lines) for is_blank, lines in groupby(text.splitlines(), lambda line: not line) if not is_blank]
    found = []
    for block in blocks:
        rulers = [number for number, line in enumerate(block) if line.startswith("----")]
        if not rulers:
            continue
        (ruler,) = rulers
        ends = [end for end in range(1, len(block[ruler]) + 1) if block[ruler][end - 1 : end + 1] in ("- ", "-")]
        starts = [0, *[end + 2 for end in ends[:-1]]]
        split = [[line[a:b].strip() for a, b in zip(starts, ends, strict=True)] for line in block]
        headings = [" ".join(part for part in column if part) for column in zip(*split[:ruler], strict=True)]
        found.append((headings, split[ruler + 1 :]))
    return found


def expected(results: Results) -> dict[str, dict[str, str]]:
    """By heading, then by rule."""
    return {
        f"{task} {world} {results.sections[task].subject.headline[1]}": {
            rule: cell(measured.numbers[results.sections[task].subject.headline[0]])
            for rule, measured in by_variant.items()
        }
        for task, section in results.sections.items()
        for world, by_variant in section.worlds.items()
    }


@pytest.mark.parametrize("columns", [30, 40, 80, 200])
def test_every_number_is_there_whole(
    results: Results, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = printed(results, columns, capsys, monkeypatch)
    found: dict[str, dict[str, str]] = {}
    for (first, *headings), rows in tables(text):
        assert first == "rule"
        for position, heading in enumerate(headings, start=1):
            found[heading] = {row[0]: row[position] for row in rows if row[position]}
    assert found == expected(results)
    told = text[: text.index("\nThe torch.clamp installed here")]
    assert max(map(len, told.splitlines())) <= columns


def test_80_columns_hold_the_pictures_in_one_table(
    results: Results, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [len(headings) - 1 for headings, _ in tables(printed(results, 80, capsys, monkeypatch))]
    assert sizes == [5, 2]


def test_curve_alone_has_a_table(
    results: Results, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = copy.copy(results)
    alone.sections = {"curve": results.sections["curve"]}
    ((headings, rows),) = tables(printed(alone, 80, capsys, monkeypatch))
    assert headings[1:] == ["curve sin(pi y) + 1 outside, no gradient", "curve y² outside, no gradient"]
    assert ["inward", "0.5", "0"] in rows


def test_each_world_is_told_once_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    on_step = terminal._lines()
    for variant, done in (("a", 0), ("b", 1)):
        on_step("curve", "y²", variant, done, 2)
    on_step("curve", "|y|", "a", 2, 4)
    assert capsys.readouterr().out == "curve, y² (0 of 2 runs done)\ncurve, |y| (2 of 4 runs done)\n"
