"""Runs the program on one route."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..interpreters import Interpreter
from ..recorded import Recorded
from ..runs import Runner, order, recorded, told
from ..schedule import Schedule
from .names import CPU, CUDA, environment

_FOLLOWING, _WHOLE = "pseudograd.upgrading.routes.following", "pseudograd.upgrading.following"


@dataclass(frozen=True)
class Routed(Interpreter):
    """An interpreter, and the route that it is sent on."""

    route: str = ""


class RouteRunner(Runner):
    """Runs are of a `Routed`. Between devices all is heard as between two torches; of a compiler only what its blocks leave."""

    def run(
        self,
        interpreter: Interpreter,
        schedule: Schedule,
        *,
        other_order: bool = False,
        pin: str | None = None,
        lines: Sequence[str] | None = None,
        is_cut: bool = False,
        out: Sequence[str] = (),
        moved: Sequence[str] = (),
    ) -> Recorded:
        assert isinstance(interpreter, Routed)
        route = interpreter.route
        around, threads = order(other_order)
        asked: dict[str, Any] = {"threads": threads, "schedule": list(schedule), "pin": pin, "lines": lines}
        module = _WHOLE
        if route not in (CPU, CUDA):
            module = _FOLLOWING
            asked |= {"route": route, "cut": is_cut, "out": list(out), "moved": list(moved)}
        named = replace(interpreter, torch=label(interpreter.torch, route))
        said = told(named, schedule, other_order, pin, lines) + _besides(is_cut, out, moved)
        done = self.followed(interpreter, said, module, asked, {**around, **environment(route)})
        found = recorded(done, interpreter)
        return replace(found, torch=label(found.torch, route))


def label(torch: str, route: str) -> str:
    return f"{torch} {route}"


def _besides(is_cut: bool, out: Sequence[str], moved: Sequence[str]) -> str:
    said = ", each line alone" if is_cut else ""
    said += f", {', '.join(out)} left out" if out else ""
    return said + (f", {', '.join(moved)} moved off its point" if moved else "")
