"""What the formulas of several families share."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling


def nothing_of(grad: Tensor) -> Tensor:
    """Zeros, also where grad is infinite or NaN; connected to grad, so that a second derivative exists and is 0."""
    return torch.where(torch.zeros((), dtype=torch.bool, device=grad.device), grad, 0.0)


def alias(x: Tensor) -> Tensor:
    """The same storage under a new tensor. A compiler gets a copy: it refuses outputs that alias inputs, and fuses the copy away.

    So does forward mode, which wants the tangent to be a view where the value is one.
    """
    return x.clone() if is_compiling() or forward_ad._current_level >= 0 else x.view_as(x)


def widened(x: Tensor) -> Tensor:
    """Half precision as float32, for formulas whose steps should not be rounded one by one; other dtypes as they are."""
    return x.float() if x.dtype is torch.float16 or x.dtype is torch.bfloat16 else x
