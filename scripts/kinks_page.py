"""Write the generated parts of docs/kinks.md, its picture, and docs/kinks_table.html from src/pseudograd_kinks/table.json."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from op_pages import save_svg

from pseudograd_kinks.table import FRAMEWORKS, KINDS, Point, load
from pseudograd_kinks.text import changed_points, outcome_text

ROOT = Path(__file__).resolve().parent.parent
TABLE_PAGE = ROOT / "docs" / "kinks_table.html"
PICTURE = ROOT / "docs" / "kinks.svg"
TABLE = load()
NAMES = {"torch": "torch", "jax": "JAX", "tensorflow": "TensorFlow"}
# The points that most programs meet, and their names in the picture.
COMMON = {
    "clamp(0,1)@0": "clamp(x, 0, 1) at x = 0",
    "relu@0": "relu(x) at x = 0",
    "leaky_relu(0.1)@0": "leaky_relu(x, 0.1) at x = 0",
    "hardtanh@1": "hardtanh(x) at x = 1",
    "abs@0": "abs(x) at x = 0",
    "maximum@tie": "maximum(x, y) at x = y",
    "fmax@tie": "fmax(x, y) at x = y",
    "max(dim)@tie": "max([x, x, 0]), the first x",
    "vector_norm(2)@0": "norm([x, 0]) at x = 0",
    "sqrt(clamp(min=0))@0": "sqrt(clamp(x, min=0)) at x = 0",
}
COLUMNS = (("torch", "2.13"), ("torch", "2.15"), ("jax", None), ("tensorflow", None))


def _counts() -> str:
    points = list(TABLE.points.values())
    others = sum(any(_differ(point, framework) for framework in FRAMEWORKS[1:]) for point in points)
    shared = sum(len(point.spans) > 1 for point in points)
    measured = [f"{NAMES[framework]} {', '.join(TABLE.versions(framework))}" for framework in FRAMEWORKS]
    return (
        f"{len(points)} points of {len({point.op for point in points})} ops, measured on {'; '.join(measured)} (CPU, float32).\n"
        f"Between torch versions {len(changed_points(TABLE))} points differ; between the newest torch and JAX or TensorFlow "
        f"{others} of the {shared} that another framework has too."
    )


def _differ(point: Point, framework: str) -> bool:
    mine, theirs = point.outcome("torch"), point.outcome(framework)
    return mine is not None and theirs is not None and not mine.has_same_effect_as(theirs)


def _versions() -> str:
    """A line for each sentence about a change, with the functions that it is about."""
    functions: dict[str, dict[str, None]] = {}
    for point in sorted(changed_points(TABLE), key=lambda point: [int(since[2:]) for since in point.changes]):
        sentences = " ".join(f"**torch {since}**: {sentence}" for since, sentence in point.changes.items())
        functions.setdefault(sentences, {})[_function(point)] = None
    return "\n".join(f"- {_quoted(names)}. {sentences}" for sentences, names in functions.items())


def _function(point: Point) -> str:
    """The name of the function of a point, with an inner function and without other arguments."""
    return re.sub(r"\((?!clamp|relu|round|sqrt)[^()]*\)(\.\w+)?", "", point.id.partition("@")[0])


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


PARTS = {"kink_counts": _counts, "kinks_by_version": _versions}


# --- the searchable table ---------------------------------------------------------------------------------------------


def table_page() -> str:
    """The page, which needs no other file."""
    template = (ROOT / "scripts" / "kinks_page.html").read_text(encoding="utf-8")
    families = dict.fromkeys(point.family for point in TABLE.points.values())
    options = "".join(f"<option>{html.escape(name)}</option>" for name in families)
    kinds = "".join(f"<dt>{kind}</dt><dd>{html.escape(meaning)}</dd>" for kind, meaning in KINDS.items())
    rows = "\n".join(_html_row(point) for point in TABLE.points.values())
    counts = html.escape(_counts())
    for name, part in (("families", options), ("kinds", kinds), ("rows", rows), ("counts", counts)):
        template = template.replace(f"<!-- {name} -->", part)
    return template


def _html_row(point: Point) -> str:
    spans = point.spans.get("torch", [])
    torch = "<br>".join(f"<b>{_cell(span.outcome)}</b> <i>{span.versions}</i>" for span in reversed(spans))
    others = [_cell(point.outcome(framework)) for framework in FRAMEWORKS[1:]]
    differs = len(spans) > 1 or any(_differ(point, framework) for framework in FRAMEWORKS[1:])
    cells = [("torch", torch), ("JAX", others[0]), ("TensorFlow", others[1])]
    about = "".join(f"<p>{html.escape(line)}</p>" for line in _about(point))
    return (
        f'<tr data-family="{html.escape(point.family)}"{" data-differs" if differs else ""}>'
        f'<th scope="row"><details><summary>{html.escape(point.id)}</summary>{about}</details></th>'
        f'<td data-name="kind">{point.kind}</td>'
        + "".join(f'<td data-name="{name}"><span>{cell}</span></td>' for name, cell in cells)
        + "</tr>"
    )


def _cell(outcome: Any) -> str:
    return html.escape(outcome_text(outcome)) if outcome is not None else "–"


def _about(point: Point) -> list[str]:
    inputs = "; ".join(f"{name} = {value}" for name, value in zip("xyzw", point.inputs, strict=False))
    lines = [f"{NAMES[framework]}: {expression}" for framework, expression in point.expressions.items()]
    lines.append(inputs + (f"; weights of the result {list(point.weights)}" if point.weights else ""))
    if point.note:
        lines.append(point.note)
    lines += [f"torch {since}: {sentence}" for since, sentence in point.changes.items()]
    for (framework, route), spans in point.exceptions.items():
        lines += [f"{NAMES[framework]} {span.versions}, {route}: {outcome_text(span.outcome)}" for span in spans]
    return lines


# --- the picture ------------------------------------------------------------------------------------------------------


def draw() -> None:
    """Ten points, four frameworks: the gradient of x as a number on its colour."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.2, 5.2), layout="constrained", dpi=110)
    axes = figure.add_subplot()
    heads = ["torch 2.8-2.13", "torch 2.14-2.15", *(f"{NAMES[f]} {TABLE.versions(f)[-1]}" for f in FRAMEWORKS[1:])]
    for row, id in enumerate(COMMON):
        for column, (framework, version) in enumerate(COLUMNS):
            gradient = TABLE.points[id].gradient(framework, version)
            _square(axes, column, row, None if gradient is None else gradient[0][0])
    axes.set_xlim(-0.5, len(COLUMNS) - 0.5)
    axes.set_ylim(len(COMMON) - 0.5, -0.5)
    axes.set_xticks(range(len(COLUMNS)), heads)
    axes.set_yticks(range(len(COMMON)), list(COMMON.values()))
    axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
    axes.set_title("The gradient of x at ten kinks: four answers to one question", pad=14, fontsize=13)
    for spine in axes.spines.values():
        spine.set_visible(False)
    save_svg(figure, PICTURE)


def _square(axes: Any, column: int, row: int, value: float | None) -> None:
    xs, ys = (column - 0.47, column + 0.47), (row - 0.43, row + 0.43)
    axes.fill([xs[0], xs[1], xs[1], xs[0]], [ys[0], ys[0], ys[1], ys[1]], color=_colour(value), linewidth=0)
    axes.text(column, row, "–" if value is None else f"{value:.3g}", ha="center", va="center", fontsize=12)


def _colour(value: float | None) -> str:
    """Light enough for black numbers, dark enough to be told apart in grey."""
    if value is None:
        return "#ffffff"
    if not math.isfinite(value):
        return "#f0a35e"
    return "#efefef" if value == 0 else "#56b4e9" if value >= 1 else "#c3e2f5"
