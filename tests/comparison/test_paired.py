"""The test of paired differences: against SciPy's, and against all signs tried one by one."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest

from pseudograd.comparison.statistics import BETTER, NO_DIFFERENCE, WORSE, Difference, difference, holm, seeds_needed

NAN, INF = math.nan, math.inf


def _pairs(count: int, seed: int, shift: float = 0.5) -> tuple[list[float], list[float]]:
    made = random.Random(seed)
    return [made.gauss(shift, 1) for _ in range(count)], [made.gauss(0, 1) for _ in range(count)]


@pytest.mark.parametrize("count", [1, 2, 5, 6, 10, 25, 50])
def test_p_is_that_of_scipy(count: int) -> None:
    wilcoxon = pytest.importorskip("scipy.stats").wilcoxon
    for seed in range(5):
        ours, others = _pairs(count, seed)
        expected = wilcoxon(ours, others, method="exact").pvalue
        assert difference(ours, others).p == pytest.approx(expected, rel=1e-12)


def _by_all_signs(gaps: list[float]) -> float:
    """Written apart: every choice of signs, the mean of the ranks of equal sizes, zeros left out."""
    gaps = [gap for gap in gaps if gap]
    order = sorted(abs(gap) for gap in gaps)
    ranks = [sum(i + 1 for i, size in enumerate(order) if size == abs(gap)) / order.count(abs(gap)) for gap in gaps]

    def statistic(signs: tuple[int, ...]) -> float:
        return abs(sum(sign * rank for sign, rank in zip(signs, ranks, strict=True)))

    found = statistic(tuple(1 if gap > 0 else -1 for gap in gaps))
    as_far = [statistic(signs) >= found - 1e-9 for signs in itertools.product((1, -1), repeat=len(gaps))]
    return sum(as_far) / len(as_far)


def test_ties_and_zeros_are_exact() -> None:
    made = random.Random(3)
    for _ in range(60):
        gaps = [float(made.randint(-3, 4)) for _ in range(made.randint(1, 10))]
        assert difference(gaps, [0.0] * len(gaps)).p == pytest.approx(_by_all_signs(gaps)), gaps


def test_a_lost_run_is_the_largest_rank_and_no_more() -> None:
    ours, others = [1.0, 2.0, 3.0, NAN, 5.0], [0.0, 0.0, 0.0, 0.0, NAN]
    assert difference(ours, others).p == pytest.approx(_by_all_signs([1, 2, 3, -9, 9]))
    assert difference(ours, others).mean == 2
    for better, lost in (("higher", -INF), ("lower", INF)):
        assert difference([NAN], [lost], better=better).seeds == (1, 0)  # type: ignore[arg-type]
        found = difference([NAN] * 6, [1.0] * 6, better=better)  # type: ignore[arg-type]
        assert (found.verdict, found.p) == (WORSE, 2 / 64)
        assert math.isnan(found.mean)
        assert math.isnan(found.spread)
        assert difference([1.0] * 6, [NAN] * 6, better=better).verdict == BETTER  # type: ignore[arg-type]


def test_which_direction_is_better() -> None:
    ours, others = [float(i + 1) for i in range(6)], [0.0] * 6
    assert difference(ours, others).verdict == BETTER
    assert difference(ours, others, better="lower").verdict == WORSE
    assert difference(others, ours).verdict == WORSE
    assert difference(others, ours, better="lower").verdict == BETTER


def test_mean_and_spread_are_those_of_the_differences() -> None:
    found = difference([1.0, 2.0, 6.0], [0.0, 1.0, 2.0])
    assert (found.mean, found.spread) == (2.0, pytest.approx(math.sqrt(3)))


def test_a_consistent_difference_smaller_than_the_spread_over_seeds_is_found() -> None:
    others = [10.0 * seed for seed in range(8)]
    assert difference([value + 0.1 + 0.001 * value for value in others], others).verdict == BETTER


def test_equal_runs_do_not_differ_and_more_seeds_would_not_help() -> None:
    found = difference([1.0] * 4, [1.0] * 4)
    assert (found.verdict, found.p, found.too_few_seeds) == (NO_DIFFERENCE, 1.0, False)
    assert str(found) == "equal on all 4 seeds"


def test_differences_within_a_tie_are_none() -> None:
    ours = [1.0, 1.2, 0.9, 1.1, 1.3, 1.05]
    assert difference(ours, [0.0] * 6).verdict == BETTER
    assert difference(ours, [0.0] * 6, tie=1.3).seeds == (6, 0)
    assert difference(ours, [0.0] * 6, tie=1.0).seeds == (6, 4)


def test_too_few_seeds_are_said() -> None:
    found = difference([1.0, 2.0, 3.0, 4.0, 5.0], [0.0] * 5)
    assert (found.verdict, found.too_few_seeds, found.p) == (NO_DIFFERENCE, True, 0.0625)
    assert str(found) == "too few seeds to tell: 5 that differ cannot give p below 0.062"
    assert not difference([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [0.0] * 6).too_few_seeds
    assert (seeds_needed(1), seeds_needed(2), seeds_needed(8)) == (6, 7, 9)


def test_holm_corrects_as_in_his_paper() -> None:
    """Worked by hand: 0.01, 0.04, 0.03, 0.005 become 0.03, 0.06, 0.06, 0.02."""
    found = {str(p): Difference(1.0, 1.0, p, 0.001, BETTER, (10, 10)) for p in (0.01, 0.04, 0.03, 0.005)}
    corrected = holm(found)
    assert [one.p for one in corrected.values()] == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert [one.verdict for one in corrected.values()] == [BETTER, NO_DIFFERENCE, NO_DIFFERENCE, BETTER]
    assert {one.comparisons for one in corrected.values()} == {4}
    assert list(corrected) == list(found)


def test_holm_does_not_count_equal_runs_and_says_when_seeds_became_too_few() -> None:
    told = difference([float(i + 1) for i in range(7)], [0.0] * 7)
    equal = difference([1.0] * 7, [1.0] * 7)
    assert holm({"a": told, "b": equal, "c": equal})["a"] == told
    three = holm({"a": told, "b": told, "c": told})
    assert (three["a"].p, three["a"].verdict, three["a"].too_few_seeds) == (6 / 128, BETTER, False)
    four = holm(dict.fromkeys("abcd", told))
    assert (four["a"].verdict, four["a"].too_few_seeds) == (NO_DIFFERENCE, True)


def test_bad_calls() -> None:
    with pytest.raises(
        ValueError, match=r"difference: ours and others must be of one length, at least 1, got \(1, 2\)"
    ):
        difference([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match=r"at least 1, got \(0, 0\)"):
        difference([], [])
    with pytest.raises(ValueError, match="difference: better must be one of higher, lower, got 'smaller'"):
        difference([1.0], [1.0], better="smaller")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="difference: tie must be finite and not negative, got -1"):
        difference([1.0], [1.0], tie=-1)


def test_exactly_at_the_level_a_difference_is_told() -> None:
    at = Difference(1.0, 1.0, 0.05, 0.05, BETTER, (9, 9))
    assert (at.verdict, at.too_few_seeds) == (BETTER, False)
    assert Difference(1.0, 1.0, 0.0501, 0.05, BETTER, (9, 9)).verdict == NO_DIFFERENCE
    assert Difference(1.0, 1.0, 1.0, 0.0501, BETTER, (9, 9)).too_few_seeds


def test_one_seed_has_a_mean_and_no_spread() -> None:
    found = difference([3.0], [1.0])
    assert (found.mean, found.p, found.least_p) == (2.0, 1.0, 1.0)
    assert math.isnan(found.spread)
    assert str(difference([1.0], [1.0])) == "equal on the one seed"
    assert difference([1.0, 3.0], [0.0, 0.0]).spread == pytest.approx(math.sqrt(2))


def test_differences_of_both_signs_that_balance_favour_nobody() -> None:
    found = difference([1.0, -1.0, 2.0, -2.0], [0.0] * 4)
    assert (found.favours, found.p, found.balance, found.wins) == (NO_DIFFERENCE, 1.0, 0.0, (2, 2))


def test_seeds_needed_are_the_first_that_reach_the_level() -> None:
    """2 / 2^6 is below 0.05 and 2 / 2^5 above; 1.6 comparisons of six seeds reach it exactly."""
    assert [seeds_needed(count) for count in (0, 1, 1.6, 1.61)] == [6, 6, 6, 7]


def test_no_p_is_above_one() -> None:
    found = {name: Difference(0.1, 1.0, 0.6, 0.01, BETTER, (9, 9)) for name in "ab"}
    assert [one.p for one in holm(found).values()] == [1.0, 1.0]
    with pytest.raises(ValueError, match="tie must be finite"):
        difference([1.0], [1.0], tie=math.inf)


@pytest.mark.parametrize(("count", "rejected"), [(10, 8), (20, 52)])
def test_the_interval_is_that_of_the_tables(count: int, rejected: int) -> None:
    """At 5 % the test rejects rank sums up to these (Wilcoxon's own table); as many means of pairs lie outside, and one more for 0."""
    gaps = [float(i * i) for i in range(1, count + 1)]
    means = sorted((gaps[i] + gaps[j]) / 2 for i in range(count) for j in range(i + 1))
    found = difference(gaps, [0.0] * count)
    low, high = means[rejected], means[-1 - rejected]
    assert found.interval == (low, high)
    assert found.turned().interval == (-high, -low)


def test_few_differences_have_their_ends_as_an_interval_or_none() -> None:
    gaps = [1.0, 4.0, 9.0, 16.0, 25.0, 36.0]
    assert difference(gaps, [0.0] * 6).interval == (1.0, 36.0)
    assert difference(gaps[:5], [0.0] * 5).interval == (-math.inf, math.inf)


def test_a_size_is_the_shift_with_its_interval_or_the_seeds_that_are_higher() -> None:
    told = difference([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [0.0] * 6)
    assert (told.size, told.detectable, told.balance) == ("+3.5 [+1, +6]", 2.5, 1.0)
    assert difference([1.0, 2.0, 4.0], [0.0] * 3).shift == 2.25  # between the middle two of six means
    assert difference([0.5, 2.0, 0.0, -0.5, 9.0], [0.0] * 5).size == "higher on 3, lower on 1"
    equal = difference([1.0] * 4, [1.0] * 4)
    assert (equal.size, equal.balance, equal.wins, equal.least_p) == ("", 0.0, (0, 0), 1.0)
    mostly_ties = [0.0] * 14 + [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert difference(mostly_ties, [0.0] * 20).size == "higher on 6, lower on 0"
    assert difference([0.0] * 20, mostly_ties).size == "higher on 0, lower on 6"
    assert difference([1.0] * 12, [1.0] * 12).size == ""
    assert difference([1.0] * 11 + [5.0], [1.0] * 12).size == "+0 [+0, +0]"
    at_the_level = replace(told, level=2 / 64)
    assert at_the_level.interval == (1.0, 6.0)


def test_holm_shares_the_level_by_weight_and_stops_where_one_is_not_told() -> None:
    """Worked by hand: of 3 parts a has 2, and 0.02 * 3 / 2 = 0.03; then b alone has the whole level."""
    found = {name: Difference(1.0, 1.0, p, 0.001, BETTER, (10, 10)) for name, p in (("a", 0.02), ("b", 0.012))}
    weighted = holm(found, {"a": 2.0, "b": 1.0})
    assert [one.p for one in weighted.values()] == pytest.approx([0.03, 0.03])
    assert [one.level for one in weighted.values()] == pytest.approx([0.05 * 2 / 3, 0.05])
    alike = {name: Difference(1.0, 1.0, 0.03, 0.001, BETTER, (10, 10)) for name in "abc"}
    assert [one.level for one in holm(alike).values()] == pytest.approx([0.05 / 3] * 3)
    at_the_level = {name: Difference(1.0, 1.0, 0.05, 0.05, BETTER, (10, 10)) for name in "ab"}
    assert [one.comparisons for one in holm(at_the_level).values()] == [2, 2]
    assert seeds_needed() == 6


def test_what_is_said_of_one_comparison() -> None:
    told = difference([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [0.0] * 6)
    assert str(told) == "better (p = 0.031)"
    assert (told.turned().mean, told.turned().verdict) == (-3.5, WORSE)
    apart = difference([0.1, -0.2, 0.15, -0.1, 0.3, -0.05], [0.0] * 6)
    assert apart.interval == (-0.2, 0.3)
    assert str(apart) == f"not told apart (p = {apart.p:.2g}); {apart.detectable:.3g} would have been"
    lost = difference([INF, -INF, 1.0, -2.0, 3.0, 4.0], [0.0] * 6)
    assert str(lost) == f"not told apart (p = {lost.p:.2g})"
    one = difference([2.0], [1.0])
    assert (one.too_few_seeds, one.size) == (True, "higher on 1, lower on 0")
    assert difference([0.0, 1.0], [0.0, 0.0]).turned().gaps == (0.0, -1.0)


def test_what_points_where_is_the_sum_of_ranks() -> None:
    """Ranks 1 and 3 of 10 are above: less than half."""
    assert difference([1.0, -2.0, 3.0, -4.0], [0.0] * 4).favours == WORSE
    assert difference([-1.0, 2.0, -3.0, 4.0], [0.0] * 4).favours == BETTER


def test_a_corrected_p_exactly_at_the_level_passes_its_share_on() -> None:
    alike = {name: Difference(1.0, 1.0, 0.025, 0.001, BETTER, (10, 10)) for name in "ab"}
    assert [(one.p, one.level) for one in holm(alike).values()] == [(0.05, 0.025), (0.05, 0.05)]
