"""What a comparison measured, numbers by variant and seed, and the verdicts that follow from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any

from ..errors import must, unknown_name
from .family import Family, Values, family
from .paired import BETTER, NO_DIFFERENCE, WORSE, Better, Difference
from .reached import Reached
from .variants import INSTALLED, NO_CLAMP, PROJECT, eras


@dataclass(frozen=True, eq=False)
class Compared:
    """The fields of a `Comparison`.

    values[number][variant] has one value for each of `seeds`, NaN where the run failed; `failures[variant, seed]` says how.

    The first number is the one that matters most. baseline: the variant that all are compared with, torch's own. repeats: the run draws
    no random numbers, so each variant has one value and no test. replaced: the families of `override`, if run was called unedited, and
    `reached` what they came upon. notes: what else a reader has to know, of runs that were kept. is_given: the variants are the user's
    own, not rules of a clamp. arrays: curves and pictures, by name, variant and seed; JSON has their names alone.
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
    arrays: Mapping[str, Mapping[str, dict[int, Any]]] = field(default_factory=dict, repr=False)

    @property
    def variants(self) -> tuple[str, ...]:
        return tuple(next(iter(self.values.values())))

    @property
    def others(self) -> tuple[str, ...]:
        """All but the baseline."""
        return tuple(name for name in self.variants if name != self.baseline)

    @property
    def eras(self) -> tuple[str, ...]:
        """The variants that are eras of torch, from the oldest on."""
        return () if self.is_given else tuple(name for name in eras() if name in self.variants)

    @cached_property
    def family(self) -> Family:
        """All comparisons of this report, corrected together."""
        asked = [(name, self.baseline) for name in self.others]
        asked += combinations(self.eras, 2)
        return family(self.values, self.better, asked, once=self.repeats)

    @property
    def changed_nothing(self) -> bool:
        """Did every rule, and every era, give the baseline's numbers to the bit?"""
        rules = [name for name in self.others if self.is_given or name not in (NO_CLAMP, PROJECT)]
        same = (repr(rows[name]) == repr(rows[self.baseline]) for rows in self.values.values() for name in rules)
        return bool(rules) and all(same)

    @property
    def too_few_seeds(self) -> bool:
        """Could no result of so many seeds tell any variant from the baseline?"""
        found = [self.verdict(name, number) for number in self.values for name in self.others]
        differ = any(one.seeds[1] for one in found)
        return not self.repeats and differ and len(self.seeds) < self.family.planned_need

    def verdict(self, variant: str, number: str | None = None) -> Difference:
        """A variant against the baseline, corrected for all that this report compares."""
        number = self.number(number)
        if variant not in self.others:
            raise unknown_name("compare", "variant", self.others, variant)
        return self.family.between(number, variant, self.baseline)

    def edge(self, number: str | None = None) -> Difference:
        """The oldest edge (zero/closed) against the newest one (zero/open), corrected likewise."""
        if len(self.eras) < 2:
            raise ValueError(must("compare", "replace", "name clamp to compare its eras", self.replaced))
        return self.family.between(self.number(number), self.eras[0], self.eras[-1])

    def edges(self, number: str | None = None) -> dict[tuple[str, str], Difference]:
        """Every older edge against every newer one."""
        number = self.number(number)
        return {pair: self.family.between(number, *pair) for pair in combinations(self.eras, 2)}

    def edge_verdict(self, number: str | None = None) -> str:
        """ "the old edge" (torch <= 2.13), "the new edge" (torch >= 2.14) or "no difference"."""
        return {BETTER: "the old edge", WORSE: "the new edge"}.get(self.edge(number).verdict, NO_DIFFERENCE)

    def leaders(self, number: str | None = None) -> tuple[str, ...]:
        """All that none of the others is told to be better than, the best median first: more than one is a tie."""
        number = self.number(number)
        return tuple(self.family.leaders(number, self.ranked(number), self._told))

    def _told(self, found: Difference) -> str:
        return found.favours if self.repeats else found.verdict

    def ranked(self, number: str | None = None) -> tuple[str, ...]:
        """The variants by their medians, the best first."""
        number = self.number(number)
        sign = 1.0 if self.better[number] == "lower" else -1.0

        def badness(name: str) -> float:
            median = self.median(name, number)
            return math.inf if math.isnan(median) else sign * median

        return tuple(sorted(self.variants, key=badness))

    def median(self, variant: str, number: str | None = None) -> float:
        """Over the seeds; a NaN is as bad as a number can be, and the median where half of them are."""
        number = self.number(number)
        worst = math.inf if self.better[number] == "lower" else -math.inf
        values = self.values[number][variant]
        ordered = sorted(worst if math.isnan(value) else value for value in values)
        low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
        if worst in (low, high) and any(math.isnan(value) for value in values):
            return math.nan
        return low if low == high else low + (high - low) / 2

    def number(self, name: str | None) -> str:
        """The name of a number, checked; None for the first."""
        if name is None:
            return next(iter(self.values))
        if name not in self.values:
            raise unknown_name("compare", "number", self.values, name)
        return name


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation of the values that are finite; NaN where there are none."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return math.nan, math.nan
    mean = math.fsum(finite) / len(finite)
    if len(finite) < 2:
        return mean, math.nan
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in finite) / (len(finite) - 1))
