"""An audit as a picture: forward above, backward below, and between them the kinds of both signs of grad."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import not_installed
from .audit_record import AuditRecord
from .palette import FORWARD

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"exact": "#009E73", "flat": "#D9D9D9", "cut": "#D55E00", "pseudo": "#56B4E9", "biased": "#F0C14B"}
_COLOURS["undefined"] = "#FFFFFF"
# The sign of grad, the label, colour, style and width of its line, and the size of its dots.
_LINES_OF_SIGNS = ((1, "grad = +1", "#0072B2", "-", 3.4, 7.5), (-1, "grad = -1", "#7A2E00", (0, (4, 2)), 1.7, 4.5))
_SMALLEST_JUMP = 0.02  # of the largest value
_NARROWEST_WITH_WORD = 0.09  # of the width of the axes: a narrower region is drawn without the name of its kind


def draw(audit: AuditRecord) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise not_installed("audit", "matplotlib", "report") from error
    figure = Figure(figsize=(8, 6.4), layout="constrained", dpi=120)
    forward, kinds, backward = figure.subplots(3, 1, sharex=True, height_ratios=(3, 1, 4))
    jumps = [region.low for region in audit.kinks if region.positive.kind == "jump"]
    forward.plot(*_cut_curve(audit, audit.curves.y), color=FORWARD, linewidth=2.4)
    _draw_dots(forward, audit.curves.x, audit.curves.y, jumps, FORWARD, 5)
    forward.set_ylabel("y")
    forward.set_title(f"{audit.name}\n{audit.verdict}", fontsize=11, loc="left")
    _draw_kinds(kinds, audit)
    _draw_backward(backward, audit)
    for axes in (forward, backward):
        axes.margins(y=0.12)
    backward.set_xlim(audit.low, audit.high)
    backward.set_xlabel("x")
    return figure


def _draw_backward(axes: Axes, audit: AuditRecord) -> None:
    curves = audit.curves
    axes.axhline(0, color="#d0d0d0", linewidth=0.8, zorder=0)
    for sign, label in ((1, "the derivative times grad"), (-1, "_the same for the other sign")):
        x, y = _cut_curve(audit, sign * curves.slope)
        axes.plot(x, y, color="#9a9a9a", linewidth=6, alpha=0.35, solid_capstyle="butt", label=label)
    for sign, label, colour, style, width, size in _LINES_OF_SIGNS:
        gradient = sign * (curves.positive if sign > 0 else curves.negative)
        (line,) = axes.plot(*_cut_curve(audit, gradient), color=colour, solid_capstyle="butt", label=f"dL/dx, {label}")
        line.set(linestyle=style, linewidth=width)
        _draw_dots(axes, curves.x, gradient, [region.low for region in audit.kinks], colour, size)
    axes.set_ylabel("dL/dx")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, frameon=False, fontsize="small")


def _draw_kinds(axes: Axes, audit: AuditRecord) -> None:
    """Two strips, one for each sign of grad."""
    for row, side in ((1, "positive"), (0, "negative")):
        for low, high, kind in merge_regions(audit, side):
            axes.barh(row, high - low, left=low, height=0.86, color=_COLOURS[kind], edgecolor="white", linewidth=0.8)
            if high - low > _NARROWEST_WITH_WORD * (audit.high - audit.low):
                axes.text((low + high) / 2, row, kind, ha="center", va="center", fontsize=9)
    for region in audit.kinks:
        axes.plot([region.low] * 2, [-0.5, 1.5], color="black", linewidth=0.9)
    axes.set_yticks((1, 0), ("grad > 0", "grad < 0"))
    axes.tick_params(length=0, labelbottom=False)
    axes.set_ylim(-0.5, 1.5)
    axes.spines[:].set_visible(False)


def merge_regions(audit: AuditRecord, side: str) -> list[tuple[float, float, str]]:
    """The regions of one sign as (low, high, kind). Neighbours of one kind are merged if no kink or jump lies between them."""
    merged: list[tuple[float, float, str]] = []
    may_merge = False
    for region in audit.regions:
        kind, is_point = getattr(region, side).kind, region.high == region.low
        if not is_point:
            low = merged.pop()[0] if may_merge and merged[-1][2] == kind else region.low
            merged.append((low, region.high, kind))
        may_merge = not is_point
    return merged


def _draw_dots(axes: Axes, x: Tensor, values: Tensor, kinks: list[float], colour: str, size: float) -> None:
    """The values exactly at a kink or a jump."""
    is_kink = torch.isin(x, torch.tensor(kinks, dtype=x.dtype))
    axes.plot(x[is_kink].numpy(), values[is_kink].numpy(), "o", color=colour, markersize=size, label="_at the kinks")


def _cut_curve(audit: AuditRecord, values: Tensor) -> tuple[list[float], list[float]]:
    """The curve without its points at kinks and jumps. At a jump it has a gap, because a line there would look like a slope."""
    ends = {end for region in audit.regions for end in (region.low, region.high)}
    least = _SMALLEST_JUMP * values.abs().nan_to_num(0.0, 0.0, 0.0).max().item()
    breaks = {region.low for region in audit.kinks}
    points: list[tuple[float, float]] = []
    for x, y in zip(audit.curves.x.tolist(), values.tolist(), strict=True):
        if x in breaks:
            continue
        if points and abs(y - points[-1][1]) > least and any(points[-1][0] <= end <= x for end in ends):
            points.append((x, float("nan")))
        points.append((x, y))
    return [x for x, _ in points], [y for _, y in points]
