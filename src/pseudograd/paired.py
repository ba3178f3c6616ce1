"""Is one variant better than another over the same seeds? Wilcoxon's signed-rank test, exact, with Holm's correction for several.

Seeds are few and training diverges, so the test may assume no normal differences, and one lost run may not drown the others. The ranks of
the differences give that: a run that ends in NaN is an infinite difference, the largest rank and no more. The distribution is that of
these very ranks under all 2^n signs, so ties are exact too. The price: with n seeds that differ, no p is below 2 / 2^n, and fewer than six
tell nothing. A t-test would tell from three, if the differences were normal.

Sources: Wilcoxon (1945); zeros are left out, as he does. Ties by midranks under the signs' own distribution: Pratt & Gibbons (1981).
Several comparisons: Holm (1979); those that cannot reach any p below 1 (bit-equal runs) do not count among them: Tarone (1990).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from .errors import must, unknown_name

Better = Literal["lower", "higher"]
TEST = "Wilcoxon's signed-rank test, exact, two-sided"
LEVEL = 0.05
NO_DIFFERENCE, BETTER, WORSE = "no difference", "better", "worse"
_Name = TypeVar("_Name", str, tuple[str, ...])


@dataclass(frozen=True)
class Difference:
    """Ours less others, seed by seed.

    mean, spread: of the differences that are finite, and their standard deviation; NaN where there is none.
    p: of the test named by TEST; `least_p` is the smallest that so many different seeds could have given. comparisons: how many p was
    corrected for. favours: does what there is point to ours ("better") or to the others ("worse"), significant or not?
    seeds: how many pairs there are, and how many of them differ.
    """

    mean: float
    spread: float
    p: float
    least_p: float
    favours: str
    seeds: tuple[int, int]
    comparisons: int = 1

    @property
    def verdict(self) -> str:
        """ "better", "worse" or "no difference"."""
        return self.favours if self.p <= LEVEL else NO_DIFFERENCE

    @property
    def too_few_seeds(self) -> bool:
        """Could no result of so many seeds have been a difference? Not where the runs are equal: more seeds would not part them."""
        return self.seeds[1] > 0 and self.least_p > LEVEL

    def __str__(self) -> str:
        if self.seeds[1] == 0:
            return f"{NO_DIFFERENCE}: equal on {'the one seed' if self.seeds[0] == 1 else f'all {self.seeds[0]} seeds'}"
        if self.too_few_seeds:
            return f"too few seeds to tell: {self.seeds[1]} that differ cannot give p below {self.least_p:.2g}"
        return f"{self.verdict} (p = {self.p:.2g})"


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
    return Difference(mean, spread, p, least_p(len(differing)), favours, (len(gaps), len(differing)))


def holm(found: Mapping[_Name, Difference]) -> dict[_Name, Difference]:
    """The same with p, and the least that it could be, corrected for as many comparisons as there are."""
    counted = [name for name, one in found.items() if one.seeds[1]]
    corrected, largest = dict(found), 0.0
    for position, name in enumerate(sorted(counted, key=lambda name: found[name].p)):
        largest = max(largest, min(1.0, found[name].p * (len(counted) - position)))
        least = min(1.0, found[name].least_p * len(counted))
        corrected[name] = replace(found[name], p=largest, least_p=min(least, largest), comparisons=len(counted))
    return corrected


def least_p(seeds: int) -> float:
    """The smallest p that so many differing seeds can give: all of one sign."""
    return min(1.0, 2.0 / 2.0**seeds)


def seeds_needed(comparisons: int = 1) -> int:
    """How many seeds have to differ before as many comparisons can tell anything."""
    return next(seeds for seeds in range(1, 1000) if least_p(seeds) * max(comparisons, 1) <= LEVEL)


def check_better(where: str, better: str) -> None:
    if better not in ("lower", "higher"):
        raise unknown_name(where, "better", ("lower", "higher"), better)


def _less(ours: float, others: float) -> float:
    return 0.0 if ours == others else ours - others


def _signed_rank(gaps: Sequence[float]) -> tuple[float, bool | None]:
    """p, and whether the differences point upwards; None where they are balanced."""
    ranks = _doubled_midranks([abs(gap) for gap in gaps])
    total, up = sum(ranks), sum(rank for rank, gap in zip(ranks, gaps, strict=True) if gap > 0)
    ways = [1] + [0] * total  # how many of the 2^n choices of signs give each sum of positive ranks
    for rank in ranks:
        for at in range(total, rank - 1, -1):
            ways[at] += ways[at - rank]
    tail = sum(ways[: min(up, total - up) + 1])
    return min(1.0, 2 * tail / 2 ** len(ranks)), None if 2 * up == total else 2 * up > total


def _doubled_midranks(sizes: Sequence[float]) -> list[int]:
    """Twice the rank of each; equal ones share the mean of theirs, so that all are integers."""
    return [sum(other < size for other in sizes) + sum(other <= size for other in sizes) + 1 for size in sizes]
