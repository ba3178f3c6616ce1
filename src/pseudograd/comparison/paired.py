"""Is one variant better than another over the same seeds? Wilcoxon's signed-rank test, exact, with Holm's correction for several.

Seeds are few and training diverges, so the test may assume no normal differences, and one lost run may not drown the others. The ranks of
the differences give that: a run that ends in NaN is an infinite difference, the largest rank and no more. The distribution is that of
these very ranks under all 2^n signs, so ties are exact too. The price: with n seeds that differ, no p is below 2 / 2^n, and fewer than six
tell nothing. A t-test would tell from three, if the differences were normal.

How large a difference is, in the unit of the number: the median of all pairwise means of the differences (Hodges & Lehmann), with the
interval of every shift that the same test would not reject. A difference is called "not told apart", never absent: the interval says
what the seeds leave open.

Sources: Wilcoxon (1945); zeros are left out, as he does. Ties by midranks under the signs' own distribution: Pratt & Gibbons (1981).
Shift and interval: Hodges & Lehmann (1963), Tukey (1949), Hollander, Wolfe & Chicken (2014), section 3.3. Several comparisons, with weights
too: Holm (1979); those that cannot reach LEVEL by themselves, bit-equal runs among them, do not count among them: Tarone (1990).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import combinations_with_replacement
from typing import Any, Literal, TypeVar

from ..errors import must, unknown_name

Better = Literal["lower", "higher"]
TEST = "Wilcoxon's signed-rank test, exact, two-sided"
LEVEL = 0.05
NO_DIFFERENCE, BETTER, WORSE = "no difference", "better", "worse"
NOT_TOLD = "not told apart"  # what a text calls NO_DIFFERENCE, unless the runs are equal
_TURNED = {BETTER: WORSE, WORSE: BETTER, NO_DIFFERENCE: NO_DIFFERENCE}
_Name = TypeVar("_Name", str, tuple[str, ...], Any)


@dataclass(frozen=True)
class Difference:
    """Ours less others, seed by seed.

    mean, spread: of the differences that are finite, and their standard deviation; NaN where there is none.
    p: of the test named by TEST; `least_p` is the smallest that so many different seeds could have given. comparisons: how many p was
    corrected for. favours: does what there is point to ours ("better") or to the others ("worse"), significant or not?
    seeds: how many pairs there are, and how many of them differ. gaps: the differences.
    level: what p before its correction had to reach, which is the level of `interval`.
    """

    mean: float
    spread: float
    p: float
    least_p: float
    favours: str
    seeds: tuple[int, int]
    comparisons: int = 1
    gaps: tuple[float, ...] = ()
    level: float = LEVEL

    @property
    def verdict(self) -> str:
        """ "better", "worse" or "no difference", which means: none that these seeds tell."""
        return self.favours if self.p <= LEVEL else NO_DIFFERENCE

    @property
    def too_few_seeds(self) -> bool:
        """Could no result of so many seeds have been a difference? Not where the runs are equal: more seeds would not part them."""
        return self.seeds[1] > 0 and self.least_p > LEVEL

    @cached_property
    def shift(self) -> float:
        """How large the difference is: the median of the means of every two differences; NaN where they are infinite both ways."""
        means = sorted(mean for mean in _pair_means(self.gaps) if not math.isnan(mean))
        if not means:
            return math.nan
        return _middle(means[(len(means) - 1) // 2], means[len(means) // 2])

    @cached_property
    def interval(self) -> tuple[float, float]:
        """Every shift that the test does not reject at `level`: all of them where the seeds are too few."""
        rank = _critical(len(self.gaps), self.level / 2)
        if rank is None:
            return -math.inf, math.inf
        lowest = sorted(-math.inf if math.isnan(mean) else mean for mean in _pair_means(self.gaps))
        highest = sorted(math.inf if math.isnan(mean) else mean for mean in _pair_means(self.gaps))
        low, high = lowest[rank], highest[-1 - rank]
        return (low, high) if self.p <= LEVEL else (min(low, 0.0), max(high, 0.0))  # ties move its ends a little

    @cached_property
    def told(self) -> float:
        """With the same scatter about it, a shift of more than this would have been told; infinite where the seeds are too few."""
        low, high = self.interval
        if not math.isfinite(self.shift):
            return math.inf
        return max(self.shift - low, high - self.shift)

    @property
    def balance(self) -> float:
        """The same without a unit, from -1 to 1: the ranks of the seeds above less those below, over all (matched-pairs rank-biserial).

        Kerby (2014). 0 where no seed differs.
        """
        ranks, up = _ranks_up([gap for gap in self.gaps if gap])
        return 2 * up / sum(ranks) - 1 if ranks else 0.0

    @property
    def wins(self) -> tuple[int, int]:
        """How many seeds are above, and how many below."""
        return sum(gap > 0 for gap in self.gaps), sum(gap < 0 for gap in self.gaps)

    def turned(self) -> Difference:
        """Others less ours."""
        gaps = tuple(-gap if gap else 0.0 for gap in self.gaps)
        return replace(self, mean=-self.mean, favours=_TURNED[self.favours], gaps=gaps)

    @property
    def size(self) -> str:
        """The shift with its interval. Where most seeds are ties, which have no shift, the seeds that are above and below."""
        low, high = self.interval
        if self.seeds[1] == 0 or math.isinf(high - low) or math.isnan(self.shift) or math.isinf(self.shift):
            return "" if self.seeds[1] == 0 else self._counted
        if self.verdict != NO_DIFFERENCE and low <= 0 <= high:
            return self._counted
        return f"{self.shift:+.3g} [{low:+.3g}, {high:+.3g}]"

    @property
    def _counted(self) -> str:
        up, down = self.wins
        return f"higher on {up}, lower on {down}"

    def __str__(self) -> str:
        if self.seeds[1] == 0:
            return f"equal on {'the one seed' if self.seeds[0] == 1 else f'all {self.seeds[0]} seeds'}"
        if self.too_few_seeds:
            return f"too few seeds to tell: {self.seeds[1]} that differ cannot give p below {self.least_p:.2g}"
        if self.verdict != NO_DIFFERENCE:
            return f"{self.verdict} (p = {self.p:.2g})"
        would = f"; {self.told:.3g} would have been" if math.isfinite(self.told) else ""
        return f"{NOT_TOLD} (p = {self.p:.2g}){would}"


def difference(
    ours: Sequence[float], others: Sequence[float], *, better: Better = "higher", tie: float = 0.0
) -> Difference:
    """Compare two variants that ran with the same seeds, in the same order.

    A NaN is as bad as a number can be, and equal to another one. Differences of at most `tie` count as none.
    Raises: ValueError for sequences of different lengths or none, an unknown `better`, or a negative `tie`.
    """
    check_better("difference", better)
    if len(ours) != len(others) or not ours:
        raise ValueError(
            must("difference", "ours and others", "be of one length, at least 1", (len(ours), len(others)))
        )
    if not 0 <= tie < math.inf:
        raise ValueError(must("difference", "tie", "be finite and not negative", tie))
    worst = math.inf if better == "lower" else -math.inf
    gaps = [
        _less(*(worst if math.isnan(one) else float(one) for one in pair)) for pair in zip(ours, others, strict=True)
    ]
    gaps = [0.0 if abs(gap) <= tie else gap for gap in gaps]
    finite = [gap for gap in gaps if math.isfinite(gap)]
    mean = math.fsum(finite) / len(finite) if finite else math.nan
    spread = (
        math.sqrt(math.fsum((gap - mean) ** 2 for gap in finite) / (len(finite) - 1)) if len(finite) > 1 else math.nan
    )
    differing = [gap for gap in gaps if gap]
    p, up = _signed_rank(differing)
    favours = NO_DIFFERENCE if up is None else BETTER if up == (better == "higher") else WORSE
    return Difference(mean, spread, p, least_p(len(differing)), favours, (len(gaps), len(differing)), gaps=tuple(gaps))


def holm(found: Mapping[_Name, Difference], weights: Mapping[_Name, float] | None = None) -> dict[_Name, Difference]:
    """The same with p, and the least that it could be, corrected for as many comparisons as there are.

    `weights` share LEVEL out: one of twice the weight needs half the evidence. They may depend on how many seeds differ and on nothing
    else that was measured. Whatever is told passes its share on to the others.
    """
    share = {name: 1.0 if weights is None else weights[name] for name in found}
    counted = [
        name for name, one in found.items() if one.least_p <= LEVEL
    ]  # others cannot be told, so they cost nothing
    counted.sort(key=lambda name: found[name].p / share[name])
    corrected, largest, stopped_at = dict(found), 0.0, 0.0
    for place, name in enumerate(counted):
        left = math.fsum(share[other] for other in counted[place:])
        largest = max(largest, min(1.0, found[name].p * left / share[name]))
        if largest > LEVEL and not stopped_at:  # whatever follows is not told either
            stopped_at = left
        among = (stopped_at or left) / share[name]
        corrected[name] = replace(
            found[name],
            p=largest,
            least_p=min(1.0, found[name].least_p * among, largest),
            comparisons=len(counted),
            level=LEVEL / among,
        )
    return corrected


def least_p(seeds: int) -> float:
    """The smallest p that so many differing seeds can give: all of one sign."""
    return min(1.0, 2.0 / 2.0**seeds)


def seeds_needed(comparisons: float = 1) -> int:
    """How many seeds have to differ before as many comparisons can tell anything."""
    return next(seeds for seeds in range(1, 1000) if least_p(seeds) * max(comparisons, 1) <= LEVEL)


def check_better(where: str, better: str) -> None:
    if better not in ("lower", "higher"):
        raise unknown_name(where, "better", ("lower", "higher"), better)


def _less(ours: float, others: float) -> float:
    return 0.0 if ours == others else ours - others


def _middle(one: float, other: float) -> float:
    return one if one == other else one + (other - one) / 2


def _pair_means(gaps: Sequence[float]) -> list[float]:
    """The means of every two, each with itself too. NaN where they are infinite in both directions."""
    return [one / 2 + other / 2 for one, other in combinations_with_replacement(gaps, 2)]


# --- ranks ------------------------------------------------------------------------------------------------------------


def _signed_rank(gaps: Sequence[float]) -> tuple[float, bool | None]:
    """p, and whether the differences point upwards; None where they are balanced."""
    ranks, up = _ranks_up(gaps)
    total = sum(ranks)
    tail = _ways_up_to(tuple(sorted(ranks)))[min(up, total - up)]
    return min(1.0, 2 * tail / 2 ** len(ranks)), None if 2 * up == total else 2 * up > total


def _ranks_up(gaps: Sequence[float]) -> tuple[list[int], int]:
    """Twice the midranks of the sizes, and the sum of those that are above 0."""
    ranks = _doubled_midranks([abs(gap) for gap in gaps])
    return ranks, sum(rank for rank, gap in zip(ranks, gaps, strict=True) if gap > 0)


@lru_cache(maxsize=1024)
def _ways_up_to(ranks: tuple[int, ...]) -> list[int]:
    """How many of the 2^n choices of signs give at most each sum of positive ranks."""
    total = sum(ranks)
    ways = [1] + [0] * total
    for rank in ranks:
        for at in range(total, rank - 1, -1):
            ways[at] += ways[at - rank]
    for at in range(total):
        ways[at + 1] += ways[at]
    return ways


def _critical(count: int, tail: float) -> int | None:
    """How many of the lowest, and of the highest, means of pairs lie outside the interval; None where none may."""
    ways = _ways_up_to(tuple(range(1, count + 1)))
    outside = sum(way / 2**count <= tail for way in ways)  # sums of ranks at which the test rejects
    return outside - 1 if outside else None


def _doubled_midranks(sizes: Sequence[float]) -> list[int]:
    """Twice the rank of each; equal ones share the mean of theirs, so that all are integers."""
    return [sum(other < size for other in sizes) + sum(other <= size for other in sizes) + 1 for size in sizes]
