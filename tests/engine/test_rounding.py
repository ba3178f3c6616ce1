"""Number bounds are rounded as torch rounds them, and the neighbour of a bound is the next number of the dtype."""

import math

import pytest
import torch
from torch import Tensor

from pseudograd.arguments import rounded, rounded_to
from pseudograd.kernels import portable
from pseudograd.ops import registration
from pseudograd.testing.measure.inputs import DTYPES, random_bits

from ..contract.cases import every_dtype

_INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def _values(dtype: torch.dtype) -> list[float]:
    """Doubles of every magnitude, and those halfway between two numbers of dtype, where rounding to even decides."""
    at = random_bits(300, dtype, seed=5)
    at = at[at.isfinite()].double()
    halfway = at * (1 + torch.finfo(dtype).eps / 2)
    doubles = torch.randn(200, dtype=torch.float64).mul(3)
    return [value for value in torch.cat([at, halfway, doubles, -doubles.exp()]).tolist() if math.isfinite(value)]


@every_dtype
def test_rounding_is_torch_s(dtype: torch.dtype) -> None:
    for value in _values(dtype):
        expected = torch.full((), value, dtype=torch.float64).to(torch.float32).to(dtype).item()
        if dtype is torch.float64:
            expected = value
        assert rounded_to(value, dtype) == expected, value


@every_dtype
def test_a_users_formula_is_its_own_reference_as_precise_as_backward(dtype: torch.dtype) -> None:
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    result = registration._reference_by_tensors(lambda x: (x + 1) - 1)(
        2.0**-40, fl=lambda v: rounded_to(v, wide), settings={}
    )
    assert result == (2.0**-40 if dtype is torch.float64 else 0.0)


@every_dtype
def test_ends_of_the_dtype(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    for value in (info.max, info.min, info.tiny, -info.tiny, 0.0, math.inf, -math.inf):
        assert rounded_to(value, dtype) == value
    assert math.isnan(rounded_to(math.nan, dtype))
    if dtype is not torch.float64:
        assert rounded_to(1e300, dtype) == math.inf
        assert rounded_to(-1e300, dtype) == -math.inf
    assert rounded_to(3, dtype) == 3.0


def test_what_is_rounded_and_what_is_not() -> None:
    tensor = torch.tensor(0.3)
    assert rounded(tensor, torch.zeros((), dtype=torch.float16)) is tensor
    assert rounded(0.3, torch.zeros((), dtype=torch.float64)) == 0.3
    assert rounded(0.3, tensor) == tensor.item() != 0.3
    assert rounded(0.3, tensor.half()) == tensor.half().item()


def _next(x: Tensor, up: bool) -> Tensor:
    """The next number by counting bit patterns, which are ordered for each sign."""
    bits = x.view(_INTEGER[x.dtype.itemsize])
    away = (x > 0) if up else (x < 0)
    smallest = torch.ones_like(bits).view(x.dtype) * (1 if up else -1)
    return torch.where(x == 0, smallest, torch.where(away, bits + 1, bits - 1).view(x.dtype))


@pytest.mark.parametrize("up", [True, False], ids=["above", "below"])
@every_dtype
def test_neighbour_is_the_next_number(dtype: torch.dtype, up: bool) -> None:
    powers = torch.tensor([sign * 2.0**k for k in range(-14, 15) for sign in (1, -1)], dtype=torch.float64).to(dtype)
    info = torch.finfo(dtype)
    ends = torch.tensor([info.tiny, -info.tiny, 0.0, 1.0, 0.7, -0.3], dtype=torch.float64).to(dtype)
    random = random_bits(300, dtype, seed=6)
    x = torch.cat([powers, ends, random[random.isfinite() & (random.abs() < info.max)]])
    for value, expected in zip(x.tolist(), _next(x, up).tolist(), strict=True):
        assert portable._neighbour(value, dtype, up, False) == expected, value


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_neighbour_where_subnormals_count_as_zero(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).tiny
    assert portable._neighbour(0.0, dtype, True, True) == tiny
    assert portable._neighbour(0.0, dtype, False, True) == -tiny
    assert portable._neighbour(1.0, dtype, True, True) > 1
    assert portable._neighbour(torch.finfo(dtype).max, dtype, True, False) == math.inf
