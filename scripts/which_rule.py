"""docs/which_rule.md: which rule when, from a run of every task. The advice is what the table says, no more."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pseudograd.comparison.comparison import read_number
from pseudograd.comparison.statistics import BETTER, NO_DIFFERENCE, TEST, WORSE
from pseudograd.comparison.variants import NO_CLAMP, PROJECT, eras
from pseudograd.ops.bound_rules import COMPARED_RULES
from pseudograd_tasks import TASKS, Outcome
from pseudograd_tasks.base import OURS
from pseudograd_tasks.sentences import APART, are_alike

ERAS = tuple(eras())
ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "which_rule.md"
RUN = ROOT / "docs" / "compare" / "every_task.json"
COLUMNS = (*ERAS, *COMPARED_RULES, NO_CLAMP, PROJECT)
_SECTIONS = {True: "What is clamped is the parameter itself", False: "What is clamped is computed from parameters"}
Row = dict[str, Any]


def rows() -> list[Row]:
    """One for each world of each task that a winner can be told in: its numbers, and who is the best or not told apart from it."""
    stored = json.loads(RUN.read_text(encoding="utf-8"))["tasks"]
    found: list[Row] = []
    for name, task in TASKS.items():
        if name not in stored or task.score is None:
            continue
        for world, measured in stored[name]["worlds"].items():
            values = {one: read_number(measured[one][task.score.key]) for one in COLUMNS if one in measured}
            seeds = {
                one: [read_number(value) for value in of] for one, of in stored[name]["seeds"].get(world, {}).items()
            }
            row = {"task": task, "world": world, "values": values, "seeds": seeds}
            found.append({**row, "best": _best(row)})
    return found


def _best(row: Row) -> list[str]:
    """The best mean, and what is not told apart from it."""
    score, values, seeds = row["task"].score, row["values"], row["seeds"]
    sign = -1 if score.better == "higher" else 1
    first, *others = sorted(values, key=lambda name: math.inf if math.isnan(values[name]) else sign * values[name])
    if not seeds:
        return [first, *(name for name in others if verdict(row, name, first) == NO_DIFFERENCE)]
    measured = {name: Outcome({}, seeds=tuple(seeds[name])) for name in values}
    return score.family(measured, with_best=True).leaders(score.key, [first, *others], lambda one: one.verdict)


def verdict(row: Row, name: str, other: str) -> str:
    """Is one variant better than another in this row? Where there are no seeds: by what an eye can tell apart."""
    score, seeds = row["task"].score, row["seeds"]
    if seeds:
        measured = {one: Outcome({}, seeds=tuple(of)) for one, of in seeds.items()}
        return score.family(measured).difference(score.key, name, other).verdict  # of our default and another
    ours, theirs = (row["values"][one] for one in (name, other))
    if math.isnan(ours) or math.isnan(theirs):
        return NO_DIFFERENCE if math.isnan(ours) and math.isnan(theirs) else WORSE if math.isnan(ours) else BETTER
    gap = ours - theirs if score.better == "higher" else theirs - ours
    return NO_DIFFERENCE if are_alike(ours, theirs) else BETTER if gap > 0 else WORSE


def against(some: list[Row], name: str, others: Sequence[str]) -> str:
    """In words: how often it is better than each of the others, and how often worse than one of them."""
    found = [{verdict(row, name, other) for other in others} for row in some if name in row["values"]]
    better, worse = sum(one == {BETTER} for one in found), sum(WORSE in one for one in found)
    return f"better in {better} of {len(found)}, worse in {worse}"


def advice() -> str:
    """The short list, for docs/start/picture.md."""
    leaves, computed = ([row for row in rows() if row["task"].has_leaves == has_leaves] for has_leaves in _SECTIONS)
    best = sum(PROJECT in row["best"] for row in leaves)
    return "\n".join(
        [
            "- **The clamped thing is computed, by a network or a renderer:** `inward`. Against both eras of torch.clamp it was "
            f"{against(computed, OURS, ERAS)}",
            f"  of the measured problems; `leaky` against `inward`: {against(computed, 'leaky', [OURS])}.",
            "  Gradient ascent: `maximize=True`.",
            "- **It is the parameter itself:** no rule; clip it after each step (`pg.optim.project`), among the best in "
            f"{best} of {len(leaves)}.",
        ]
    )


def text() -> str:
    found = rows()
    run = json.loads(RUN.read_text(encoding="utf-8"))
    lines = [
        "# Which rule when",
        "",
        f"Every cell is measured: `pseudograd compare --tasks all` with torch {run['torch'].split('+')[0]}",
        "([the numbers](compare/every_task.json)). **Bold** is the best of its row and what is not told apart from it by",
        f"{TEST}, corrected for all that a row may say; pictures without seeds count",
        f"as alike within {APART:g} dB. `zero/closed` is torch.clamp until 2.13, `zero/open` since 2.14.",
    ]
    for has_leaves, heading in _SECTIONS.items():
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
        over = (
            f"{task.headline[1]}, {len(next(iter(row['seeds'].values())))} seeds"
            if row["seeds"]
            else f"{task.headline[1]}, one run"
        )
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
    rules = [name for name in names if name not in (*ERAS, OURS)]
    lines = [
        f"Among the best of their row: {', '.join(parts)}.",
        "",
        f"`{OURS}` against both eras of torch.clamp: {against(some, OURS, ERAS)}. Against `{OURS}`: "
        + "; ".join(f"`{name}` {against(some, name, [OURS])}" for name in rules)
        + ".",
        "",
    ]
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
        "- `trust` and `fourier` of `round` and the windows of `jumprelu` are in none of these tables: no task of `compare` asks for them.",
    ]
