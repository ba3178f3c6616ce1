"""Everything that a report may claim, corrected together: at most LEVEL of the reports of rules that are alike claim a difference.

What is asked of every variant is known beforehand: is it better than what one has, and does the edge matter? That shares PLANNED of the
level. Which of them is best is asked after the numbers are seen, of the one with the best median, so it is corrected as if every pair had
been asked; these share the rest. Each share that was spent on something that is told passes to what is left (Holm, 1979, with weights).
So all numbers that run returns, all variants and all sentences are one family, whose rate of false claims holds whatever is true.

"Best" is often tested by the multiple comparisons with the best of Hsu (1996), for normal numbers, or by the model confidence set of
Hansen, Lunde & Nason (2011), for many observations or variants that may be permuted; ten seeds of a success rate are none of these. The
signs of one pair at a time need no more than that the two are alike. The price is seeds, and `pairs_need` says how many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from .paired import BETTER, LEVEL, Better, Difference, difference, holm, least_p, seeds_needed

# Of the level, where there is more than what was planned. With twelve seeds, the usual, both a difference from torch.clamp of 2 standard
# deviations and the best of ten variants can be told; of 0.8 the second could not, and of 0.5 the first needs a seed more.
PLANNED = 0.7

Values = Mapping[str, tuple[float, ...]]  # by variant, one for each seed
Pair = tuple[str, str, str]  # the number, and two variants


@dataclass(frozen=True)
class Family:
    """`found` has every pair of variants that differ in some seed, corrected; of those with equal numbers one stands for all."""

    found: Mapping[Pair, Difference]
    stands_for: Mapping[tuple[str, str], str]  # by number and variant
    planned: frozenset[Pair]
    equal: Difference

    def between(self, number: str, ours: str, others: str) -> Difference:
        """Ours less others."""
        one, other = self.stands_for[number, ours], self.stands_for[number, others]
        if one == other:
            return self.equal
        if (number, one, other) in self.found:
            return self.found[number, one, other]
        return self.found[number, other, one].turned()

    def leaders(self, number: str, ranked: Sequence[str], told: Callable[[Difference], str]) -> list[str]:
        """Of these, which are given the best first, all that none is told to be better than: more than one is a tie."""
        best = [
            name for name in ranked if not any(told(self.between(number, other, name)) == BETTER for other in ranked)
        ]
        return best or [ranked[0]]  # where each has a better one, which medians do not

    @property
    def counted(self) -> tuple[int, int]:
        """How many that were planned, and how many more, p is corrected for: those that enough seeds tell apart."""
        told = [pair for pair, one in self.found.items() if least_p(one.seeds[1]) <= LEVEL]
        planned = sum(pair in self.planned for pair in told)
        return planned, len(told) - planned

    @property
    def asked(self) -> int:
        """How many comparisons were planned, without those that are equal on every seed."""
        return len(self.planned)

    @property
    def pairs(self) -> int:
        """How many more could have been asked for, once the numbers were seen."""
        return len(self.found) - len(self.planned)

    @property
    def planned_need(self) -> int:
        """How many seeds have to differ before anything can be told."""
        return needs(self.asked, self.pairs)[0]

    @property
    def pairs_need(self) -> int:
        """How many before the best can be told from the next, if it alone is told from the baseline."""
        return needs(self.asked, self.pairs)[1]


def needs(asked: int, pairs: int) -> tuple[int, int]:
    """The fewest seeds with which one of so many planned comparisons can be told, and then a pair of the others."""
    if not pairs:
        return seeds_needed(asked), 1
    left = 1 - PLANNED / asked if asked else 1.0
    return seeds_needed(asked / PLANNED), seeds_needed(pairs * left / (1 - PLANNED))


def family(
    values: Mapping[str, Values],
    better: Mapping[str, Better],
    asked: Sequence[tuple[str, str]],
    *,
    once: bool = False,
    tie: float = 0.0,
    with_best: bool = True,
) -> Family:
    """`asked` are the pairs that were planned, for each number; the others are left out unless it is asked which is best.

    once: every seed gave the same, so that one value stands for all. tie: as in `difference`.
    """
    stands_for: dict[tuple[str, str], str] = {}
    found: dict[Pair, Difference] = {}
    seeds = 0
    for number, rows in values.items():
        first: dict[str, str] = {}
        for name, row in rows.items():
            stands_for[number, name] = first.setdefault(repr(row), name)
        seeds = 1 if once else len(next(iter(rows.values())))
        for one, other in combinations(first.values(), 2):
            found[number, one, other] = difference(
                rows[one][:seeds], rows[other][:seeds], better=better[number], tie=tie
            )
    pairs = ((number, stands_for[number, a], stands_for[number, b]) for number in values for a, b in asked)
    planned = frozenset(key if key in found else (key[0], key[2], key[1]) for key in pairs if key[1] != key[2])
    if not with_best:
        found = {pair: one for pair, one in found.items() if pair in planned}
    corrected = holm(found, _weights(found, planned))
    zeros = (0.0,) * seeds
    return Family(corrected, stands_for, planned, difference(zeros, zeros))


def _weights(found: Mapping[Pair, Difference], planned: frozenset[Pair]) -> dict[Pair, float]:
    """The shares of the level, for which only those count that their seeds could tell."""
    can_be_told = [pair for pair, one in found.items() if one.least_p <= LEVEL]
    first = sum(pair in planned for pair in can_be_told)
    rest = len(can_be_told) - first
    of_first = PLANNED if rest else 1.0
    return {pair: of_first / max(first, 1) if pair in planned else (1 - PLANNED) / max(rest, 1) for pair in found}
