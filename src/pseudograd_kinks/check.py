"""The installed torch, a device or a backend against the table: what is new."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from pseudograd.errors import must

from .compiled import NOT_COMPILED, Backend, check_backend, compile_points, name_of
from .measure import EAGER, FILLED, ROUTES, dtype_of, measure
from .outcome import Outcome
from .table import Point, Table
from .text import outcome_text


class New(NamedTuple):
    """A point at which something else happens than the table says."""

    id: str
    route: str
    expected: Outcome
    found: Outcome

    def as_json(self) -> dict[str, Any]:
        return {**self._asdict(), "expected": self.expected.as_json(), "found": self.found.as_json()}


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
        return {**self._asdict(), "new": [difference.as_json() for difference in self.new]}

    def __str__(self) -> str:
        how = f"{self.device}, backend {self.backend}" if self.backend else f"{self.device}, {', '.join(self.routes)}"
        lines = [f"torch {self.torch} against the table's torch {self.against}: {self.points} points; {how}"]
        width = max((len(new.id) for new in self.new), default=0)
        for new in self.new:
            here, there = outcome_text(new.found), outcome_text(new.expected)
            lines.append(f"  NEW {new.id:{width}}  {new.route}: {here}, in the table {there}")
        if self.skipped:
            lines.append(f"  skipped, since one of the two does not have them: {', '.join(self.skipped)}")
        lines += [f"  not compiled: {id}: {why}" for id, why in self.not_compiled.items()]
        lines.append(f"{len(self.new)} new" if self.new else "nothing new")
        return "\n".join(lines)


def check(
    table: Table,
    points: Iterable[Point] | None = None,
    *,
    device: str = "cpu",
    backend: Backend | None = None,
    version: str | None = None,
) -> Checked:
    """Measure `points`, or all, by every quick route, or compiled by `backend`. version: that of the table; without one, the installed."""
    chosen = list(table.points.values() if points is None else points)
    against = table.known_version("torch", version or torch.__version__)
    if against is None:
        oldest = table.versions("torch")[0]
        raise ValueError(must("kinks", "torch", f"be at least {oldest}, the oldest of the table", version))
    _check_device(device)
    if backend is None:
        routes = list(ROUTES)
        outcomes = {point.id: {route: measure(point, route, device) for route in routes} for point in chosen}
    else:
        routes = [name_of(backend)]
        outcomes = _compile(chosen, check_backend(backend), device)
    return _compare(chosen, outcomes, against, device, routes, backend is not None)


def _compile(points: list[Point], backend: Backend, device: str) -> dict[str, dict[str, Outcome | None]]:
    """Only the points that have a gradient in eager mode are compiled."""
    eager = {point.id: measure(point, EAGER, device) for point in points}
    usable = [point for point in points if (plain := eager[point.id]) is not None and plain.gradient is not None]
    outcomes = compile_points(usable, backend, device)
    return {point.id: {name_of(backend): outcomes.get(point.id, eager[point.id])} for point in points}


def _compare(
    points: list[Point],
    outcomes: dict[str, dict[str, Outcome | None]],
    against: str,
    device: str,
    routes: list[str],
    is_compiled: bool,
) -> Checked:
    new: list[New] = []
    skipped: list[str] = []
    not_compiled: dict[str, str] = {}
    for point in points:
        for route, outcome in outcomes[point.id].items():
            expected = point.outcome("torch", against, route)
            if outcome is None:
                continue
            if expected is None or outcome.is_absent:
                skipped.append(point.id)
                break
            if outcome.error.startswith(NOT_COMPILED):
                not_compiled[point.id] = outcome.error.removeprefix(NOT_COMPILED)
                continue
            is_filled = is_compiled or route in FILLED
            is_same = outcome.has_same_effect_as(expected) if is_filled else outcome.same_as(expected, dtype_of(route))
            if not is_same:
                new.append(New(point.id, route, expected, outcome))
    backend = routes[0] if is_compiled else None
    measured_points = len(points) - len(skipped) - len(not_compiled)
    return Checked(torch.__version__, against, device, backend, routes, measured_points, new, skipped, not_compiled)


def _check_device(device: str) -> None:
    try:
        torch.zeros(1, device=device).cpu()
    except Exception as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(must("kinks", "--device", "be one that is there", device, f"torch says: {why}")) from error
