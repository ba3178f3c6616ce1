"""docs/which_rule.md: which rule when, from a run of every task. The advice follows from the table."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pseudograd.comparison.statistics import BETTER, NO_DIFFERENCE, TEST, WORSE
from pseudograd.comparison.variants import NO_CLAMP, PROJECT, eras
from pseudograd.ops.bound_rules import COMPARED_RULES
from pseudograd_tasks import TASKS, Outcome
from pseudograd_tasks.base import OURS
from pseudograd_tasks.sentences import LARGEST_UNSEEN, are_alike

ERAS = tuple(eras())
ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "which_rule.md"
RUN = ROOT / "docs" / "compare" / "every_task.json"
COLUMNS = (*ERAS, *COMPARED_RULES, NO_CLAMP, PROJECT)
_SECTIONS = {True: "A parameter is clamped", False: "A computed value is clamped"}
Row = dict[str, Any]


def rows() -> list[Row]:
    """A row for each world of each task with a score: its numbers, and the best variant with those that are not told apart from it."""
    stored = json.loads(RUN.read_text(encoding="utf-8"))["tasks"]
    rows: list[Row] = []
    for name, task in TASKS.items():
        if name not in stored or task.score is None:
            continue
        for world, measured in stored[name]["worlds"].items():
            values = {rule: _number(measured[rule][task.score.key]) for rule in COLUMNS if rule in measured}
            stored_seeds = stored[name]["seeds"].get(world, {})
            seeds = {rule: tuple(map(_number, numbers)) for rule, numbers in stored_seeds.items()}
            row = {"task": task, "world": world, "values": values, "seeds": seeds}
            rows.append({**row, "best": _best(row)})
    return rows


def _number(stored: float | None) -> float:
    return math.nan if stored is None else float(stored)


def _best(row: Row) -> list[str]:
    """The variant with the best mean, and those that are not told apart from it."""
    score, values, seeds = row["task"].score, row["values"], row["seeds"]
    sign = -1 if score.better == "higher" else 1
    first, *others = sorted(values, key=lambda name: math.inf if math.isnan(values[name]) else sign * values[name])
    if not seeds:
        return [first, *(name for name in others if verdict(row, name, first) == NO_DIFFERENCE)]
    world = {name: Outcome({}, seeds=seeds[name]) for name in values}
    return score.compare_pairs(world, with_best=True).leaders(
        score.key, [first, *others], lambda difference: difference.verdict
    )


def verdict(row: Row, name: str, other: str) -> str:
    """Is one variant better than another in this row? Without seeds, a difference counts if an eye can see it."""
    score, seeds = row["task"].score, row["seeds"]
    if seeds:
        world = {rule: Outcome({}, seeds=numbers) for rule, numbers in seeds.items()}
        return score.compare_pairs(world).difference(score.key, name, other).verdict  # one of the two is our default
    ours, theirs = row["values"][name], row["values"][other]
    if math.isnan(ours) or math.isnan(theirs):
        return NO_DIFFERENCE if math.isnan(ours) and math.isnan(theirs) else WORSE if math.isnan(ours) else BETTER
    gap = ours - theirs if score.better == "higher" else theirs - ours
    return NO_DIFFERENCE if are_alike(ours, theirs) else BETTER if gap > 0 else WORSE


def counts(rows: list[Row], name: str, others: Sequence[str]) -> tuple[int, int, int]:
    """In how many rows the variant is better than each of the others, in how many it is worse than one of them, and the number of rows."""
    verdicts = [{verdict(row, name, other) for other in others} for row in rows if name in row["values"]]
    return sum(kinds == {BETTER} for kinds in verdicts), sum(WORSE in kinds for kinds in verdicts), len(verdicts)


def against(rows: list[Row], name: str, others: Sequence[str]) -> str:
    better, worse, every = counts(rows, name, others)
    return f"better in {better} of {every}, worse in {worse}"


def advice() -> str:
    leaves, computed = ([row for row in rows() if row["task"].has_leaves == has_leaves] for has_leaves in _SECTIONS)
    best = sum(PROJECT in row["best"] for row in leaves)
    return "\n".join(
        [
            "- **A network or a renderer computes the clamped values:** use `inward`. Compared with torch.clamp up to 2.13 and",
            f"  since 2.14, `inward` was {against(computed, OURS, ERAS)} of the measured problems. Compared with `inward`,",
            f"  `leaky` was {against(computed, 'leaky', [OURS])}. For gradient ascent, pass `maximize=True`.",
            "- **The clamped values are the parameter itself:** use no rule. Clip the parameter after each step with",
            f"  `pg.optim.project`, which was among the best in {best} of {len(leaves)} problems.",
        ]
    )


def text() -> str:
    every = rows()
    run = json.loads(RUN.read_text(encoding="utf-8"))
    lines = [
        "# Which rule when",
        "",
        advice(),
        "- **The clamp guards a square root, a logarithm or an inverse cosine:** use `zero` with edge `open`, which prevents a NaN.",
        "",
        f"`pseudograd compare --tasks all` measured this with torch {run['torch'].split('+')[0]} ([numbers](compare/every_task.json)).",
        "**Bold** is the best rule of a problem, and every rule that is not told apart from the best one. With several seeds the",
        f"test is {TEST}, corrected for all comparisons of the problem;",
        f"with one run, a difference of {LARGEST_UNSEEN:g} dB counts. *Best* counts the bold cells, *vs {OURS}* the problems in which the",
        f"rule is better (+) and worse (−) than `{OURS}`. `zero/closed` is torch.clamp up to 2.13, `zero/open` since 2.14.",
    ]
    for has_leaves, heading in _SECTIONS.items():
        part = [row for row in every if row["task"].has_leaves == has_leaves]
        names = [name for name in COLUMNS if any(name in row["values"] for row in part)]
        lines += ["", f"## {heading}", "", *_table(part, names), "", *_legend(part)]
    lines += ["", "## What it costs", "", *_costs()]
    return "\n".join(lines) + "\n"


def _table(rows: list[Row], names: list[str]) -> list[str]:
    """The table of a section: a line for each rule, a column for each problem."""
    heads = [f"{row['task'].name}: {row['world']}".replace("_", " ") for row in rows]
    lines = [
        f"| rule | {' | '.join(heads)} | best | vs {OURS} |",
        "|---|" + "---:|" * (len(rows) + 2),
    ]
    for name in names:
        better, worse, _ = counts(rows, name, [OURS])
        best = str(sum(name in row["best"] for row in rows))
        cells = [*(_cell(row, name) for row in rows), best, "" if name == OURS else f"+{better} −{worse}"]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return lines


def _cell(row: Row, name: str) -> str:
    value = row["values"].get(name)
    if value is None:
        return ""
    text = "NaN" if math.isnan(value) else format(value, row["task"].score.places)
    return f"**{text}**" if name in row["best"] else text


def _legend(rows: list[Row]) -> list[str]:
    """The problems in words."""
    parts = {}
    for row in rows:
        task, seeds = row["task"], row["seeds"]
        runs = f"{len(next(iter(seeds.values())))} seeds" if seeds else "one run"
        parts[task.name] = f"`{task.name}`: {task.title} ({task.headline[1]}, {runs})"
    lower = [name for name in parts if TASKS[name].score.better == "lower"]
    direction = "higher is better" + (f", lower in {', '.join(f'`{name}`' for name in lower)}" if lower else "")
    lines = [f"The problems ({direction}):", ""]
    return [*lines, *(f"- {part}" for part in parts.values())]


def _costs() -> list[str]:
    basin = json.loads(RUN.read_text(encoding="utf-8"))["tasks"]["basin"]["worlds"]
    rests = {name: row["chatter"] for name, row in next(iter(basin.values())).items() if "chatter" in row}
    least = f"{rests['sign']:.2g} above the least loss there, `inward` {rests['inward']:.2g} (`basin`)"
    return [
        "- `sign` ignores the size of the gradient. It is good if a parameter itself is clamped and starts far outside, and",
        "  gradients are near 1. It does not follow the scale of the loss, and grows with the number of micro-batches. Held at",
        f"  a bound it oscillates: {least}.",
        "- The gradients of `inward`, `sign`, `elastic` and `inverting` [do not add up](understand.md#gradients-that-do-not-add-up).",
        "- No task of `compare` measures `trust` and `fourier` of `round` or the windows of `jumprelu`.",
    ]
