"""The installed torch, a device or a backend against the table: what is new."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from pseudograd.errors import must

from .compiled import NOT_COMPILED, Backend, compiled, known_backend, name_of
from .measure import EAGER, FILLED, ROUTES, dtype_of, measured
from .numbers import Outcome
from .table import Table, TablePoint
from .text import shown


class New(NamedTuple):
    """A point at which something else happens than the table says."""

    id: str
    route: str
    expected: Outcome
    found: Outcome

    def as_json(self) -> dict[str, Any]:
        expected, found = self.expected.as_json(), self.found.as_json()
        return {"id": self.id, "route": self.route, "expected": expected, "found": found}


class Checked(NamedTuple):
    """against: the version of torch that the table was asked for. skipped: points that the installed torch, or the table's, does not have;
    not_compiled: by the point, why.
    """

    torch: str
    against: str
    device: str
    backend: str | None
    routes: list[str]
    points: int
    new: list[New]
    skipped: list[str]
    not_compiled: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        return {**self._asdict(), "new": [one.as_json() for one in self.new]}

    def __str__(self) -> str:
        how = f"{self.device}, backend {self.backend}" if self.backend else f"{self.device}, {', '.join(self.routes)}"
        lines = [f"torch {self.torch} against the table's torch {self.against}: {self.points} points; {how}"]
        width = max((len(one.id) for one in self.new), default=0)
        for one in self.new:
            lines.append(f"  NEW {one.id:{width}}  {one.route}: {shown(one.found)}, in the table {shown(one.expected)}")
        if self.skipped:
            lines.append(f"  skipped, since one of the two does not have them: {', '.join(self.skipped)}")
        lines += [f"  not compiled: {id}: {why}" for id, why in self.not_compiled.items()]
        lines.append(f"{len(self.new)} new" if self.new else "nothing new")
        return "\n".join(lines)


def check(
    table: Table,
    points: Iterable[TablePoint] | None = None,
    *,
    device: str = "cpu",
    backend: Backend | None = None,
    version: str | None = None,
) -> Checked:
    """Measure `points`, or all, by every quick route, or compiled by `backend`. version: that of the table; without one, the installed."""
    chosen = list(table.points.values() if points is None else points)
    against = _known(table, version or torch.__version__)
    _must_be_there(device)
    if backend is None:
        routes = list(ROUTES)
        found = {point.id: {route: measured(point, route, device) for route in routes} for point in chosen}
    else:
        routes = [name_of(backend)]
        found = _compiled(chosen, known_backend(backend), device)
    return _compared(chosen, found, against, device, routes, None if backend is None else name_of(backend))


Found = dict[str, dict[str, Outcome | None]]


def _compiled(points: list[TablePoint], backend: Backend, device: str) -> Found:
    """Of the points that have a gradient in eager; the others are left as they are."""
    eager = {point.id: measured(point, EAGER, device) for point in points}
    usable = [point for point in points if (plain := eager[point.id]) is not None and plain.gradient is not None]
    outcomes = compiled(usable, backend, device)
    return {point.id: {name_of(backend): outcomes.get(point.id, eager[point.id])} for point in points}


def _compared(
    points: list[TablePoint], found: Found, against: str, device: str, routes: list[str], backend: str | None
) -> Checked:
    new: list[New] = []
    skipped: list[str] = []
    not_compiled: dict[str, str] = {}
    for point in points:
        for route, outcome in found[point.id].items():
            expected = point.outcome("torch", against, route)
            if outcome is None:
                continue
            if expected is None or outcome.is_absent:
                skipped.append(point.id)
                break
            if outcome.error.startswith(NOT_COMPILED):
                not_compiled[point.id] = outcome.error.removeprefix(NOT_COMPILED)
            elif not _same(outcome, expected, route, backend):
                new.append(New(point.id, route, expected, outcome))
    measured_points = len(points) - len(skipped) - len(not_compiled)
    return Checked(torch.__version__, against, device, backend, routes, measured_points, new, skipped, not_compiled)


def _same(found: Outcome, expected: Outcome, route: str, backend: str | None) -> bool:
    if backend is not None or route in FILLED:
        return found.has_same_effect_as(expected)
    return found.same_as(expected, dtype_of(route))


def _known(table: Table, version: str) -> str:
    known = table.known_version("torch", version)
    if known is None:
        oldest = table.versions("torch")[0]
        raise ValueError(must("kinks", "torch", f"be at least {oldest}, the oldest of the table", version))
    return known


def _must_be_there(device: str) -> None:
    try:
        torch.zeros(1, device=device).cpu()
    except Exception as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(must("kinks", "--device", "be one that is there", device, f"torch says: {why}")) from error
