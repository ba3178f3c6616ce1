"""The headline of a task that is measured over seeds, and what is compared by it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

from pseudograd.comparison.family import Family, family
from pseudograd.comparison.paired import Better, Difference, difference
from pseudograd.comparison.runner import Outcome
from pseudograd.comparison.variants import INSTALLED, eras

World: TypeAlias = dict[str, Outcome]  # by variant
OURS = "inward"


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

    def said(self, measured: Outcome) -> str:
        return self.text.format(self.number(measured))

    def number(self, measured: Outcome) -> str:
        return format(measured.numbers[self.key], self.places)

    def difference(self, one: Outcome, other: Outcome) -> Difference:
        return difference(one.seeds, other.seeds, better=self.better, tie=self.tie)

    def family(self, rows: World, with_best: bool = False) -> Family:
        """What is asked of one world, corrected together: each variant against our default, and the eras. The installed torch is one."""
        names = [name for name in rows if name != INSTALLED]
        asked = [(name, OURS) for name in names if name != OURS] if OURS in rows else []
        seeds = {self.key: {name: rows[name].seeds for name in names}}
        asked += combinations(eras_in(rows), 2)
        return family(seeds, {self.key: self.better}, asked, tie=self.tie, with_best=with_best)

    def against_ours(self, rows: World) -> dict[str, Difference]:
        """Each variant less our default, the best first."""
        found = self.family(rows)
        names = [name for name in rows if name not in (OURS, INSTALLED)]
        names.sort(key=lambda name: rows[name].numbers[self.key], reverse=self.better == "higher")
        return {name: found.between(self.key, name, OURS) for name in names}

    def eras(self, rows: World) -> list[Difference]:
        """Every older edge less every newer one."""
        found = self.family(rows)
        return [found.between(self.key, *pair) for pair in combinations(eras_in(rows), 2)]
