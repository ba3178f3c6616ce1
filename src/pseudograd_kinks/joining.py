"""The table from measurements: versions that do the same are joined, and routes are kept where they do otherwise."""

from __future__ import annotations

from typing import Any

from .changes import sentence_for
from .measure import EAGER, FILLED, dtype_of
from .numbers import Outcome, kept_nested
from .point import Point
from .table import dotted

Version = tuple[int, ...]
ByVersion = dict[Version, dict[str, Outcome]]  # and by route
MARK = "pseudograd-kinks/1"


def joined(
    points: dict[str, Point],
    found: dict[str, dict[str, ByVersion]],
    measured: dict[str, dict[str, dict[str, object]]],
) -> dict[str, Any]:
    """The table as JSON. found: by the id of a point and the framework. measured: of every version how it was measured."""
    return {
        "format": MARK,
        "measured": measured,
        "points": [_row(point, found.get(id, {})) for id, point in points.items()],
    }


def _row(point: Point, found: dict[str, ByVersion]) -> dict[str, object]:
    row = {
        "id": point.id,
        "family": point.family,
        "op": point.op,
        "kind": point.kind,
        "expressions": point.expressions,
        "inputs": kept_nested(point.inputs),
        "differentiated": list(point.differentiated),
    }
    if point.weights:
        row["weights"] = list(point.weights)
    if point.elementwise:
        row["elementwise"] = True
    if point.note:
        row["note"] = point.note
    row["gradients"] = {framework: _spans(versions, EAGER) for framework, versions in found.items()}
    exceptions = {framework: _exceptions(versions) for framework, versions in found.items()}
    if any(exceptions.values()):
        row["exceptions"] = {framework: routes for framework, routes in exceptions.items() if routes}
    changes = _changes(point, row["gradients"].get("torch", []))
    if changes:
        row["changes"] = changes
    return row


def _exceptions(versions: ByVersion) -> dict[str, list[dict[str, object]]]:
    routes = list(dict.fromkeys(route for outcomes in versions.values() for route in outcomes))
    found = {route: _spans(versions, route) for route in routes if route != EAGER}
    return {route: spans for route, spans in found.items() if spans}


def _spans(versions: ByVersion, route: str) -> list[dict[str, object]]:
    """Runs of versions with the same outcome; of a route other than eager only where it is an exception."""
    spans: list[tuple[Version, Version, Outcome]] = []
    is_new = True
    for version in sorted(versions):
        outcome = versions[version].get(route)
        if outcome is None or outcome.is_absent or (route != EAGER and not _is_exception(versions[version], route)):
            is_new = True
        elif spans and not is_new and spans[-1][2].same_as(outcome, dtype_of(route)):
            spans[-1] = (spans[-1][0], version, spans[-1][2])
        else:
            spans.append((version, version, outcome))
            is_new = False
    return [
        {"versions": dotted(first) + (f"-{dotted(last)}" if last != first else ""), **outcome.as_json()}
        for first, last, outcome in spans
    ]


def _is_exception(outcomes: dict[str, Outcome], route: str) -> bool:
    plain, other = outcomes[EAGER], outcomes[route]
    return not (plain.has_same_effect_as(other) if route in FILLED else plain.same_as(other, dtype_of(route)))


def _changes(point: Point, spans: list[dict[str, Any]]) -> dict[str, str]:
    """Of every version that begins a span but the first: why."""
    starts = [span["versions"].partition("-")[0] for span in spans[1:]]
    found = {start: sentence_for(point.id, start) for start in starts}
    return {start: sentence for start, sentence in found.items() if sentence}
