"""An audit as a picture: forward above, backward below, and between them the kinds of both signs of grad."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..errors import not_installed
from .audit_records import Audited
from .palette import FORWARD

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {
    "exact": "#009E73",
    "flat": "#D9D9D9",
    "cut": "#D55E00",
    "pseudo": "#56B4E9",
    "biased": "#F0C14B",
    "undefined": "#FFFFFF",
}
_SIGNS = (("grad = +1", "#0072B2", "-", 3.4), ("grad = -1", "#7A2E00", (0, (4, 2)), 1.7))
_NARROW = 0.09  # of the width of the axes: a narrower region has no word in it


def draw(audit: Audited) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise not_installed("audit", "matplotlib", "report") from error
    figure = Figure(figsize=(8, 6.4), layout="constrained", dpi=120)
    forward, kinds, backward = figure.subplots(3, 1, sharex=True, height_ratios=(3, 1, 4))
    _draw_forward(forward, audit)
    _draw_kinds(kinds, audit)
    _draw_backward(backward, audit)
    backward.set_xlim(audit.low, audit.high)
    backward.set_xlabel("x" if not audit.lines else "along a random line")
    forward.set_title(_title(audit), fontsize=11, loc="left")
    return figure


def _title(audit: Audited) -> str:
    if audit.lines:
        return f"{audit.name}, along one of {audit.lines} random lines"
    return f"{audit.name}\n{'the same as ' + audit.rule if audit.rule else 'no rule of pseudograd does the same'}"


def _draw_forward(axes: Axes, audit: Audited) -> None:
    curves = audit.curves
    x, y = _with_gaps(audit, curves.y)
    axes.plot(x, y, color=FORWARD, linewidth=2.4)
    jumps = [region.low for region in audit.kinks if region.positive.kind == "jump"]
    _dots(axes, curves.x, curves.y, jumps, FORWARD, 5)
    axes.set_ylabel("y")
    axes.margins(y=0.12)


def _draw_backward(axes: Axes, audit: Audited) -> None:
    curves = audit.curves
    axes.axhline(0, color="#d0d0d0", linewidth=0.8, zorder=0)
    for sign in (1, -1):
        x, slope = _with_gaps(audit, sign * curves.slope)
        axes.plot(x, slope, color="#9a9a9a", linewidth=6, alpha=0.35, solid_capstyle="butt", label=_label(sign))
    for sign, of_one, (label, colour, style, width) in zip(
        (1, -1), (curves.positive, curves.negative), _SIGNS, strict=True
    ):
        x, found = _with_gaps(audit, sign * of_one)
        axes.plot(
            x, found, color=colour, linestyle=style, linewidth=width, solid_capstyle="butt", label=f"dL/dx, {label}"
        )
        _dots(axes, curves.x, sign * of_one, [region.low for region in audit.kinks], colour, 7.5 if sign > 0 else 4.5)
    axes.set_ylabel("dL/dx")
    axes.margins(y=0.12)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, frameon=False, fontsize="small")


def _label(sign: int) -> str:
    return "the derivative times grad" if sign > 0 else "_the same for the other sign"


def _draw_kinds(axes: Axes, audit: Audited) -> None:
    """Two strips, one for each sign of grad."""
    width = audit.high - audit.low
    for row, side in ((1, "positive"), (0, "negative")):
        for one in _merged(audit, side):
            length = one.high - one.low
            axes.barh(
                row, length, left=one.low, height=0.86, color=_COLOURS[one.kind], edgecolor="white", linewidth=0.8
            )
            if length > _NARROW * width:
                axes.text((one.low + one.high) / 2, row, one.kind, ha="center", va="center", fontsize=9)
    for region in audit.kinks:
        axes.plot([region.low] * 2, [-0.5, 1.5], color="black", linewidth=0.9)
    axes.set_yticks((1, 0), ("grad > 0", "grad < 0"))
    axes.tick_params(length=0, labelbottom=False)
    axes.set_ylim(-0.5, 1.5)
    for spine in axes.spines.values():
        spine.set_visible(False)


class Stretch(NamedTuple):
    low: float
    high: float
    kind: str


def _merged(audit: Audited, side: str) -> list[Stretch]:
    """The regions of one sign; neighbours of one kind are one, if no kink or jump lies between."""
    found: list[Stretch] = []
    is_next = False
    for region in audit.regions:
        kind = getattr(region, side).kind
        if is_next and found[-1].kind == kind:
            found[-1] = found[-1]._replace(high=region.high)
        elif region.high > region.low:
            found.append(Stretch(region.low, region.high, kind))
        is_next = region.high > region.low
    return found


def _dots(axes: Axes, x: Tensor, values: Tensor, at: list[float], colour: str, size: float) -> None:
    """The values exactly at a kink or a jump."""
    here = torch.isin(x, torch.tensor(at, dtype=x.dtype))
    axes.plot(x[here].numpy(), values[here].numpy(), "o", color=colour, markersize=size, label="_at the kinks")


def _with_gaps(audit: Audited, values: Tensor) -> tuple[Any, Any]:
    """The curve without the points of breaks, and cut where a region ends and the value jumps: a jump is no slope."""
    x = audit.curves.x
    edges = {region.low for region in audit.regions} | {region.high for region in audit.regions}
    size = values[values.isfinite()].abs().max().item() if values.isfinite().any() else 1.0
    breaks = {region.low for region in audit.kinks}
    xs: list[float] = []
    ys: list[float] = []
    for one, value in zip(x.tolist(), values.tolist(), strict=True):
        if one in breaks:
            continue
        if xs and abs(value - ys[-1]) > 0.02 * (size or 1.0) and any(xs[-1] <= edge <= one for edge in edges):
            xs.append(one)
            ys.append(float("nan"))
        xs.append(one)
        ys.append(value)
    return xs, ys
