"""The trainings of scripts/jax_trainings.py, ported to torch line by line."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

STEPS, RATE = 100, 0.05

DOUBLE = torch.float64


def numbers(count: int, seed: float) -> list[float]:
    return [math.sin(seed + 1.7 * at) for at in range(count)]


def _tensor(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=DOUBLE)


def gains(gain: Tensor, weight: Tensor) -> Tensor:
    x, target = _tensor(numbers(24, 0.3)).reshape(8, 3), _tensor(numbers(8, 1.1))
    return ((x * torch.abs(gain)) @ weight - target).abs().mean() + 0.01 * torch.linalg.norm(gain, 1)


def bounded(weight: Tensor, bias: Tensor) -> Tensor:
    x, target = _tensor(numbers(24, 0.3)).reshape(8, 3), _tensor(numbers(8, 1.1))
    found = x @ torch.clamp(weight, -1.0, 1.0) + functional.hardtanh(bias)
    return ((found - 2.0 * target) ** 2).mean()


def ties(weight: Tensor, mix: Tensor) -> Tensor:
    x, target = _tensor(numbers(24, 0.3)).reshape(8, 3), _tensor(numbers(8, 1.1))
    hidden = functional.leaky_relu(x[:, :, None] * weight, 0.1)
    largest = hidden.max(dim=2).values @ torch.fmax(mix[0], mix[1])
    return ((largest - target) ** 2).mean() + 0.1 * torch.median(weight) + 0.1 * torch.max(mix, dim=0).values.sum()


TRAININGS: dict[str, tuple[Callable[..., Tensor], Callable[[], list[Tensor]]]] = {
    "gains": (gains, lambda: [torch.zeros(3, dtype=DOUBLE), _tensor(numbers(3, 2.0))]),
    "bounded": (bounded, lambda: [_tensor([1.0, -1.0, 1.0]), _tensor([1.0])]),
    "ties": (ties, lambda: [torch.zeros(5, dtype=DOUBLE), torch.full((2, 3), 0.5, dtype=DOUBLE)]),
}


def trained(loss: Callable[..., Tensor], parameters: list[Tensor]) -> list[float]:
    found = []
    for _ in range(STEPS):
        leaves = [one.detach().requires_grad_() for one in parameters]
        value = loss(*leaves)
        grads = torch.autograd.grad(value, leaves)
        found.append(value.item())
        parameters = [one - RATE * grad for one, grad in zip(leaves, grads, strict=True)]
    return found + [one for parameter in parameters for one in parameter.detach().reshape(-1).tolist()]
