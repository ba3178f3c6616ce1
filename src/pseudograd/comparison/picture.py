"""The picture of a comparison: a dot for each seed of each variant."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import not_installed
from ..look.palette import colours
from ..wording import counted
from .text import difference_cell, verdict_cell
from .training import ONLY
from .verdicts import Values, Verdicts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LOGARITHMIC_ABOVE = 50  # an axis is logarithmic if its largest value is more than this many times the smallest
_AT_ROW = ("axes fraction", "data")  # x as a share of the width of the axes, y as the index of a row


@dataclass(frozen=True)
class Seeds:
    """A picture of one number: a row for each variant, from the top, with a dot for each seed and a line."""

    rows: Values
    line: Mapping[str, float]  # for each variant its median or mean
    title: str
    label: str  # the text below the x axis
    caption: str = ""  # the picture in words
    # The texts that stand for variants, where these are not their names.
    names: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)  # the texts beside the rows
    compared_with: str | None = None  # the variant whose line goes through all rows

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in inches."""
        return 9, 1.3 + 0.36 * len(self.rows)


def seeds_picture(comparison: Verdicts, number: str) -> Seeds:
    """The picture of the number of this name, which every run returned, with its verdicts."""
    what = "result" if number == ONLY else number
    return Seeds(
        rows=comparison.values[number],
        line={name: comparison.median(name, number) for name in comparison.variants},
        title=f"{comparison.run}: {counted(len(comparison.seeds), 'seed')}; verdicts against {comparison.baseline}",
        label=f"{what} ({comparison.better[number]} is better)",
        caption=f"{comparison.run}: {what} of every variant, a dot for each seed",
        notes={name: _note(comparison, number, name) for name in comparison.variants},
        compared_with=comparison.baseline,
    )


def _note(comparison: Verdicts, number: str, name: str) -> str:
    if name == comparison.baseline:
        return "what you have"
    verdict, size = verdict_cell(comparison, number, name), difference_cell(comparison, number, name)
    short = "too few seeds to tell" if verdict.startswith("too few") else verdict.split(";")[0]
    return f"{short}\n{size}" if size else short


def draw_seeds(seeds: Seeds, axes: Axes | None = None) -> Axes:
    """Draw the picture on these axes, or on a new figure."""
    axes = axes or _new_axes(seeds.size)
    finite = [value for values in seeds.rows.values() for value in values if math.isfinite(value)]
    if finite and 0 < _LOGARITHMIC_ABOVE * min(finite) < max(finite):
        axes.set_xscale("log")
    shades = colours(seeds.rows)
    for height, (name, values) in enumerate(seeds.rows.items()):
        _draw_row(axes, height, shades[name], values, seeds.line[name])
        if name in seeds.notes:
            note = axes.annotate(seeds.notes[name], (1.02, height), xycoords=_AT_ROW, va="center", fontsize=8.5)
            note.set_annotation_clip(False)
    if seeds.compared_with is not None:
        axes.axvline(seeds.line[seeds.compared_with], color="#b0b0b0", linewidth=0.8, linestyle="--", zorder=0)
    axes.set_yticks(range(len(seeds.rows)), [seeds.names.get(name, name) for name in seeds.rows])
    axes.set_ylim(len(seeds.rows) - 0.4, -0.6)
    axes.set_xlabel(seeds.label)
    axes.set_title(seeds.title, loc="left", fontsize=11)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", color="#ececec", linewidth=0.8)
    axes.set_axisbelow(True)
    return axes


def _draw_row(axes: Axes, height: int, shade: str, values: tuple[float, ...], line: float) -> None:
    finite = [value for value in values if math.isfinite(value)]
    axes.plot(finite, [height] * len(finite), "o", color=shade, markersize=6, alpha=0.55, markeredgewidth=0)
    if math.isfinite(line):
        axes.plot([line, line], [height - 0.32, height + 0.32], "-", color=shade, linewidth=2.6)
    if len(finite) < len(values):
        lost = len(values) - len(finite)
        text, x = (f"{lost} of {len(values)} not finite", 0.99) if finite else ("no run ends in a number", 0.5)
        paper = {"boxstyle": "square,pad=0.2", "facecolor": "white", "edgecolor": "none"}
        note = axes.annotate(text, (x, height), xycoords=_AT_ROW, bbox=paper, fontsize=9, color="#555555", va="center")
        note.set_horizontalalignment("right" if finite else "center")


def _new_axes(size: tuple[float, float]) -> Axes:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise not_installed("plot", "matplotlib", "report") from error
    _, axes = pyplot.subplots(figsize=size, layout="constrained")
    return axes
