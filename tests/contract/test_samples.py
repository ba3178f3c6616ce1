"""The samples that the contract runs over hold what can go wrong: a sample that lost a value would make every check weaker."""

import pytest
import torch
from torch import Tensor

from pseudograd.rule import OPS, Op, Sample
from pseudograd.testing.measure.inputs import DTYPES, tensors_of

from ..choices import folded

CLAMPS = [op for op in OPS.values() if op.rule_set == "clamp"]
NUMBERS = {
    "clamp": [(-1, 1), (-0.3, 0.7), (0, 1), (-2, 0), (0.5, 0.5), (-torch.inf, torch.inf)],
    "lower_bound": [(-1, None), (0, None), (-0.3, None)],
    "upper_bound": [(None, 1), (None, 0), (None, 0.7)],
    "relu": [(0, None)],
    "relu6": [(0, 6)],
    "hardtanh": [(-1, 1), (0, 1), (0.5, 0.5)],
}


def _number_samples(op: Op) -> list[Sample]:
    return [sample for sample in op.samples if not any(isinstance(v, Tensor) for v in sample.build(torch.float32)[1:])]


@folded
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", CLAMPS, ids=lambda op: op.name)
def test_values_on_and_around_each_bound_and_at_the_ends_of_the_dtype(op: Op, dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    tiny = info.tiny * info.eps
    for sample in _number_samples(op):
        x, *bounds = sample.build(dtype)
        values = set(x.tolist())
        for bound in bounds:
            if bound is None or abs(bound) == torch.inf:
                continue
            at = torch.tensor(bound, dtype=torch.float64).to(dtype)
            assert at.item() in values
            assert any(at + 0.2 < v < at + 0.3 for v in values)
            assert any(at - 0.3 < v < at - 0.2 for v in values)
            assert any(v >= at + 40 for v in values - {torch.inf, info.max})
            assert any(v <= at - 40 for v in values - {-torch.inf, info.min})
        assert {tiny, -tiny, info.tiny, -info.tiny, info.max, info.min, torch.inf, -torch.inf} <= values
        assert x.isnan().any()
        zeros = x[x == 0]
        assert {torch.signbit(zero).item() for zero in zeros} == {True, False}


@pytest.mark.parametrize("name", ["clamp", "lower_bound", "upper_bound"])
def test_tensor_bounds_of_every_kind(name: str) -> None:
    """Bounds for each channel with x exactly at them, bounds larger than x, and, of two bounds, crossed ones and one beside a number."""
    samples = {sample.name: sample.build(torch.float32) for sample in OPS[name].samples}
    x, low, high = samples["per channel"]
    larger = samples["larger than x"]
    for bound in (low, high):
        if bound is not None:
            assert bound.shape == (3, 1)
            assert bool((x == bound).any(dim=1).all())
            assert bool((x > bound).any())
            assert bool((x < bound).any())
    assert (low is None, high is None) == (name == "upper_bound", name == "lower_bound")
    assert larger[0].dim() == 1
    assert all(t.dim() == 2 for t in tensors_of(larger[1:]))
    assert all(bool((larger[0] == bound).any()) for bound in tensors_of(larger[1:]))
    for bound, sign in ((low, -1), (high, 1)):
        assert bound is None or bool((bound.sign() == sign).all())
    for bound, sign in ((larger[1], -1), (larger[2], 1)):
        assert bound is None or bool((bound.sign() == sign).all())
    assert [v is None for v in larger[1:]] == [low is None, high is None]
    if name == "clamp":
        assert all(bool((v[1] < v[2]).all()) for v in (samples["per channel"], larger))
        _, low, high = samples["crossed"]
        assert bool((low > high).all())
        _, low, high = samples["a number and a tensor"]
        assert low == -1
        assert isinstance(high, Tensor)


@folded
@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_samples_are_fresh_tensors_of_the_dtype(op: Op) -> None:
    for sample in op.samples:
        for dtype in DTYPES:
            first, second = (tensors_of(sample.build(dtype)) for _ in range(2))
            assert {t.dtype for t in first} == {dtype}
            assert not {t.data_ptr() for t in first} & {t.data_ptr() for t in second}
    names = [sample.name for sample in op.samples]
    assert len(set(names)) == len(names)
