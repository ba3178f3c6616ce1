"""What is a difference and what is rounding, of runs written by hand; and the numbers that stand for a tensor, against plain sums."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from pseudograd_upgrade.differences import compare_events, first_loss, same_leaves
from pseudograd_upgrade.digests import Pending
from pseudograd_upgrade.schedule import LOSSES_ALONE, Schedule

from .by_hand import run


def test_equal_runs_are_equal() -> None:
    comparison = compare_events(run((0, 1.0), (1, 2.0)), run((0, 1.0), (1, 2.0)))
    assert (comparison.first, comparison.largest, comparison.events) == (None, 0.0, 2)


@pytest.mark.parametrize(("apart", "is_first"), [(1e-7, False), (1e-6, False), (1e-5, True), (0.5, True)])
def test_the_precision_of_the_dtype_is_rounding(apart: float, is_first: bool) -> None:
    comparison = compare_events(run((0, 1.0), (1, 2.0)), run((0, 1.0), (1, 2.0 * (1 + apart))))
    assert (comparison.first is not None) == is_first
    if comparison.first is not None:
        assert comparison.first.old.origin.where == "train.py:2"
        assert comparison.first.distance == pytest.approx(apart, rel=1e-3 + apart)
    else:
        assert comparison.largest == pytest.approx(apart, rel=1e-2)


@pytest.mark.parametrize(("dtype", "apart"), [("float64", 1e-13), ("bfloat16", 0.1), ("float16", 0.01)])
def test_each_dtype_has_its_own(dtype: str, apart: float) -> None:
    old, new = run((0, 1.0), dtype=dtype), run((0, 1.0 + apart), dtype=dtype)
    assert compare_events(old, new).first is None
    assert compare_events(old, run((0, 1.0 + 30 * apart), dtype=dtype)).first is not None


def test_what_another_order_of_sums_does_is_rounding() -> None:
    old, new, other = run((0, 1.0), (1, 2.0)), run((0, 1.0), (1, 2.01)), run((0, 1.0), (1, 2.002))
    assert compare_events(old, new).first is not None
    assert compare_events(old, new, other).first is None


def test_rounding_grows_but_not_by_much_at_once() -> None:
    slowly, old = [(0, 1.0 + 1e-6 * 2**n) for n in range(12)], [(0, 1.0)] * 12
    assert compare_events(run(*old), run(*slowly)).first is None
    jump = [*slowly[:4], (0, 1.5), *slowly[5:]]
    first = compare_events(run(*old), run(*jump)).first
    assert first is not None
    assert first.old.occurrence == 4


def test_nan_equals_nan_and_nothing_else() -> None:
    assert compare_events(run((0, math.nan)), run((0, math.nan))).first is None
    first = compare_events(run((0, 1.0)), run((0, math.nan))).first
    assert first is not None
    assert first.distance == math.inf


def test_another_op_of_the_same_values_is_no_difference() -> None:
    comparison = compare_events(run((0, 1.0), (1, 2.0), (0, 3.0)), run((0, 1.0), (4, 2.0), (0, 3.0)))
    assert comparison.first is None
    assert comparison.other_ops == ("train.py:2",)


def test_another_op_before_a_difference_is_named_with_its_line() -> None:
    first = compare_events(run((0, 1.0), (1, 2.0), (0, 3.0)), run((0, 1.0), (4, 2.5), (0, 4.0))).first
    assert first is not None
    assert [event.origin.op for event in first.only_old] == ["gelu"]
    assert [event.origin.op for event in first.only_new] == ["silu"]


def test_the_same_ops_in_another_order() -> None:
    for new in ([(0, 1.0), (4, 5.0), (1, 3.0)], [(0, 1.0), (4, 2.0), (1, 7.0)]):
        first = compare_events(run((0, 1.0), (1, 2.0), (4, 2.0)), run(*new)).first
        assert first is not None
        assert (first.is_reordered, first.only_old, first.only_new) == (True, (), ())
    first = compare_events(run((0, 1.0), (1, 2.0)), run((0, 1.0), (1, 3.0))).first
    assert first is not None
    assert not first.is_reordered


def test_integers_are_exact_until_something_has_been_rounded() -> None:
    old, new = run((0, 5.0), dtype="int64"), run((0, 6.0), dtype="int64")
    assert compare_events(old, new).first is not None


def test_the_first_loss_beyond_rounding() -> None:
    old = run(losses=(1.0, 2.0, 3.0))
    assert first_loss(old, run(losses=(1.0, 2.0000001, 3.0))) is None
    assert first_loss(old, run(losses=(1.0, 2.1, 3.0))) == 2
    assert first_loss(old, run(losses=(1.0, 2.1, 3.0)), run(losses=(1.0, 2.05, 3.0))) is None
    assert first_loss(old, run(losses=(1.0, 2.0))) == 3
    assert first_loss(run(losses=(math.nan,)), run(losses=(math.nan,))) is None


def test_gradients_of_leaves_in_any_order_of_shapes() -> None:
    assert same_leaves(run((3, 1.0), (3, 2.0)), run((3, 1.0), (3, 2.0)))
    assert not same_leaves(run((3, 1.0)), run((3, 0.0)))
    assert not same_leaves(run((3, 1.0)), run((3, 1.0), (3, 1.0)))


@pytest.mark.parametrize("count", [0, 1, 5, 70_000])
def test_a_digest_is_the_sum_the_magnitude_and_the_count(count: int) -> None:
    x = torch.linspace(-1, 2, count) if count else torch.zeros(0)
    pending = Pending()
    pending.add(x)
    ((total, size, _, nonzero),) = pending.fetch()
    numbers = x.double().tolist()
    assert total == pytest.approx(math.fsum(numbers), abs=1e-9)
    assert size == pytest.approx(math.fsum(map(abs, numbers)), abs=1e-9)
    assert nonzero == sum(number != 0 for number in numbers)


@pytest.mark.parametrize("count", [6, 70_000, 200_001])
def test_a_digest_sees_that_two_entries_were_swapped(count: int) -> None:
    x = torch.arange(count, dtype=torch.float32) / count
    y = x.clone()
    y[1], y[count - 2] = x[count - 2], x[1]
    pending = Pending()
    for tensor in (x, y, x.clone()):
        pending.add(tensor)
    first, swapped, again = pending.fetch()
    assert first == again
    assert first[0] == pytest.approx(swapped[0])
    assert abs(first[2] - swapped[2]) > 1e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_every_dtype_has_a_digest(dtype: Any) -> None:
    pending = Pending()
    pending.add(torch.tensor([0, 1, 1], dtype=dtype))
    ((total, size, _, nonzero),) = pending.fetch()
    assert (total, size, nonzero) == (2.0, 2.0, 2.0)


def test_of_which_steps_everything_is_kept() -> None:
    assert [step for step in range(1, 60) if Schedule(3, 20).has(step)] == [1, 2, 3, 20, 40]
    window = Schedule(0, 0, (4, 5))
    assert [step for step in range(1, 9) if window.has(step)] == [4, 5]
    assert [window.is_over(step) for step in (4, 5, 6)] == [False, False, True]
    assert not any(LOSSES_ALONE.has(step) for step in range(1, 99))
