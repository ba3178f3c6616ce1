"""The formula of an element-wise rule on a part of x at a time, so that its temporaries stay in the processor's cache.

It serves rules whose formula `is_long` and that no other kernel computes. The numbers are those of the formula.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import formula
from ..rule import Call, Gradients, Wants
from . import bits
from .residuals import INPUTS, Saved
from .table import Kernel, register

LEAST = 2**22  # elements: fewer fit the cache anyhow
PART = 2**15  # for each thread: torch shares no fewer among several


def _backward(grad: Tensor, saved: Saved, wants: Wants, call: Call) -> Gradients | None:
    x, *others = saved
    if x.numel() < LEAST or x.dtype not in bits.DTYPES or grad.dtype is not x.dtype or grad.shape != x.shape:
        return None
    if any(isinstance(other, Tensor) for other in others) or bits.order_of(x) is None:
        return None
    grad_x = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
    laid_grad = grad if grad.stride() == x.stride() else grad_x.copy_(grad)
    flat_x, flat_grad, flat = (tensor.as_strided((x.numel(),), (1,)) for tensor in (x, laid_grad, grad_x))
    size = PART * torch.get_num_threads()
    for start in range(0, x.numel(), size):
        part = slice(start, start + size)
        gradient = formula.pull(flat_grad[part], [flat_x[part], *others], wants, call)[0]
        assert gradient is not None
        flat[part] = gradient
    return grad_x, *[None] * len(others)


BLOCKWISE = Kernel("portable", INPUTS, lambda call: call.rule.is_long, _backward, device="cpu", priority=10)
register(BLOCKWISE)
