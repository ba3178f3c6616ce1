"""A pin to the era of the installed torch is that torch, element for element, also where x and both bounds have three dtypes."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch import Tensor

from pseudograd.rewrite.override import override
from pseudograd.rewrite.pin_edge import pin_edge
from pseudograd.torch_table.eras import installed_era

from ..choices import folded

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SHAPES = ((), (3,), (2, 3))


def gradients(inputs: tuple[Tensor, ...]) -> list[Tensor]:
    leaves = [value.clone().requires_grad_() for value in inputs]
    y = torch.clamp(*leaves)
    return list(torch.autograd.grad(y, leaves, torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(y.dtype)))


@folded
@pytest.mark.parametrize("shapes", list(itertools.product(SHAPES, repeat=3)), ids=str)
def test_three_dtypes(shapes: tuple[tuple[int, ...], ...]) -> None:
    chance, compared = random.Random(str(shapes)), 0
    for dtypes in itertools.product(DTYPES, repeat=3):
        inputs = tuple(
            torch.tensor(
                [chance.choice((0.1, 0.3, -0.1, 0.7, 0.70001, 1 / 3)) for _ in range(torch.Size(shape).numel())]
            )
            .reshape(shape)
            .to(chance.choice(DTYPES))
            .to(dtype)
            for shape, dtype in zip(shapes, dtypes, strict=True)
        )
        try:
            wanted = gradients(inputs)
        except RuntimeError:  # torch 2.13 cannot sum some of these
            continue
        with override(clamp="sign"), pin_edge(installed_era()):  # inside another context, so that it acts
            found = gradients(inputs)
        assert [g.dtype for g in found] == [g.dtype for g in wanted]
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True)), dtypes
        compared += 1
    assert compared > 0 or torch.Size(shapes[0]).numel() < 6
