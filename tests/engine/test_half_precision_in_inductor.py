"""Bounds that half precision cannot hold, under Inductor, which computes it in float32: "at the bound" is the rounded bound there too."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg

LOW, HIGH = -0.3, 0.7
Function = Callable[[Tensor], Tensor]


def _clamp(**how: Any) -> Function:
    return lambda x: pg.clamp(x, LOW, HIGH, **how)


FUNCTIONS: dict[str, Function] = {
    "zero/open": _clamp(rule="zero", edge="open"),
    "fused on both sides": lambda x: pg.clamp(x * 1, LOW, HIGH, rule="zero", edge="open") * 2,
    "window": lambda x: pg.sign(x, rule=pg.rules.window(HIGH, 0.7)),
    "a tensor and a number": lambda x: pg.clamp(x, torch.full_like(x, LOW), HIGH, rule="zero"),
}


def _points(dtype: torch.dtype) -> Tensor:
    """Both rounded bounds, the numbers beside them, and others."""
    bounds = torch.tensor([LOW, HIGH, -HIGH], dtype=torch.float64).to(dtype)
    beside = [torch.nextafter(bounds, torch.full_like(bounds, side * torch.inf)) for side in (-1, 1)]
    return torch.cat([bounds, *beside, torch.tensor([-2.0, 0.0, 0.05, 2.0], dtype=dtype)])


@pytest.mark.program
@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)])
def test_gradients_at_rounded_bounds_are_those_of_the_eager_call(dtype: torch.dtype) -> None:
    def all_of_them(x: Tensor) -> Tensor:
        return torch.stack([f(row) for f, row in zip(FUNCTIONS.values(), x)])  # noqa: B905  Dynamo on torch 2.8

    compiled = torch.compile(all_of_them, backend="inductor", fullgraph=True)
    points = _points(dtype)
    x = points.repeat(len(FUNCTIONS), 1)
    for size in (0.3, -0.3, 0.9, -0.9):
        results = []
        for f in (all_of_them, compiled):
            leaf = x.clone().requires_grad_()
            y = f(leaf)
            results.append((y.detach(), *torch.autograd.grad(y, leaf, torch.full_like(y, size))))
        for row, name in enumerate(FUNCTIONS):
            for eager, ours in zip(*results, strict=True):
                assert torch.equal(ours[row], eager[row]), (name, size, points, ours[row], eager[row])
