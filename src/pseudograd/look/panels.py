"""The panels of `plot`: above each other on one x axis, a legend below them, and all of it inside the figure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..errors import must, not_installed
from .curves import Line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.typing import LineStyleType

_HEIGHTS = {"forward": 1.7, "backward": 2.2}  # inches of a panel, in a figure of our own
_WIDTHS = (5.8, 4.2, 3.4, 3.0)  # inches of a column, where the figure has one, two, three or more
_MARGIN = 0.75  # inches of numbers and names beside the panels
_ZERO_LINE, _SHADE, _DARK = "#d0d0d0", "#f2f2f2", "#333333"  # colours


class Stroke(NamedTuple):
    """A line with its look, and its text in the legend."""

    line: Line
    entry: str
    colour: str
    style: LineStyleType = "-"
    width: float = 1.8
    alpha: float = 1.0


class Panel(NamedTuple):
    """The content of a pair of axes. inside: a range of x to shade. y_values: values that the y axis always shows."""

    kind: str
    label: str
    strokes: list[Stroke]
    title: str = ""
    inside: tuple[float | None, float | None] | None = None
    y_values: tuple[float, ...] = (0.0,)


class Panels(NamedTuple):
    """The result of `plot`: the figure, and its axes from left to right and from top to bottom."""

    figure: Figure
    forward: tuple[Axes, ...]
    backward: tuple[Axes, ...]


Rows = Sequence[Sequence[Panel | None]]


def draw(rows: Rows, xlim: tuple[float, float], title: str, ax: Axes | None) -> Panels:
    """Draw rows of panels into a figure of their own, or into the cell of `ax`, which becomes the first of them."""
    spec, width = _spec_of_figure(rows) if ax is None else _spec_of(ax)
    figure, columns = spec.get_gridspec().figure, len(rows[0])
    # A flat row above holds the title of all panels, and one below the legend.
    cells = spec.subgridspec(len(rows) + 2, columns, height_ratios=[1e-3, *map(_height, rows), 1e-3])
    above, below = (figure.add_subplot(cells[row, :]) for row in (0, -1))
    for axes in (above, below):
        axes.set_axis_off()
    _add_legend(below, list(_handles(rows)), width - _MARGIN)
    _set_title(above, title, width)
    by_kind: dict[str, list[Axes]] = {"forward": [], "backward": []}
    first = ax
    for (i, row), j in itertools.product(enumerate(rows), range(columns)):
        panel = row[j]
        if panel is None:
            continue
        if ax is not None and (i, j) == (0, 0):
            ax.set_subplotspec(cells[1, 0])
            axes = ax
        else:
            axes = figure.add_subplot(cells[i + 1, j], sharex=first, sharey=next(iter(by_kind[panel.kind]), None))
        first = first or axes
        by_kind[panel.kind].append(axes)
        _draw_panel(axes, panel, xlim)
        is_lowest = i + 1 == len(rows) or rows[i + 1][j] is None
        axes.tick_params(labelbottom=is_lowest, labelleft=j == 0)
        axes.set(xlabel="x" if is_lowest else "", ylabel=panel.label if j == 0 else "")
        axes.locator_params(nbins=5, steps=[1, 2, 5, 10])  # or the layout would change the number of ticks
        _set_title(axes, panel.title, (width - _MARGIN) / columns)
    for kind, (shared, *_) in by_kind.items():
        shared.set_ylim(_span([panel for row in rows for panel in row if panel and panel.kind == kind]))
        shared.set_xlim(xlim)
    return Panels(figure.figure, tuple(by_kind["forward"]), tuple(by_kind["backward"]))


def _height(row: Sequence[Panel | None]) -> float:
    return next(_HEIGHTS[panel.kind] for panel in row if panel)


def _spec_of_figure(rows: Rows) -> tuple[Any, float]:
    """The whole area of the current figure if that is empty, else of a new figure; and the width of the figure in inches."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise not_installed("plot", "matplotlib", "report") from error
    if pyplot.get_fignums() and not (pyplot.gcf().axes or pyplot.gcf().subfigs):
        figure = pyplot.gcf()
    else:
        columns = len(rows[0])
        width = columns * _WIDTHS[min(columns, len(_WIDTHS)) - 1]
        figure = pyplot.figure(figsize=(width, sum(map(_height, rows)) + 0.7))
    figure.set_layout_engine("constrained")
    return figure.add_gridspec()[0], float(figure.get_figwidth())


def _spec_of(ax: Axes) -> tuple[Any, float]:
    """The cell of `ax`, and its width in inches. A figure without a layout gets one that makes room for titles and legends."""
    spec = ax.get_subplotspec() if hasattr(ax, "get_subplotspec") else None
    if spec is None:
        raise TypeError(must("plot", "ax", "be axes that pyplot.subplots or add_subplot made, or None", ax))
    figure: Any = ax.figure
    if figure.get_layout_engine() is None:
        figure.figure.set_layout_engine("constrained")
    share, margins = spec.get_position(figure), spec.get_gridspec().get_subplot_params(figure)
    return spec, share.width / (margins.right - margins.left) * figure.bbox.width / figure.dpi


def _draw_panel(axes: Axes, panel: Panel, xlim: tuple[float, float]) -> None:
    if panel.inside is not None:
        low, high = (limit if bound is None else bound for bound, limit in zip(panel.inside, xlim, strict=True))
        axes.axvspan(low, high, color=_SHADE, zorder=0)
    axes.axhline(0, color=_ZERO_LINE, linewidth=0.8, zorder=0.5)
    for line, entry, colour, style, width, alpha in panel.strokes:
        x, y = line.x.numpy(), torch.where(line.y.isfinite(), line.y, torch.nan).numpy()
        look: dict[str, Any] = {"linestyle": style, "linewidth": width, "alpha": alpha, "solid_capstyle": "butt"}
        axes.plot(x, y, color=colour, label=entry, **look)
        for points, name, face in ((line.rings, "_beside", "white"), (line.dots, "_exactly", colour)):
            if points:
                look = {"marker": "o", "markerfacecolor": face, "markersize": min(2.6 + 1.2 * width, 7.5), "zorder": 3}
                axes.plot(*zip(*points, strict=True), color=colour, linestyle="", label=name, **look)


def _set_title(axes: Axes, title: str, inches: float) -> None:
    """Set the title, with a smaller font if it would be wider than `inches`."""
    text = axes.set_title(title)
    width = text.get_window_extent().width / axes.figure.dpi
    if width > inches:
        text.set_fontsize(float(text.get_fontsize()) * inches / width)


def _span(panels: list[Panel]) -> tuple[float, float]:
    """The y axis that all panels of a kind share: every finite value, and some room."""
    lines = [stroke.line for panel in panels for stroke in panel.strokes]
    points = [y for line in lines for _, y in line.dots + line.rings]
    points += [value for panel in panels for value in panel.y_values]
    values = torch.cat([*(line.y for line in lines), torch.tensor(points, dtype=torch.float64)])
    values = values[values.isfinite()]
    low, high = values.min().item(), values.max().item()
    room = 0.1 * (high - low) or 1.0
    return low - room, high + room


def _handles(rows: Rows) -> Iterator[Line2D]:
    """A handle for each text of the legend. It is dark if the columns give the text different colours."""
    from matplotlib.lines import Line2D

    panels = [panel for row in rows for panel in row if panel]
    strokes = [stroke for panel in panels for stroke in panel.strokes]
    for entry in dict.fromkeys(stroke.entry for stroke in strokes):
        same = [stroke for stroke in strokes if stroke.entry == entry]
        colour = same[0].colour if len({stroke.colour for stroke in same}) == 1 else _DARK
        _, _, _, style, width, alpha = same[0]
        yield Line2D([], [], color=colour, linestyle=style, linewidth=width, alpha=alpha, label=entry)
    where = "bound" if any(panel.inside for panel in panels) else "jump"
    points = ((_DARK, f"value at a {where}", "dots"), ("white", "value just beside it", "rings"))
    for face, label, kind in points:
        if any(getattr(stroke.line, kind) for stroke in strokes):
            handle = Line2D([], [], linestyle="", marker="o", color=_DARK, markersize=5.5, label=label)
            handle.set_markerfacecolor(face)
            yield handle


def _add_legend(axes: Axes, handles: list[Line2D], inches: float) -> None:
    """Draw the legend below `axes`, in as few rows as fit into the width."""
    for columns in range(len(handles), 0, -1):
        legend = axes.legend(
            handles=handles,
            ncols=columns,
            loc="upper center",
            bbox_to_anchor=(0.5, 0),
            borderaxespad=0.3,
            columnspacing=1.4,
            handlelength=2.6,
            frameon=False,
            fontsize="small",
        )
        if legend.get_window_extent().width / axes.figure.figure.dpi <= inches:
            break
