"""The strip that a report opens with, and a chart for each world: a panel for each variant, in the same place in every one of a task."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from matplotlib.figure import Figure

from ..analysis.palette import FORWARD, LOSS, colour
from ..tasks import Measured, Task, World
from .own import figures_of
from .pictures import PICTURES, Strip, drawn, pixels, shown_name
from .results import Results

DPI = 110


def figures(results: Results) -> Iterator[tuple[str, str, str, Figure]]:
    """(task, file stem, what it shows, figure) for every world that has a chart: of its task's kind, or of its seeds."""
    for name, worlds in results.tasks.items():
        if results.own is not None:
            for stem, caption, figure in figures_of(results.own):
                yield name, stem, caption, figure
        task = results.records[name]
        for number, (world, rows) in enumerate(worlds.items(), start=1):
            stem, caption = name if len(worlds) == 1 else f"{name}-{number}", f"{task.title}: {world}"
            if task.figure is None:
                if task.score is not None and rows and all(measured.seeds for measured in rows.values()):
                    yield (
                        name,
                        stem,
                        f"{caption}; a dot for each seed, a line at the mean",
                        _seeds(task, world, drawn(rows), results.era),
                    )
            elif task.figure.kind != PICTURES:  # which the page shows one by one
                title = task.figure.title.format(world=world)
                draw = _DRAWERS[task.figure.kind]
                yield name, stem, caption, draw(task, title, drawn(rows), results.era)


def _gallery(count: int, columns: int, width: float, height: float) -> tuple[Figure, list[Any]]:
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(columns * width, rows * height), layout="constrained", dpi=DPI)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel in panels[count:]:
        panel.set_visible(False)
    return figure, panels[:count]


def strip_figure(found: Strip) -> Figure:
    """The pictures that a report opens with, side by side."""
    figure, panels = _gallery(len(found.tiles), len(found.tiles), 3.2, 2.75)
    for panel, tile in zip(panels, found.tiles, strict=True):
        panel.imshow(pixels(tile.picture), interpolation="nearest")
        panel.set_title("\n".join(textwrap.wrap(f"{tile.title}   {tile.note}", 38)), fontsize=11)
        panel.set_xticks([])
        panel.set_yticks([])
        for side in panel.spines.values():
            side.set(color=tile.frame, linewidth=3)
    return figure


def _seeds(task: Task, world: str, rows: World, era: str) -> Figure:
    """The headline of every seed, a line for each variant, the best at the top."""
    assert task.score is not None
    sign = -1 if task.score.better == "higher" else 1
    names = sorted(rows, key=lambda name: sign * rows[name].numbers[task.headline[0]], reverse=True)
    figure = Figure(figsize=(8.0, 0.9 + 0.32 * len(names)), layout="constrained", dpi=DPI)
    panel = figure.subplots()
    for place, name in enumerate(names):
        seeds = rows[name].seeds
        shifts = [0.16 * (number % 5 - 2) / 2 for number in range(len(seeds))]
        panel.plot(seeds, [place + shift for shift in shifts], "o", color=colour(name), markersize=4, alpha=0.6)
        mean = rows[name].numbers[task.headline[0]]
        panel.plot([mean, mean], [place - 0.32, place + 0.32], color=colour(name), linewidth=3)
    panel.set_yticks(range(len(names)), [shown_name(name, era) for name in names])
    panel.set_xlabel(f"{task.headline[1]} ({task.score.better} is better)")
    panel.set_title(f"{task.title}: {world}", fontsize=11)
    panel.grid(axis="x", color="#e4e4e4")
    panel.set_axisbelow(True)
    return figure


def _curves(task: Task, title: str, rows: World, era: str) -> Figure:
    """The problem in a panel of its own, then for each rule the gradient that arrives at the clamp and the one that leaves it."""
    figure, (problem, *panels) = _gallery(len(rows) + 1, 4, 3.4, 2.6)
    _problem(problem, next(iter(rows.values())).arrays)
    for panel, (name, measured) in zip(panels, rows.items(), strict=True):
        _curve(panel, name, measured, era)
    handles, labels = panels[0].get_legend_handles_labels()
    labels[-1] += ", in the rule's colour"
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle(title)
    limits = [panel.get_ylim() for panel in panels]
    for panel in panels:
        panel.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    return figure


def _on_a_range(panel: Any, arrays: Mapping[str, torch.Tensor], title: str) -> None:
    low, high = arrays["range"].tolist()
    panel.axvspan(low, high, color="#f2f2f2", zorder=0)
    panel.axhline(0, color="#d0d0d0", linewidth=0.8, zorder=0)
    panel.set_title(title, fontsize=11)
    panel.set_xlabel("x (the range is shaded)")


def _problem(panel: Any, arrays: Mapping[str, torch.Tensor]) -> None:
    x = arrays["x"].numpy()
    panel.plot(x, arrays["y"].numpy(), "-", color=FORWARD, linewidth=3, label="y = clamp(x)")
    panel.plot(x, arrays["loss"].numpy(), ":", color=LOSS, linewidth=2, label="loss of y")
    _on_a_range(panel, arrays, "the problem")
    panel.legend(fontsize=8, frameon=False)


def _curve(panel: Any, name: str, measured: Measured, era: str) -> None:
    arrays = measured.arrays
    low, high = arrays["range"].tolist()
    x, whole = arrays["x"], arrays["dL_dx"]
    at_bound = (x == low) | (x == high)
    _on_a_range(panel, arrays, shown_name(name, era))
    panel.plot(
        x.numpy(), arrays["dL_dy"].numpy(), "--", color=LOSS, linewidth=1, label="gradient that arrives at the clamp"
    )
    # The bounds are drawn as dots: the value there may stand apart from both sides.
    beside = whole.masked_fill(at_bound, torch.nan)
    panel.plot(x.numpy(), beside.numpy(), "-", color=colour(name), linewidth=2.2, label="gradient that x gets")
    panel.plot(x[at_bound].numpy(), whole[at_bound].numpy(), "o", color=colour(name), markersize=4)


def _paths(task: Task, title: str, rows: World, era: str) -> Figure:
    figure, panels = _gallery(len(rows), 4, 3.2, 2.5)
    for panel, (name, measured) in zip(panels, rows.items(), strict=True):
        path = measured.arrays["path"]
        low, high = measured.arrays["range"].tolist()
        top, bottom = high + 1.1 * (high - low), low - 1.1 * (high - low)
        panel.axhspan(low, high, color="#f2f2f2", zorder=0)
        panel.plot(path[:, ::8].numpy(), color=colour(name), linewidth=0.7, alpha=0.7)
        panel.set_ylim(bottom, top)
        panel.set_title(
            f"{shown_name(name, era)}: {measured.numbers[task.headline[0]]:.0f} of {path.shape[1]}", fontsize=10
        )
        panel.set_xlabel("step")
        panel.set_ylabel("x")
        if path.max() > top:
            panel.annotate(
                f"to x = {float(path.max()):.1f}",
                (0.97, 0.94),
                xycoords="axes fraction",
                ha="right",
                va="top",
                fontsize=9,
            )
    figure.suptitle(f"{title}; every eighth path drawn, the range shaded")
    return figure


_DRAWERS: dict[str, Callable[[Task, str, World, str], Figure]] = {
    "curves": _curves,
    "paths": _paths,
}
