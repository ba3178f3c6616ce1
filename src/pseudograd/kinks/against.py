"""What the installed torch does at every point of the kink table that another version, or another framework, does differently."""

from __future__ import annotations

import re
from typing import Any

import torch

from ..errors import must, unknown_name
from ..torch_conventions import FRAMEWORKS
from ..torch_eras import ERAS, era_named
from . import table
from .table import Table, TablePoint

_EXACT = re.compile(r"torch\s*==\s*(\d+\.\d+)")


def compare(against: str) -> dict[str, Any]:
    """As plain data: what was compared, and a row for each point that differs. Raises ValueError for a name that is not known."""
    known = table.load()
    framework, version = _asked(against, known)
    here = known.known_version("torch", torch.__version__) or known.versions("torch")[0]
    compared, rows = 0, []
    for point in known.points.values():
        mine, theirs = point.gradient("torch", here), point.gradient(framework, version)
        if mine is None or theirs is None:
            continue
        compared += 1
        if _text(mine) != _text(theirs):
            rows.append(_row(point, mine, theirs))
    return {
        "against": against,
        "version": version,
        "torch": torch.__version__,
        "torch_of_the_table": here,
        "compared": compared,
        "points": rows,
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


def _row(point: TablePoint, mine: list[list[float]], theirs: list[list[float]]) -> dict[str, Any]:
    return {"point": point.id, "kind": point.kind, "here": _text(mine), "there": _text(theirs)}


def _text(gradient: list[list[float]]) -> str:
    """Inputs apart by "; "."""
    return "; ".join(", ".join(f"{value + 0.0:.4g}" for value in row) for row in gradient)


def text(found: dict[str, Any], wide: int = 110) -> str:
    """As a person reads it, two points to a line where they fit."""
    rows = found["points"]
    version = "" if found["against"].startswith("torch") else f" {found['version']}"
    head = (
        f"torch {found['torch']} against {found['against']}{version}: {len(rows)} of {found['compared']} points differ"
    )
    if not rows:
        return head
    cells = [f"{row['point']:<28} {row['here']:<14} {row['there']}" for row in rows]
    width = max(map(len, cells)) + 3
    title = f"{'point':<28} {'here':<14} there"
    if 2 * width > wide:
        return "\n".join([head, "", title, *cells, "", _ADVICE.format(**found)])
    half = (len(cells) + 1) // 2
    pairs = zip(cells[:half], [*cells[half:], ""][:half], strict=True)
    lines = [f"{one:{width}}{other}".rstrip() for one, other in pairs]
    return "\n".join([head, "", f"{title:{width}}{title}", *lines, "", _ADVICE.format(**found)])


_ADVICE = (
    "pseudograd.pin_edge({against!r}) gives what stands under there for the functions that docs/override.md lists; the others stay as "
    "they are here."
)
