"""How often does a report of `compare` claim a difference where there is none, and how often does it find one that is there?

python scripts/null_comparisons.py            write docs/compare/null_comparisons.json, which docs/compare.md quotes; a few minutes

Nothing is trained: numbers are drawn, and the text of the report is searched for claims. In a null comparison all variants draw from one
distribution. In a partial one some are far better or worse; a claim is false if it says that two variants of one distribution differ.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import beta

from pseudograd.comparison.comparison import Comparison
from pseudograd.comparison.statistics import LEVEL
from pseudograd.comparison.variants import INSTALLED, eras

ERAS = tuple(eras())
FILE = Path(__file__).resolve().parents[1] / "docs" / "compare" / "null_comparisons.json"
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
Rows = dict[str, tuple[float, ...]]

# Numbers that runs may return, for a shape of (variants, seeds).
KINDS: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "normal, most of it the seed's": lambda rng, shape: rng.normal(size=shape) + 5 * rng.normal(size=shape[1]),
    "heavy tails (Cauchy)": lambda rng, shape: rng.standard_cauchy(size=shape),
    "skewed (squared exponential)": lambda rng, shape: rng.exponential(size=shape) ** 2,
    "success rate 95 %": lambda rng, shape: (rng.random(shape) < 0.95).astype(float),
    "success rate 50 %": lambda rng, shape: (rng.random(shape) < 0.5).astype(float),
    "ties (one decimal)": lambda rng, shape: rng.normal(size=shape).round(0) / 10,
    "one run in ten lost": lambda rng, shape: np.where(rng.random(shape) < 0.1, np.nan, rng.normal(size=shape)),
}
VARIANTS, SEEDS, NUMBERS = (2, 3, 5, 10, 20), (5, 8, 10, 12, 20), (1, 2, 5)
EFFECTS = (0.5, 1.0, 1.5, 2.0)  # in standard deviations of a paired difference


def comparison(numbers: list[np.ndarray], names: list[str], seeds: int) -> Comparison:
    """A report of these numbers. If it has the first era, torch.clamp has exactly the numbers of that era."""
    values: dict[str, Rows] = {}
    for place, drawn in enumerate(numbers):
        rows = {name: tuple(row.tolist()) for name, row in zip(names, drawn, strict=True)}
        if ERAS[0] in rows:
            rows[ERAS[0]] = rows[INSTALLED]
        values[f"number {place + 1}"] = rows
    return Comparison(
        run="drawn", better=dict.fromkeys(values, "lower"), seeds=tuple(range(seeds)), values=values, torch="2.13.0"
    )


def names_of(count: int) -> list[str]:
    rules = [f"rule {place}" for place in range(count)]
    return [INSTALLED, *rules][:count] if count < 4 else [*ERAS, INSTALLED, *rules][:count]


def claims(report: Comparison) -> list[str]:
    """Every line of the text that says that two variants differ, and every interval without 0."""
    pattern = r"  (better|worse) \(p = |, by |^Best: | is better than "
    apart = [
        f"{number}, {name}: an interval without 0"
        for number in report.values
        for name in report.others
        if not report.verdict(name, number).interval[0] <= 0 <= report.verdict(name, number).interval[1]
    ]
    return [*(line for line in str(report).splitlines() if re.search(pattern, line)), *apart]


def designs(count: int) -> Iterator[tuple[str, int, int, int]]:
    """`count` designs, through all combinations in turn: kind, variants, seeds, numbers."""
    every = itertools.cycle(itertools.product(NUMBERS, SEEDS, VARIANTS, KINDS))
    for numbers, seeds, variants, kind in itertools.islice(every, count):
        yield kind, variants, seeds, numbers


def null(count: int) -> dict[str, dict[str, int]]:
    """For each kind: how many comparisons, and how many of them claim a difference."""
    rng = np.random.default_rng(0)
    counts: dict[str, dict[str, int]] = {kind: {"comparisons": 0, "claiming": 0} for kind in KINDS}
    for kind, variants, seeds, numbers in designs(count):
        drawn = [KINDS[kind](rng, (variants, seeds)) for _ in range(numbers)]
        counts[kind]["comparisons"] += 1
        counts[kind]["claiming"] += bool(claims(comparison(drawn, names_of(variants), seeds)))
    return counts


def partial(count: int) -> dict[str, int]:
    """Draw three groups of variants, far from each other, and count the comparisons that say that two variants of one group differ."""
    rng = np.random.default_rng(1)
    claiming = 0
    for kind, variants, seeds, numbers in designs(count):
        names = names_of(variants)
        groups = rng.integers(0, 3, size=variants)
        if ERAS[0] in names:
            groups[names.index(ERAS[0])] = groups[names.index(INSTALLED)]
        drawn = [KINDS[kind](rng, (variants, seeds)) + 100 * groups[:, None] for _ in range(numbers)]
        claiming += _parts_equals(comparison(drawn, names, seeds), dict(zip(names, groups, strict=True)))
    return {"comparisons": count, "claiming": claiming}


def _parts_equals(report: Comparison, groups: dict[str, int]) -> bool:
    """Does a verdict, the verdict on the edge, or the list of the best say that two variants of one group differ?"""
    for number in report.values:
        alike = [name for name in report.others if groups[name] == groups[INSTALLED]]
        if any(report.verdict(name, number).verdict != "no difference" for name in alike):
            return True
        has_edges = bool(report.edges()) and groups[ERAS[0]] == groups[ERAS[1]]
        if has_edges and report.edge_verdict(number) != "no difference":
            return True
        leaders = report.leaders(number)
        best = min(groups[name] for name in leaders)
        if any(groups[name] == best for name in report.variants if name not in leaders):
            return True
    return False


def power(count: int) -> list[dict[str, Any]]:
    """One rule is better by an effect. How often does the report say so, and how often is it the only best?"""
    rng = np.random.default_rng(2)
    rows = []
    for seeds, variants, effect in itertools.product((8, 10, 12, 20), (4, 10), EFFECTS):
        names, better, best = names_of(variants), 0, 0
        for _ in range(count):
            drawn = rng.normal(size=(variants, seeds)) / math.sqrt(2)  # so that a difference has the deviation 1
            drawn[-1] -= effect
            report = comparison([drawn], names, seeds)
            better += report.verdict(names[-1]).verdict == "better"
            best += report.leaders() == (names[-1],)
        design = {"seeds": seeds, "variants": variants, "effect": effect}
        rows.append({**design, "told": better / count, "best": best / count})
    return rows


def bound(claiming: int, of: int) -> float:
    """The upper end of Clopper and Pearson's one-sided interval of 95 %."""
    return float(beta.ppf(0.95, claiming + 1, of - claiming)) if claiming < of else 1.0


def rates(counts: dict[str, int]) -> dict[str, Any]:
    claiming, of = counts["claiming"], counts["comparisons"]
    return {**counts, "rate": round(claiming / of, 4), "at_most": round(bound(claiming, of), 4)}


def measured(count: int, repeats: int) -> dict[str, object]:
    by_kind = null(count)
    every = {key: sum(counts[key] for counts in by_kind.values()) for key in ("comparisons", "claiming")}
    by_kind = {"all": every, **by_kind}
    rates_by_kind = {kind: rates(counts) for kind, counts in by_kind.items()}
    return {"level": LEVEL, "null": rates_by_kind, "partial": rates(partial(count)), "power": power(repeats)}


if __name__ == "__main__":
    FILE.write_text(json.dumps(measured(6000, 300), indent=1) + "\n", encoding="utf-8")
