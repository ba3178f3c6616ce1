"""The counts of one backward call, by the kernel in C and by ATen, equal counts made one element at a time."""

import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pseudograd.diagnosis.count import grads, tally
from pseudograd.diagnosis.count.leaf import Entries, Leaf
from pseudograd.diagnosis.count.leaves import Leaves
from pseudograd.diagnosis.count.names import Names
from pseudograd.diagnosis.count.norms import Losses, Series, Sizes, numbers_of
from pseudograd.kernels import native
from pseudograd.kernels.native import counts
from pseudograd.listen.frames import NOWHERE
from pseudograd.torch_table.forms import SavedValues

from ..choices import every_pair, folded
from ..written import assert_written

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
Leaving = tuple[Tensor | None, ...]
BOUNDS = ((-1.0, 1.0), (None, 0.5), (0.3, None), (0.5, -0.5))


@pytest.fixture(params=["C", "ATen"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "ATen":
        monkeypatch.setattr(native, "operators", None)
    elif native.operators is None:
        pytest.skip("no kernels in C here")
    return str(request.param)


def make_tally(op: str, is_full: bool = False) -> tally.Tally:
    return tally.Tally(op, NOWHERE, Leaves("key", {}, is_full))


def match(leaving: Leaving, grad: Tensor) -> grads.MatchedGradients:
    matched = grads.MatchedGradients.match(leaving, (grad,))
    assert matched is not None
    return matched


def count(grad: Tensor, leaving: Leaving, is_full: bool) -> dict[str, float]:
    counts = grads.count(match(leaving, grad), is_full, may_move=True)
    return {name: float(value) for name, value in counts.items() if name != "elsewhere"}


def count_each_element(grad: Tensor, leaving: Leaving, is_full: bool) -> dict[str, float]:
    columns = [tensor.flatten().tolist() for tensor in leaving if tensor is not None]
    sums = dict.fromkeys(grads.COUNTS if is_full else ("elements", "arrived", "cut"), 0.0)
    for row, g in enumerate(grad.flatten().tolist()):
        is_cut = g != 0 and all(column[row] == 0 for column in columns)
        counts = {"elements": 1, "arrived": g != 0, "cut": is_cut}
        counts |= {"magnitude": abs(g), "cut_magnitude": abs(g) if is_cut else 0.0, "nonfinite": not math.isfinite(g)}
        for name in sums:
            sums[name] += counts[name]
    left = sum(any(column[row] != 0 for column in columns) for row in range(grad.numel()))
    if columns and left + sums["cut"] > sums["arrived"]:  # elements have moved
        sums["cut"] = max(sums["arrived"] - left, 0)
        if is_full:
            lost = sums["magnitude"] - sum(abs(value) for column in columns for value in column)
            sums["cut_magnitude"] = max(lost, 0.0) if sums["cut"] else 0.0
    return sums


def values(size: int, dtype: torch.dtype, seed: int, zeros: float = 0.3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randn(size, generator=generator, dtype=torch.float64)
    tensor[torch.rand(size, generator=generator) < zeros] = 0
    return tensor.to(dtype)


def assert_close(counts: dict[str, float], expected: dict[str, float]) -> None:
    assert counts.keys() == expected.keys()
    assert all(math.isclose(counts[name], expected[name], rel_tol=1e-6) for name in counts), (counts, expected)


@functools.cache
def _counts_by_hand(size: int, dtype: torch.dtype, is_full: bool) -> list[tuple[Tensor, Leaving, dict[str, float]]]:
    """A gradient, the gradients that leave, and the expected counts, for both ways to count."""
    grad = values(size, dtype, 0)
    first, second, third = (torch.where(values(size, dtype, seed, zeros=0.6) != 0, grad * 2, 0) for seed in (1, 2, 3))
    moved, thinned = grad.flip(0), first.flip(0)
    leavings: list[Leaving] = [(first,), (first, second), (None, first), (None,), (grad,), (moved,), (thinned,)]
    leavings.append((first, second, third))
    return [(grad, leaving, count_each_element(grad, leaving, is_full)) for leaving in leavings]


@folded
@pytest.mark.parametrize(("dtype", "size", "is_full"), every_pair(DTYPES, [0, 1, 63, 64, 65, 4_097], [True, False]))
def test_a_call_is_counted_as_one_element_at_a_time(way: str, size: int, dtype: torch.dtype, is_full: bool) -> None:
    for grad, leaving, expected in _counts_by_hand(size, dtype, is_full):
        assert_close(count(grad, leaving, is_full), expected)


@folded
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_inf_are_counted_as_arrived_and_not_finite(way: str, dtype: torch.dtype) -> None:
    grad = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -2.0], dtype=dtype)
    counts = count(grad, (torch.tensor([0.0, 0.0, 0.0, 1.0, 0.0, math.nan, -0.0], dtype=dtype),), True)
    assert (counts["arrived"], counts["cut"], counts["nonfinite"]) == (5, 3, 3)
    assert math.isnan(counts["magnitude"])
    assert count(grad[:4], (torch.zeros(4, dtype=dtype),), True)["cut_magnitude"] == math.inf


@folded
@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_are_compared_by_their_place_in_every_layout(way: str, dtype: torch.dtype) -> None:
    """Elements are compared by their place in the tensor, not in memory."""
    grad, mask = values(600, dtype, 0).view(20, 30), values(600, dtype, 1).view(20, 30)
    gone = torch.where(mask != 0, grad, 0)
    expected = count_each_element(grad, (gone,), True)
    layouts = (lambda t: t, lambda t: t.t().contiguous().t(), lambda t: t.repeat_interleave(2, 1)[:, ::2])
    for lay_grad in layouts:
        for lay_gone in layouts:
            assert_close(count(lay_grad(grad), (lay_gone(gone),), True), expected)
    same = torch.ones((), dtype=dtype).expand(20, 30)  # the gradient of a sum
    assert count(same, (gone,), False) == {"elements": 600, "arrived": 600, "cut": int((gone == 0).sum())}


def side(x: float, low: float | None, high: float | None) -> list[str]:
    below = ["below"] if low is not None and x < low else []
    above = ["above"] if high is not None and x > high else []
    return below + above + (["at"] if x in (low, high) else [])


@folded
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bounds", BOUNDS)
def test_the_regions_of_x_are_counted_one_by_one(way: str, dtype: torch.dtype, bounds: tuple[Any, Any]) -> None:
    grad, gone = values(1_000, dtype, 0), values(1_000, dtype, 1, zeros=0.6)
    x = (values(1_000, torch.float64, 2) * 2).round() / 2
    x[:3] = math.nan
    x = x.to(dtype)
    low, high = (None if bound is None else torch.tensor(bound, dtype=dtype).item() for bound in bounds)
    expected = dict.fromkeys(tally._REGION_COUNTS, 0)
    for g, leaves, v in zip(grad.tolist(), gone.tolist(), x.tolist(), strict=True):
        sides = side(v, low, high)
        if g != 0:
            for name in sides:
                expected[f"{name}{'-' if g < 0 else '+'}"] += 1
            expected[f"inside{'-' if g < 0 else '+'}"] += 1 - len(sides)
        leads_back = (low is not None and v <= low and g < 0) or (high is not None and v >= high and g > 0)
        expected["recoverable"] += leads_back and leaves == 0
        expected["at_bound"] += "at" in sides and g != 0
    for limits in (bounds, tuple(bound if bound is None else torch.tensor(bound, dtype=dtype) for bound in bounds)):
        matched = match((gone,), grad)
        bounds_there = grads.bounds_of(matched, SavedValues([], "torch.clamp", (x, *limits)))
        counts = grads.count(matched, True, bounds=bounds_there)
        assert grads.has_sides(counts)
        assert {name: int(counts[name]) for name in tally._REGION_COUNTS} == expected
        alone = grads.count(matched, True)
        assert not grads.has_sides(alone)
        assert {name: float(counts[name]) for name in alone} == {name: float(alone[name]) for name in alone}


@folded
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["ReluBackward0", "ClampBackward1", "MulBackward0"])
def test_what_is_added_in_one_pass_is_what_is_counted_call_by_call(way: str, op: str, dtype: torch.dtype) -> None:
    """One gradient leaves, or two, or none, or one of another shape; with and without x and its bounds."""
    grad, x = values(1_000, dtype, 0), (values(1_000, torch.float64, 2) * 2).round().to(dtype)
    first, second = (values(1_000, dtype, seed, zeros=0.6) for seed in (1, 3))
    saved = SavedValues([], "torch.clamp", (x, -1.0, 1.0)) if op == "ClampBackward1" else None
    sums, expected = (
        make_tally(op, is_full=True),
        dict.fromkeys((*grads.COUNTS, "elsewhere", *tally._REGION_COUNTS), 0.0),
    )
    sums.has_regions = True
    for leaving in ((first,), (second,), (first, second), (None, second), (None,), (first, torch.ones(3, dtype=dtype))):
        matched = match(leaving, grad)
        limits = grads.bounds_of(matched, saved)
        assert (limits[0] is None) is (saved is None)
        sums._add_call(matched, limits)
        counted = grads.count(matched, True, bounds=limits)
        for name, value in counted.items():
            expected[name] += float(value)
    assert_close(sums.totals(), expected)
    assert sums.totals()["elsewhere"] == 3


def test_the_autocast_of_losses_is_one_that_was_on_in_every_pass() -> None:
    losses, casts = Losses(), []
    for step, is_cast in enumerate((True, True, False, True)):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
            losses.add(step, torch.ones(()), False)
        casts.append(losses.cast)
    assert casts == [("cpu", torch.bfloat16)] * 2 + [None] * 2


@pytest.mark.skipif(native.operators is None, reason="the kernels in C alone count several calls at once")
@pytest.mark.parametrize("is_full", [True, False])
def test_calls_that_are_counted_together_are_counted_as_one_after_another(is_full: bool) -> None:
    grad, left, other = (values(1_000, torch.float32, seed, zeros=seed / 4) for seed in range(3))
    together, apart = ([counts.Sums(is_full) for _ in range(2)] for _ in range(2))
    grads: list[Tensor] = []
    sums: list[Tensor] = []
    for call, leaving in enumerate(((left,), (left, other), (other, None), (grad,), (left[:9],), (left.double(),))):
        grads += [grad, leaving[0], leaving[-1] if leaving[-1] is not None else leaving[0]]
        sums.append(together[call % 2].plain)
        apart[call % 2].add_plain((grad,), leaving)
    assert counts.add_together(grads, sums, is_full) == [4, 5]
    assert [each.read() for each in together] == [each.read() for each in apart]
    grads[1] = grad.to_sparse()
    assert counts.add_together(grads, sums, is_full) == range(6)
    assert [each.read() for each in together] == [each.read() for each in apart]


def test_calls_of_which_one_is_unusual_are_counted_one_by_one() -> None:
    grad, leaves = torch.ones(3), Leaves("key", {})
    together, apart = (make_tally("MulBackward0") for _ in range(2))
    together.usual, apart.usual = counts.Sums(False), counts.Sums(False)
    for arriving, leaving in (
        ((None,), (grad,)),
        ((grad, grad), (grad,)),
        ((grad,), (None,)),
        ((grad,), (0 * grad, grad, 0 * grad)),
    ):
        calls = (((grad,), (grad,)), (leaving, arriving))
        tally.count_together([(together, *call, None) for call in calls], leaves)
        for call in calls:
            apart.count(*call)
        assert (together.calls, together.totals()) == (apart.calls, apart.totals())


@pytest.mark.skipif(native.operators is None, reason="the kernels in C alone look at all of them at once")
@folded
@pytest.mark.parametrize("number", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_infinite_entry_makes_gradients_not_finite(number: float, dtype: torch.dtype) -> None:
    grad = torch.full((100, 7), torch.finfo(dtype).max, dtype=dtype)
    broken = grad.clone()
    broken[99, 6] = number
    assert counts.are_finite((grad, None, grad.t()))
    assert counts.are_finite(())
    for values in ((grad, None, broken), (broken.t(), grad), (grad.to_sparse(),), (torch.nn.Parameter(grad),)):
        assert not counts.are_finite(values)


def layouts_of(grad: Tensor) -> list[Tensor]:
    wide = torch.zeros(*grad.shape, 2, dtype=grad.dtype)
    wide[..., 0] = grad
    return [grad, grad.t().contiguous().t(), wide[..., 0]]


@folded
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_full", [True, False])
def test_the_norm_of_a_parameter_and_its_missing_entries_are_exact(way: str, is_full: bool, dtype: torch.dtype) -> None:
    parameter = torch.nn.Parameter(torch.zeros(40, 30, dtype=dtype))
    leaf = Leaf(1, parameter, Names(), 0)
    leaf.sizes = Sizes() if is_full else None
    squares, had, steps = 0.0, torch.zeros(40, 30, dtype=torch.bool), 0
    for seed in range(6):
        table = values(1_200, dtype, seed, zeros=0.8).view(40, 30) * 10.0 ** (seed % 3)
        table[5] = table[:, 7] = 0
        for grad in layouts_of(table):
            leaf.add(grad)
            squares += sum(value**2 for row in grad.tolist() for value in row)
            had |= torch.tensor([[value != 0 for value in row] for row in grad.tolist()])
            steps += 1
            missing = leaf.entries.missing()
            assert (missing.without, missing.dead_units) == (int((~had).sum()), 1)
    assert leaf.gradients == leaf.entries.looks == steps
    if is_full:
        assert leaf.sizes.count == steps
        assert math.isclose(leaf.sizes.mean, math.sqrt(squares / steps), rel_tol=1e-5)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_norms_of_tiny_and_of_huge_gradients_are_right(way: str, scale: float) -> None:
    sizes, grad = Sizes(), torch.tensor([3.0, -4.0]) * scale
    if way == "C":
        assert sizes.add_by_kernel(grad, None) == 0
    else:
        sizes.add(grad)
    assert math.isclose(sizes.mean, 5 * scale, rel_tol=1e-6) or (way == "ATen" and scale > 1 and math.isinf(sizes.mean))


def test_nothing_is_kept_of_a_parameter_whose_first_gradient_is_whole() -> None:
    entries = Entries(is_detailed=True)
    entries.add(torch.tensor([[1.0, -2.0], [torch.inf, torch.nan]]))
    assert entries.is_complete
    assert entries.bytes_of(torch.ones(2, 2)) is None
    assert (entries.missing(), entries.had_gradient) == (None, True)


def make_leaf(entries: int = 2) -> Leaf:
    return Leaf(1, torch.nn.Parameter(torch.zeros(entries)), Names(), 0)


def misses_many(reached: int, entries: int, *, is_looked_up: bool) -> bool:
    leaf = make_leaf(entries)
    leaf.is_looked_up = is_looked_up
    leaf.entries.add((torch.arange(entries) < reached).float())
    return leaf.misses_many


def state_of(*words: str) -> str:
    """What is said of a leaf with these flags."""
    leaf = make_leaf()
    leaf.is_in_optimizer = "optimizer" in words
    if "had" in words:
        leaf.entries.add(torch.tensor([0.0, 1.0]))
    flags = {"whole": leaf.whole_had_gradient, "saw": leaf.step_saw_gradient, "missed": leaf.step_missed_gradient}
    flags["grad"] = leaf.grad_was_nonzero
    for word in {*flags} & {*words}:
        flags[word].add(True)
    if "zero" in words:
        leaf.grad_was_nonzero.add(False)
    return f"had gradient {leaf.had_gradient}, taken away {leaf.is_taken_away}, starves {leaf.starves}"


def bounds_of(primitive: str, *inputs: Any) -> list[float | None]:
    saved = SavedValues([], primitive, tuple(map(torch.tensor, inputs)))
    bounds = grads.bounds_of(match((torch.ones(()),), torch.ones(())), saved)
    return [None if value is None else float(value) for value in bounds]


def steps_of_series(count: int) -> str:
    """The steps that are left of so many, each with its number as its value."""
    series = Series[float]()
    for step in range(count):
        series.add(step, float(step))
    numbers = numbers_of(series)
    steps = [step for step, value in numbers if value == step]
    assert len(steps) == len(numbers)
    return " ".join(map(str, steps))


def test_the_written_states_of_a_leaf_bounds_of_a_clamp_and_steps_of_a_series() -> None:
    assert_written(Path(__file__).with_name("leaves.txt"), globals())


def test_grad_is_looked_at_until_it_differs_from_0_or_a_step_will() -> None:
    tensor = torch.nn.Parameter(torch.zeros(2))
    leaf = Leaf(1, tensor, Names(), 0)
    answers = []
    for grad in (None, torch.zeros(2), torch.ones(2)):
        tensor.grad = grad
        answers.append((leaf.look_at_grad(), leaf.grad_was_nonzero.has_flags, bool(leaf.grad_was_nonzero)))
    assert answers == [(True, False, False), (True, True, False), (False, True, True)]
    leaf.has_whole, tensor.grad = True, torch.tensor([0.0, 1.0])
    assert (leaf.look_at_grad(), leaf.entries.looks) == (True, 1)
    leaf.is_in_optimizer = True
    assert leaf.look_at_grad()
    tensor.grad = torch.ones(2)
    assert [leaf.look_at_grad() for _ in range(2)] == [True, False]
    other = Leaf(2, tensor, Names(), 0)
    other.is_in_optimizer = True
    assert (other.look_at_grad(), other.grad_was_nonzero.has_flags) == (False, False)
    del tensor
    gone = Leaf(3, torch.nn.Parameter(torch.zeros(2)), Names(), 0)
    assert (gone.tensor(), gone.look_at_grad()) == (None, False)


def test_an_empty_gradient_and_one_of_zeros_are_none_and_a_large_table_has_flags_of_rows_alone() -> None:
    empty, table = Entries(is_detailed=True), Entries(is_detailed=True)
    leaf = make_leaf(4)
    empty.add(torch.ones(0))
    leaf.add(torch.zeros(4))
    assert (empty.had_gradient, leaf.had_gradient, leaf.misses_many) == (False, False, False)
    table.add(torch.tensor([[1.0], [0.0]]).expand(2, 2**22))
    assert (table.mask, table.had_gradient, table.missing()) == (None, True, (2, 1, 2, 1))
    small = Entries(is_detailed=True)
    small.add(torch.tensor([[1.0], [0.0]]).expand(2, 2**21))
    assert small.missing() == (2**22, 2**21, 2, 1)


@pytest.mark.skipif(native.operators is None, reason="no kernels in C here")
def test_what_c_does_not_count() -> None:
    plain = torch.ones(2)
    others = torch.nn.Parameter(plain), plain.to_sparse(), plain.to("meta")
    assert [counts.is_plain(tensor) for tensor in (plain, *others)] == [True, False, False, False]
    many = plain.reshape(2, *[1] * 15)
    assert counts.tally(plain, [plain], is_full=True) is not None
    for grad, leaving in ((plain, others[1]), (plain, plain.double()), (plain.int(), plain.int()), (many, many)):
        assert counts.tally(grad, [leaving], is_full=True) is None
        assert counts.Sums(is_full=True).add(grad, [leaving], None, None, None) is None
