"""Two reports side by side, perhaps of two versions of torch: every headline, and every number that differs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pseudograd.comparison.text import aligned
from pseudograd.comparison.variants import NO_CLAMP, PROJECT
from pseudograd.errors import must
from pseudograd.wording import listed

from .results import KIND, NUMBERS, Results, cell


class Other(NamedTuple):
    """Another report's results.json, and its content."""

    file: Path
    stored: Mapping[str, Any]


def read_other(file: Path) -> Other:
    """file: results.json, or the folder that it is in."""
    path = file / NUMBERS if file.is_dir() else file
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["kind"] != KIND or not isinstance(stored["tasks"], dict) or not isinstance(stored["torch"], str):
            raise ValueError("another kind of file")
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = f"{error.strerror}: name the" if isinstance(error, OSError) else "Name the"
        remedy += f" {NUMBERS} of a report"
        raise ValueError(
            must("compare", "--against", f"be {NUMBERS} as compare wrote it", str(file), remedy)
        ) from error
    return Other(path, stored)


class Row(NamedTuple):
    """A number of this report and of the other one; NaN if a run gave none. column: its description, empty for the headline."""

    task: str
    world: str
    variant: str
    ours: float
    theirs: float
    column: str = ""

    @property
    def differs(self) -> bool:
        """In the digits that are shown: two versions of torch sum in another order."""
        return cell(self.ours) != cell(self.theirs)

    @property
    def gap(self) -> float:
        return 0.0 if self.ours == self.theirs else self.ours - self.theirs

    @property
    def is_explicit(self) -> bool:
        """Is it a rule of ours, which gives the same on every torch?"""
        return not self.variant.startswith("torch") and self.variant not in (NO_CLAMP, PROJECT)


def common_rows(results: Results, other: Other) -> list[Row]:
    """Every number that both reports have."""
    rows = []
    for task, section in results.sections.items():
        columns = {**section.subject.columns, section.subject.headline[0]: ""}
        stored = other.stored["tasks"].get(task, {"worlds": {}})["worlds"]
        for world, variants in section.worlds.items():
            for variant, outcome in variants.items():
                theirs = stored.get(world, {}).get(variant, {})
                numbers = {key: math.nan if value is None else float(value) for key, value in theirs.items()}
                rows += [
                    Row(task, world, variant, outcome.numbers[key], numbers[key], column)
                    for key, column in columns.items()
                    if key in numbers
                ]
    return rows


def side_by_side(results: Results, other: Other) -> str:
    """A table of headlines for each world that both reports have, and the numbers that differ."""
    rows = common_rows(results, other)
    if not rows:
        requirement = "have a task and a rule in common with this run"
        raise ValueError(must("compare", "--against", requirement, str(other.file)))
    heading = ("rule", f"here, torch {results.torch}", f"there, torch {other.stored['torch']}", "difference")
    lines = [f"Side by side with {other.file}"]
    for task, world in dict.fromkeys((row.task, row.world) for row in rows):
        lines += ["", f"{task}, {world}: {results.sections[task].subject.headline[1]}"]
        headlines = [row for row in rows if (row.task, row.world, row.column) == (task, world, "")]
        table = [(row.variant, cell(row.ours), cell(row.theirs), _gap_text(row)) for row in headlines]
        lines += aligned([heading, *table], str.rjust)
    return "\n".join([*lines, "", *_summarize(rows), *_list_missing(results, other)])


def _gap_text(row: Row) -> str:
    if not row.differs:
        return ""
    return f"{row.gap:+.3g}" if math.isfinite(row.gap) else "differs"


def _summarize(rows: Sequence[Row]) -> Iterator[str]:
    explicit = [row for row in rows if row.is_explicit]
    moved = [row for row in explicit if row.differs]
    if explicit and not moved:
        largest = max((abs(row.gap) for row in explicit if math.isfinite(row.gap)), default=0.0)
        exact = "to the bit" if largest == 0 else f"to the digits shown; the largest difference is {largest:.2g}"
        yield f"Explicit rules are equal in both, {exact}."
    elif moved:
        yield f"Explicit rules should be equal, and differ: {_list_numbers(moved)}."
    others = [row for row in rows if not row.is_explicit and row.differs]
    yield f"Beside them differ: {_list_numbers(others)}." if others else "Nothing else differs."


def _list_numbers(differing: Sequence[Row]) -> str:
    by_variant: dict[str, list[str]] = {}
    for row in differing:
        name = ", ".join(part for part in (row.task, row.world, row.column) if part)
        by_variant.setdefault(row.variant, []).append(f"{name}: {cell(row.ours)} here, {cell(row.theirs)} there")
    return listed([f"{variant} ({'; '.join(numbers)})" for variant, numbers in by_variant.items()])


def _list_missing(results: Results, other: Other) -> Iterator[str]:
    ours, theirs = set(results.sections), set(other.stored["tasks"])
    for names, where in ((ours - theirs, "here"), (theirs - ours, "there")):
        if names:
            yield f"Only {where}: {listed(sorted(names))}."
