"""The headline of a task that is measured over seeds, and what is compared by it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

from pseudograd.comparison.runs import Outcome
from pseudograd.comparison.statistics import Better, Difference, difference
from pseudograd.comparison.variants import INSTALLED, eras
from pseudograd.comparison.verdicts import Family, make_family
from pseudograd.ops.bound_rules import DEFAULT_RULE

World: TypeAlias = dict[str, Outcome]  # by variant
OURS = DEFAULT_RULE


def eras_in(rows: World) -> list[str]:
    """The variants that are eras of torch, from the oldest on."""
    return [era for era in eras() if era in rows]


@dataclass(frozen=True)
class Score:
    """How a headline over seeds is spoken of, and what is compared by paired.TEST: "98.3% of the problems solved", "test error 0.0389".

    Differences of one seed of at most `tie` count as none.
    """

    key: str
    text: str  # with {} for the number
    places: str = ".1%"
    better: Better = "higher"
    tie: float = 0.0

    def sentence(self, outcome: Outcome) -> str:
        return self.text.format(self.number(outcome))

    def number(self, outcome: Outcome) -> str:
        return format(outcome.numbers[self.key], self.places)

    def difference(self, first: Outcome, second: Outcome) -> Difference:
        return difference(first.seeds, second.seeds, better=self.better, tie=self.tie)

    def family(self, rows: World, with_best: bool = False) -> Family:
        """The comparisons of one world, corrected together: each variant against our default, and the eras. The installed torch is one."""
        names = [name for name in rows if name != INSTALLED]
        planned = [(name, OURS) for name in names if name != OURS] if OURS in rows else []
        planned += combinations(eras_in(rows), 2)
        seeds = {self.key: {name: rows[name].seeds for name in names}}
        return make_family(seeds, {self.key: self.better}, planned, tie=self.tie, with_best=with_best)

    def against_ours(self, rows: World) -> dict[str, Difference]:
        """Each variant less our default, the best first."""
        family = self.family(rows)
        names = [name for name in rows if name not in (OURS, INSTALLED)]
        names.sort(key=lambda name: rows[name].numbers[self.key], reverse=self.better == "higher")
        return {name: family.difference(self.key, name, OURS) for name in names}

    def eras(self, rows: World) -> list[Difference]:
        """Every older edge less every newer one."""
        family = self.family(rows)
        return [family.difference(self.key, *pair) for pair in combinations(eras_in(rows), 2)]
