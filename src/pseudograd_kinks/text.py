"""The table as text, for a terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pseudograd.errors import unknown_name

from .outcome import Numbers, Outcome
from .table import Point, Table, parse_version

_LONGEST = 6  # entries of a row that are shown


def outcome_text(outcome: Outcome | None) -> str:
    """An outcome as text: 0.5, 0.5 for two inputs; [1 0 0] for an input with three entries; - if it was not measured."""
    if outcome is None or outcome.is_absent:
        return "-"
    if outcome.gradient is None:
        return outcome.error.split(":")[0].lstrip("_") or "error"
    return ", ".join("none" if row is None else _row_text(row) for row in outcome.gradient)


def _row_text(row: Numbers) -> str:
    entries = [f"{value + 0.0:.4g}" for value in row[:_LONGEST]] + ["..."] * (len(row) > _LONGEST)
    return entries[0] if len(row) == 1 else f"[{' '.join(entries)}]"


def choose_points(table: Table, names: Iterable[str] = (), families: Collection[str] = ()) -> list[Point]:
    """The points of these ops or ids, and of these families. Without names all ops, without families all families."""
    ops = {point.op for point in table.points.values()}
    known_families = list(dict.fromkeys(point.family for point in table.points.values()))
    for name in names:
        if name not in ops and name not in table.points:
            raise unknown_name("kinks", "op", ops, name)
    for family in families:
        if family not in known_families:
            raise unknown_name("kinks", "--family", known_families, family)
    wanted = set(names) or {*ops, *table.points}
    points = [point for point in table.points.values() if point.op in wanted or point.id in wanted]
    return [point for point in points if not families or point.family in families]


def table_text(table: Table, points: Iterable[Point], version: str) -> str:
    """A line for each point: torch in this version, in versions that differ from it, JAX and TensorFlow."""
    version = table.match_torch(version)
    jax, tensorflow = table.versions("jax"), table.versions("tensorflow")
    head = ("point", f"torch {version}", "other torch", f"jax {'/'.join(jax)}", f"tensorflow {'/'.join(tensorflow)}")
    rows = [head, *(_cells(point, version) for point in points)]
    widths = [min(max(len(row[column]) for row in rows), 44) for column in range(len(head))]
    lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    notes = ["", "gradients of the inputs, one after another; [ ] entries of one input; none: no gradient at all"]
    return "\n".join([*lines, *notes])


def _cells(point: Point, version: str) -> tuple[str, ...]:
    others = [span for span in point.spans.get("torch", []) if parse_version(version) not in span]
    elsewhere = "; ".join(f"{outcome_text(span.outcome)} ({span.versions})" for span in others)
    jax, tensorflow = (outcome_text(point.outcome(framework)) for framework in ("jax", "tensorflow"))
    return point.id, outcome_text(point.outcome("torch", version)), elsewhere, jax, tensorflow


def changed_points(table: Table) -> list[Point]:
    """The points at which two torch versions differ."""
    return [point for point in table.points.values() if len(point.spans.get("torch", ())) > 1]
