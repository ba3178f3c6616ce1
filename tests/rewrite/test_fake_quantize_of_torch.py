"""override(fake_quantize="zero") is torch's own gradient, whatever the scale and the zero point are, at the ends of the grid too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import pseudograd as pg

from ..choices import folded
from ..ops.test_fake_quantize import torch_counts_in_float32

CASES = 12
GRIDS = ((-8, 7), (0, 15), (-128, 127), (0, 2**24 + 3))


def _at_the_ends(scale: float, zero_point: int, grid: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """400 numbers: around both ends, where a code turns into the next, each with the numbers beside it."""
    ends = torch.tensor([grid[0] - 0.5, grid[1] + 0.5, grid[0] + 0.5, grid[1] - 0.5, *grid], dtype=torch.float64)
    near = ((ends - zero_point) * scale).repeat(60)
    near = near * (1 + torch.randint(-5, 6, near.shape) * torch.finfo(dtype).eps / 2)
    far = torch.randn(40, dtype=torch.float64) * near.abs().max()
    return torch.cat([near, far]).to(dtype)


DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@folded
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", [None, torch.int32, torch.int64, torch.float32], ids=str)
def test_per_tensor(kind: torch.dtype | None, dtype: torch.dtype) -> None:
    """Numbers and tensors: torch reads a tensor scale as float32, and cuts a tensor zero point off to an integer."""
    for case in range(CASES):
        low, high = grid = GRIDS[case % 4]
        if high > 2**24 and not torch_counts_in_float32():
            continue
        scale = float(torch.rand(1).double() * 0.05 + 0.001)
        zero_point = int(torch.randint(low, min(high, 1000) + 1, (1,)))
        arguments: tuple[object, object] = (scale, zero_point)
        if kind is not None:
            fraction = 0.75 * (kind is torch.float32) * (1 if zero_point > 0 else -1)
            wide = torch.float64 if case % 2 else torch.float32
            arguments = torch.tensor(scale, dtype=wide), torch.tensor(zero_point + fraction).to(kind)
        x = _at_the_ends(scale, zero_point, grid, dtype)
        x = x[x.isfinite()].requires_grad_()
        y = torch.fake_quantize_per_tensor_affine(x, *arguments, *grid)
        grad = torch.where(torch.rand(x.shape) < 0.5, -2.0, 3.0).to(x.dtype)
        (theirs,) = torch.autograd.grad(y, x, grad)
        with pg.override(fake_quantize="zero"):
            y = torch.fake_quantize_per_tensor_affine(x, *arguments, *grid)
        (ours,) = torch.autograd.grad(y, x, grad)
        assert torch.equal(ours, theirs), (case, arguments, int((ours != theirs).sum()))
