"""What a diagnosis counts in one backward call, by the kernel in C and by ATen, against counts made one element at a time."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from pseudograd.diagnosis import tally
from pseudograd.kernels import native
from pseudograd.torch_forms import SavedValues

from ..choices import every_pair

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
BOUNDS = ((-1.0, 1.0), (None, 0.5), (0.3, None), (0.5, -0.5))


@pytest.fixture(params=["C", "ATen"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "ATen":
        monkeypatch.setattr(native, "operators", None)
    elif native.operators is None:
        pytest.skip("no kernels in C here")
    return str(request.param)


def counted(grad: Tensor, leaving: tuple[Tensor | None, ...], is_full: bool) -> dict[str, float]:
    found = tally.of_grads(leaving, (grad,), is_full, may_move=True)
    assert found is not None
    return {name: float(value) for name, value in found.items() if name != "elsewhere"}


def one_by_one(grad: Tensor, leaving: tuple[Tensor | None, ...], is_full: bool) -> dict[str, float]:
    gone = [one.flatten().tolist() for one in leaving if one is not None]
    sums = dict.fromkeys(tally.COUNTS if is_full else ("elements", "arrived", "cut"), 0.0)
    for at, g in enumerate(grad.flatten().tolist()):
        is_cut = g != 0 and all(one[at] == 0 for one in gone)
        found = {
            "elements": 1,
            "arrived": g != 0,
            "cut": is_cut,
            "magnitude": abs(g),
            "cut_magnitude": abs(g) if is_cut else 0.0,
            "nonfinite": not math.isfinite(g),
        }
        for name in sums:
            sums[name] += found[name]
    left = sum(any(one[at] != 0 for one in gone) for at in range(grad.numel()))
    if gone and left + sums["cut"] > sums["arrived"]:  # elements have moved
        sums["cut"] = max(sums["arrived"] - left, 0)
        if is_full:
            lost = sums["magnitude"] - sum(abs(value) for one in gone for value in one)
            sums["cut_magnitude"] = max(lost, 0.0) if sums["cut"] else 0.0
    return sums


def values(size: int, dtype: torch.dtype, seed: int, zeros: float = 0.3) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    found = torch.randn(size, generator=made, dtype=torch.float64)
    found[torch.rand(size, generator=made) < zeros] = 0
    return found.to(dtype)


@pytest.mark.parametrize(
    ("dtype", "size", "is_full"), every_pair(DTYPES, [0, 1, 7, 63, 64, 65, 1_000, 40_001], [True, False])
)
def test_counts_of_what_leaves(way: str, size: int, dtype: torch.dtype, is_full: bool) -> None:
    grad = values(size, dtype, 0)
    first, second = (torch.where(values(size, dtype, seed, zeros=0.6) != 0, grad * 2, 0) for seed in (1, 2))
    moved, thinned = grad.flip(0), first.flip(0)
    for leaving in (
        (first,),
        (first, second),
        (None, first),
        (None,),
        (grad,),
        (moved,),
        (thinned,),
        (first, second, first),
    ):
        found, expected = counted(grad, leaving, is_full), one_by_one(grad, leaving, is_full)
        assert found.keys() == expected.keys()
        assert all(math.isclose(found[name], expected[name], rel_tol=1e-6) for name in found), (found, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_infinite_and_nan(way: str, dtype: torch.dtype) -> None:
    grad = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -2.0], dtype=dtype)
    found = counted(grad, (torch.tensor([0.0, 0.0, 0.0, 1.0, 0.0, math.nan, -0.0], dtype=dtype),), True)
    assert (found["arrived"], found["cut"], found["nonfinite"]) == (5, 3, 3)
    assert math.isnan(found["magnitude"])
    assert counted(grad[:4], (torch.zeros(4, dtype=dtype),), True)["cut_magnitude"] == math.inf


@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts(way: str, dtype: torch.dtype) -> None:
    """Elements are compared by their place in the tensor, not in memory."""
    grad, mask = values(600, dtype, 0).view(20, 30), values(600, dtype, 1).view(20, 30)
    gone = torch.where(mask != 0, grad, 0)
    expected = one_by_one(grad, (gone,), True)
    layouts = (lambda t: t, lambda t: t.t().contiguous().t(), lambda t: t.repeat_interleave(2, 1)[:, ::2])
    for of_grad in layouts:
        for of_gone in layouts:
            found = counted(of_grad(grad), (of_gone(gone),), True)
            assert all(math.isclose(found[name], expected[name], rel_tol=1e-6) for name in expected)
    same = torch.ones((), dtype=dtype).expand(20, 30)  # the gradient of a sum
    assert counted(same, (gone,), False) == {"elements": 600, "arrived": 600, "cut": int((gone == 0).sum())}


def side(x: float, low: float | None, high: float | None) -> list[str]:
    found = ["below"] if low is not None and x < low else []
    found += ["above"] if high is not None and x > high else []
    return found + (["at"] if x in (low, high) else [])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bounds", BOUNDS)
def test_sides(way: str, dtype: torch.dtype, bounds: tuple[Any, Any]) -> None:
    grad, gone = values(1_000, dtype, 0), values(1_000, dtype, 1, zeros=0.6)
    x = (values(1_000, torch.float64, 2) * 2).round() / 2
    x[:3] = math.nan
    x = x.to(dtype)
    low, high = (None if one is None else torch.tensor(one, dtype=dtype).item() for one in bounds)
    expected = dict.fromkeys(tally._KNOWN, 0)
    for g, leaves, v in zip(grad.tolist(), gone.tolist(), x.tolist(), strict=True):
        where = side(v, low, high)
        if g != 0:
            for one in where:
                expected[f"{one}{'-' if g < 0 else '+'}"] += 1
            expected[f"inside{'-' if g < 0 else '+'}"] += 1 - len(where)
        leads_back = (low is not None and v <= low and g < 0) or (high is not None and v >= high and g > 0)
        expected["recoverable"] += leads_back and leaves == 0
        expected["at_bound"] += "at" in where and g != 0
    for given in (bounds, tuple(one if one is None else torch.tensor(one, dtype=dtype) for one in bounds)):
        found = tally.of_grads((gone,), (grad,), True, kept=SavedValues([], "torch.clamp", (x, *given)))
        assert found is not None
        assert tally.has_sides(found)
        assert {name: int(found[name]) for name in tally._KNOWN} == expected
        alone = tally.of_grads((gone,), (grad,), True)
        assert alone is not None
        assert not tally.has_sides(alone)
        assert {name: float(found[name]) for name in alone} == {name: float(alone[name]) for name in alone}


def test_the_sum_does_not_depend_on_the_threads() -> None:
    grad = values(1_000_003, torch.float32, 0)
    found = set()
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.add(counted(grad, (grad * 0,), True)["magnitude"])
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1 or native.operators is None
    assert math.isclose(found.pop(), float(grad.double().abs().sum()), rel_tol=1e-6)
