"""A function of whole tensors as functions of one number: along random lines, weighted with a random grad."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..testing.measure.behaviour import gradient_of

Function = Callable[[Tensor], Tensor]
LINES = 3


def along_lines(
    f: Function, shape: tuple[int, ...], y_shape: torch.Size, low: float, high: float, lines: int = LINES
) -> list[Function]:
    """For each line t -> sum(weight * f(start + t * direction)), element-wise in t: its gradient is what a loss along it would see.

    t runs from low to high. The elements of a start are small beside that range, those of a direction of about 1.
    """
    generator = torch.Generator().manual_seed(0)

    def random(size: tuple[int, ...] | torch.Size) -> Tensor:
        return torch.randn(size, dtype=torch.float64, generator=generator)

    return [_line(f, random(shape) * 0.1 * (high - low), random(shape), random(y_shape)) for _ in range(lines)]


def _line(f: Function, start: Tensor, direction: Tensor, weight: Tensor) -> Function:
    direction = direction / direction.square().mean().sqrt()

    def at_one(t: Tensor) -> Tensor:
        return (f(start + t * direction) * weight).sum()

    def one_by_one(t: Tensor) -> Tensor:
        return torch.stack([at_one(one) for one in t.reshape(-1).unbind()]).reshape(t.shape)

    def at_once(t: Tensor) -> Tensor:
        return torch.func.vmap(at_one)(t.reshape(-1)).reshape(t.shape)

    return at_once if _are_alike(at_once, one_by_one) else one_by_one


def _are_alike(at_once: Function, one_by_one: Function) -> bool:
    """Does f work under vmap, with the same values and gradients?"""
    t = torch.linspace(-1, 1, 7, dtype=torch.float64)
    try:
        pairs = [(at_once(t), one_by_one(t))]
        pairs += [(gradient_of(at_once, t, grad), gradient_of(one_by_one, t, grad)) for grad in (1.0, -1.0)]
    except Exception:
        return False
    return all(torch.allclose(a, b, rtol=1e-12, atol=1e-12) for a, b in pairs)
