"""What the installed torch does at every point of the kink table that another version, or another framework, does differently."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from pseudograd.errors import must, unknown_name
from pseudograd.torch_table.conventions import FRAMEWORKS
from pseudograd.torch_table.eras import ERAS, era_named

from . import table
from .measure import EAGER, measured
from .numbers import Outcome
from .table import Table, TablePoint

Gradient = list[list[float]]
_EXACT = re.compile(r"torch\s*==\s*(\d+\.\d+)")


def compare(against: str, pin_edge: Callable[..., object]) -> dict[str, Any]:
    """As plain data: what was compared, and a row for each point that differs. Raises ValueError for a name that is not known.

    pin_edge: that of `rewrite`, which nothing here may import. Under "pinned" a row says whether it gives on the installed torch what
    stands under "there": it is tried out.
    """
    known = table.load()
    framework, version = _asked(against, known)
    here = known.known_version("torch", torch.__version__) or known.versions("torch")[0]
    compared = 0
    differing: list[tuple[TablePoint, Gradient, Gradient]] = []
    for point in known.points.values():
        mine, theirs = point.gradient("torch", here), point.gradient(framework, version)
        if mine is None or theirs is None:
            continue
        compared += 1
        if _text(mine) != _text(theirs):
            differing.append((point, mine, theirs))
    is_framework = against in FRAMEWORKS
    pinned = _pinned(pin_edge(against, nan=is_framework), [(point, theirs) for point, _, theirs in differing])
    return {
        "against": against,
        "version": version,
        "torch": torch.__version__,
        "torch_of_the_table": here,
        "compared": compared,
        "pin": f"pin_edge({against!r}, nan=True)" if is_framework else f"pin_edge({against!r})",
        "points": [_row(point, mine, theirs, point.id in pinned) for point, mine, theirs in differing],
    }


def _pinned(context: Any, points: list[tuple[TablePoint, Gradient]]) -> set[str]:
    with context:
        found = [(point.id, measured(point, EAGER), theirs) for point, theirs in points]
    return {
        id
        for id, outcome, theirs in found
        if outcome is not None and outcome.has_same_effect_as(Outcome(tuple(map(tuple, theirs))))
    }


def _asked(against: str, known: Table) -> tuple[str, str]:
    """The framework, and the version of it that the table is read for."""
    if against in FRAMEWORKS:
        return against, known.versions(against)[-1]
    exact = _EXACT.fullmatch(against.strip())
    era = era_named(against, "doctor", "--against")
    if era is None:
        raise unknown_name("doctor", "--against", (*FRAMEWORKS, *ERAS), against)
    if exact:
        return "torch", exact[1]
    measured = [version for version in known.versions("torch") if era_named(f"torch=={version}") == era]
    if not measured:
        raise ValueError(must("doctor", "--against", "name a version of the kink table", against))
    return "torch", measured[-1]


def _row(point: TablePoint, mine: Gradient, theirs: Gradient, pinned: bool) -> dict[str, object]:
    named = {"point": point.id, "op": point.op, "family": point.family, "kind": point.kind}
    pairs = [(a, b) for one, other in zip(mine, theirs, strict=True) for a, b in zip(one, other, strict=True)]
    first = next((a, b) for a, b in pairs if _number(a) != _number(b))
    return {
        **named,
        "here": _text(mine),
        "there": _text(theirs),
        "first": [f"{value + 0.0:.3g}" for value in first],
        "pinned": pinned,
    }


def _text(gradient: Gradient) -> str:
    """Inputs apart by "; "."""
    return "; ".join(", ".join(map(_number, row)) for row in gradient)


def _number(value: float) -> str:
    return f"{value + 0.0:.4g}"


# --- as a person reads it ---------------------------------------------------------------------------------------------

WIDE, HIGH = 100, 40  # a screen
_GAP = 2


def text(found: dict[str, Any], every: bool = False) -> str:
    """One function in a line, so that all of it fits a screen; or a line for every point."""
    rows = found["points"]
    version = "" if found["against"].startswith("torch") else f" {found['version']}"
    head = (
        f"torch {found['torch']} against {found['against']}{version}: {len(rows)} of {found['compared']} points differ"
    )
    if not rows:
        return head
    pinned = sum(row["pinned"] for row in rows)
    legend = [
        f"{found['pin']} makes {pinned} of the {len(rows)} as they are there; ! marks what it leaves.",
        *([] if every else ["+n: n more points of the function. Every point: --all, or --json."]),
    ]
    lines = _every(rows) if every else _screen(rows, HIGH - 3 - len(legend))
    return "\n".join([head, "", *lines, "", *legend])


def _every(rows: list[dict[str, Any]]) -> list[str]:
    wide = max(len(row["point"]) for row in rows)
    title = f"  {'point':<{wide}}  {'here':<14}  there"
    return [
        title,
        *(f"{_mark([row])} {row['point']:<{wide}}  {row['here']:<14}  {row['there']}".rstrip() for row in rows),
    ]


def _screen(rows: list[dict[str, Any]], high: int) -> list[str]:
    """Two columns. A function is shown by its first point, and that by the first entry of its gradient that differs."""
    families: dict[str, dict[str, list[dict[str, object]]]] = {}
    for row in rows:
        families.setdefault(row["family"], {}).setdefault(row["op"], []).append(row)
    wide = (WIDE - _GAP) // 2
    cells: list[str] = []
    for family, ops in families.items():
        cells.append(f"{family}: {sum(map(len, ops.values()))}")
        cells += [_cell(points, wide) for points in ops.values()]
    half = len(cells) if len(cells) <= high else (len(cells) + 1) // 2
    if half > high:
        left = len(cells) - 2 * high + 1
        cells, half = [*cells[: 2 * high - 1], f"and {left} lines more: --all"], high
    pairs = zip(cells[:half], [*cells[half:], *[""] * half][:half], strict=True)
    return [f"{one:<{wide + _GAP}}{other}".rstrip() for one, other in pairs]


def _cell(points: list[dict[str, Any]], wide: int) -> str:
    here, there = points[0]["first"]
    more = f"+{len(points) - 1}" if len(points) > 1 else ""
    numbers = f"{here:>8} -> {there:<5}{more:>4}"
    room = wide - len(numbers) - 2
    name = points[0]["point"]
    name = name if len(name) <= room else name[: room - 1] + "…"
    return f"{_mark(points)} {name:<{room}}{numbers}"


def _mark(points: list[dict[str, object]]) -> str:
    return " " if any(row["pinned"] for row in points) else "!"
