"""The picture of seeds: a row for each variant, a dot for each seed, a line at their median or mean, and what was found beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import not_installed
from ..look.palette import colours
from ..wording import counted
from .compared import Compared
from .comparison_text import against, less
from .family import Values
from .returned import ONLY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDE = 50  # largest over smallest value, from which on the axis is logarithmic


@dataclass(frozen=True)
class Seeds:
    """`rows` from the top, each with its `line`. names: what variants are called here; notes: what stands beside them.

    caption: what a figure of it shows, for who cannot see it. compared_with: the variant whose line goes through all rows.
    """

    rows: Values
    line: Mapping[str, float]
    title: str
    label: str
    caption: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    compared_with: str | None = None

    @property
    def size(self) -> tuple[float, float]:
        """In inches: as high as its rows need."""
        return 9, 1.3 + 0.36 * len(self.rows)


def seeds_of(found: Compared, number: str) -> Seeds:
    """Of one number of a comparison, with its verdicts."""
    what = "result" if number == ONLY else number
    return Seeds(
        rows=found.values[number],
        line={name: found.median(name, number) for name in found.variants},
        title=f"{found.run}: {counted(len(found.seeds), 'seed')}; verdicts against {found.baseline}",
        label=f"{what} ({found.better[number]} is better)",
        caption=f"{found.run}: {what} of every variant, a dot for each seed",
        notes={name: _note(found, number, name) for name in found.variants},
        compared_with=found.baseline,
    )


def _note(found: Compared, number: str, name: str) -> str:
    told = "what you have" if name == found.baseline else _short(against(found, number, name))
    apart = less(found, number, name)
    return f"{told}\n{apart}" if apart else told


def draw(shown: Seeds, axes: Axes | None = None) -> Axes:
    """On these axes, or on a new figure that is as high as its rows need."""
    if axes is None:
        axes = new_axes(shown.size)
    finite = [value for values in shown.rows.values() for value in values if math.isfinite(value)]
    if finite and min(finite) > 0 and max(finite) > WIDE * min(finite):
        axes.set_xscale("log")
    shades = colours(shown.rows)
    for place, (name, values) in enumerate(shown.rows.items()):
        _row(axes, place, shades[name], values, shown.line[name])
        if name in shown.notes:
            where: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "annotation_clip": False}
            axes.annotate(shown.notes[name], (1.02, place), va="center", fontsize=8.5, **where)
    if shown.compared_with is not None:
        axes.axvline(shown.line[shown.compared_with], color="#b0b0b0", linewidth=0.8, linestyle="--", zorder=0)
    axes.set_yticks(range(len(shown.rows)), [shown.names.get(name, name) for name in shown.rows])
    axes.set_ylim(len(shown.rows) - 0.4, -0.6)
    axes.set_xlabel(shown.label)
    axes.set_title(shown.title, loc="left", fontsize=11)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", color="#ececec", linewidth=0.8)
    axes.set_axisbelow(True)
    return axes


def _row(axes: Any, place: int, shade: str, values: tuple[float, ...], line: float) -> None:
    shown = [value for value in values if math.isfinite(value)]
    axes.plot(shown, [place] * len(shown), "o", color=shade, markersize=6, alpha=0.55, markeredgewidth=0)
    if math.isfinite(line):
        axes.plot([line, line], [place - 0.32, place + 0.32], "-", color=shade, linewidth=2.6)
    if len(shown) == len(values):
        return
    lost = len(values) - len(shown)
    text, at = ("no run ends in a number", 0.5) if not shown else (f"{lost} of {len(values)} not finite", 0.99)
    look = {"ha": "center" if not shown else "right", "va": "center", "fontsize": 9, "color": "#555555"}
    paper = {"boxstyle": "square,pad=0.2", "facecolor": "white", "edgecolor": "none"}
    axes.annotate(text, (at, place), xycoords=("axes fraction", "data"), bbox=paper, **look)


def _short(verdict: str) -> str:
    return "too few seeds to tell" if verdict.startswith("too few") else verdict.split(";")[0]


def new_axes(shape: tuple[float, float]) -> Axes:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise not_installed("plot", "matplotlib", "report") from error
    _, axes = pyplot.subplots(figsize=shape, layout="constrained")
    return axes
