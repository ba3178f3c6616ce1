"""Compare the installed torch, a device or a backend of torch.compile with the table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

from pseudograd.errors import must
from pseudograd.listen.program.signals import Stopped

from .compiled import NOT_COMPILED, Backend, check_backend, compile_points, name_of
from .measure import EAGER, ROUTES, ROUTES_WITH_ZEROS, dtype_of, measure
from .outcome import Outcome
from .table import Point, Table
from .text import outcome_text


class New(NamedTuple):
    """A point whose outcome is not the expected one of the table."""

    id: str
    route: str
    expected: Outcome
    outcome: Outcome


class Checked(NamedTuple):
    """The result of a check.

    torch, against: the version of the installed torch, and the version of the table.
    points: the number of points that were compared.
    new: the points that differ from the table.
    skipped: the points that one of the two versions does not have.
    not_compiled: the points that were not compiled, with the reason.
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

    def as_json(self) -> dict[str, object]:
        new = [
            {"id": id, "route": route, "expected": expected.as_json(), "found": outcome.as_json()}
            for id, route, expected, outcome in self.new
        ]
        return {**self._asdict(), "new": new}

    def __str__(self) -> str:
        how = f"{self.device}, backend {self.backend}" if self.backend else f"{self.device}, {', '.join(self.routes)}"
        lines = [f"torch {self.torch} against the table's torch {self.against}: {self.points} points; {how}"]
        width = max((len(new.id) for new in self.new), default=0)
        lines += [
            f"  NEW {new.id:{width}}  {new.route}: {outcome_text(new.outcome)}, in the table {outcome_text(new.expected)}"
            for new in self.new
        ]
        if self.skipped:
            lines.append(f"  skipped, since one of the two does not have them: {', '.join(self.skipped)}")
        lines += [f"  not compiled: {id}: {why}" for id, why in self.not_compiled.items()]
        return "\n".join([*lines, f"{len(self.new)} new" if self.new else "nothing new"])


def check(
    table: Table,
    points: Iterable[Point] | None = None,
    *,
    device: str = "cpu",
    backend: Backend | None = None,
) -> Checked:
    """Measure `points`, by default all, by each of ROUTES or compiled by `backend`, and compare the outcomes with the table."""
    chosen = list(table.points.values() if points is None else points)
    against = table.match_torch(torch.__version__)
    _check_device(device)
    routes = list(ROUTES) if backend is None else [name_of(check_backend(backend))]
    name = None if backend is None else routes[0]
    new: list[New] = []
    skipped: list[str] = []
    not_compiled: dict[str, str] = {}
    compiled = {} if backend is None else compile_points(chosen, backend, device)
    done = 0

    def make_result() -> Checked:
        count = done - len(skipped) - len(not_compiled)
        return Checked(torch.__version__, against, device, name, routes, count, new, skipped, not_compiled)

    try:
        for point in chosen:
            for route in routes:
                # A point without a gradient in eager mode is not compiled.
                outcome = compiled.get(point.id) or measure(point, route if backend is None else EAGER, device)
                expected = point.outcome("torch", against, route)
                if outcome is None:
                    continue
                if expected is None or outcome.is_absent:
                    skipped.append(point.id)
                    break
                if outcome.error.startswith(NOT_COMPILED):
                    not_compiled[point.id] = outcome.error.removeprefix(NOT_COMPILED)
                elif backend is not None or route in ROUTES_WITH_ZEROS:
                    new += [] if outcome.has_same_effect_as(expected) else [New(point.id, route, expected, outcome)]
                elif not outcome.same_as(expected, dtype_of(route)):
                    new.append(New(point.id, route, expected, outcome))
            done += 1
    except Stopped as stop:
        stop.known = f"kinks: stopped after {done} of {len(chosen)} points\n{make_result()}"
        raise
    return make_result()


def _check_device(device: str) -> None:
    try:
        torch.zeros(1, device=device).cpu()
    except Exception as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(must("kinks", "--device", "be one that is there", device, f"torch says: {why}")) from error
