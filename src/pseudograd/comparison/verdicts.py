"""The verdicts of a comparison: which variants differ, and which is the best. All claims of one report are corrected together.

At most LEVEL of the reports about variants that are alike claim any difference. Some comparisons are planned: each variant with the
baseline, and the edges of torch. They share PLANNED of the level. "Which is best" is asked after the numbers are seen, of the variant
with the best median, so it is corrected as if every pair had been asked. Those pairs share the rest of the level. A significant comparison
passes its share on (Holm, 1979, with weights). So all numbers, variants and sentences are one family, whose rate of false claims holds.

The multiple comparisons with the best of Hsu (1996) need normal numbers, and the model confidence set of Hansen, Lunde & Nason (2011) needs
many observations, or variants that may be permuted. Ten seeds of a success rate are neither. Signs of one pair at a time need only that the
two are alike. The price is seeds: `needs` says how many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations

from ..errors import must, unknown_name
from . import statistics
from .reached import Reached
from .statistics import BETTER, LEVEL, NO_DIFFERENCE, WORSE, Better, Difference
from .variants import INSTALLED, NO_CLAMP, PROJECT, eras

# Of the level. With the usual twelve seeds both a difference from torch.clamp of 2 standard deviations and the best of ten variants can be
# told. With 0.8 the second could not, and with 0.5 the first would need a seed more.
PLANNED = 0.7

Values = Mapping[str, tuple[float, ...]]  # by variant, one value for each seed
Pair = tuple[str, str, str]  # a number, and two variants


@dataclass(frozen=True)
class Family:
    """`differences` of every pair of variants that differ in some seed, corrected. Variants with equal numbers share one row."""

    differences: Mapping[Pair, Difference]
    stands_for: Mapping[tuple[str, str], str]  # by number and variant
    planned: frozenset[Pair]
    equal: Difference

    def difference(self, number: str, first: str, second: str) -> Difference:
        """The first variant less the second."""
        first, second = self.stands_for[number, first], self.stands_for[number, second]
        if first == second:
            return self.equal
        if (number, first, second) in self.differences:
            return self.differences[number, first, second]
        return self.differences[number, second, first].turned()

    def leaders(self, number: str, ranked: Sequence[str], verdict: Callable[[Difference], str]) -> list[str]:
        """The variants of `ranked`, best first, that no other one is significantly better than: more than one is a tie."""

        def is_beaten(name: str) -> bool:
            return any(verdict(self.difference(number, other, name)) == BETTER for other in ranked)

        # Each variant has a better one only where medians and ranks disagree.
        return [name for name in ranked if not is_beaten(name)] or [ranked[0]]

    @property
    def corrected_for(self) -> tuple[int, int]:
        """The numbers of planned and of other comparisons that p is corrected for: those that enough seeds could tell."""
        return _count_possible(self.differences, self.planned)

    @property
    def pairs(self) -> int:
        """The number of comparisons, beside the planned ones, that the numbers may suggest."""
        return len(self.differences) - len(self.planned)

    @property
    def needs(self) -> tuple[int, int]:
        return needs(len(self.planned), self.pairs)


def needs(planned: int, pairs: int) -> tuple[int, int]:
    """The seeds that have to differ before any planned comparison can be significant, and then any pair of the others."""
    if not pairs:
        return statistics.seeds_needed(planned), 1
    left = 1 - PLANNED / planned if planned else 1.0
    return statistics.seeds_needed(planned / PLANNED), statistics.seeds_needed(pairs * left / (1 - PLANNED))


def make_family(
    values: Mapping[str, Values],
    better: Mapping[str, Better],
    planned: Sequence[tuple[str, str]],
    *,
    once: bool = False,
    tie: float = 0.0,
    with_best: bool = True,
) -> Family:
    """Compare the planned pairs for each number, and with_best every other pair too.

    once: every seed gave the same, so one value is enough. tie: as in `difference`.
    """
    stands_for: dict[tuple[str, str], str] = {}
    differences: dict[Pair, Difference] = {}
    chosen: set[Pair] = set()
    seeds = 0
    for number, rows in values.items():
        distinct: dict[str, str] = {}
        for name, row in rows.items():
            stands_for[number, name] = distinct.setdefault(repr(row), name)
        seeds = 1 if once else len(next(iter(rows.values())))
        to_compare = {frozenset(stands_for[number, name] for name in pair) for pair in planned}
        for first, second in combinations(distinct.values(), 2):
            if {first, second} in to_compare:
                chosen.add((number, first, second))
            elif not with_best:
                continue
            gap = statistics.difference(rows[first][:seeds], rows[second][:seeds], better=better[number], tie=tie)
            differences[number, first, second] = gap
    count, others = _count_possible(differences, chosen)
    share = PLANNED if others else 1.0
    weights = {
        pair: share / max(count, 1) if pair in chosen else (1 - PLANNED) / max(others, 1) for pair in differences
    }
    zeros = (0.0,) * seeds
    return Family(
        statistics.holm(differences, weights), stands_for, frozenset(chosen), statistics.difference(zeros, zeros)
    )


def _count_possible(differences: Mapping[Pair, Difference], planned: set[Pair] | frozenset[Pair]) -> tuple[int, int]:
    """The numbers of planned and of other comparisons that could be significant with the seeds that differ."""
    possible = [pair for pair, row in differences.items() if statistics.least_p(row.seeds[1]) <= LEVEL]
    count = sum(pair in planned for pair in possible)
    return count, len(possible) - count


@dataclass(frozen=True, eq=False)
class Verdicts:
    """The numbers of a comparison, and the verdicts that follow from them.

    values[number][variant] has one value for each of `seeds`, NaN where the run failed; `failures[variant, seed]` says how. The first
    number matters most. baseline: the variant that all are compared with. repeats: the run draws no random numbers, so each variant has
    one value and no test. replaced: the families of `override`, if run was called unedited; `reached`: the calls that they met.
    notes: what else a reader has to know, about stored runs. is_given: the variants are the user's own, not rules of a clamp.
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
    reached: Reached = field(default_factory=Reached)
    notes: tuple[str, ...] = ()
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
        """The variants that are eras of torch, from the oldest on."""
        return () if self.is_given else tuple(name for name in eras() if name in self.variants)

    @cached_property
    def family(self) -> Family:
        """All comparisons of this report, corrected together."""
        planned = [*((name, self.baseline) for name in self.others), *combinations(self.eras, 2)]
        return make_family(self.values, self.better, planned, once=self.repeats)

    @property
    def changed_nothing(self) -> bool:
        """Every rule, and every era, gave the baseline's numbers to the bit."""
        rules = [name for name in self.others if self.is_given or name not in (NO_CLAMP, PROJECT)]
        same = (repr(rows[name]) == repr(rows[self.baseline]) for rows in self.values.values() for name in rules)
        return bool(rules) and all(same)

    @property
    def too_few_seeds(self) -> bool:
        """No result of so many seeds could tell any variant from the baseline."""
        differ = any(self.verdict(name, number).seeds[1] for number in self.values for name in self.others)
        return not self.repeats and differ and len(self.seeds) < self.family.needs[0]

    def verdict(self, variant: str, number: str | None = None) -> Difference:
        """A variant against the baseline, corrected for all that this report compares."""
        if variant not in self.others:
            raise unknown_name("compare", "variant", self.others, variant)
        return self.family.difference(self.number(number), variant, self.baseline)

    def edge(self, number: str | None = None) -> Difference:
        """The oldest edge (zero/closed) against the newest one (zero/open), corrected likewise."""
        if len(self.eras) < 2:
            raise ValueError(must("compare", "replace", "name clamp to compare its eras", self.replaced))
        return self.family.difference(self.number(number), self.eras[0], self.eras[-1])

    def edges(self, number: str | None = None) -> dict[tuple[str, str], Difference]:
        """Every older edge against every newer one."""
        number = self.number(number)
        return {pair: self.family.difference(number, *pair) for pair in combinations(self.eras, 2)}

    def edge_verdict(self, number: str | None = None) -> str:
        """ "the old edge" (torch <= 2.13), "the new edge" (torch >= 2.14) or "no difference"."""
        return {BETTER: "the old edge", WORSE: "the new edge"}.get(self.edge(number).verdict, NO_DIFFERENCE)

    def leaders(self, number: str | None = None) -> tuple[str, ...]:
        """All variants that no other one is significantly better than, the best median first: more than one is a tie."""
        verdict = (lambda row: row.favours) if self.repeats else (lambda row: row.verdict)
        return tuple(self.family.leaders(self.number(number), self.ranked(number), verdict))

    def ranked(self, number: str | None = None) -> tuple[str, ...]:
        """The variants by their medians, the best first."""
        is_lower = self.better[self.number(number)] == "lower"
        medians = {name: self.median(name, number) for name in self.variants}
        costs = {name: median if is_lower else -median for name, median in medians.items()}
        return tuple(sorted(costs, key=lambda name: math.inf if math.isnan(costs[name]) else costs[name]))

    def median(self, variant: str, number: str | None = None) -> float:
        """Over the seeds. A NaN is the worst value of all, and the median where half of the values are NaN."""
        number = self.number(number)
        worst = math.inf if self.better[number] == "lower" else -math.inf
        values = self.values[number][variant]
        ordered = sorted(worst if math.isnan(value) else value for value in values)
        middle = ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]
        return math.nan if worst in middle and any(map(math.isnan, values)) else statistics.median_of(ordered)

    def number(self, name: str | None) -> str:
        """The name of a number, checked; None for the first."""
        if name is None:
            return next(iter(self.values))
        if name not in self.values:
            raise unknown_name("compare", "number", self.values, name)
        return name
