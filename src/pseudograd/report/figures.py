"""One figure per world: a gallery with a panel for each variant, in the same place in every gallery of a task."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from matplotlib.figure import Figure

from ..analysis.palette import FORWARD, LOSS, colour
from ..tasks import Measured, Task, World
from .own import figures_of
from .results import Results
from .tables import cell

DPI = 110


def figures(results: Results) -> Iterator[tuple[str, str, str, Figure]]:
    """(task, file stem, what it shows, figure) for every world of the tasks that have one."""
    for name, worlds in results.tasks.items():
        if results.own is not None:
            for stem, caption, figure in figures_of(results.own):
                yield name, stem, caption, figure
        task = results.records[name]
        if task.figure is None:
            continue
        for number, (world, rows) in enumerate(worlds.items(), start=1):
            title = task.figure.title.format(world=world)
            figure = _DRAWERS[task.figure.kind](task, title, rows, results.first[name, world])
            stem = name if len(worlds) == 1 else f"{name}-{number}"
            yield name, stem, f"{task.title}: {world}", figure


def _gallery(count: int, columns: int, width: float, height: float) -> tuple[Figure, list[Any]]:
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(columns * width, rows * height), layout="constrained", dpi=DPI)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel in panels[count:]:
        panel.set_visible(False)
    return figure, panels[:count]


def _pictures(task: Task, title: str, rows: World, first: Mapping[str, torch.Tensor]) -> Figure:
    figure, panels = _gallery(len(rows) + len(first), 4, 3.0, 2.45)
    for panel, (heading, picture) in zip(panels, first.items(), strict=False):
        _picture(panel, picture, heading, "#000000")
    key, unit = task.headline
    for panel, (name, measured) in zip(panels[len(first) :], rows.items(), strict=True):
        heading = f"{name}   {cell(measured.numbers[key], unit)}"
        _picture(panel, measured.arrays["picture"], heading, colour(name))
    figure.suptitle(title)
    return figure


def _picture(panel: Any, picture: torch.Tensor, title: str, frame: str) -> None:
    panel.imshow(picture.nan_to_num(0).permute(1, 2, 0).clamp(0, 1).numpy(), interpolation="nearest")
    panel.set_title(title, fontsize=11)
    panel.set_xticks([])
    panel.set_yticks([])
    for side in panel.spines.values():
        side.set(color=frame, linewidth=3)


def _curves(task: Task, title: str, rows: World, first: Mapping[str, torch.Tensor]) -> Figure:
    figure, panels = _gallery(len(rows), 4, 3.6, 2.7)
    for panel, (name, measured) in zip(panels, rows.items(), strict=True):
        _curve(panel, name, measured)
    handles, labels = panels[0].get_legend_handles_labels()
    labels[-1] += " (in the rule's colour)"
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    figure.suptitle(title)
    limits = [panel.get_ylim() for panel in panels]
    for panel in panels:
        panel.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    return figure


def _curve(panel: Any, name: str, measured: Measured) -> None:
    arrays = measured.arrays
    low, high = arrays["range"].tolist()
    x, whole = arrays["x"], arrays["dL_dx"]
    at_bound = (x == low) | (x == high)
    panel.axvspan(low, high, color="#f2f2f2", zorder=0)
    panel.axhline(0, color="#d0d0d0", linewidth=0.8, zorder=0)

    def line(y: torch.Tensor, style: str, **look: Any) -> None:
        panel.plot(x.numpy(), y.numpy(), style, **look)

    line(arrays["y"], "-", color=FORWARD, linewidth=3.5, alpha=0.6, label="clamp")
    line(arrays["loss"], ":", color=LOSS, linewidth=1.6, label="loss")
    line(arrays["dL_dy"], "--", color=LOSS, linewidth=1, label="dL/dclamp")
    # These two leave out the bounds themselves, which are drawn as dots: the value there may stand apart from both sides.
    slope = arrays["dy_dx"].masked_fill(at_bound, torch.nan)
    line(slope, "-.", color=FORWARD, linewidth=1.4, label="dclamp/dx for the sign of dL/dclamp")
    line(whole.masked_fill(at_bound, torch.nan), "-", color=colour(name), linewidth=2.2, label="dL/dx")
    panel.plot(x[at_bound].numpy(), whole[at_bound].numpy(), "o", color=colour(name), markersize=4)
    panel.set_title(name, fontsize=11)
    panel.set_xlabel("x")


def _paths(task: Task, title: str, rows: World, first: Mapping[str, torch.Tensor]) -> Figure:
    figure, panels = _gallery(len(rows), 4, 3.2, 2.5)
    for panel, (name, measured) in zip(panels, rows.items(), strict=True):
        path = measured.arrays["path"]
        low, high = measured.arrays["range"].tolist()
        top, bottom = high + 1.1 * (high - low), low - 1.1 * (high - low)
        panel.axhspan(low, high, color="#f2f2f2", zorder=0)
        panel.plot(path[:, ::8].numpy(), color=colour(name), linewidth=0.7, alpha=0.7)
        panel.set_ylim(bottom, top)
        panel.set_title(f"{name}: {measured.numbers[task.headline[0]]:.0f} of {path.shape[1]}", fontsize=11)
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


_DRAWERS: dict[str, Callable[[Task, str, World, Mapping[str, torch.Tensor]], Figure]] = {
    "pictures": _pictures,
    "curves": _curves,
    "paths": _paths,
}
