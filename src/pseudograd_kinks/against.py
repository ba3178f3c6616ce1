"""The points of the kink table at which the installed torch differs from another version or framework: `pseudograd doctor --against`."""

from __future__ import annotations

import re
from collections import Counter
from typing import TypedDict

import torch

from pseudograd.errors import must, unknown_name
from pseudograd.rewrite.pin_edge import pin_edge
from pseudograd.torch_table.conventions import FRAMEWORKS
from pseudograd.torch_table.eras import ERAS, era_named

from .measure import EAGER, measure
from .outcome import Outcome
from .table import Point, Table, load

Gradient = list[list[float]]


class PointDifference(TypedDict):
    point: str
    op: str
    family: str
    kind: str
    here: str
    there: str
    first: list[str]
    pinned: bool


class Differences(TypedDict):
    against: str
    version: str
    torch: str
    torch_of_the_table: str
    compared: int
    pin: str
    points: list[PointDifference]


_EXACT = re.compile(r"torch\s*==\s*(\d+\.\d+)")


def compare(against: str) -> Differences:
    """Compare the installed torch with `against`. The result has an entry for each point that differs. ValueError for an unknown name.

    here, there: the gradient of the installed torch, and of `against`.
    pinned: does the installed torch give the gradient "there" under the pin? This is measured.
    """
    table = load()
    framework, version = _find_version(against, table)
    own_version = table.match_torch(torch.__version__)
    gradients = {
        point: (mine, theirs)
        for point in table.points.values()
        if (mine := point.gradient("torch", own_version)) is not None
        and (theirs := point.gradient(framework, version)) is not None
    }
    differences = {point: pair for point, pair in gradients.items() if len(set(map(_gradient_text, pair))) > 1}
    with pin_edge(against):
        entries = [_describe_point(point, *pair, _has_gradient(point, pair[1])) for point, pair in differences.items()]
    return {
        "against": against,
        "version": version,
        "torch": torch.__version__,
        "torch_of_the_table": own_version,
        "compared": len(gradients),
        "pin": f"pin_edge({against!r})",
        "points": entries,
    }


def _find_version(against: str, table: Table) -> tuple[str, str]:
    """The framework and the version that `against` names, as the table has them."""
    if against in FRAMEWORKS:
        return against, table.versions(against)[-1]
    exact = _EXACT.fullmatch(against.strip())
    era = era_named(against, "doctor", "--against")
    if era is None:
        raise unknown_name("doctor", "--against", (*FRAMEWORKS, *ERAS), against)
    if exact:
        return "torch", exact[1]
    versions = [version for version in table.versions("torch") if era_named(f"torch=={version}") == era]
    if not versions:
        raise ValueError(must("doctor", "--against", "name a version of the kink table", against))
    return "torch", versions[-1]


def _has_gradient(point: Point, gradient: Gradient) -> bool:
    """Does the installed torch give this gradient under the contexts that are entered?"""
    outcome = measure(point, EAGER)
    return outcome is not None and outcome.has_same_effect_as(Outcome(tuple(map(tuple, gradient))))


def _describe_point(point: Point, mine: Gradient, theirs: Gradient, is_pinned: bool) -> PointDifference:
    """The difference at a point. "first" has the first number that differs, here and there."""
    pairs = (pair for rows in zip(mine, theirs, strict=True) for pair in zip(*rows, strict=True))
    first = next(pair for pair in pairs if _number_text(pair[0]) != _number_text(pair[1]))
    return {
        "point": point.id,
        "op": point.op,
        "family": point.family,
        "kind": point.kind,
        "here": _gradient_text(mine),
        "there": _gradient_text(theirs),
        "first": [f"{value + 0.0:.3g}" for value in first],
        "pinned": is_pinned,
    }


def _gradient_text(gradient: Gradient) -> str:
    """The gradients of all inputs, with "; " between inputs."""
    return "; ".join(", ".join(map(_number_text, row)) for row in gradient)


def _number_text(value: float) -> str:
    return f"{value + 0.0:.4g}"


def text(differences: Differences, every: bool = False) -> str:
    """A line for each function, with the first entry that differs at the first point; or a line for every point."""
    rows, against = differences["points"], differences["against"]
    version = "" if against.startswith("torch") else f" {differences['version']}"
    counts = f"{len(rows)} of {differences['compared']} points differ"
    head = f"torch {differences['torch']} against {against}{version}: {counts}"
    if not rows:
        return head
    pinned = sum(row["pinned"] for row in rows)
    legend = [f"{differences['pin']} gives {against}'s gradient at {pinned} of the {len(rows)}; ! marks the others."]
    first: dict[str, PointDifference] = {}
    for row in rows:
        first.setdefault(row["op"], row)
    shown, more = rows, Counter[str]()
    if not every:
        shown, more = list(first.values()), Counter(row["op"] for row in rows)
        legend.append("+n: n more points of the function. Every point: --all, or --json.")
    width = max(len(row["point"]) for row in shown)
    lines = [f"  {'point':<{width}}  {'here':<14}  there"]
    for row in shown:
        here, there = (row["here"], row["there"]) if every else row["first"]
        others = f"  +{more[row['op']] - 1}" if more[row["op"]] > 1 else ""
        lines.append(
            f"{' ' if row['pinned'] else '!'} {row['point']:<{width}}  {here:<14}  {there:<9}{others}".rstrip()
        )
    return "\n".join([head, "", *lines, "", *legend])
