"""override(fake_quantize="zero") is torch's own gradient, whatever the scale and the zero point are, at the ends of the grid too."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import pseudograd as pg

from ..choices import folded
from ..ops.test_fake_quantize import torch_counts_in_float32

CASES = 12
GRIDS = ((-8, 7), (0, 15), (-128, 127), (0, 2**24 + 3))


def _at_the_ends(scale: Tensor, zero_point: Tensor, grid: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """(channels, 400): around both ends, where a code turns into the next, each with the numbers beside it."""
    ends = torch.tensor([[grid[0] - 0.5, grid[1] + 0.5, grid[0] + 0.5, grid[1] - 0.5, *grid]], dtype=torch.float64)
    exact = (ends - zero_point.double().reshape(-1, 1)) * scale.double().reshape(-1, 1)
    near = exact.repeat(1, 60)
    eps = torch.finfo(dtype).eps
    near = near * (1 + torch.randint(-5, 6, near.shape) * eps / 2)
    far = torch.randn(len(exact), 40, dtype=torch.float64) * exact.abs().amax(1, keepdim=True)
    return torch.cat([near, far], 1).to(dtype)


def _gradients(x: Tensor, f: Callable[..., Tensor], arguments: tuple[object, ...]) -> tuple[Tensor, Tensor]:
    """The gradients of the stand-in and torch's own, for grads of both signs."""
    grad = torch.where(torch.rand(x.shape) < 0.5, -2.0, 3.0).to(x.dtype)
    x = x.clone().requires_grad_()
    (theirs,) = torch.autograd.grad(f(x, *arguments), x, grad)
    with pg.override(fake_quantize="zero"):
        (ours,) = torch.autograd.grad(f(x, *arguments), x, grad)
    return ours, theirs


DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@folded
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", [torch.int32, torch.float32, torch.float16], ids=str)
def test_per_channel(kind: torch.dtype, dtype: torch.dtype) -> None:
    blocked = passed = 0
    for case in range(CASES):
        low, high = grid = GRIDS[case % 3]
        scale = torch.rand(3) * 0.05 + 0.001
        zero_point = torch.randint(low, high + 1, (3,)).float()
        if kind is not torch.int32:
            fraction = torch.tensor([0.5, 0.25, 0.0]) * (case % 2) + torch.rand(3) * (case % 3 == 0)
            zero_point = (zero_point + fraction).clamp(low, high)
        axis, arguments = case % 2, (scale, zero_point.to(kind), case % 2, *grid)
        x = _at_the_ends(scale, arguments[1], grid, dtype)
        ours, theirs = _gradients(x if axis == 0 else x.mT, torch.fake_quantize_per_channel_affine, arguments)
        assert torch.equal(ours, theirs), (case, int((ours != theirs).sum()))
        blocked, passed = blocked + int((theirs == 0).sum()), passed + int((theirs != 0).sum())
    assert min(blocked, passed) > 2000


@folded
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", [None, torch.int32, torch.int64, torch.float32], ids=str)
def test_per_tensor(kind: torch.dtype | None, dtype: torch.dtype) -> None:
    """Numbers and tensors: torch reads a tensor scale as float32, and cuts a tensor zero point off to an integer."""
    for case in range(CASES):
        low, high = grid = GRIDS[case % 4]
        if high > 2**24 and not torch_counts_in_float32():
            continue
        scale, zero_point = (
            float(torch.rand(1).double() * 0.05 + 0.001),
            int(torch.randint(low, min(high, 1000) + 1, (1,))),
        )
        x = _at_the_ends(torch.tensor([scale]), torch.tensor([zero_point]), grid, dtype)
        arguments: tuple[object, object] = (scale, zero_point)
        if kind is not None:
            fraction = 0.75 * (kind is torch.float32) * (1 if zero_point > 0 else -1)
            wide = torch.float64 if case % 2 else torch.float32
            arguments = (
                torch.tensor(scale, dtype=wide),
                torch.tensor(zero_point + fraction, dtype=torch.float64).to(kind),
            )
        ours, theirs = _gradients(x[x.isfinite()], torch.fake_quantize_per_tensor_affine, (*arguments, *grid))
        assert torch.equal(ours, theirs), (case, arguments, int((ours != theirs).sum()))
