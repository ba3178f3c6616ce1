"""A comparison as a table with its verdicts, for a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from ..wording import counted, listed
from .compared import Compared, spread
from .paired import LEVEL, TEST, Difference
from .returned import ONLY
from .variants import NO_CLAMP, PROJECT, eras

GAP = "  "


def text(found: Compared) -> str:
    """All of it."""
    how = f", {' and '.join(found.replaced)} replaced" if found.replaced else ""
    lines = [f"{found.run}{how}: {counted(len(found.seeds), 'seed')}, torch {found.torch}", *headlines(found)]
    for number in found.values:
        lines += ["", *_table(found, number), *sentences(found, number)]
    lines += ["", *(closing(found))]
    return "\n".join(lines).rstrip()


def headlines(found: Compared) -> Iterator[str]:
    """What a reader has to know before the numbers: that they can tell nothing, or that nothing was changed."""
    if found.changed_nothing:
        apart = [name for name in (NO_CLAMP, PROJECT) if name in found.variants and not found.is_given]
        but = f" {listed(apart).capitalize()} aside." if apart else ""
        what = "variant" if found.is_given else "rule"
        yield f"The {what}s changed nothing: every {what} gave the numbers of {found.baseline}, to the bit.{but}"
        yield from found.reached.lines()
    elif found.too_few_seeds:
        compared = counted(found.family.asked, "comparison")
        need = found.family.planned_need
        yield f"Too few seeds: {len(found.seeds)}. {compared} can tell nothing from fewer than {need} seeds."


def _table(found: Compared, number: str) -> Iterator[str]:
    heading = f"{'' if number == ONLY else number} ({found.better[number]} is better)".strip()
    rows = [("variant", heading, f"less {found.baseline}", "verdict")]
    rows += [
        (name, cell(values), less(found, number, name), against(found, number, name))
        for name, values in found.values[number].items()
    ]
    return aligned(rows, str.ljust)


def aligned(rows: Sequence[Sequence[str]], rest: Callable[[str, int], str], headings: int = 1) -> Iterator[str]:
    """A table as lines, the columns after the first one set by `rest`. A rule stands under the headings."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for place, (first, *others) in enumerate(rows, start=1):
        parts = [first.ljust(widths[0]), *map(rest, others, widths[1:])]
        yield GAP.join(parts).rstrip()
        if place == headings:
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


def less(found: Compared, number: str, name: str) -> str:
    """How large the difference from the baseline is, with its interval."""
    if name == found.baseline or found.repeats:
        return ""
    one = found.verdict(name, number)
    return "" if one.too_few_seeds else one.size


def against(found: Compared, number: str, name: str) -> str:
    """The verdict on a variant, in the last column."""
    if name == found.baseline:
        return ""
    one = found.verdict(name, number)
    if not found.repeats:
        return str(one)
    return "equal" if one.favours == "no difference" else f"{one.favours}, by {abs(one.mean):.3g}"


def sentences(found: Compared, number: str) -> list[str]:
    """What is best, and what of the edge."""
    return [*_best(found, number), *(_edge(found, *pair, one) for pair, one in found.edges(number).items())]


def _best(found: Compared, number: str) -> Iterator[str]:
    if found.changed_nothing and len(found.leaders(number)) == len(found.variants):
        return
    first, *tied = found.leaders(number)
    if found.too_few_seeds:
        yield f"{first} has the best median, which tells nothing with so few seeds."
    elif len(tied) + 1 == len(found.variants):
        seeds = counted(len(found.seeds), "seed")
        yield f"Not told apart with {seeds}: none of the {len(found.variants)} from {first}, which has the best median."
    elif tied:
        yield f"Best: a tie of {listed([first, *tied])}."
    else:
        yield f"Best: {first}."


def _edge(found: Compared, older: str, newer: str, one: Difference) -> str:
    """Of one pair of eras."""
    old = f"the old edge ({eras()[older].name}, {older})"
    new = f"the new edge ({eras()[newer].name}, {newer})"
    if found.repeats and one.favours != "no difference":
        winner, loser = (old, new) if one.favours == "better" else (new, old)
        return f"Edge: {winner} ends better than {loser}, by {abs(one.mean):.3g}."
    if one.verdict == "no difference":
        between = "" if len(found.eras) == 2 else f"{old} and {new}: "
        return f"Edge: {between}{one}."
    winner, loser = (old, new) if one.verdict == "better" else (new, old)
    apart = f" {one.size}," if one.size else ""
    return f"Edge: {winner} is better than {loser},{apart} p = {one.p:.2g}."


def closing(found: Compared) -> Iterator[str]:
    """How it was judged, and what stands against it."""
    if found.repeats:
        yield (
            "The seed changes nothing: no run is given it, none draws a random number, and every run repeats itself, "
            "so there is one value each, and nothing to test."
        )
    elif found.family.found:
        yield from _how(found)
    if not found.changed_nothing:
        yield from found.reached.lines()
    yield from found.notes
    for (variant, seed), told in found.failures.items():
        yield f"Failed: {variant}, seed {seed}: {told}"


def _how(found: Compared) -> Iterator[str]:
    family = found.family
    yield f"{TEST}, of differences seed by seed; spreads are standard deviations over seeds."
    yield (
        f"Less {found.baseline}: the median of the differences' pairwise means (Hodges and Lehmann), and the interval that the test leaves."
    )
    asked, pairs = family.counted
    if asked + pairs:
        numbers = f" of all {len(found.values)} numbers" if len(found.values) > 1 else ""
        with_it = f"with {found.baseline}{' or between its eras' if found.edges() else ''}"
        each = f" {with_it}" if not pairs else f": {asked} {with_it}, {pairs} between the others, to tell the best"
        yield (
            f"p is corrected by Holm for {counted(asked + pairs, 'comparison')}{numbers}{each}; "
            f"up to {LEVEL:g} is a difference."
        )
    is_tie = any(len(found.leaders(number)) > 1 for number in found.values)
    if is_tie and family.pairs and not found.too_few_seeds and len(found.seeds) < family.pairs_need:
        yield f"To tell the best of {counted(family.pairs, 'pair')} from the next may need {family.pairs_need} seeds."
