"""Is one variant better than another over the same seeds? Wilcoxon's signed-rank test, exact, with Holm's correction for several.

Seeds are few, and trainings diverge. So the test assumes no normal distribution, and a run that diverged counts as the largest rank and no
more. The p value is exact even with ties, because it is computed from the measured ranks under all 2^n choices of signs. With n seeds that
differ no p is below 2 / 2^n, so fewer than six seeds cannot be significant. docs/compare.md explains the size of a difference and its
interval.

The test and the correction are written here, because `compare` needs no SciPy, and no library has Holm's correction with weights.

Sources: Wilcoxon (1945), who leaves zeros out. Ties by midranks under the signs' own distribution: Pratt & Gibbons (1981). Shift and
interval: Hodges & Lehmann (1963), Tukey (1949), Hollander, Wolfe & Chicken (2014), section 3.3. Several comparisons, with weights too: Holm
(1979). Comparisons that cannot reach LEVEL by themselves, such as bit-equal runs, do not count: Tarone (1990).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import combinations_with_replacement
from typing import Literal, TypeVar

from ..errors import must, unknown_name

Better = Literal["lower", "higher"]
TEST = "Wilcoxon's signed-rank test, exact, two-sided"
LEVEL = 0.05
NO_DIFFERENCE, BETTER, WORSE = "no difference", "better", "worse"
NOT_TOLD = "not told apart"  # what a text calls NO_DIFFERENCE, unless the runs are equal
_TURNED = {BETTER: WORSE, WORSE: BETTER, NO_DIFFERENCE: NO_DIFFERENCE}
_Name = TypeVar("_Name", bound=Hashable)


@dataclass(frozen=True)
class Difference:
    """The first variant less the second, seed by seed.

    mean, spread: mean and standard deviation of the finite differences; NaN where there is none.
    p: the p value of the test.
    least_p: the smallest p that this number of differing seeds could give.
    favours: "better" or "worse" if the differences point to the first or the second variant, significant or not.
    seeds: the number of seeds, and the number of seeds whose two values differ.
    comparisons: the number of comparisons that p is corrected for.
    gaps: the differences.
    level: the value that p had to reach before its correction, and the level of `interval`.
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
    def seeds_that_differ(self) -> int:
        return self.seeds[1]

    @property
    def verdict(self) -> str:
        """ "better", "worse", or "no difference": these seeds do not tell the variants apart."""
        return self.favours if self.p <= LEVEL else NO_DIFFERENCE

    @property
    def too_few_seeds(self) -> bool:
        """Are there too few seeds for any significant result? False if all runs are equal, because more seeds would not change that."""
        return self.seeds_that_differ > 0 and self.least_p > LEVEL

    @cached_property
    def shift(self) -> float:
        """The size of the difference: the median of the means of every two differences; NaN if each of these adds inf and -inf."""
        means = sorted(mean for mean in _pair_means(self.gaps) if not math.isnan(mean))
        return median_of(means) if means else math.nan

    @cached_property
    def interval(self) -> tuple[float, float]:
        """Every shift that the test does not reject at `level`; infinite where the seeds are too few."""
        ways = _ways_up_to(tuple(range(1, len(self.gaps) + 1)))
        rejected_sums = sum(way / 2 ** len(self.gaps) <= self.level / 2 for way in ways)
        if not rejected_sums:
            return -math.inf, math.inf
        means = _pair_means(self.gaps)
        low = sorted(-math.inf if math.isnan(mean) else mean for mean in means)[rejected_sums - 1]
        high = sorted(math.inf if math.isnan(mean) else mean for mean in means)[-rejected_sums]
        # Ties move the ends. If the test rejects nothing, the interval has to hold 0.
        return (low, high) if self.p <= LEVEL else (min(low, 0.0), max(high, 0.0))

    @property
    def detectable(self) -> float:
        """The shift above which, with the same scatter, the test would tell the two apart.

        Infinite if it is not known: the seeds are too few, or some seeds are ties, which make the interval inexact.
        """
        low, high = self.interval
        sizes = {abs(gap) for gap in self.gaps}
        if 0.0 in sizes or len(sizes) < len(self.gaps) or not math.isfinite(self.shift):
            return math.inf
        shift = max(self.shift - low, high - self.shift)
        return shift if self.verdict != NO_DIFFERENCE or abs(self.shift) < shift else math.inf

    @property
    def balance(self) -> float:
        """The size without a unit, from -1 to 1: the ranks above 0 less those below 0, divided by all ranks. 0 if no seed differs.

        It is the matched-pairs rank-biserial correlation, Kerby (2014).
        """
        ranks, above = _ranks_above([gap for gap in self.gaps if gap])
        return 2 * above / sum(ranks) - 1 if ranks else 0.0

    @property
    def wins(self) -> tuple[int, int]:
        """The number of seeds above 0, and the number below."""
        return sum(gap > 0 for gap in self.gaps), sum(gap < 0 for gap in self.gaps)

    @property
    def whole_mean(self) -> float:
        """The mean of all differences, infinite ones too."""
        return sum(self.gaps) / len(self.gaps)

    @property
    def mean_disagrees(self) -> bool:
        """Does the mean of all differences contradict the verdict, which is about the typical seed? A few diverged runs do that."""
        return self.verdict != NO_DIFFERENCE and self.balance * self.whole_mean < 0

    def turned(self) -> Difference:
        """The second variant less the first."""
        gaps = tuple(-gap if gap else 0.0 for gap in self.gaps)
        return replace(self, mean=-self.mean, favours=_TURNED[self.favours], gaps=gaps)

    @property
    def size(self) -> str:
        """The shift with its interval. If there is no useful shift, because most seeds are ties: how many seeds are above and below."""
        if self.seeds_that_differ == 0:
            return ""
        low, high = self.interval
        is_tie = self.verdict != NO_DIFFERENCE and low <= 0 <= high
        if is_tie or math.isinf(high - low) or not math.isfinite(self.shift):
            up, down = self.wins
            return f"higher on {up}, lower on {down}"
        return f"{self.shift:+.3g} [{low:+.3g}, {high:+.3g}]"

    def __str__(self) -> str:
        if self.seeds_that_differ == 0:
            return f"equal on {'the one seed' if self.seeds[0] == 1 else f'all {self.seeds[0]} seeds'}"
        if self.too_few_seeds:
            return f"too few seeds to tell: {self.seeds_that_differ} that differ cannot give p below {self.least_p:.2g}"
        if self.mean_disagrees:
            by_mean = f"but {_TURNED[self.verdict]} by the mean ({self.whole_mean:+.3g})"
            return f"{self.verdict} on the typical seed (p = {self.p:.2g}), {by_mean}"
        if self.verdict != NO_DIFFERENCE:
            return f"{self.verdict} (p = {self.p:.2g})"
        detectable = f"; {self.detectable:.3g} would have been" if math.isfinite(self.detectable) else ""
        return f"{NOT_TOLD} (p = {self.p:.2g}){detectable}"


def difference(
    ours: Sequence[float], others: Sequence[float], *, better: Better = "higher", tie: float = 0.0
) -> Difference:
    """Compare two variants that ran with the same seeds, in the same order.

    A NaN counts as the worst possible number, and equals another NaN. Differences of at most `tie` count as none.
    Raises: ValueError for sequences of different lengths or none, an unknown `better`, or a negative `tie`.
    """
    check_better("difference", better)
    if len(ours) != len(others) or not ours:
        got = (len(ours), len(others))
        raise ValueError(must("difference", "ours and others", "be of one length, at least 1", got))
    if not 0 <= tie < math.inf:
        raise ValueError(must("difference", "tie", "be finite and not negative", tie))
    worst = math.inf if better == "lower" else -math.inf
    gaps = []
    for pair in zip(ours, others, strict=True):
        first, second = (worst if math.isnan(value) else float(value) for value in pair)
        gaps.append(0.0 if first == second or abs(first - second) <= tie else first - second)
    ranks, above = _ranks_above([gap for gap in gaps if gap])
    total = sum(ranks)
    tail = _ways_up_to(tuple(sorted(ranks)))[min(above, total - above)]
    favours = BETTER if (2 * above > total) == (better == "higher") else WORSE
    if 2 * above == total:
        favours = NO_DIFFERENCE
    p = min(1.0, 2 * tail / 2 ** len(ranks))
    mean, deviation = spread(gaps)
    return Difference(mean, deviation, p, least_p(len(ranks)), favours, (len(gaps), len(ranks)), gaps=tuple(gaps))


def holm(
    differences: Mapping[_Name, Difference], weights: Mapping[_Name, float] | None = None
) -> dict[_Name, Difference]:
    """The same differences, with p and least_p corrected for the number of comparisons.

    weights: how LEVEL is divided; twice the weight needs half the evidence. The only measured thing that weights may depend on is how many
    seeds differ. A significant difference passes its share on to the others.
    """
    share = {name: 1.0 if weights is None else weights[name] for name in differences}
    # A difference that can never be significant is not counted.
    ordered = [name for name, difference in differences.items() if difference.least_p <= LEVEL]
    ordered.sort(key=lambda name: differences[name].p / share[name])
    corrected, largest, final_sum = dict(differences), 0.0, 0.0
    for index, name in enumerate(ordered):
        remaining_sum = math.fsum(share[other] for other in ordered[index:])
        largest = max(largest, min(1.0, differences[name].p * remaining_sum / share[name]))
        if largest > LEVEL and not final_sum:  # nothing that follows is significant either
            final_sum = remaining_sum
        factor = (final_sum or remaining_sum) / share[name]
        corrected[name] = replace(
            differences[name],
            p=largest,
            least_p=min(1.0, differences[name].least_p * factor, largest),
            comparisons=len(ordered),
            level=LEVEL / factor,
        )
    return corrected


def least_p(seeds: int) -> float:
    """The smallest p that this number of differing seeds can give: all differences have one sign."""
    return min(1.0, 2.0 / 2.0**seeds)


def seeds_needed(comparisons: float = 1) -> int:
    """The number of seeds that have to differ before any of `comparisons` comparisons can be significant."""
    return next(seeds for seeds in range(1, 1000) if least_p(seeds) * max(comparisons, 1) <= LEVEL)


def check_better(where: str, better: str) -> None:
    if better not in ("lower", "higher"):
        raise unknown_name(where, "better", ("lower", "higher"), better)


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation of the finite values; NaN where there are none."""
    finite = [value for value in values if math.isfinite(value)]
    unit = 2.0 ** max((math.frexp(value)[1] - 1 for value in finite), default=0)  # squares of huge values overflow
    finite = [value / unit for value in finite]
    mean = math.fsum(finite) / len(finite) if finite else math.nan
    if len(finite) < 2:
        return mean * unit, math.nan
    return mean * unit, math.sqrt(math.fsum((value - mean) ** 2 for value in finite) / (len(finite) - 1)) * unit


def median_of(ordered: Sequence[float]) -> float:
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return low if low == high else low + (high - low) / 2


def _pair_means(gaps: Sequence[float]) -> list[float]:
    """The means of every two gaps, and of each with itself. NaN for inf and -inf."""
    return [first / 2 + second / 2 for first, second in combinations_with_replacement(gaps, 2)]


def _ranks_above(gaps: Sequence[float]) -> tuple[list[int], int]:
    """Twice the midranks of the sizes, so that all are integers, and the sum of the ranks of positive gaps."""
    sizes = [abs(gap) for gap in gaps]
    ranks = [sum(other < size for other in sizes) + sum(other <= size for other in sizes) + 1 for size in sizes]
    return ranks, sum(rank for rank, gap in zip(ranks, gaps, strict=True) if gap > 0)


@lru_cache(maxsize=1024)
def _ways_up_to(ranks: tuple[int, ...]) -> list[int]:
    """At index s: how many of the 2^n choices of signs give the positive ranks a sum of at most s."""
    total = sum(ranks)
    ways = [1] + [0] * total
    for rank in ranks:
        for rank_sum in range(total, rank - 1, -1):
            ways[rank_sum] += ways[rank_sum - rank]
    for rank_sum in range(total):
        ways[rank_sum + 1] += ways[rank_sum]
    return ways
