"""A comparison as a table with its verdicts, for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ..paired import LEVEL, TEST, Difference, seeds_needed
from ..tasks.base import ERAS, INSTALLED
from .records import Comparison, spread
from .trials import ONLY

GAP = "  "


def text(found: Comparison) -> str:
    """All of it."""
    how = f", {' and '.join(found.replaced)} replaced" if found.replaced else ""
    lines = [f"{found.run}{how}: {counted(len(found.seeds), 'seed')}, torch {found.torch}"]
    for number in found.values:
        lines += ["", *_table(found, number), *(f"{line}" for line in sentences(found, number))]
    lines += ["", *(closing(found))]
    return "\n".join(lines)


def _table(found: Comparison, number: str) -> Iterator[str]:
    heading = f"{'' if number == ONLY else number} ({found.better[number]} is better)".strip()
    rows = [("variant", heading, f"against {INSTALLED}")]
    rows += [(name, cell(values), against(found, number, name)) for name, values in found.values[number].items()]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for place, row in enumerate(rows):
        yield GAP.join(part.ljust(width) for part, width in zip(row, widths, strict=True)).rstrip()
        if place == 0:
            yield GAP.join("-" * width for width in widths)


def cell(values: Sequence[float]) -> str:
    """Mean and spread, and how many are missing."""
    mean, apart = spread(values)
    lost = sum(not math.isfinite(value) for value in values)
    shown = (
        "" if math.isnan(mean) else f"{mean:.4g}" if math.isnan(apart) or apart == 0 else f"{mean:.4g} ± {apart:.2g}"
    )
    if not lost:
        return shown
    told = f"{lost} of {len(values)} not finite" if lost < len(values) else "not finite"
    return f"{shown}, {told}" if shown else told


def against(found: Comparison, number: str, name: str) -> str:
    """The verdict on a variant, in the last column."""
    if name == INSTALLED:
        return ""
    one = found.verdict(name, number)
    if not found.repeats:
        return str(one)
    return "equal" if one.favours == "no difference" else f"{one.favours}, by {abs(one.mean):.3g}"


def sentences(found: Comparison, number: str) -> list[str]:
    """What is best, and what of the edge."""
    best, *tied = found.leaders(number)
    if len(tied) + 1 == len(found.variants):
        first = f"No difference: none of the {len(found.variants)} can be told apart from {best}, which has the best median."
    elif tied:
        first = f"Best: a tie of {listed([best, *tied])}."
    else:
        first = f"Best: {best}."
    return [first, edge_sentence(found, number)]


def edge_sentence(found: Comparison, number: str) -> str:
    one = found.edge(number)
    old, new = (
        f"{edge} ({era}, {rule})"
        for edge, era, rule in zip(("the old edge", "the new edge"), _TORCHES, ERAS, strict=True)
    )
    if found.repeats and one.favours != "no difference":
        winner, loser = (old, new) if one.favours == "better" else (new, old)
        return f"Edge: {winner} ends better than {loser}, by {abs(one.mean):.3g}."
    if one.verdict == "no difference":
        return f"Edge: {one}."
    winner, loser = (old, new) if one.verdict == "better" else (new, old)
    apart = "" if math.isnan(one.mean) else f" by {abs(one.mean):.3g} on average,"
    return f"Edge: {winner} is better than {loser},{apart} p = {one.p:.2g}."


_TORCHES = ("torch<=2.13", "torch>=2.14")


def closing(found: Comparison) -> Iterator[str]:
    """How it was judged, and what stands against it."""
    if found.repeats:
        yield "The seed changes nothing: every run repeats itself, so there is one value each, and nothing to test."
    else:
        yield f"{TEST}, of differences seed by seed; spreads are standard deviations over seeds."
        count = max((found.verdict(name).comparisons for name in found.variants if name != INSTALLED), default=1)
        compared = f"{counted(count, 'comparison')} ({INSTALLED} with each that differs)"
        yield f"p is corrected by Holm for {compared}; up to {LEVEL:g} is a difference."
        if any(_too_few(found, number) for number in found.values):
            yield f"{counted(count, 'comparison')} can tell nothing from fewer than {seeds_needed(count)} seeds."
    for (variant, seed), told in found.failures.items():
        yield f"Failed: {variant}, seed {seed}: {told}"


def _too_few(found: Comparison, number: str) -> bool:
    verdicts: list[Difference] = [found.verdict(name, number) for name in found.variants if name != INSTALLED]
    return any(one.too_few_seeds for one in verdicts)


def counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
