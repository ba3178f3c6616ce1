"""A comparison as a picture: a row for each variant, a dot for each seed, the median as a line, and the verdict beside it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..analysis.palette import colour
from .records import Comparison
from .text import against, counted, less
from .trials import ONLY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDE = 50  # largest over smallest value, from which on the axis is logarithmic


def draw(found: Comparison, number: str, axes: Axes | None = None) -> Axes:
    """On these axes, or on a new figure that is as high as its rows need."""
    if axes is None:
        axes = _new_axes(size(found))
    rows = found.values[number]
    finite = [value for values in rows.values() for value in values if math.isfinite(value)]
    if finite and min(finite) > 0 and max(finite) > WIDE * min(finite):
        axes.set_xscale("log")
    for place, name in enumerate(rows):
        _row(axes, place, name, rows[name], found.median(name, number))
        told = "what you have" if name == found.baseline else _short(against(found, number, name))
        apart = less(found, number, name)
        axes.annotate(
            f"{told}\n{apart}" if apart else told,
            (1.02, place),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=8.5,
            annotation_clip=False,
        )
    axes.axvline(found.median(found.baseline, number), color="#b0b0b0", linewidth=0.8, linestyle="--", zorder=0)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel(f"{'result' if number == ONLY else number} ({found.better[number]} is better)")
    axes.set_title(
        f"{found.run}: {counted(len(found.seeds), 'seed')}; verdicts against {found.baseline}", loc="left", fontsize=11
    )
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", color="#ececec", linewidth=0.8)
    axes.set_axisbelow(True)
    return axes


def size(found: Comparison) -> tuple[float, float]:
    """In inches: as high as its rows need."""
    return 9, 1.3 + 0.36 * len(found.variants)


def _row(axes: Any, place: int, name: str, values: tuple[float, ...], median: float) -> None:
    shown = [value for value in values if math.isfinite(value)]
    axes.plot(shown, [place] * len(shown), "o", color=colour(name), markersize=6, alpha=0.55, markeredgewidth=0)
    if math.isfinite(median):
        axes.plot([median, median], [place - 0.32, place + 0.32], "-", color=colour(name), linewidth=2.6)
    if len(shown) == len(values):
        return
    lost = len(values) - len(shown)
    text, at = ("no run ends in a number", 0.5) if not shown else (f"{lost} of {len(values)} not finite", 0.99)
    look = {"ha": "center" if not shown else "right", "va": "center", "fontsize": 9, "color": "#555555"}
    paper = {"boxstyle": "square,pad=0.2", "facecolor": "white", "edgecolor": "none"}
    axes.annotate(text, (at, place), xycoords=("axes fraction", "data"), bbox=paper, **look)


def _short(verdict: str) -> str:
    return "too few seeds to tell" if verdict.startswith("too few") else verdict.split(";")[0]


def _new_axes(shape: tuple[float, float]) -> Axes:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("plot: matplotlib must be installed, got none. Run pip install '.[report]'.") from error
    _, axes = pyplot.subplots(figsize=shape, layout="constrained")
    return axes
