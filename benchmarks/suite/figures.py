"""The figures of a results file. Each panel asks one thing, and its title says what."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .cases import Case
from .measure import PROFILED
from .names import DASHES, route_name, shade
from .results import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ALT_TEXTS = {
    "speed.png": "Time of a clamp divided by the time to copy x and grad, plotted against the number of elements; memory that a network "
    "saves for backward",
    "speed_cases.png": "The time of the rule inward against torch's own op at one million elements, a bar for each case",
}
_LINES = ("native", "snippet", "hardtanh", "inward", "floor")
_BARS = ("native", "snippet", "relu", "inward", "no activation")
_GRID = {"color": "#e4e4e4", "linewidth": 0.8}
_TICKS = (0.2, 0.5, 1, 2, 3, 5, 10, 20, 50, 100)


def names(run: Run) -> list[str]:
    """The figures that the results are enough for."""
    has_front = bool(run.cases.get(Case("network"))) and Case("clamp", PROFILED) in run.cases
    return [*(["speed.png"] if has_front else []), *(["speed_cases.png"] if ratios_to_native(run) else [])]


def draw(run: Run, folder: Path) -> None:
    for name in names(run):
        figure = front(run) if name == "speed.png" else cases(run)
        figure.savefig(folder / name, metadata={"Software": None})


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=110)
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)  # type: ignore[union-attr]
    return figure


def front(run: Run) -> Figure:
    figure = _figure(9.4, 4.2)
    time, memory = figure.subplots(1, 2, width_ratios=(1.2, 1), gridspec_kw={"wspace": 0.02})
    _draw_times(run, time)
    network = run.cases[Case("network")]
    mib = {route: network[route]["saved_bytes"] / 2**20 for route in _BARS if route in network}
    order = sorted(mib, key=lambda route: (mib[route], route == "inward"))
    for place, route in enumerate(order):
        memory.barh(place, mib[route], color=shade(route), height=0.62)
        _write_number(memory, f"{mib[route]:.0f}", mib[route], place)
    memory.set_yticks(range(len(order)), [route_name(route) for route in order], fontsize=9)
    memory.get_yticklabels()[order.index("inward")].set_fontweight("bold")
    memory.set_xlim(0, 1.16 * max(mib.values()))
    title = "What 12 convolutions, each with\na clamp, keep for backward"
    memory.set_title(title, fontsize=11, loc="left")
    memory.set_xlabel("MiB")
    _tidy(memory, axis="x")
    return figure


def _draw_times(run: Run, panel: Axes) -> None:
    """The time of each route as a multiple of the copy floor, over the number of elements; both logarithmic."""
    measured = {case.size: routes for case, routes in run.cases.items() if case == Case("clamp", case.size)}
    sizes = sorted(size for size in measured if "floor" in measured[size])
    ends: dict[str, float] = {}
    for route in _LINES:
        points = [
            (size, 1.0 if route == "floor" else measured[size][route]["over"]["floor"])
            for size in sizes
            if route in measured[size]
        ]
        if not points:
            continue
        is_ours = route == "inward"
        panel.plot(
            *zip(*points, strict=True),
            color=shade(route),
            linestyle=DASHES.get(route, "-"),
            linewidth=3 if is_ours else 1.6,
            marker="o",
            markersize=4 if is_ours else 2.5,
            zorder=3 if is_ours else 4,  # thin lines stay visible where they coincide with ours
        )
        ends[route] = points[-1][1]
    panel.set(xscale="log", yscale="log", xlabel="elements", xlim=(min(sizes) / 1.6, max(sizes) * 1.6))
    title = "How long a clamp takes, forward and backward,\nas a multiple of copying twice (lower is better)"
    panel.set_title(title, fontsize=11, loc="left")
    low, high = panel.get_ylim()
    low, high = min(low, 0.8), max(high, 2.0)
    panel.set_ylim(low, high)
    panel.set_xticks([10, 1e3, 1e5, 1e7])
    ticks = [tick for tick in _TICKS if low <= tick <= high]
    panel.set_yticks(ticks, [f"{tick:g} x" for tick in ticks])
    panel.minorticks_off()
    _tidy(panel, axis="both")
    order = sorted(ends, key=lambda route: ends[route])
    gap = 0.17 / max(
        panel.get_position().height * panel.figure.get_figheight(), 1.0
    )  # a line of text in heights of the panel
    heights = [(math.log(ends[route]) - math.log(low)) / (math.log(high) - math.log(low)) for route in order]
    for route, height in zip(order, spread(heights, gap), strict=True):
        weight = "bold" if route == "inward" else "normal"
        look = {"va": "center", "fontsize": 9, "color": shade(route), "fontweight": weight, "annotation_clip": False}
        panel.annotate(route_name(route), (1.02, height), xycoords="axes fraction", **look)


def spread(places: list[float], gap: float) -> list[float]:
    """Sorted places, moved as little as it takes to be `gap` apart."""
    groups: list[list[float]] = []  # each a centre and how many places it holds
    for place in places:
        groups.append([place, 1])
        while len(groups) > 1 and groups[-1][0] - groups[-2][0] < gap * (groups[-1][1] + groups[-2][1]) / 2:
            centre, count = groups.pop()
            other, before = groups.pop()
            groups.append([(centre * count + other * before) / (count + before), count + before])
    return [centre + gap * (i - (count - 1) / 2) for centre, count in groups for i in range(int(count))]


def ratios_to_native(run: Run) -> Mapping[str, float]:
    """The time of inward over that of torch's own op at one million elements, one thread."""
    ratios = {}
    for case, routes in run.cases.items():
        over = routes.get("inward", {}).get("over", {})
        if case.size == PROFILED and case.threads == 1 and "native" in over:
            is_usual = case == Case("clamp", case.size)
            name = "clamp, float32, half clipped at random" if is_usual else str(replace(case, size=0))
            ratios[name] = over["native"]
    return ratios


def cases(run: Run) -> Figure:
    ratios = ratios_to_native(run)
    figure = _figure(9, 1.2 + 0.27 * len(ratios))
    panel = figure.subplots()
    order = sorted(ratios, key=lambda name: -ratios[name])
    for place, name in enumerate(order):
        panel.barh(place, ratios[name], color=shade("inward" if ratios[name] <= 1 else "zero"), height=0.64)
        behind = 1.0 if 0.9 < ratios[name] < 1 else ratios[name]  # the line at 1 would strike the number through
        _write_number(panel, f"{ratios[name]:.2f}", behind, place)
    panel.axvline(1.0, color=shade("native"), linewidth=1.6)
    at = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    panel.annotate("as fast as torch", (1.0, 1.0), (4, 3), fontsize=9, **at)
    panel.set_yticks(range(len(order)), order, fontsize=9)
    panel.set(xlim=(0, max(1.3, 1.12 * max(ratios.values()))), ylim=(-0.6, len(order) - 0.4))
    panel.set_xlabel("time of rule inward, as a multiple of torch's own op (shorter is better)")
    figure.suptitle("Everything at one million elements: how long against torch's own op?", fontsize=12)
    _tidy(panel, axis="x")
    return figure


def _write_number(panel: Axes, text: str, x: float, y: float) -> None:
    panel.annotate(text, (x, y), (4, 0), textcoords="offset points", va="center", fontsize=9)


def _tidy(panel: Axes, axis: str) -> None:
    panel.grid(axis=axis, **_GRID)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
