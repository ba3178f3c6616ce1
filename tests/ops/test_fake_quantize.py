"""fake_quantize against torch's own: equal values bit for bit, the gradients of scale and zero_point, and where torch differs."""

import math

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.testing.contract.equality import assert_same_bits

from ..choices import folded, one_in

SCALES = (1.0, 0.25, 0.1, 0.037, 3.0, 1e-3, 117.3)
GRIDS = ((-128, 127), (0, 255), (-8, 7), (-1, 1))
HALF = (torch.float16, torch.bfloat16)


def _values(dtype: torch.dtype, scale: float) -> Tensor:
    """10,000 finite numbers: most on the grid, some far beyond; with every half step and its neighbours."""
    torch.manual_seed(0)
    near = scale * 100 * torch.randn(6_000, dtype=torch.float64)
    wide = torch.randn(2_000, dtype=torch.float64) * torch.logspace(-30, 30, 2_000, dtype=torch.float64)
    halves = scale * (torch.arange(-1_000, 1_000, dtype=torch.float64) / 2)
    x = torch.cat([near, wide, halves]).to(dtype)
    halves = x[-2_000:]
    beside = [torch.nextafter(halves, torch.full_like(halves, side * math.inf)) for side in (-1, 1)]
    x = torch.cat([x, *beside, torch.tensor([0.0, -0.0], dtype=dtype)])
    return x[x.isfinite()]


def _torch_saturates() -> bool:
    """torch 2.8 sends a code that int64 cannot hold to quant_min, from above too."""
    return torch.fake_quantize_per_tensor_affine(torch.tensor([1e30]), 1.0, 0, -4, 3).item() == 3


def torch_counts_in_float32() -> bool:
    """torch 2.8 counts the steps of a wide grid in integers, and multiplies them in the dtype of x."""
    return torch.fake_quantize_per_tensor_affine(torch.tensor([0.3]).double(), 0.1, 0, -4, 3).item() != 3 * float(
        torch.tensor(0.1)
    )


@folded
@pytest.mark.parametrize(("grid", "dtype"), one_in(2, GRIDS, [torch.float64, torch.float32, *HALF]))
def test_values_per_tensor_are_torch_s_to_the_bit(grid: tuple[int, int], dtype: torch.dtype) -> None:
    if dtype is torch.float64 and not torch_counts_in_float32():
        pytest.skip("this torch multiplies in float64, where ours and later ones use float32")
    for scale in SCALES:
        x = _values(dtype, scale)
        if not _torch_saturates():
            x = x[x.abs() < 2.0**62 * scale]
        assert len(x) > 9_000
        for zero_point in {0, grid[0], grid[1], (grid[0] + grid[1]) // 2}:
            theirs = torch.fake_quantize_per_tensor_affine(x, scale, zero_point, *grid)
            assert_same_bits(
                pg.fake_quantize(x, scale, zero_point, *grid), theirs, f"{scale}, {zero_point}, not recording"
            )
            leaf = x.clone().requires_grad_()
            assert_same_bits(pg.fake_quantize(leaf, scale, zero_point, *grid), theirs, f"{scale}, {zero_point}")


WIDE = (
    *((0, 2**24 + 1), (-(2**26), 2**27), (-(2**31), 2**31 - 1), (0, 2**23), (0, 2**23 + 1)),
    (-(2**24) - 1, 2**14),  # wide below zero alone
)


@folded
@pytest.mark.parametrize(
    ("kind", "grid", "dtype"), one_in(3, ["numbers", "tensors"], WIDE, [torch.float64, torch.float32, *HALF])
)
def test_grids_that_float32_cannot_count(kind: str, grid: tuple[int, int], dtype: torch.dtype) -> None:
    """torch clamps and subtracts in integers, on both sides of every end and wherever the zero point is."""
    if not torch_counts_in_float32():
        pytest.skip("this torch does not round the steps to float32 before the last product, as ours and later ones do")
    torch.manual_seed(0)
    for scale in SCALES[1:4]:
        for zero_point in {0, 3, 12345, grid[1] // 4 + 1}:
            ends = torch.tensor([*grid, 2**24, 2**23], dtype=torch.float64) - zero_point
            codes = torch.cat([torch.arange(-30, 30) / 2 + end for end in ends] + [torch.randn(200) * grid[1]])
            x = (codes.double() * scale).to(dtype)
            x = x[x.isfinite()].requires_grad_()
            pair: tuple[object, object] = (scale, zero_point)
            if kind == "tensors":
                pair = torch.tensor(scale), torch.tensor(zero_point, dtype=torch.int32)
            ours, theirs = pg.fake_quantize(x, *pair, *grid), torch.fake_quantize_per_tensor_affine(x, *pair, *grid)
            assert_same_bits(ours, theirs, f"{scale}, {zero_point}")
            assert torch.equal(*(torch.autograd.grad(y.sum(), x)[0] for y in (ours, theirs)))


def test_a_float64_scale_keeps_its_precision() -> None:
    """torch reads a float64 scale as float32. Ours learns in float64, so it must notice a smaller step."""
    x = torch.tensor([0.0072, 0.3], dtype=torch.float64)
    scale = torch.tensor(0.001, dtype=torch.float64)
    y = pg.fake_quantize(x, scale)
    assert y.tolist() == [7 * 0.001, 127 * 0.001]
    moved = pg.fake_quantize(x, scale * (1 + 1e-12))
    assert ((moved - y) / y).tolist() == pytest.approx([1e-12, 1e-12], rel=1e-3)
    assert_same_bits(pg.fake_quantize(x, scale.float()), pg.fake_quantize(x, 0.001), "float32")


@pytest.mark.parametrize(
    ("dtype", "kind"), [*((dtype, torch.float64) for dtype in (torch.float32, *HALF)), (torch.float64, torch.float16)]
)
def test_a_scale_of_another_dtype_is_read_as_float32(dtype: torch.dtype, kind: torch.dtype) -> None:
    """A scale of float64 for an x of fewer bits, and scales of half precision."""
    x, scale = torch.linspace(-0.2, 0.2, 1001).to(dtype), torch.tensor(0.001, dtype=kind)
    assert_same_bits(pg.fake_quantize(x, scale), pg.fake_quantize(x, scale.float()), "value")


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_gradient_of_x_per_tensor_is_torch_s(grid: tuple[int, int], sign: float) -> None:
    """Both ends pass, whatever torch's clamp does there."""
    for scale in SCALES:
        x = _values(torch.float32, scale).requires_grad_()
        grad = sign * torch.linspace(0.5, 2, x.numel())
        (ours,) = torch.autograd.grad(pg.fake_quantize(x, scale, 1, *grid), x, grad)
        (theirs,) = torch.autograd.grad(torch.fake_quantize_per_tensor_affine(x, scale, 1, *grid), x, grad)
        assert torch.equal(ours, theirs)
        assert 0 < int(ours.count_nonzero()) < x.numel()


def test_per_channel_is_per_tensor_row_by_row() -> None:
    """Also for axis=None with a scale that broadcasts, and for one scale along an axis."""
    torch.manual_seed(0)
    x = 10 * torch.randn(5, 7, 3)
    scale, zero_point = torch.rand(7) + 0.01, torch.randint(-9, 9, (7,))
    for axis in (1, -2):
        y = pg.fake_quantize(x, scale, zero_point, axis=axis)
        for channel in range(7):
            alone = pg.fake_quantize(x[:, channel], scale[channel], zero_point[channel])
            assert_same_bits(y[:, channel], alone, f"channel {channel}")
    assert_same_bits(pg.fake_quantize(x, scale[:, None], zero_point[:, None]), y, "broadcast")
    for axis in (0, 1):
        shared = pg.fake_quantize(x[0], torch.tensor([0.25]), 0, -4, 3, axis=axis)
        assert_same_bits(shared, pg.fake_quantize(x[0], 0.25, 0, -4, 3), "one scale")


@pytest.mark.parametrize(
    "kind", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64], ids=str
)
def test_a_zero_point_may_have_any_dtype(kind: torch.dtype) -> None:
    x, scale = torch.linspace(-3, 3, 41).requires_grad_(), torch.tensor(0.25, requires_grad=True)
    y, expected = (pg.fake_quantize(x, scale, zero, 0, 15) for zero in (torch.tensor(3, dtype=kind), 3))
    assert_same_bits(y, expected, "value")
    gradients, of_number = (torch.autograd.grad(value.sum(), (x, scale)) for value in (y, expected))
    assert all(torch.equal(a, b) for a, b in zip(gradients, of_number, strict=True))


@pytest.mark.parametrize("rule", ["identity", "zero", "inward"])
def test_a_zero_point_learns_alone_as_it_does_beside_the_others(rule: str) -> None:
    leaves = [torch.linspace(-3, 3, 7), torch.tensor(0.25), torch.tensor(1.0)]
    for leaf in leaves:
        leaf.requires_grad_()
    (beside, *_) = torch.autograd.grad(pg.fake_quantize(*leaves, -4, 3, rule=rule).sum(), leaves[::-1])
    x, scale, zero_point = (leaf.detach() for leaf in leaves)
    alone = torch.autograd.grad(pg.fake_quantize(x, scale, leaves[2], -4, 3, rule=rule).sum(), leaves[2])[0]
    assert alone == beside
    assert alone == {"identity": 0.0, "zero": -5 * 0.25, "inward": -2 * 0.25}[rule]  # two below, three above
    assert not pg.fake_quantize(x, scale, zero_point, rule=rule).requires_grad


@pytest.mark.usefixtures("table_as_it_was")
def test_a_rule_of_ones_own_says_what_passes_outside_the_grid() -> None:
    """The function gets the code, the code clamped to the grid, and both ends of the grid."""

    def distance(grad: Tensor, x: Tensor, y: Tensor, min: float, max: float) -> Tensor:
        return grad * (x - y) / (max - min)

    formula = "grad * (x - y) / (max - min)"
    pg.register_rule("fake_quantize", formula=formula, source="a test", is_linear=True)(distance)
    x = torch.tensor([-3.0, 0.1, 1.5], requires_grad=True)
    pg.fake_quantize(x, 0.25, 0, -4, 4, rule="distance").sum().backward()
    assert x.grad.tolist() == [-1.0, 1.0, 0.25]


def test_infinite_inputs_go_to_the_ends_and_nan_stays() -> None:
    """The grid is that of int8 by default. torch 2.8 sends +inf to quant_min per tensor, and NaN becomes a number there."""
    x = torch.tensor([-torch.inf, -1e3, -128.0, 0.0, 127.0, 1e3, torch.inf, torch.nan])
    y = pg.fake_quantize(x, 1.0)
    assert (y[:-1].tolist(), y[-1].isnan()) == ([-128.0, -128.0, -128.0, 0.0, 127.0, 127.0, 127.0], True)
    x, scale = x[[0, 6]].requires_grad_(), torch.tensor(0.25, requires_grad=True)
    to_x, to_scale = torch.autograd.grad(pg.fake_quantize(x, scale, 0, -4, 3), (x, scale), torch.tensor([2.0, 1.0]))
    assert (to_x.tolist(), to_scale.item()) == ([0, 0], 3 - 2 * 4)
