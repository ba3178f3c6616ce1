"""Two runs of compare side by side, of two versions of torch perhaps: every headline, the difference, and where they differ."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pseudograd.comparison.text import aligned
from pseudograd.comparison.variants import NO_CLAMP, PROJECT
from pseudograd.errors import must
from pseudograd.wording import listed

from .results import KIND, NUMBERS, Results, cell


@dataclass(frozen=True)
class Other:
    """Another report's results.json."""

    file: Path
    stored: Mapping[str, Any]

    def number(self, task: str, world: str, variant: str, key: str) -> float | None:
        """None where that run has no such number."""
        try:
            value = self.stored["tasks"][task]["worlds"][world][variant][key]
        except KeyError:
            return None
        return math.nan if value is None else float(value)


def read_other(file: Path) -> Other:
    """The numbers of another run, from results.json or the folder that it is in."""
    path = file / NUMBERS if file.is_dir() else file
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["kind"] != KIND or not isinstance(stored["tasks"], dict) or not isinstance(stored["torch"], str):
            raise ValueError("another kind of file")
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = f"{error.strerror}: name the" if isinstance(error, OSError) else "Name the"
        what = must(
            "compare", "--against", f"be {NUMBERS} as compare wrote it", str(file), f"{remedy} {NUMBERS} of a report"
        )
        raise ValueError(what) from error
    return Other(path, stored)


@dataclass(frozen=True)
class Row:
    """A number of this run and of the other one; NaN where a run gave none. column: what it is, empty for the headline."""

    task: str
    world: str
    variant: str
    ours: float
    theirs: float
    column: str = ""

    @property
    def differs(self) -> bool:
        """In the digits that are shown. Two versions of torch sum in another order, so the last bits mean nothing."""
        return cell(self.ours) != cell(self.theirs)

    @property
    def gap(self) -> float:
        return 0.0 if self.ours == self.theirs else self.ours - self.theirs

    @property
    def is_explicit(self) -> bool:
        """Whether it is a rule of ours, which we promise to be the same on every torch."""
        return not self.variant.startswith("torch") and self.variant not in (NO_CLAMP, PROJECT)


def common_rows(results: Results, other: Other) -> list[Row]:
    """Every number that both runs have."""
    rows = []
    for task, section in results.sections.items():
        columns = {**section.subject.columns, section.subject.headline[0]: ""}
        for world, variants in section.worlds.items():
            for variant, outcome in variants.items():
                for key, column in columns.items():
                    theirs = other.number(task, world, variant, key)
                    if theirs is not None:
                        rows.append(Row(task, world, variant, outcome.numbers[key], theirs, column))
    return rows


def side_by_side(results: Results, other: Other) -> str:
    """A table of headlines for each world that both runs have, and which numbers differ."""
    rows = common_rows(results, other)
    if not rows:
        requirement = "have a task and a rule in common with this run"
        raise ValueError(must("compare", "--against", requirement, str(other.file)))
    heading = ("rule", f"here, torch {results.torch}", f"there, torch {other.stored['torch']}", "difference")
    lines = [f"Side by side with {other.file}"]
    for task, world in dict.fromkeys((row.task, row.world) for row in rows):
        lines += ["", f"{task}, {world}: {results.sections[task].subject.headline[1]}"]
        table = [
            (row.variant, cell(row.ours), cell(row.theirs), _gap(row))
            for row in rows
            if (row.task, row.world, row.column) == (task, world, "")
        ]
        lines += aligned([heading, *table], str.rjust)
    return "\n".join([*lines, "", *_summary(rows), *_missing(results, other)])


def _gap(row: Row) -> str:
    if not row.differs:
        return ""
    return f"{row.gap:+.3g}" if math.isfinite(row.gap) else "differs"


def _summary(rows: list[Row]) -> Iterator[str]:
    explicit = [row for row in rows if row.is_explicit]
    moved = [row for row in explicit if row.differs]
    if explicit and not moved:
        largest = max((abs(row.gap) for row in explicit if math.isfinite(row.gap)), default=0.0)
        exact = "to the bit" if largest == 0 else f"to the digits shown; the largest difference is {largest:.2g}"
        yield f"Explicit rules are equal in both, {exact}."
    elif moved:
        yield f"Explicit rules should be equal, and differ: {_listed(moved)}."
    others = [row for row in rows if not row.is_explicit and row.differs]
    yield f"Beside them differ: {_listed(others)}." if others else "Nothing else differs."


def _listed(differing: list[Row]) -> str:
    by_variant: dict[str, list[str]] = {}
    for row in differing:
        name = ", ".join(part for part in (row.task, row.world, row.column) if part)
        by_variant.setdefault(row.variant, []).append(f"{name}: {cell(row.ours)} here, {cell(row.theirs)} there")
    return listed([f"{variant} ({'; '.join(numbers)})" for variant, numbers in by_variant.items()])


def _missing(results: Results, other: Other) -> Iterator[str]:
    ours, theirs = set(results.sections), set(other.stored["tasks"])
    for names, where in ((ours - theirs, "here"), (theirs - ours, "there")):
        if names:
            yield f"Only {where}: {listed(sorted(names))}."
