"""A comparison as a table with its verdicts, for a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from ..wording import counted, listed
from .statistics import BETTER, LEVEL, NO_DIFFERENCE, TEST, Difference, spread
from .training import ONLY
from .variants import NO_CLAMP, PROJECT, eras
from .verdicts import Verdicts

GAP = "  "


def comparison_text(comparison: Verdicts) -> str:
    replaced = f", {' and '.join(comparison.replaced)} replaced" if comparison.replaced else ""
    seeds = counted(len(comparison.seeds), "seed")
    lines = [f"{comparison.run}{replaced}: {seeds}, torch {comparison.torch}", *headlines(comparison)]
    for number in comparison.values:
        lines += ["", *_table(comparison, number), *sentences(comparison, number)]
    lines += ["", *closing_lines(comparison)]
    return "\n".join(lines).rstrip()


def headlines(comparison: Verdicts) -> Iterator[str]:
    """Warnings that come before the numbers: runs do not repeat, the rules changed nothing, or the seeds are too few."""
    if twin := comparison.unrepeated:
        yield (
            f"Equal runs end differently: {twin} is {comparison.baseline} on this torch, and has other numbers. So the verdicts may come "
            "from what an earlier run left, or from a generator of run's own. Build the model and the optimizer inside run, and seed such "
            "a generator with the seed."
        )
    if comparison.changed_nothing:
        exceptions = [name for name in (NO_CLAMP, PROJECT) if name in comparison.variants and not comparison.is_given]
        note = f" {listed(exceptions).capitalize()} aside." if exceptions else ""
        noun = "variant" if comparison.is_given else "rule"
        yield f"The {noun}s changed nothing: every {noun} below gave the numbers of {comparison.baseline}, to the bit.{note}"
        yield from comparison.reached.lines()
    elif comparison.too_few_seeds:
        differences = comparison.pair_differences
        verb = "needs" if len(differences.planned) == 1 else "need"
        needs = f"{counted(len(differences.planned), 'comparison')} {verb} at least {differences.needed_seeds.planned} seeds"
        yield f"Too few seeds: {len(comparison.seeds)}. {needs}."


def _table(comparison: Verdicts, number: str) -> Iterator[str]:
    heading = f"{'' if number == ONLY else number} ({comparison.better[number]} is better)".strip()
    rows = [("variant", heading, f"less {comparison.baseline}", "verdict")]
    for name, values in comparison.values[number].items():
        cells = difference_cell(comparison, number, name), verdict_cell(comparison, number, name)
        rows.append((name, mean_and_spread(values), *cells))
    return aligned(rows, str.ljust)


def aligned(rows: Sequence[Sequence[str]], align: Callable[[str, int], str]) -> Iterator[str]:
    """The lines of a table. `align` pads the columns; the first one is always flush left. Dashes underline the first row."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for at, (first, *others) in enumerate(rows):
        yield GAP.join([first.ljust(widths[0]), *map(align, others, widths[1:])]).rstrip()
        if at == 0:
            yield GAP.join("-" * width for width in widths)


def mean_and_spread(values: Sequence[float]) -> str:
    """Mean, standard deviation, and the number of values that are not finite."""
    mean, deviation = spread(values)
    lost = sum(not math.isfinite(value) for value in values)
    text = "" if math.isnan(mean) else f"{mean:.4g}"
    if deviation > 0:
        text += f" ± {deviation:.2g}"
    if lost:
        missing = f"{lost} of {len(values)} not finite" if lost < len(values) else "not finite"
        return f"{text}, {missing}" if text else missing
    return text


def difference_cell(comparison: Verdicts, number: str, name: str) -> str:
    """The difference from the baseline, with its interval."""
    if name == comparison.baseline or comparison.repeats:
        return ""
    verdict = comparison.verdict(name, number)
    return "" if verdict.too_few_seeds else verdict.size


def verdict_cell(comparison: Verdicts, number: str, name: str) -> str:
    if name == comparison.baseline:
        return ""
    verdict = comparison.verdict(name, number)
    if not comparison.repeats:
        return str(verdict)
    return "equal" if verdict.favours == NO_DIFFERENCE else f"{verdict.favours}, by {abs(verdict.mean):.3g}"


def sentences(comparison: Verdicts, number: str) -> list[str]:
    """The best variant, and the effect of torch.clamp's edge."""
    edges = (_edge_sentence(comparison, *pair, verdict) for pair, verdict in comparison.edges(number).items())
    return [*_best_sentence(comparison, number), *edges]


def _best_sentence(comparison: Verdicts, number: str) -> Iterator[str]:
    first, *tied = comparison.leaders(number)
    is_tie_of_all = len(tied) + 1 == len(comparison.variants)
    if comparison.changed_nothing and is_tie_of_all:
        return
    even = [name for name in tied if comparison.median(name, number) == comparison.median(first, number)]
    median = f"{listed([first, *even])} {'have' if even else 'has'} the best median"
    if comparison.too_few_seeds:
        yield f"{median}, but so few seeds tell nothing."
    elif is_tie_of_all:
        seeds = counted(len(comparison.seeds), "seed")
        yield f"With {seeds} no two of the {len(tied) + 1} variants are told apart; {median}."
    else:
        best = f"a tie of {listed([first, *tied])}" if tied else first
        worse = [
            f"{leader} is worse than {name}"
            for leader in (first, *tied)
            for name in comparison.variants
            if _is_better_but_for_the_mean(comparison, number, leader, name)
        ]
        yield f"On the typical seed the best is {best}; by the mean {listed(worse)}." if worse else f"Best: {best}."
        ranked = comparison.ranked(number)
        beaten = next(name for name in ranked if name not in (first, *tied))
        if behind := [name for name in tied if ranked.index(name) > ranked.index(beaten)]:
            yield f"By the median {beaten} is better than {listed(behind)}, which only scatter keeps in the tie."
        if NO_CLAMP in (first, *tied) and not comparison.is_given:
            yield f"With {NO_CLAMP} values may end outside the range: use it only where they may."


def _is_better_but_for_the_mean(comparison: Verdicts, number: str, first: str, second: str) -> bool:
    """Is the first variant significantly better on the typical seed, and worse by the mean?"""
    difference = comparison.pair_differences.difference(number, first, second)
    return not comparison.repeats and difference.mean_disagrees and difference.verdict == BETTER


def _edge_sentence(comparison: Verdicts, older: str, newer: str, verdict: Difference) -> str:
    old = f"the old edge ({eras()[older].name}, {older})"
    new = f"the new edge ({eras()[newer].name}, {newer})"
    winner, loser = (old, new) if verdict.favours == BETTER else (new, old)
    if comparison.repeats:
        is_equal = verdict.favours == NO_DIFFERENCE
        return "Edge: equal." if is_equal else f"Edge: {winner} ends better than {loser}, by {abs(verdict.mean):.3g}."
    if verdict.verdict == NO_DIFFERENCE:
        return f"Edge: {'' if len(comparison.eras) == 2 else f'{old} and {new}: '}{verdict}."
    size = f" {verdict.size}," if verdict.size else ""
    typical = " on the typical seed" if verdict.mean_disagrees else ""
    by_mean = f", but worse by the mean ({verdict.whole_mean:+.3g})" if verdict.mean_disagrees else ""
    return f"Edge: {winner} is better than {loser}{typical},{size} p = {verdict.p:.2g}{by_mean}."


def closing_lines(comparison: Verdicts) -> Iterator[str]:
    """The method of the verdicts, the calls that were reached, and the runs that failed."""
    if comparison.repeats:
        yield (
            "The seed seems to change nothing: no run takes it or moves the generators of torch, random and numpy that it sets, and "
            "with two seeds each run gave the same. So each variant has one value, and there is no test. If run draws "
            "from a generator of its own, give it an argument seed, and seed that generator with it."
        )
    elif comparison.pair_differences.differences:
        yield from _method_sentences(comparison)
    if not comparison.changed_nothing:
        yield from comparison.reached.lines()
    for (variant, seed), failure in comparison.failures.items():
        yield f"Failed: {variant}, seed {seed}: {failure}"


def _method_sentences(comparison: Verdicts) -> Iterator[str]:
    differences, baseline = comparison.pair_differences, comparison.baseline
    yield f"{TEST}, of differences seed by seed; spreads are standard deviations over seeds."
    yield f"Less {baseline}: the median of the differences' pairwise means (Hodges and Lehmann), and the interval that the test leaves."
    yield f"An interval is of {1 - LEVEL:.0%} or more, as the correction asks. A small effect that is told looks larger than it is."
    planned, unplanned = differences.corrected_for
    if planned + unplanned:
        numbers = f" of all {len(comparison.values)} numbers" if len(comparison.values) > 1 else ""
        scope = f"with {baseline}{' or between its eras' if comparison.edges() else ''}"
        scope = f": {planned} {scope}, {unplanned} between the others, to tell the best" if unplanned else f" {scope}"
        count = counted(planned + unplanned, "comparison")
        yield f"p is corrected by Holm for {count}{numbers}{scope}; up to {LEVEL:g} is a difference."
    is_tie = any(len(comparison.leaders(number)) > 1 for number in comparison.values)
    needed = differences.needed_seeds.unplanned
    if is_tie and differences.unplanned_count and not comparison.too_few_seeds and len(comparison.seeds) < needed:
        yield f"To tell the best of {counted(differences.unplanned_count, 'pair')} from the next may need {needed} seeds."
