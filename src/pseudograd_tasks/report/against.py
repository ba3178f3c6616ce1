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

from .results import KIND, NUMBERS, Results
from .tables import cell


@dataclass(frozen=True)
class Other:
    """Another report's results.json."""

    file: Path
    stored: Mapping[str, Any]

    def number(self, task: str, world: str, variant: str, key: str) -> float | None:
        """None where that run has none of it."""
        try:
            value = self.stored["tasks"][task]["worlds"][world][variant][key]
        except KeyError:
            return None
        return math.nan if value is None else float(value)


def stored(file: Path) -> Other:
    """The numbers of another run, from results.json or the folder that it is in."""
    path = file / NUMBERS if file.is_dir() else file
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["kind"] != KIND or not isinstance(found["tasks"], dict) or not isinstance(found["torch"], str):
            raise ValueError("another kind of file")
    except OSError as error:
        raise _unreadable(file, f"{error.strerror}: name the {NUMBERS} of a report") from error
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(file, f"Name the {NUMBERS} of a report") from error
    return Other(path, found)


def _unreadable(file: Path, remedy: str) -> ValueError:
    return ValueError(must("compare", "--against", f"be {NUMBERS} as compare wrote it", str(file), remedy))


@dataclass(frozen=True)
class Row:
    """A number here and there; NaN where a run gave none. column: what it is, empty for the headline."""

    task: str
    world: str
    variant: str
    here: float
    there: float
    column: str = ""

    @property
    def differs(self) -> bool:
        """To the digits that are shown. Two versions of torch sum in other orders, so that the last bits are no finding."""
        return cell(self.here) != cell(self.there)

    @property
    def gap(self) -> float:
        return 0.0 if self.here == self.there else self.here - self.there

    @property
    def is_explicit(self) -> bool:
        """A rule of ours: that it is the same on every torch is our promise."""
        return not self.variant.startswith("torch") and self.variant not in (NO_CLAMP, PROJECT)


def rows(results: Results, other: Other) -> list[Row]:
    """Every number that both runs have."""
    found = []
    for task, section in results.sections.items():
        columns = {**section.subject.columns, section.subject.headline[0]: ""}
        for world, variants in section.worlds.items():
            for variant, outcome in variants.items():
                for key, column in columns.items():
                    there = other.number(task, world, variant, key)
                    if there is not None:
                        found.append(Row(task, world, variant, outcome.numbers[key], there, column))
    return found


def side_by_side(results: Results, other: Other) -> str:
    """A table of headlines for each world that both have, and where these and all other numbers differ."""
    both = rows(results, other)
    if not both:
        raise ValueError(
            must("compare", "--against", "have a task and a rule in common with this run", str(other.file))
        )
    names = [f"here, torch {results.torch}", f"there, torch {other.stored['torch']}"]
    lines = [f"Side by side with {other.file}"]
    for task, world in dict.fromkeys((row.task, row.world) for row in both):
        lines += ["", f"{task}, {world}: {results.sections[task].subject.headline[1]}"]
        lines += _table([row for row in both if (row.task, row.world, row.column) == (task, world, "")], names)
    return "\n".join([*lines, "", *_told(both), *_left_out(results, other)])


def _table(of_world: list[Row], names: list[str]) -> Iterator[str]:
    lines = [("rule", *names, "difference")]
    lines += [(row.variant, cell(row.here), cell(row.there), _gap(row) if row.differs else "") for row in of_world]
    return aligned(lines, str.rjust)


def _gap(row: Row) -> str:
    return f"{row.gap:+.3g}" if math.isfinite(row.gap) else "differs"


def _told(both: list[Row]) -> Iterator[str]:
    explicit = [row for row in both if row.is_explicit]
    moved = [row for row in explicit if row.differs]
    if explicit and not moved:
        largest = max((abs(row.gap) for row in explicit if math.isfinite(row.gap)), default=0.0)
        exact = "to the bit" if largest == 0 else f"to the digits shown; the largest difference is {largest:.2g}"
        yield f"Explicit rules are equal in both, {exact}."
    elif moved:
        yield f"Explicit rules should be equal, and differ: {_where(moved)}."
    others = [row for row in both if not row.is_explicit and row.differs]
    yield f"Beside them differ: {_where(others)}." if others else "Nothing else differs."


def _where(differing: list[Row]) -> str:
    by_variant: dict[str, list[str]] = {}
    for row in differing:
        place = ", ".join(part for part in (row.task, row.world, row.column) if part)
        by_variant.setdefault(row.variant, []).append(f"{place}: {cell(row.here)} here, {cell(row.there)} there")
    return listed([f"{variant} ({'; '.join(places)})" for variant, places in by_variant.items()])


def _left_out(results: Results, other: Other) -> Iterator[str]:
    here, there = set(results.sections), set(other.stored["tasks"])
    for names, where in ((here - there, "here"), (there - here, "there")):
        if names:
            yield f"Only {where}: {listed(sorted(names))}."
