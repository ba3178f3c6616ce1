"""docs/which_rule.md: which rule when, from a run of every task. The advice is what the table says, no more."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pseudograd.paired import NO_DIFFERENCE, TEST, WORSE, difference, holm
from pseudograd.tasks import TASKS, Task
from pseudograd.tasks.base import DEFAULT_RULES, ERAS, NO_CLAMP, PROJECT

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "which_rule.md"
RUN = ROOT / "docs" / "compare" / "every_task.json"
COLUMNS = (*ERAS, *DEFAULT_RULES, NO_CLAMP, PROJECT)
APART = 0.5  # dB, where a task has no seeds: two pictures that an eye can tell apart

_SECTIONS = {True: "What is clamped is the parameter itself", False: "What is clamped is computed from parameters"}
Row = dict[str, Any]


def rows() -> list[Row]:
    """One for each world of each task that a winner can be told in: its numbers, and who is the best or no different from it."""
    stored = json.loads(RUN.read_text(encoding="utf-8"))["tasks"]
    found = []
    for name, task in TASKS.items():
        if name not in stored or task.score is None:
            continue
        for world, measured in stored[name]["worlds"].items():
            seeds = stored[name]["seeds"].get(world, {})
            values = {one: _number(measured[one][task.score.key]) for one in COLUMNS if one in measured}
            best = _best(task, values, seeds)
            found.append(
                {
                    "task": task,
                    "world": world,
                    "values": values,
                    "best": best,
                    "seeds": len(next(iter(seeds.values()), ())),
                }
            )
    return found


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _best(task: Task, values: Mapping[str, float], seeds: Mapping[str, list[float]]) -> list[str]:
    """The best mean, and what is no different from it."""
    score = task.score
    assert score is not None
    sign = 1 if score.better == "higher" else -1
    ranked = sorted(values, key=lambda name: -sign * values[name] if values[name] == values[name] else float("inf"))
    first, *others = ranked
    if not seeds:
        return [first, *(name for name in others if sign * (values[first] - values[name]) < APART)]
    lists = {name: [_number(value) for value in seeds[name]] for name in ranked}
    against = holm({name: difference(lists[name], lists[first], better=score.better, tie=score.tie) for name in others})
    return [first, *(name for name in others if against[name].verdict != WORSE)]


def text() -> str:
    found = rows()
    run = json.loads(RUN.read_text(encoding="utf-8"))
    lines = [
        "# Which rule when",
        "",
        f"Every cell is measured: `pseudograd compare --tasks all` with torch {run['torch'].split('+')[0]}",
        "([the numbers](compare/every_task.json)). **Bold** is the best of its row and what is no different from it by",
        f"{TEST}, corrected for the number of variants; pictures without seeds count",
        f"as no different within {APART:g} dB. `zero/closed` is torch.clamp until 2.13, `zero/open` since 2.14.",
    ]
    for has_leaves, heading in (
        (True, "What is clamped is the parameter itself"),
        (False, "What is clamped is computed from parameters"),
    ):
        some = [row for row in found if row["task"].has_leaves == has_leaves]
        names = [name for name in COLUMNS if any(name in row["values"] for row in some)]
        lines += ["", f"## {heading}", "", *_table(some, names), "", *_summary(some, names)]
    lines += ["", "## What it costs", "", *_costs()]
    return "\n".join(lines) + "\n"


def _table(some: list[Row], names: list[str]) -> list[str]:
    lines = [
        "| problem | measured | " + " | ".join(f"`{name}`" for name in names) + " |",
        "|---|---|" + "---:|" * len(names),
    ]
    for row in some:
        task, values = row["task"], row["values"]
        cells = []
        for name in names:
            if name not in values:
                cells.append("")
                continue
            shown = "NaN" if values[name] != values[name] else format(values[name], task.score.places)
            cells.append(f"**{shown}**" if name in row["best"] else shown)
        over = f"{task.headline[1]}, {row['seeds']} seeds" if row["seeds"] else f"{task.headline[1]}, one run"
        lines.append(f"| {task.title}: {row['world']} | {over} | " + " | ".join(cells) + " |")
    return lines


def _summary(some: list[Row], names: list[str]) -> list[str]:
    """How often each is among the best of its row."""
    counts = {
        name: (sum(name in row["best"] for row in some), sum(name in row["values"] for row in some)) for name in names
    }
    ranked = sorted(counts, key=lambda name: -counts[name][0] / max(counts[name][1], 1))
    parts = [f"`{name}` {counts[name][0]} of {counts[name][1]}" for name in ranked]
    alike = [
        f"{row['task'].title}: {row['world']}"
        for row in some
        if set(ERAS) <= set(row["best"]) and len(row["best"]) == len(row["values"])
    ]
    lines = [f"Among the best of their row: {', '.join(parts)}."]
    if alike:
        lines.append(f"{NO_DIFFERENCE.capitalize()} between any of them: {'; '.join(alike)}.")
    return lines


def _costs() -> list[str]:
    basin = json.loads(RUN.read_text(encoding="utf-8"))["tasks"]["basin"]["worlds"]
    rests = {name: row["chatter"] for name, row in next(iter(basin.values())).items() if "chatter" in row}
    least = f"{rests['sign']:.2g} above the least loss there, `inward` {rests['inward']:.2g} (`basin`)"
    return [
        "- `sign` ignores how large the gradient is: it is good where starts are far outside, the clamped thing is the parameter",
        "  itself and gradients are near 1. Scale the loss and it stays ±1; add micro-batches and it counts them. Held at a bound it",
        f"  chatters: {least}.",
        "- `inward`, `sign`, `elastic` and `inverting` are not linear in the gradient: [their gradients do not add",
        "  up](gradients_that_do_not_add_up.md) over losses, micro-batches or ranks.",
        "- `inward` is the relative of the projected gradient for what cannot be projected: where the parameter itself is clamped,",
        "  `project` after each step needs no rule.",
        "- A guard in front of a square root, a logarithm or an inverse cosine keeps `zero` with edge `open`: it is there to stop a NaN.",
    ]
