"""One figure per world: a gallery with a panel for each variant, in the same place in every gallery of a task."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from matplotlib.figure import Figure

from ..analysis.palette import FORWARD, LOSS, colour
from ..tasks import TASKS, Measured
from ..tasks.base import Settings
from ..tasks.canvas import start
from ..tasks.curve import bounds
from ..tasks.photos import photo
from ..tasks.retarget import out_of_gamut
from .run import Results, World
from .tables import cell

DPI = 110


def figures(results: Results) -> Iterator[tuple[str, str, Figure]]:
    """(file stem, what it shows, figure) for every world that was run."""
    for name, worlds in results.tasks.items():
        draw = _DRAWERS[name]
        for number, (world, by_variant) in enumerate(worlds.items(), start=1):
            stem = name if len(worlds) == 1 else f"{name}-{number}"
            yield stem, f"{TASKS[name].title}: {world}", draw(world, by_variant, results.settings)


def _gallery(count: int, columns: int, width: float, height: float) -> tuple[Figure, list[Any]]:
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(columns * width, rows * height), layout="constrained", dpi=DPI)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel in panels[count:]:
        panel.set_visible(False)
    return figure, panels[:count]


def _pictures(world: str, by_variant: World, shown_first: dict[str, Any]) -> Figure:
    figure, panels = _gallery(len(by_variant) + len(shown_first), 4, 3.0, 2.45)
    for panel, (title, picture) in zip(panels, shown_first.items(), strict=False):
        _picture(panel, picture, title, "#000000")
    for panel, (name, measured) in zip(panels[len(shown_first) :], by_variant.items(), strict=True):
        decibels = measured.numbers["psnr"]
        _picture(panel, measured.arrays["picture"], f"{name}   {cell(decibels, 'dB')}", colour(name))
    return figure


def _picture(panel: Any, picture: torch.Tensor, title: str, frame: str) -> None:
    panel.imshow(picture.nan_to_num(0).permute(1, 2, 0).clamp(0, 1).numpy(), interpolation="nearest")
    panel.set_title(title, fontsize=11)
    panel.set_xticks([])
    panel.set_yticks([])
    for side in panel.spines.values():
        side.set(color=frame, linewidth=3)


def _retarget(world: str, by_variant: World, settings: Settings) -> Figure:
    first = {
        "first target, shown cut to [0, 1]": out_of_gamut()[0],
        "the start, and the second target": photo("china")[0],
    }
    return _pictures(world, by_variant, first)


def _canvas(world: str, by_variant: World, settings: Settings) -> Figure:
    return _pictures(world, by_variant, {"start": start(world)[0]})


def _curve(world: str, by_variant: World, settings: Settings) -> Figure:
    figure, panels = _gallery(len(by_variant), 4, 3.6, 2.7)
    for panel, (name, measured) in zip(panels, by_variant.items(), strict=True):
        _curve_panel(panel, name, measured, settings)
    handles, labels = panels[0].get_legend_handles_labels()
    labels[-1] += " (in the rule's colour)"
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    figure.suptitle(f"loss = {world}")
    limits = [panel.get_ylim() for panel in panels]
    for panel in panels:
        panel.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    return figure


def _curve_panel(panel: Any, name: str, measured: Measured, settings: Settings) -> None:
    arrays = measured.arrays
    x = arrays["x"].numpy()
    low, high = bounds(settings)
    panel.axvspan(low, high, color="#f2f2f2", zorder=0)
    panel.axhline(0, color="#d0d0d0", linewidth=0.8, zorder=0)
    panel.plot(x, arrays["y"].numpy(), color=FORWARD, linewidth=3.5, alpha=0.6, label="clamp")
    panel.plot(x, arrays["loss"].numpy(), ":", color=LOSS, linewidth=1.6, label="loss")
    panel.plot(x, arrays["dL_dy"].numpy(), "--", color=LOSS, linewidth=1, label="dL/dclamp")
    slope = _without_jumps(arrays["dy_dx"], (200, 600))
    panel.plot(x, slope, "-.", color=FORWARD, linewidth=1.4, label="dclamp/dx for the sign of dL/dclamp")
    panel.plot(x, _without_jumps(arrays["dL_dx"], (200, 600)), color=colour(name), linewidth=2.2, label="dL/dx")
    panel.plot(x[[200, 600]], arrays["dL_dx"][[200, 600]].numpy(), "o", color=colour(name), markersize=4)
    panel.set_title(name, fontsize=11)
    panel.set_xlabel("x")


def _without_jumps(values: torch.Tensor, at: tuple[int, ...]) -> Any:
    """The line leaves out the bounds themselves, which are drawn as dots: the value there may stand apart from both sides."""
    values = values.clone()
    values[list(at)] = torch.nan
    return values.numpy()


def _basin(world: str, by_variant: World, settings: Settings) -> Figure:
    figure, panels = _gallery(len(by_variant), 4, 3.2, 2.5)
    low, high = bounds(settings)
    top, bottom = high + 1.1 * (high - low), low - 1.1 * (high - low)
    for panel, (name, measured) in zip(panels, by_variant.items(), strict=True):
        path = measured.arrays["path"]
        panel.axhspan(low, high, color="#f2f2f2", zorder=0)
        panel.plot(path[:, ::8].numpy(), color=colour(name), linewidth=0.7, alpha=0.7)
        panel.set_ylim(bottom, top)
        panel.set_title(f"{name}: {measured.numbers['reached']:.0f} of {path.shape[1]}", fontsize=11)
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
    figure.suptitle(f"starts that reach the minimum of {world}; every eighth path drawn, the range shaded")
    return figure


_DRAWERS: dict[str, Callable[[str, World, Settings], Figure]] = {
    "retarget": _retarget,
    "canvas": _canvas,
    "basin": _basin,
    "curve": _curve,
}
