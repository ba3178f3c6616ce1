"""The verdicts of a comparison: which variants differ, and which is the best. All claims of one report are corrected together.

If all variants are alike, at most LEVEL of all reports claim a difference. Some comparisons are planned: each variant with the
baseline, and the edges of torch with each other. They share PLANNED of the level. "Which is best" is no planned comparison, because the
numbers choose the variant. So every pair that is not planned counts, and these pairs share the rest of the level. A significant comparison
passes its share to the others (Holm, 1979, with weights). The level therefore holds for all numbers, variants and sentences together.

Two methods from the literature do not fit. The multiple comparisons of Hsu (1996) need numbers with a normal distribution. The model
confidence set of Hansen, Lunde & Nason (2011) needs many observations, or variants that may be permuted. Ten seeds of a success rate
offer none of these. The signed-rank test of one pair needs only its own differences. It takes more seeds: `needed_seeds` says how many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from operator import attrgetter
from typing import NamedTuple

from ..errors import must, unknown_name
from ..torch_table.eras import era_of
from . import statistics
from .reached import Reach
from .statistics import BETTER, LEVEL, NO_DIFFERENCE, WORSE, Better, Difference
from .variants import INSTALLED, NO_CLAMP, PROJECT, eras

# The planned comparisons' share of the level. With 0.7, twelve seeds are enough for two results: a difference of 2 standard deviations from
# torch.clamp, and the best of ten variants. With 0.8 twelve seeds never show the second result. With 0.5 the first needs thirteen seeds.
PLANNED = 0.7

Values = Mapping[str, tuple[float, ...]]  # by variant, one value for each seed
Pair = tuple[str, str, str]  # a number, and two variants


class Counts(NamedTuple):
    """One figure for the planned comparisons, and one for all others."""

    planned: int
    unplanned: int


@dataclass(frozen=True)
class PairDifferences:
    """The corrected differences of all pairs. Variants with equal numbers are represented by the first of them."""

    differences: Mapping[Pair, Difference]
    stands_for: Mapping[tuple[str, str], str]  # by number and variant: the variant that represents it
    planned: frozenset[Pair]
    equal: Difference  # the result for two variants with equal numbers

    def difference(self, number: str, first: str, second: str) -> Difference:
        """The first variant less the second."""
        first, second = self.stands_for[number, first], self.stands_for[number, second]
        if first == second:
            return self.equal
        if (number, first, second) in self.differences:
            return self.differences[number, first, second]
        return self.differences[number, second, first].turned()

    def leaders(self, number: str, ranked: Sequence[str], verdict: Callable[[Difference], str]) -> list[str]:
        """The variants, best first, that no other variant beats significantly. Several leaders are tied."""

        def is_beaten(name: str) -> bool:
            return any(verdict(self.difference(number, other, name)) == BETTER for other in ranked)

        # Every variant can be beaten only if medians and ranks disagree. Then the best median leads.
        return [name for name in ranked if not is_beaten(name)] or [ranked[0]]

    @property
    def corrected_for(self) -> Counts:
        """How many comparisons p is corrected for: those that have enough seeds to be significant."""
        return _count_possible(self.differences, self.planned)

    @property
    def unplanned_count(self) -> int:
        """The number of comparisons that are not planned."""
        return len(self.differences) - len(self.planned)

    @property
    def needed_seeds(self) -> Counts:
        return needed_seeds(len(self.planned), self.unplanned_count)


def needed_seeds(planned: int, unplanned: int) -> Counts:
    """How many seeds have to differ before a comparison can be significant, for these numbers of comparisons."""
    if not unplanned:
        return Counts(statistics.seeds_needed(planned), 1)
    after_one = 1 - PLANNED / planned if planned else 1.0  # a significant planned comparison passes its share on
    for_unplanned = statistics.seeds_needed(unplanned * after_one / (1 - PLANNED))
    return Counts(statistics.seeds_needed(planned / PLANNED), for_unplanned)


def compare_pairs(
    values: Mapping[str, Values],
    better: Mapping[str, Better],
    planned: Sequence[tuple[str, str]],
    *,
    once: bool = False,
    tie: float = 0.0,
    with_best: bool = True,
) -> PairDifferences:
    """Compare the planned pairs for each number.

    once: all seeds gave the same values, so only the first seed counts.
    tie: a difference of at most `tie` counts as none.
    with_best: compare every other pair too, to tell the best variant.
    """
    stands_for: dict[tuple[str, str], str] = {}
    differences: dict[Pair, Difference] = {}
    planned_pairs: set[Pair] = set()
    seeds = 0
    for number, rows in values.items():
        distinct: dict[str, str] = {}
        for name, row in rows.items():
            stands_for[number, name] = distinct.setdefault(repr(row), name)
        seeds = 1 if once else len(next(iter(rows.values())))
        to_compare = {frozenset(stands_for[number, name] for name in pair) for pair in planned}
        for first, second in combinations(distinct.values(), 2):
            if {first, second} in to_compare:
                planned_pairs.add((number, first, second))
            elif not with_best:
                continue
            difference = statistics.difference(
                rows[first][:seeds], rows[second][:seeds], better=better[number], tie=tie
            )
            differences[number, first, second] = difference
    possible = _count_possible(differences, planned_pairs)
    planned_weight = (PLANNED if possible.unplanned else 1.0) / max(possible.planned, 1)
    other_weight = (1 - PLANNED) / max(possible.unplanned, 1)
    weights = {pair: planned_weight if pair in planned_pairs else other_weight for pair in differences}
    corrected = statistics.holm(differences, weights)
    zeros = (0.0,) * seeds
    return PairDifferences(corrected, stands_for, frozenset(planned_pairs), statistics.difference(zeros, zeros))


def _count_possible(differences: Mapping[Pair, Difference], planned: set[Pair] | frozenset[Pair]) -> Counts:
    """How many comparisons could be significant, given how many of their seeds differ."""
    possible = [
        pair for pair, difference in differences.items() if statistics.least_p(difference.seeds_that_differ) <= LEVEL
    ]
    count = sum(pair in planned for pair in possible)
    return Counts(count, len(possible) - count)


@dataclass(frozen=True, eq=False)
class Verdicts:
    """The numbers of a comparison, and the verdicts that follow from them.

    values: `values[number][variant]` has one value for each seed, NaN where the run failed. The first number matters most.
    failures: the error of a failed run, by (variant, seed).
    replaced: the families that `override` replaced in an unedited run.
    repeats: the seed changes nothing, so each variant has one value and no test.
    baseline: the variant that all others are compared with.
    reached: the calls that `override` replaced.
    is_given: the variants are the user's own, not rules of a clamp.
    """

    run: str
    better: Mapping[str, Better]
    seeds: tuple[int, ...]
    values: Mapping[str, Values]
    failures: Mapping[tuple[str, int], str] = field(default_factory=dict)
    replaced: tuple[str, ...] = ()
    repeats: bool = False
    torch: str = ""
    seconds: float = 0.0
    baseline: str = INSTALLED
    reached: Reach = field(default_factory=Reach)
    is_given: bool = False

    @property
    def variants(self) -> tuple[str, ...]:
        return tuple(next(iter(self.values.values())))

    @property
    def others(self) -> tuple[str, ...]:
        """All variants but the baseline."""
        return tuple(name for name in self.variants if name != self.baseline)

    @property
    def eras(self) -> tuple[str, ...]:
        """The variants that are eras of torch, the oldest first."""
        return () if self.is_given else tuple(name for name in eras() if name in self.variants)

    @cached_property
    def pair_differences(self) -> PairDifferences:
        """All comparisons of this report, corrected together."""
        planned = [*((name, self.baseline) for name in self.others), *combinations(self.eras, 2)]
        return compare_pairs(self.values, self.better, planned, once=self.repeats)

    @property
    def changed_nothing(self) -> bool:
        """Did every rule and every era give exactly the baseline's numbers?"""
        rules = [name for name in self.others if self.is_given or name not in (NO_CLAMP, PROJECT)]
        same = (repr(rows[name]) == repr(rows[self.baseline]) for rows in self.values.values() for name in rules)
        return bool(rules) and all(same)

    @property
    def unrepeated(self) -> str:
        """The era of the installed torch, if none of its numbers are the baseline's: equal runs end differently. Else empty."""
        twins = [name for name in self.eras if self.torch and eras()[name].name == era_of(self.torch)]
        rows = self.values.values()
        return next((name for name in twins if all(repr(row[name]) != repr(row[self.baseline]) for row in rows)), "")

    @property
    def too_few_seeds(self) -> bool:
        """Are there too few seeds for any significant difference from the baseline?"""
        differ = any(self.verdict(name, number).seeds_that_differ for number in self.values for name in self.others)
        return not self.repeats and differ and len(self.seeds) < self.pair_differences.needed_seeds.planned

    def verdict(self, variant: str, number: str | None = None) -> Difference:
        """The difference between a variant and the baseline, corrected for all comparisons of this report."""
        if variant not in self.others:
            raise unknown_name("compare", "variant", self.others, variant)
        return self.pair_differences.difference(self.number(number), variant, self.baseline)

    def edge(self, number: str | None = None) -> Difference:
        """The difference between the oldest edge (zero/closed) and the newest (zero/open), corrected as in `verdict`."""
        if len(self.eras) < 2:
            raise ValueError(must("compare", "replace", "name clamp to compare its eras", self.replaced))
        return self.pair_differences.difference(self.number(number), self.eras[0], self.eras[-1])

    def edges(self, number: str | None = None) -> dict[tuple[str, str], Difference]:
        """The difference between every older edge and every newer edge."""
        number = self.number(number)
        return {pair: self.pair_differences.difference(number, *pair) for pair in combinations(self.eras, 2)}

    def edge_verdict(self, number: str | None = None) -> str:
        """ "the old edge" (torch <= 2.13), "the new edge" (torch >= 2.14) or "no difference"."""
        return {BETTER: "the old edge", WORSE: "the new edge"}.get(self.edge(number).verdict, NO_DIFFERENCE)

    def leaders(self, number: str | None = None) -> tuple[str, ...]:
        """The variants that no other variant beats significantly, the best median first. Several leaders are tied."""
        verdict = attrgetter("favours" if self.repeats else "verdict")
        return tuple(self.pair_differences.leaders(self.number(number), self.ranked(number), verdict))

    def ranked(self, number: str | None = None) -> tuple[str, ...]:
        """The variants by their medians, the best first."""
        is_lower = self.better[self.number(number)] == "lower"
        medians = {name: self.median(name, number) for name in self.variants}
        costs = {name: median if is_lower else -median for name, median in medians.items()}
        return tuple(sorted(costs, key=lambda name: math.inf if math.isnan(costs[name]) else costs[name]))

    def median(self, variant: str, number: str | None = None) -> float:
        """The median over the seeds. NaN counts as the worst value. The median is NaN if the middle value is a NaN."""
        number = self.number(number)
        worst = math.inf if self.better[number] == "lower" else -math.inf
        values = self.values[number][variant]
        ordered = sorted(worst if math.isnan(value) else value for value in values)
        middle = ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]
        return math.nan if worst in middle and any(map(math.isnan, values)) else statistics.median_of(ordered)

    def number(self, name: str | None) -> str:
        """The name, checked. None means the first number."""
        if name is None:
            return next(iter(self.values))
        if name not in self.values:
            raise unknown_name("compare", "number", self.values, name)
        return name
