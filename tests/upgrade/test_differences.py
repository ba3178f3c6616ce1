"""Differences and rounding, of runs that are written as numbers; the digests of tensors against plain sums."""

import math
import sys
from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from torch._subclasses import FakeTensorMode

from pseudograd_upgrade.differences import (
    ROUNDINGS,
    ROUNDINGS_COMPILED,
    Comparison,
    Difference,
    compare_events,
    explain_equality,
    explain_growth,
    find_added_calls,
    find_other_ops,
    first_differing_step,
    is_beyond_rounding,
    may_have_grown,
    same_leaves,
)
from pseudograd_upgrade.digests import digest, fetch, is_readable
from pseudograd_upgrade.recorder import shake, shake_after_each_step
from pseudograd_upgrade.recording import LOSSES_ALONE, Digest, Recording, Schedule

from .made_runs import GELU, LEAF, LINEAR, SILU, SILU_GRAD, run


def first_difference(old: Recording, new: Recording, *noises: Recording) -> Difference:
    first = compare_events(old, new, noises).first
    assert first is not None
    return first


@pytest.mark.parametrize(("apart", "is_first"), [(0.0, False), (1e-7, False), (1e-6, False), (1e-5, True), (0.5, True)])
def test_the_precision_of_the_dtype_is_rounding(apart: float, is_first: bool) -> None:
    comparison = compare_events(run((LINEAR, 1.0), (GELU, 2.0)), run((LINEAR, 1.0), (GELU, 2.0 * (1 + apart))))
    assert (comparison.first is not None) == is_first
    if comparison.first is not None:
        assert comparison.first.old.origin.where == "train.py:2"
        assert comparison.first.distance == pytest.approx(apart, rel=1e-3 + apart)
    else:
        assert comparison.largest == pytest.approx(apart, rel=1e-2)
        assert comparison.events == 2


def test_rounding_grows_but_not_by_much_in_one_event() -> None:
    slowly, old = [(LINEAR, 1.0 + 1e-6 * 2**n) for n in range(12)], [(LINEAR, 1.0)] * 12
    assert compare_events(run(*old), run(*slowly)).first is None
    assert first_difference(run(*old), run(*slowly[:4], (LINEAR, 1.005), *slowly[5:])).old.occurrence == 4


@pytest.mark.parametrize(
    ("dtype", "noise", "level", "roundings", "limit"),
    [
        ("float32", 0.0, 0.0, ROUNDINGS, 1.92e-6),
        ("float32", 0.0, 0.0, ROUNDINGS_COMPILED, 1.536e-5),
        ("bfloat16", 0.0, 0.0, ROUNDINGS_COMPILED, 0.15),
        ("float32", 1e-3, 0.0, ROUNDINGS, 1e-2),
        ("float32", 0.0, 1e-3, ROUNDINGS, 3e-2),
        ("int64", 1e-3, 0.0, ROUNDINGS, 1e-2),
    ],
)
def test_rounding_has_a_limit(dtype: str, noise: float, level: float, roundings: int, limit: float) -> None:
    digest = Digest(f"{dtype} [4]", (1.0, 1.0, 0.5, 4.0))
    for distance, is_beyond in ((0.99 * limit, False), (1.01 * limit, True)):
        assert is_beyond_rounding(distance, digest, noise, level, roundings) == is_beyond


@pytest.mark.parametrize(("apart", "are_same"), [(0.99e-5, True), (1.01e-5, False)])
def test_gradients_and_losses_are_alike_to_the_fifth_digit(apart: float, are_same: bool) -> None:
    old = run((LEAF, 1.0), losses=(1.0,), dtype="float64")
    assert same_leaves(old, run((LEAF, 1.0 - apart), dtype="float64")) == are_same
    assert (first_differing_step(old, run(losses=(1.0 - apart,))) is None) == are_same


def test_nan_equals_nan_and_integers_are_exact() -> None:
    assert compare_events(run((LINEAR, math.nan)), run((LINEAR, math.nan))).first is None
    assert first_difference(run((LINEAR, 1.0)), run((LINEAR, math.nan))).distance == math.inf
    assert compare_events(run((LINEAR, 5.0), dtype="int64"), run((LINEAR, 6.0), dtype="int64")).first is not None


@pytest.mark.parametrize("has_it_before", [False, True])
def test_an_extra_call_is_named_also_if_other_calls_agree_behind_it(has_it_before: bool) -> None:
    """Unless an earlier step has it, too, without a consequence."""
    old, new = (
        ((LINEAR, 1.0), (GELU, 2.0), (SILU_GRAD, 3.0)),
        ((LINEAR, 1.0), (SILU, 9.0), (GELU, 2.0), (SILU_GRAD, 4.0)),
    )
    runs = [run(*events, step=2) for events in (old, new)]
    if has_it_before:
        before = (run(*old), run(*new[:-1], old[-1]))
        runs = [replace(each, steps={**each.steps, **first.steps}) for each, first in zip(runs, before, strict=True)]
    only_new = first_difference(*runs).only_new
    assert [event.origin.op for event in only_new] == ([] if has_it_before else ["silu"])


def test_another_order_of_the_same_ops_is_recognised() -> None:
    for new in ([(LINEAR, 1.0), (SILU, 5.0), (GELU, 3.0)], [(LINEAR, 1.0), (SILU, 2.0), (GELU, 7.0)]):
        first = first_difference(run((LINEAR, 1.0), (GELU, 2.0), (SILU, 2.0)), run(*new))
        assert (first.is_reordered, first.only_old, first.only_new) == (True, (), ())
    assert not first_difference(run((LINEAR, 1.0), (GELU, 2.0)), run((LINEAR, 1.0), (GELU, 3.0))).is_reordered


def test_the_first_loss_beyond_rounding_is_found() -> None:
    old = run(losses=(1.0, 2.0, 3.0))
    assert first_differing_step(old, run(losses=(1.0, 2.0000001, 3.0))) is None
    assert first_differing_step(old, run(losses=(1.0, 2.1, 3.0))) == 2
    assert first_differing_step(old, run(losses=(1.0, 2.1, 3.0)), [run(losses=(1.0, 2.05, 3.0))]) is None
    assert first_differing_step(old, run(losses=(1.0, 2.0))) == 3
    noise, level = run(losses=(1.0, 2.0 * 1.001, 3.0)), (1.0001, 2.0)
    for apart, first in ((0.0098, None), (0.0102, 2)):  # ten times as far as another order of sums
        assert first_differing_step(old, run(losses=(1.0, 2.0 * (1 + apart), 3.0)), [noise]) == first
    for apart, first in ((0.0029, None), (0.0031, 2)):  # thirty times as far as the step before
        assert (
            first_differing_step(
                run(losses=level), run(losses=(1.0002, 2.0 * (1 + apart))), [run(losses=(1.0002, 2.0))]
            )
            == first
        )
    assert first_differing_step(run(losses=(math.nan,)), run(losses=(math.nan,))) is None


# --- rounding that grows ----------------------------------------------------------------------------------------------


def trained(*losses: float, event: float = 1.0) -> Recording:
    """event: the result of the only call, in step 2."""
    return run((LINEAR, event), losses=losses, step=2)


OLD = trained(1.0, 1.0, 1.0, 1.0)
GRADUAL = trained(1.0, 1.0 + 9e-6, 1.0 + 9e-5, 1.0 + 9e-4)
NOTHING = Comparison(None, 0.0, 0)


def test_a_further_run_is_made_only_where_rounding_can_have_grown() -> None:
    late = compare_events(OLD, trained(1.0, event=2.0))  # the event of step 2
    assert may_have_grown(OLD, OLD, [OLD], NOTHING, 3)
    assert may_have_grown(OLD, OLD, [OLD], late, None)
    assert not may_have_grown(OLD, OLD, [OLD], NOTHING, 1)
    assert not may_have_grown(OLD, OLD, [OLD], NOTHING, None)
    assert first_differing_step(OLD, GRADUAL) is None
    assert may_have_grown(OLD, GRADUAL, [OLD], NOTHING, None)
    assert not may_have_grown(OLD, GRADUAL, [GRADUAL], NOTHING, None)


def test_the_figures_are_those_of_the_losses() -> None:
    noises = [trained(1.0, 1.0, 1.0, 1.0), trained(1.0, 0.96, 0.75, 0.8)]
    growth = explain_growth(OLD, trained(1.0, 1.0, 1.25, 0.9), noises)
    assert growth is not None
    assert growth.is_rounding
    assert growth.why == (
        "the losses of the two runs differ from step 3 on, by up to 20 %",
        "two runs under torch 2.13.0 alone differ, too: with parameters moved by roundings from step 2 on, by up to 25 %",
        "before step 3 the losses agree to 1e-05; from step 3 on, a difference of this size may be rounding or have another cause",
    )
    assert explain_equality(OLD, OLD) == "the losses are equal, except for rounding"
    leaf = run((LEAF, 1.0))
    assert explain_equality(leaf, leaf) == "the losses are equal, and so are the gradients of the parameters"
    assert "the losses by up to 25 %" in explain_equality(OLD, trained(1.0, 0.75, 1.0, 1.0))


def test_a_difference_that_rounding_does_not_explain_is_not_called_rounding() -> None:
    shaken = trained(1.0, 1.0, 1.0, 1.0 + 1e-6)
    growth = explain_growth(OLD, GRADUAL, [OLD, shaken])
    assert growth is not None
    assert not growth.is_rounding
    assert growth.why[0].startswith("the losses of the two runs differ from step 3 on, by up to 0.09 %. No single call")
    assert explain_growth(OLD, trained(1.0, 1.0, 1.0 + 1e-6, 1.0), [shaken]) is None
    assert explain_growth(OLD, GRADUAL, [OLD]) is None, "no run shows how far rounding grows"


@pytest.mark.parametrize(("dtype", "epsilon"), [(torch.float32, 2.0**-23), (torch.float64, 2.0**-52)])
def test_a_parameter_moves_by_sixteen_roundings_at_most(dtype: torch.dtype, epsilon: float) -> None:
    before = torch.linspace(-3, 5, 1000, dtype=dtype)
    after, narrow = torch.nn.Parameter(before.clone()), torch.nn.Parameter(torch.ones(9, dtype=torch.bfloat16))
    state, draw = torch.get_rng_state(), torch.Generator().manual_seed(1)
    shake(after, draw)
    shake(narrow, draw)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(narrow.detach(), torch.ones(9, dtype=torch.bfloat16)), "16 bits stay"
    pairs = list(zip(before.tolist(), after.tolist(), strict=True))
    moves = [abs(b - a) / abs(a) for a, b in pairs]
    assert 14 * epsilon < max(moves) <= 17 * epsilon
    assert sum(moves) / len(moves) == pytest.approx(8 * epsilon, rel=0.1)
    assert 400 < sum(abs(a) < abs(b) for a, b in pairs) < 600


# --- digests and schedules --------------------------------------------------------------------------------------------


def digests(*tensors: torch.Tensor) -> list[tuple[float, ...]]:
    return fetch([digest(tensor) for tensor in tensors])


@pytest.mark.parametrize("count", [6, 65_536, 70_000, 131_072, 200_001])
def test_a_digest_shows_that_two_entries_were_swapped(count: int) -> None:
    x = torch.arange(count, dtype=torch.float32) / count
    # In a folded tensor the entries 1 and 65,536 are entry 1 of row 0 and entry 0 of row 1.
    for other in {count - 2, min(count - 2, 65_536)}:
        y = x.clone()
        y[1], y[other] = x[other], x[1]
        first, swapped, again = digests(x, y, x.clone())
        assert first == again
        assert first[0] == pytest.approx(swapped[0])
        assert abs(first[2] - swapped[2]) > 1e-3
    assert digests(torch.tensor([2**24 + 1]))[0][0] == 2**24 + 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_every_dtype_has_a_digest(dtype: torch.dtype) -> None:
    (total, size, _, nonzero), empty = digests(torch.tensor([0, 1, 1], dtype=dtype), torch.tensor([], dtype=dtype))
    assert (total, size, nonzero, *empty) == (2.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0)


def test_a_tensor_without_numbers_of_its_own_has_no_digest() -> None:
    own = torch.ones(2).as_subclass(type("Own", (torch.Tensor,), {}))
    assert is_readable(own)
    own.placements = ()
    with FakeTensorMode():
        fake = torch.ones(2)
    others = (
        own,
        fake,
        torch.ones(2, device="meta"),
        torch.eye(2).to_sparse(),
        torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
        1.0,
    )
    assert not any(map(is_readable, others))


def test_a_schedule_has_the_first_steps_and_one_in_many() -> None:
    assert [step for step in range(1, 60) if Schedule(3, 20).has(step)] == [1, 2, 3, 20, 40]
    assert [step for step in range(1, 60) if Schedule().has(step)] == [1, 2, 3, 4, 5, 6, 25, 50]
    window = Schedule(0, 0, (4, 5))
    assert [step for step in range(1, 9) if window.has(step)] == [4, 5]
    assert [window.is_over(step) for step in (4, 5, 6)] == [False, False, True]
    assert [Schedule(last=5).is_over(step) for step in (1, 5, 6)] == [False, False, True]
    assert not any(LOSSES_ALONE.has(step) for step in range(1, 99))


def test_calls_that_change_the_loss_alone_are_found() -> None:
    """As a term that is added to the loss: before the update, no value that both runs have differs."""
    old, new = run((LINEAR, 1.0)), run((LINEAR, 1.0), (SILU, 2.0), (SILU_GRAD, 1.0))
    difference = find_added_calls(old, new, 1)
    assert difference is not None
    assert [event.origin.op for event in difference.only_new] == ["silu"]
    assert find_added_calls(old, old, 1) is None
    longer = replace(new, steps={**new.steps, 2: new.steps[1]})
    last = find_other_ops(run((LINEAR, 1.0), (GELU, 2.0)), longer)
    assert last is not None
    assert (last.step, [event.origin.op for event in last.only_old]) == (1, ["gelu"])


def test_parameters_are_shaken_after_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[torch.optim.Optimizer.__module__], "_global_optimizer_post_hooks", OrderedDict())
    weight = torch.nn.Parameter(torch.ones(9))
    weight.grad = torch.zeros(9)
    shake_after_each_step()
    torch.optim.SGD([weight], 0.1).step()
    assert 0 < float((weight.detach() - 1).abs().max()) < 1e-5
