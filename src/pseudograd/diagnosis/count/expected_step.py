"""How far an optimiser of torch wants to move a parameter, from what it keeps, against the distance to the next number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .motion import sample

_OF_THE_REST = ("kahan", "compensation", "shift", "master", "residual")  # in names of what an optimiser keeps


def expected_step(tensor: Tensor, group: Mapping[str, object], state: Mapping[str, Any]) -> Tensor | None:
    """Of some entries, in float32; None for an optimiser that keeps other things than Adam and SGD do."""
    rate = group.get("lr")
    if not isinstance(rate, (int, float)) or tensor.grad is None:
        return None
    kept = {name for name, value in state.items() if isinstance(value, Tensor) and value.shape == tensor.shape}
    if {"exp_avg", "exp_avg_sq"} <= kept:
        return _of_adam(float(rate), group, state)
    if not kept:
        return plain_step(sample(tensor.grad), group)
    if kept == {"momentum_buffer"}:
        return rate * sample(state["momentum_buffer"]).float().abs()
    return None


def plain_step(grad: Tensor, group: Mapping[str, object]) -> Tensor | None:
    """Of an optimiser that keeps nothing."""
    rate = group.get("lr")
    return rate * grad.float().abs() if isinstance(rate, (int, float)) else None


def _of_adam(rate: float, group: Mapping[str, Any], state: Mapping[str, Any]) -> Tensor:
    count = float(state.get("step", 1) or 1)
    first, second = group.get("betas", (0.0, 0.0))
    mean = sample(state["exp_avg"]).float() / (1 - first**count or 1)
    square = sample(state["exp_avg_sq"]).float() / (1 - second**count or 1)
    return rate * mean.abs() / (square.sqrt() + group.get("eps", 1e-8))


def spacing(weight: Tensor) -> Tensor:
    """The distance from each weight to the next number of its dtype, in float32."""
    _, exponent = torch.frexp(weight.float())
    smallest = torch.finfo(weight.dtype).smallest_normal
    return torch.ldexp(torch.full_like(weight, torch.finfo(weight.dtype).eps, dtype=torch.float32), exponent - 1).clamp(
        min=max(smallest * torch.finfo(weight.dtype).eps, 1e-45)
    )


def keeps_the_rest(state: Mapping[str, object], tensor: Tensor) -> bool:
    """Weights of full precision, or what summation has lost."""
    for name, value in state.items():
        if not isinstance(value, Tensor) or value.shape != tensor.shape:
            continue
        if any(word in str(name).lower() for word in _OF_THE_REST):
            return True
        if value.dtype.itemsize > tensor.dtype.itemsize and torch.equal(sample(value).to(tensor.dtype), sample(tensor)):
            return bool(sample(tensor).any())
    return False
