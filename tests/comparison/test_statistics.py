"""The test of paired differences: against SciPy's, and against all signs tried one by one."""

import itertools
import math
import random
from dataclasses import replace
from typing import Any

import pytest

from pseudograd.comparison.statistics import BETTER, NO_DIFFERENCE, WORSE, Difference, difference, holm, seeds_needed

NAN, INF = math.nan, math.inf
CLEAR = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def from_zero(*gaps: float, **how: Any) -> Difference:
    return difference(gaps, [0.0] * len(gaps), **how)


@pytest.mark.parametrize("count", [1, 2, 5, 6, 10, 25, 50])
def test_p_is_that_of_scipy(count: int) -> None:
    wilcoxon = pytest.importorskip("scipy.stats").wilcoxon
    for seed in range(5):
        gauss = random.Random(seed).gauss
        ours, others = [gauss(0.5, 1) for _ in range(count)], [gauss(0, 1) for _ in range(count)]
        expected = wilcoxon(ours, others, method="exact").pvalue
        assert difference(ours, others).p == pytest.approx(expected, rel=1e-12)


def _p_of_all_signs(gaps: list[float]) -> float:
    """Written apart: every choice of signs, the mean of the ranks of equal sizes, zeros left out."""
    gaps = [gap for gap in gaps if gap]
    order = sorted(abs(gap) for gap in gaps)
    ranks = [sum(i + 1 for i, size in enumerate(order) if size == abs(gap)) / order.count(abs(gap)) for gap in gaps]

    def statistic(signs: tuple[int, ...]) -> float:
        return abs(sum(sign * rank for sign, rank in zip(signs, ranks, strict=True)))

    measured = statistic(tuple(1 if gap > 0 else -1 for gap in gaps))
    as_far = [statistic(signs) >= measured - 1e-9 for signs in itertools.product((1, -1), repeat=len(gaps))]
    return sum(as_far) / len(as_far)


def test_ties_and_zeros_are_exact() -> None:
    randint = random.Random(3).randint
    for _ in range(60):
        gaps = [float(randint(-3, 4)) for _ in range(randint(1, 10))]
        assert from_zero(*gaps).p == pytest.approx(_p_of_all_signs(gaps)), gaps


def test_a_lost_run_is_the_largest_rank_and_no_more() -> None:
    lost = difference([1.0, 2.0, 3.0, NAN, 5.0], [0.0, 0.0, 0.0, 0.0, NAN])
    assert (lost.p, lost.mean) == (pytest.approx(_p_of_all_signs([1, 2, 3, -9, 9])), 2)
    for better, worst in (("higher", -INF), ("lower", INF)):
        how: dict[str, Any] = {"better": better}
        assert difference([NAN], [worst], **how).seeds == (1, 0)
        every = difference([NAN] * 6, [1.0] * 6, **how)
        assert (every.verdict, every.p) == (WORSE, 2 / 64)
        assert math.isnan(every.mean)
        assert math.isnan(every.spread)
        assert difference([1.0] * 6, [NAN] * 6, **how).verdict == BETTER


def test_which_direction_is_better() -> None:
    zeros = [0.0] * 6
    assert [from_zero(*CLEAR).verdict, from_zero(*CLEAR, better="lower").verdict] == [BETTER, WORSE]
    assert [difference(zeros, CLEAR).verdict, difference(zeros, CLEAR, better="lower").verdict] == [WORSE, BETTER]
    # Ranks 1 and 3 of 10 are above: less than half.
    assert [from_zero(1.0, -2.0, 3.0, -4.0).favours, from_zero(-1.0, 2.0, -3.0, 4.0).favours] == [WORSE, BETTER]
    balanced = from_zero(1.0, -1.0, 2.0, -2.0)
    assert (balanced.favours, balanced.p, balanced.balance, balanced.wins) == (NO_DIFFERENCE, 1.0, 0.0, (2, 2))


def test_mean_and_spread_are_those_of_the_differences() -> None:
    result = difference([1.0, 2.0, 6.0], [0.0, 1.0, 2.0])
    assert (result.mean, result.spread) == (2.0, pytest.approx(math.sqrt(3)))
    assert from_zero(1.0, 3.0).spread == pytest.approx(math.sqrt(2))
    single = difference([3.0], [1.0])
    assert (single.mean, single.p, single.least_p) == (2.0, 1.0, 1.0)
    assert math.isnan(single.spread)
    huge = from_zero(1e300, 3e300, -1.7e308)  # as of a run that diverged: their squares overflow
    assert (huge.mean, huge.spread) == (pytest.approx(-5.67e307, rel=1e-3), pytest.approx(9.81e307, rel=1e-3))
    others = [10.0 * seed for seed in range(8)]  # a consistent difference, smaller than the spread over seeds
    assert difference([value + 0.1 + 0.001 * value for value in others], others).verdict == BETTER


def test_equal_runs_do_not_differ_and_differences_within_a_tie_are_none() -> None:
    equal = difference([1.0] * 4, [1.0] * 4)
    assert (equal.verdict, equal.p, equal.too_few_seeds, equal.least_p) == (NO_DIFFERENCE, 1.0, False, 1.0)
    assert (str(equal), equal.size, equal.balance, equal.wins) == ("equal on all 4 seeds", "", 0.0, (0, 0))
    assert str(difference([1.0], [1.0])) == "equal on the one seed"
    close = (1.0, 1.2, 0.9, 1.1, 1.3, 1.05)
    assert from_zero(*close).verdict == BETTER
    assert (from_zero(*close, tie=1.3).seeds, from_zero(*close, tie=1.0).seeds) == ((6, 0), (6, 4))
    assert difference([5.0, 6.0, 9.0], [5.5, 7.0, 8.75], tie=0.5).gaps == (0.0, -1.0, 0.0)


def test_too_few_seeds_are_said() -> None:
    few = from_zero(*CLEAR[:5])
    assert (few.verdict, few.too_few_seeds, few.p) == (NO_DIFFERENCE, True, 0.0625)
    assert str(few) == "too few seeds to tell: 5 that differ cannot give p below 0.062"
    assert not from_zero(*CLEAR).too_few_seeds
    # 2 / 2^6 is below 0.05 and 2 / 2^5 above; 1.6 comparisons of six seeds reach it exactly.
    assert [seeds_needed(count) for count in (0, 1, 1.6, 1.61, 2, 8)] == [6, 6, 6, 7, 7, 9]


def difference_with(p: float, least_p: float = 0.001) -> Difference:
    return Difference(1.0, 1.0, p, least_p, BETTER, (10, 10))


def test_exactly_at_the_level_a_difference_is_told() -> None:
    assert (difference_with(0.05, 0.05).verdict, difference_with(0.05, 0.05).too_few_seeds) == (BETTER, False)
    assert difference_with(0.0501, 0.05).verdict == NO_DIFFERENCE
    assert difference_with(1.0, 0.0501).too_few_seeds


def test_holm_corrects_as_in_his_paper() -> None:
    """Worked by hand: 0.01, 0.04, 0.03, 0.005 become 0.03, 0.06, 0.06, 0.02."""
    differences = {str(p): difference_with(p) for p in (0.01, 0.04, 0.03, 0.005)}
    corrected = holm(differences)
    assert [row.p for row in corrected.values()] == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert [row.verdict for row in corrected.values()] == [BETTER, NO_DIFFERENCE, NO_DIFFERENCE, BETTER]
    assert {row.comparisons for row in corrected.values()} == {4}
    assert list(corrected) == list(differences)
    assert [row.p for row in holm(dict.fromkeys("ab", difference_with(0.6))).values()] == [1.0, 1.0]


def test_holm_does_not_count_equal_runs_and_says_when_seeds_became_too_few() -> None:
    clear, equal = from_zero(*CLEAR, 7.0), difference([1.0] * 7, [1.0] * 7)
    assert holm({"a": clear, "b": equal, "c": equal})["a"] == clear
    for count, p, verdict, too_few in ((3, 6 / 128, BETTER, False), (4, 8 / 128, NO_DIFFERENCE, True)):
        row = holm(dict.fromkeys(range(count), clear))[0]
        assert (row.p, row.verdict, row.too_few_seeds) == (p, verdict, too_few)


def test_holm_shares_the_level_by_weight_and_stops_where_one_is_not_told() -> None:
    """Worked by hand: of 3 parts a has 2, and 0.02 * 3 / 2 = 0.03; then b alone has the whole level."""
    weighted = holm({"a": difference_with(0.02), "b": difference_with(0.012)}, {"a": 2.0, "b": 1.0})
    assert [row.p for row in weighted.values()] == pytest.approx([0.03, 0.03])
    assert [row.level for row in weighted.values()] == pytest.approx([0.05 * 2 / 3, 0.05])
    assert [row.level for row in holm(dict.fromkeys("abc", difference_with(0.03))).values()] == pytest.approx(
        [0.05 / 3] * 3
    )
    assert [row.comparisons for row in holm(dict.fromkeys("ab", difference_with(0.05, 0.05))).values()] == [2, 2]
    at_the_level = holm(dict.fromkeys("ab", difference_with(0.025)))  # told, so that it passes its share on
    assert [(row.p, row.level) for row in at_the_level.values()] == [(0.05, 0.025), (0.05, 0.05)]


def test_bad_calls() -> None:
    with pytest.raises(ValueError, match=r"ours and others must be of one length, at least 1, got \(1, 2\)"):
        difference([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match=r"at least 1, got \(0, 0\)"):
        difference([], [])
    with pytest.raises(ValueError, match="difference: better must be one of higher, lower, got 'smaller'"):
        difference([1.0], [1.0], better="smaller")  # type: ignore[arg-type]
    for tie in (-1, INF):
        with pytest.raises(ValueError, match=f"difference: tie must be finite and not negative, got {tie}"):
            difference([1.0], [1.0], tie=tie)


@pytest.mark.parametrize(("count", "rejected"), [(10, 8), (20, 52)])
def test_the_interval_is_that_of_the_tables(count: int, rejected: int) -> None:
    """At 5 % the test rejects rank sums up to these (Wilcoxon's own table); as many means of pairs lie outside, and one more for 0."""
    gaps = [float(i * i) for i in range(1, count + 1)]
    means = sorted((gaps[i] + gaps[j]) / 2 for i in range(count) for j in range(i + 1))
    low, high = means[rejected], means[-1 - rejected]
    assert from_zero(*gaps).interval == (low, high)
    assert from_zero(*gaps).turned().interval == (-high, -low)


def test_a_size_is_the_shift_with_its_interval_or_the_seeds_that_are_higher() -> None:
    clear = from_zero(*CLEAR)
    assert (clear.size, clear.detectable, clear.balance) == ("+3.5 [+1, +6]", 2.5, 1.0)
    assert replace(clear, level=2 / 64).interval == (1.0, 6.0)
    assert from_zero(*CLEAR[:5]).interval == (-INF, INF)
    assert from_zero(1.0, 2.0, 4.0).shift == 2.25  # between the middle two of six means
    assert from_zero(0.5, 2.0, 0.0, -0.5, 9.0).size == "higher on 3, lower on 1"
    mostly_ties = [0.0] * 14 + CLEAR
    assert from_zero(*mostly_ties).size == "higher on 6, lower on 0"
    assert difference([0.0] * 20, mostly_ties).size == "higher on 0, lower on 6"
    assert difference([1.0] * 11 + [5.0], [1.0] * 12).size == "+0 [+0, +0]"
    single = difference([2.0], [1.0])
    assert (single.too_few_seeds, single.size) == (True, "higher on 1, lower on 0")


def test_a_mean_that_disagrees_with_the_typical_seed_is_said() -> None:
    for lost, mean in ((-50.0, "-1.34"), (-INF, "-inf")):
        gaps = *(1.0 + n / 100 for n in range(20)), lost
        end = f"but worse by the mean ({mean})"
        assert str(from_zero(*gaps)).endswith(end), str(from_zero(*gaps))
        assert str(from_zero(*gaps).turned()).endswith(f"but better by the mean ({mean.replace('-', '+')})")
    assert not from_zero(*(1.0 + n / 100 for n in range(20)), -5.0).mean_disagrees


def test_what_is_said_of_one_comparison() -> None:
    clear = from_zero(*CLEAR)
    assert (str(clear), clear.turned().mean, clear.turned().verdict) == ("better (p = 0.031)", -3.5, WORSE)
    untold = replace(clear, p=0.06)  # as ties can make it: an interval beside "not told apart" has 0 in it
    assert (untold.interval, untold.turned().interval) == ((0.0, 6.0), (-6.0, 0.0))
    alike = from_zero(0.1, -0.2, 0.15, -0.12, 0.3, -0.05)
    assert alike.interval == (-0.2, 0.3)
    assert str(alike) == f"not told apart (p = {alike.p:.2g}); {alike.detectable:.3g} would have been"
    for ties in ((0.1, -0.2, 0.15, -0.1, 0.3, -0.05), (0.0, 0.1, -0.2, 0.15, -0.12, 0.3, -0.05)):
        assert "would have been" not in str(from_zero(*ties))  # the interval of ties is not exact
    lost = from_zero(INF, -INF, 1.0, -2.0, 3.0, 4.0)
    assert str(lost) == f"not told apart (p = {lost.p:.2g})"
    assert from_zero(0.0, 1.0).turned().gaps == (0.0, -1.0)
