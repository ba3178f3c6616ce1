"""A residual of two bits per element, in plain ATen: below, inside, above, at a bound. It has no kernel but one that counts.

It serves the rules that are piecewise constant in x between number bounds. The tests prove with it that what a call keeps is data.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pseudograd.kernels import Kernel
from pseudograd.kernels.residuals import Residual
from pseudograd.rule import Call

RULES = [("clamp", name) for name in ("zero", "inward", "sign", "leaky")]
INSIDE, BELOW, ABOVE, AT = range(4)


def _serves(call: Call, inputs: tuple[Any, ...], wants: tuple[bool, ...]) -> bool:
    x, low, high = inputs
    if not (isinstance(low, float) and isinstance(high, float) and low < high and x.is_floating_point()):
        return False
    return call.edge != "inward" and type(x) in (Tensor, torch.nn.Parameter) and x.layout is torch.strided


def _encode(call: Call, inputs: tuple[Any, ...], wants: tuple[bool, ...]) -> tuple[Tensor, list[Any]]:
    x, low, high = inputs
    y = torch.clamp(x, low, high)
    at = (x == y) & ((y == torch.full_like(y, low)) | (y == torch.full_like(y, high)))
    code = (x < y).byte() * BELOW + (x > y).byte() * ABOVE + at.byte() * AT
    flat = torch.nn.functional.pad(code.reshape(-1), (0, -x.numel() % 4)).reshape(-1, 4)
    packed = flat[:, 0] | flat[:, 1] << 2 | flat[:, 2] << 4 | flat[:, 3] << 6
    return y, [packed, tuple(x.shape)]


def _pull(grad: Tensor, saved: list[Any], wants: tuple[bool, ...], call: Call) -> tuple[Any, ...]:
    """The rule's own formula, on an x that stands where the code says."""
    packed, shape = saved
    code = torch.stack([packed >> shift & 3 for shift in (0, 2, 4, 6)], dim=-1).reshape(-1)
    code = code[: torch.Size(shape).numel()].reshape(shape)
    places = torch.tensor([0.5, 0.0, 1.0, 0.25], device=code.device)
    x = places[code.long()].to(grad.dtype)
    low, high = 0.25, 0.75  # any two numbers: these rules ask on which side x stands, not how far
    y = torch.where(x < low, low, torch.where(x > high, high, x))
    grad_x, *_ = call.pull(grad, (x, low, high), y, (True, False, False))
    return grad_x, None, None


def _nbytes(call: Call, inputs: tuple[Any, ...], wants: tuple[bool, ...]) -> int:
    return -(-inputs[0].numel() // 4)


def _suits(call: Call) -> bool:
    return call.primitive.name in ("clamp", "lower_bound", "upper_bound") and ("clamp", call.rule.name) in RULES


TWO_BITS = Residual("two bits", _serves, _encode, _pull, _nbytes, _suits)


def counting_kernel(ran: list[str]) -> Kernel:
    """The same again as a kernel, which notes that it ran."""

    def forward(call: Call, inputs: tuple[Any, ...], wants: tuple[bool, ...]) -> tuple[Tensor, list[Any]]:
        ran.append("forward")
        return _encode(call, inputs, wants)

    def backward(grad: Tensor, saved: list[Any], wants: tuple[bool, ...], call: Call) -> tuple[Any, ...]:
        ran.append("backward")
        return _pull(grad, saved, wants, call)

    return Kernel("counting", TWO_BITS, _suits, backward, forward, priority=50)
