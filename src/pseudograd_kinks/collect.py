"""Measure every point of the kink table on the installed torch, and join the outcomes of all versions into the table.

scripts/collect_kinks.py runs it in each environment: python -m pseudograd_kinks.collect RESULT.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

from .compiled import compile_points
from .measure import EAGER, ROUTES, ROUTES_WITH_ZEROS, dtype_of, measure
from .outcome import Json, Outcome
from .table import Span, Version, load

COMPILED = ("aot_eager", "inductor")
ByVersion = dict[Version, dict[str, Outcome]]  # by version and route
_MEASURED = ("gradients", "exceptions", "changes")  # the fields of a point that are not its definition


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pseudograd_kinks.collect")
    parser.add_argument("result", type=Path, help="results of other routes in this file stay")
    parser.add_argument("--routes", nargs="+", choices=(*ROUTES, *COMPILED), default=(*ROUTES, *COMPILED))
    options = parser.parse_args()
    torch.set_num_threads(1)
    points = load().points
    result = _load_result(options.result)
    for route in options.routes:
        print(f"  {route}", file=sys.stderr, flush=True)
        compiled = compile_points(list(points.values()), route) if route in COMPILED else None
        for id, point in points.items():
            outcome = measure(point, route) if compiled is None else compiled.get(id)
            if outcome is not None:
                result["outcomes"].setdefault(id, {})[route] = outcome.as_json()
        result["routes"] = [name for name in (*ROUTES, *COMPILED) if name in result["routes"] or name == route]
        options.result.write_text(json.dumps(result), encoding="utf-8")
    return 0


def _load_result(file: Path) -> Json:
    """The result of an earlier run on the same torch, or an empty one."""
    about = {"version": torch.__version__, "processor": torch.backends.cpu.get_cpu_capability()}
    before = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if before.get("version") != torch.__version__:
        before = {"routes": [], "outcomes": {}}
    return {**before, **about}


def join(
    stored: Json,
    outcomes: dict[str, dict[str, ByVersion]],
    measured: dict[str, dict[str, dict[str, object]]],
) -> Json:
    """The content of table.json with new measurements. Versions with the same outcome are joined. A route is listed only where it differs
    from eager mode. A sentence of "changes" stays if the change is still measured. You write the sentence of a new change by hand.

    outcomes: the outcomes by the id of a point and the framework.
    measured: how each version was measured.
    """
    rows = [_join_row(row, outcomes.get(row["id"], {})) for row in stored["points"]]
    return {"format": stored["format"], "measured": measured, "points": rows}


def _join_row(row: Json, outcomes: dict[str, ByVersion]) -> dict[str, object]:
    joined = {key: value for key, value in row.items() if key not in _MEASURED}
    joined["gradients"] = {framework: _join_spans(versions, EAGER) for framework, versions in outcomes.items()}
    exceptions = {framework: _join_exceptions(versions) for framework, versions in outcomes.items()}
    if any(exceptions.values()):
        joined["exceptions"] = {framework: routes for framework, routes in exceptions.items() if routes}
    starts = [span["versions"].partition("-")[0] for span in joined["gradients"].get("torch", [])[1:]]
    changes = {start: row["changes"][start] for start in starts if start in row.get("changes", {})}
    if changes:
        joined["changes"] = changes
    return joined


def _join_exceptions(versions: ByVersion) -> dict[str, list[Json]]:
    routes = dict.fromkeys(route for outcomes in versions.values() for route in outcomes if route != EAGER)
    spans = {route: _join_spans(versions, route) for route in routes}
    return {route: joined for route, joined in spans.items() if joined}


def _join_spans(versions: ByVersion, route: str) -> list[Json]:
    """Spans of versions with the same outcome. For another route than eager mode: only versions in which the route differs from it."""
    spans: list[Span] = []
    is_new = True
    for version in sorted(versions):
        outcome = versions[version].get(route)
        if outcome is None or outcome.is_absent or (route != EAGER and not _is_exception(versions[version], route)):
            is_new = True
        elif spans and not is_new and spans[-1].outcome.same_as(outcome, dtype_of(route)):
            spans[-1] = spans[-1]._replace(last=version)
        else:
            spans.append(Span(version, version, outcome))
            is_new = False
    return [{"versions": span.versions, **span.outcome.as_json()} for span in spans]


def _is_exception(outcomes: dict[str, Outcome], route: str) -> bool:
    plain, other = outcomes[EAGER], outcomes[route]
    return not (
        plain.has_same_effect_as(other) if route in ROUTES_WITH_ZEROS else plain.same_as(other, dtype_of(route))
    )


if __name__ == "__main__":
    sys.exit(main())
