"""The step that an optimiser wants to take: its size for each sampled entry, and whether the optimiser keeps what rounding takes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...torch_table.private import local
from .norms import sample

_REST_NAMES = (
    "kahan",
    "compensation",
    "shift",
    "master",
    "residual",
)  # in the state of an optimiser that keeps what rounding takes

State = Mapping[str, Any]  # what an optimiser keeps of one parameter
Group = Mapping[str, Any]  # the settings of a group of an optimiser


def expected_step(tensor: Tensor, group: Group, state: State, before: Tensor) -> Tensor | None:
    """How far the optimiser wants to move each sampled entry, in float32; None for an optimiser that is neither like Adam nor like SGD.

    before: the entries before the step.
    """
    rate, kept = group.get("lr"), _kept_by_entry(tensor, state)
    if (
        not isinstance(rate, (int, float, Tensor))
        or tensor.grad is None
        or not all(map(_is_plain_tensor, kept.values()))
    ):
        return None
    tensors = {name: sample(value).float() for name, value in kept.items()}
    if {"exp_avg", "exp_avg_sq"} <= tensors.keys():
        count = state.get("step", 1)
        first, second = group.get("betas", (0.0, 0.0))
        mean = tensors["exp_avg"] / _bias(first, count)
        square = tensors.get("max_exp_avg_sq", tensors["exp_avg_sq"]) / _bias(second, count)
        return rate * mean.abs() / (square.sqrt() + group.get("eps", 1e-8))
    pull = add_decay(sample(tensor.grad), before, group).float()
    if not tensors:
        return rate * pull.abs()
    if tensors.keys() != {"momentum_buffer"}:
        return None
    momentum = tensors["momentum_buffer"]
    return rate * (pull + group.get("momentum", 0.0) * momentum if group.get("nesterov") else momentum).abs()


def _bias(beta: float, count: float | Tensor) -> float | Tensor:
    bias = 1 - beta**count
    return bias if isinstance(bias, Tensor) else bias or 1.0


def add_decay(grads: Tensor, weights: Tensor, group: Group) -> Tensor:
    """The gradient with the weight decay that SGD and Adam add to it. AdamW does not."""
    decay = group.get("weight_decay")
    if not isinstance(decay, float) or not decay or group.get("decoupled_weight_decay"):
        return grads
    return grads + decay * weights


def is_zero(rate: object) -> bool:
    """A rate on a device counts as a rate other than 0: it is not waited for."""
    if isinstance(rate, Tensor):
        return rate.is_cpu and rate.numel() == 1 and bool(local(rate) == 0)
    return isinstance(rate, (int, float)) and rate == 0


def number_of(rate: object) -> float | None:
    """A device is not waited for."""
    if isinstance(rate, Tensor):
        return float(rate) if rate.is_cpu and rate.numel() == 1 else None
    return float(rate) if isinstance(rate, (int, float)) else None


def spacing(weight: Tensor) -> Tensor:
    """The distance from each weight to the next number of its dtype, in float32."""
    _, exponent = torch.frexp(weight.float())
    limits = torch.finfo(weight.dtype)
    distance = torch.ldexp(torch.full_like(weight, limits.eps, dtype=torch.float32), exponent - 1)
    return distance.clamp(min=max(limits.smallest_normal * limits.eps, 1e-45))


def keeps_rest(state: State, tensor: Tensor) -> bool:
    """Does the optimiser keep the weights in full precision, or what rounding took from them?"""
    for name, value in _kept_by_entry(tensor, state).items():
        if any(word in name.lower() for word in _REST_NAMES):
            return True
        is_wider = _is_plain_tensor(value) and value.dtype.itemsize > tensor.dtype.itemsize
        if is_wider and torch.equal(sample(value).to(tensor.dtype), sample(tensor)):
            return bool(sample(tensor).any())
    return False


def _kept_by_entry(tensor: Tensor, state: State) -> dict[str, Tensor]:
    """The tensors of a state with a number for each entry of the parameter."""
    return {
        name: value
        for name, value in state.items()
        if name != "step" and isinstance(value, Tensor) and value.shape == tensor.shape
    }


def _is_plain_tensor(value: object) -> bool:
    """Is it no tensor of a class of its own, as states of 8 bits are?"""
    return type(value) in (Tensor, torch.nn.Parameter)
