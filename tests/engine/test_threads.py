"""Eight threads agree with one: what is remembered between calls is shared, so a race would show here."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.rule import OPS

RULES = list(OPS["clamp"].rules)


def _gradients(seed: int, steps: int) -> list[Tensor]:
    """Many calls whose rule, edge, bounds and dtype change all the time."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for step in range(steps):
        x = torch.randn(50, generator=generator).mul(2).to([torch.float32, torch.float16, torch.float64][step % 3])
        x.requires_grad_()
        how = {"rule": RULES[step % len(RULES)], "edge": OPS["clamp"].edges[step % 4], "maximize": step % 5 == 0}
        y = pg.clamp(x, -1 - step % 60 / 100, 1 + seed, **how)
        found += torch.autograd.grad(y, x, torch.linspace(-1, 1, 50, dtype=x.dtype))
    return found


@pytest.mark.parametrize("steps", [300, pytest.param(1000, marks=pytest.mark.program)])
def test_eight_threads_agree_with_one(steps: int) -> None:
    expected = [_gradients(seed, steps) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for one, many in zip(expected, pool.map(_gradients, range(8), [steps] * 8), strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one, many, strict=True))
