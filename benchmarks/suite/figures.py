"""The figures of a results file. Each panel asks one thing, and its title says what."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from .cases import Case
from .measure import PROFILED
from .names_and_colours import dashes, shade, shown
from .results import Run

DPI = 110
_OURS = ("inward", "fewbit", "zero", "sign", "identity")  # what the names of our routes start with
_GRID = {"color": "#e4e4e4", "linewidth": 0.8}


def draw(run: Run, folder: Path) -> None:
    for name, drawn in FIGURES.items():
        figure = drawn(run)
        if figure is not None:
            figure.savefig(folder / name, metadata={"Software": None})


def names(run: Run) -> list[str]:
    """Of the figures that the results are enough for."""
    return [name for name, has in _ENOUGH.items() if has(run)]


# --- time over size ---------------------------------------------------------------------------------------------------


def _over_size(run: Run, panel: Any, title: str, routes: tuple[str, ...], **fields: Any) -> None:
    """Time of each route as a multiple of the copy floor, over the number of elements; both logarithmic."""
    wanted = Case(**{"op": "clamp", **fields})
    cases = sorted(
        (case for case, measured in run.cases.items() if _is_like(case, wanted) and routes[0] in measured),
        key=lambda case: case.size,
    )
    ends: dict[str, float] = {}
    for route in routes:
        points = [
            (case.size, 1.0 if route == "floor" else run.cases[case][route]["over"]["floor"])
            for case in cases
            if route in run.cases[case] and "floor" in run.cases[case]
        ]
        if not points:
            continue
        ours = route.startswith(("inward", "fewbit"))
        panel.plot(
            *zip(*points, strict=True),
            color=shade(route),
            linestyle=dashes(route),
            linewidth=3 if ours else 1.6,
            marker="o",
            markersize=4 if ours else 2.5,
            zorder=3 if ours else 4,  # thin lines stay visible where they coincide with ours
        )
        ends[route] = points[-1][1]
    panel.set(xscale="log", yscale="log")
    panel.set_title(title, fontsize=11, loc="left")
    panel.set_xlabel("elements")
    panel.set_xticks([10, 1e3, 1e5, 1e7])
    panel.set_xticks([], minor=True)
    sizes = [case.size for case in cases] or [10, 100_000_000]
    panel.set_xlim(min(sizes) / 1.6, max(sizes) * 1.6)
    low, high = panel.get_ylim()
    panel.set_ylim(min(low, 0.8), max(high, 2.0))
    ticks = [
        tick for tick in (0.2, 0.5, 1, 2, 3, 5, 10, 20, 50, 100) if panel.get_ylim()[0] <= tick <= panel.get_ylim()[1]
    ]
    panel.set_yticks(ticks, [f"{tick:g} x" for tick in ticks])
    panel.set_yticks([], minor=True)
    panel.grid(**_GRID)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    _label_ends(panel, ends, wanted.op)


def _is_like(case: Case, wanted: Case) -> bool:
    return (case.op, case.dtype, case.threads, case.data, case.layout) == (
        wanted.op,
        wanted.dtype,
        wanted.threads,
        wanted.data,
        wanted.layout,
    )


def _label_ends(panel: Any, ends: Mapping[str, float], op: str) -> None:
    """A name at the end of each line, pushed apart where lines end close to each other."""
    low, high = (math.log(limit) for limit in panel.get_ylim())
    height = panel.get_position().height * panel.figure.get_figheight()
    gap = 0.17 / max(height, 1.0)  # inches of a line of text, in heights of the panel
    order = sorted(ends, key=lambda route: ends[route])
    places = spread([(math.log(ends[route]) - low) / (high - low) for route in order], gap)
    for route, place in zip(order, places, strict=True):
        panel.annotate(
            shown(route, op),
            (1.02, place),
            xycoords="axes fraction",
            va="center",
            fontsize=9,
            color=shade(route),
            fontweight="bold" if route.startswith(("inward", "fewbit")) else "normal",
            annotation_clip=False,
        )


def spread(places: list[float], gap: float) -> list[float]:
    """Sorted places, moved as little as it takes to be `gap` apart."""
    groups: list[list[float]] = []  # each a centre and how many it holds
    for place in places:
        groups.append([place, 1])
        while len(groups) > 1 and groups[-1][0] - groups[-2][0] < gap * (groups[-1][1] + groups[-2][1]) / 2:
            centre, count = groups.pop()
            other, before = groups.pop()
            groups.append([(centre * count + other * before) / (count + before), count + before])
    return [centre + gap * (one - (count - 1) / 2) for centre, count in groups for one in range(int(count))]


# --- bars -------------------------------------------------------------------------------------------------------------


def _ranked(values: Mapping[str, float]) -> list[str]:
    """From below: the shortest bar first."""
    return sorted(values, key=lambda route: (values[route], route.startswith("inward")))


def _bars(
    panel: Any,
    title: str,
    values: Mapping[str, float],
    *,
    order: list[str],
    text: str,
    xlabel: str,
    op: str = "clamp",
    colours: Callable[[str], str] = shade,
) -> None:
    """One bar for each route, each with its number."""
    for place, route in enumerate(order):
        panel.barh(place, values[route], color=colours(route), height=0.62)
        panel.annotate(
            text.format(values[route]),
            (values[route], place),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    panel.set_yticks(range(len(order)), [shown(route, op) for route in order], fontsize=9)
    for route, label in zip(order, panel.get_yticklabels(), strict=False):  # none in a panel that shares them
        if route.startswith(_OURS):
            label.set_fontweight("bold")
    panel.set_xlim(0, 1.16 * max(values.values()))
    panel.set_title(title, fontsize=11, loc="left")
    panel.set_xlabel(xlabel)
    panel.grid(axis="x", **_GRID)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=DPI)
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)  # type: ignore[union-attr]
    return figure


def _network(run: Run) -> dict[str, float]:
    found = run.cases.get(Case("network"), {})
    return {route: of["saved_bytes"] / 2**20 for route, of in found.items()}


def _front(run: Run) -> Any:
    figure = _figure(11, 4.2)
    time, memory = figure.subplots(1, 2, width_ratios=(1.25, 1), gridspec_kw={"wspace": 0.08})
    _over_size(
        run,
        time,
        "How long a clamp takes, forward and backward,\nas a multiple of copying twice (lower is better)",
        ("native", "snippet", "hardtanh", "inward", "floor"),
    )
    kept = {
        route: mib
        for route, mib in _network(run).items()
        if route in ("native", "snippet", "relu", "inward", "no activation")
    }
    _bars(
        memory,
        "Memory that 12 convolutions with a clamp\nkeep for backward (shorter is better)",
        kept,
        order=_ranked(kept),
        text="{:.0f}",
        xlabel="MiB",
    )
    return figure


# Each a question, whose bars are the answer.
_PANELS: tuple[tuple[str, tuple[str, ...], Case], ...] = (
    (
        "With other rules?",
        ("native", "brevitas", "sign", "zero/closed", "zero/open", "inward", "identity"),
        Case("clamp", PROFILED),
    ),
    ("With two threads?", ("native", "snippet", "hardtanh", "inward"), Case("clamp", PROFILED, threads=2)),
    ("In bfloat16?", ("native", "snippet", "hardtanh", "inward"), Case("clamp", PROFILED, dtype="bfloat16")),
    ("With one bound?", ("native", "compressai", "inward"), Case("lower_bound", PROFILED)),
    (
        "With a bound for each channel?",
        ("native", "snippet", "brevitas", "inward"),
        Case("clamp, bounds per channel", PROFILED),
    ),
    (
        "Under torch.compile?",
        ("native, compiled", "snippet, compiled", "formula, compiled", "inward, compiled"),
        Case("clamp", PROFILED),
    ),
)


def _milliseconds(run: Run, routes: tuple[str, ...], case: Case) -> dict[str, float]:
    found = run.cases.get(case, {})
    return {route: found[route]["microseconds"] / 1000 for route in routes if route in found}


def _ours_in_colour(route: str) -> str:
    return shade(route) if route.startswith(_OURS) else shade("floor")


def _questions(run: Run) -> Any:
    figure = _figure(13, 6.2)
    panels = figure.subplots(2, 3)
    for panel, (title, routes, case) in zip(panels.flat, _PANELS, strict=True):
        times = _milliseconds(run, routes, case)
        if not times:
            panel.set_visible(False)
            continue
        _bars(
            panel,
            title,
            times,
            order=_ranked(times),
            text="{:.3g}",
            xlabel="milliseconds",
            op=case.op,
            colours=_ours_in_colour,
        )
    figure.suptitle(
        "How long does a clamp take? pseudograd in colour, other code in grey (shorter is better)\n"
        "One million elements, forward and backward; float32 and one thread where the panel does not say otherwise",
        fontsize=12,
    )
    return figure


def against_native(run: Run) -> dict[str, float]:
    """inward against torch's own op at one million elements, one thread."""
    found = {}
    for case, routes in run.cases.items():
        over = routes.get("inward", {}).get("over", {})
        if case.size == PROFILED and case.threads == 1 and "native" in over:
            name = (
                "clamp, float32, half clipped at random"
                if case == Case("clamp", case.size)
                else str(replace(case, size=0))
            )
            found[name] = over["native"]
    return found


def _cases(run: Run) -> Any:
    values = against_native(run)
    figure = _figure(9, 1.2 + 0.27 * len(values))
    panel = figure.subplots()
    order = sorted(values, key=lambda name: -values[name])
    for place, name in enumerate(order):
        panel.barh(place, values[name], color=shade("inward") if values[name] <= 1 else shade("zero"), height=0.64)
        behind = 1.0 if 0.9 < values[name] < 1 else values[name]  # the line, which would strike the number through
        panel.annotate(
            f"{values[name]:.2f}", (behind, place), (4, 0), textcoords="offset points", va="center", fontsize=9
        )
    panel.axvline(1.0, color=shade("native"), linewidth=1.6)
    panel.annotate(
        "as fast as torch",
        (1.0, 1.0),
        (4, 3),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        fontsize=9,
    )
    panel.set_yticks(range(len(order)), order, fontsize=9)
    panel.set_xlim(0, max(1.3, 1.12 * max(values.values())))
    panel.set_ylim(-0.6, len(order) - 0.4)
    panel.set_xlabel("time of rule inward, as a multiple of torch's own op (shorter is better)")
    figure.suptitle("Everything at one million elements: how long against torch's own op?", fontsize=12)
    panel.grid(axis="x", **_GRID)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    return figure


def _memory(run: Run) -> Any:
    found = run.cases[Case("clamp", PROFILED)]
    order = [route for route in found if not route.endswith("compiled")]
    figure = _figure(11, 1.3 + 0.36 * len(order))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1, 1))
    kept = {route: found[route]["saved_bytes"] / PROFILED for route in order}
    taken = {route: found[route]["allocated_bytes"] / (4 * PROFILED) for route in order}
    order = _ranked(kept)
    _bars(left, "What a clamp keeps for backward", kept, order=order, text="{:.2f}", xlabel="bytes per element")
    _bars(right, "New memory in one call, both ways", taken, order=order, text="{:.2f}", xlabel="times the size of x")
    figure.suptitle("One million elements of float32 (shorter is better)", fontsize=12)
    return figure


FIGURES: dict[str, Callable[[Run], Any]] = {
    "speed.png": lambda run: _front(run) if _ENOUGH["speed.png"](run) else None,
    "speed_questions.png": lambda run: _questions(run) if _ENOUGH["speed_questions.png"](run) else None,
    "speed_cases.png": lambda run: _cases(run) if _ENOUGH["speed_cases.png"](run) else None,
    "speed_memory.png": lambda run: _memory(run) if _ENOUGH["speed_memory.png"](run) else None,
}
_ENOUGH: dict[str, Callable[[Run], bool]] = {
    "speed.png": lambda run: bool(_network(run)) and Case("clamp", PROFILED) in run.cases,
    "speed_questions.png": lambda run: (
        run.selection == "full" and any(_milliseconds(run, routes, case) for _, routes, case in _PANELS)
    ),
    "speed_cases.png": lambda run: bool(against_native(run)),
    "speed_memory.png": lambda run: "allocations" in run.cases.get(Case("clamp", PROFILED), {}).get("inward", {}),
}
