"""A gradient beside the program's own gradient of the same parameter."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .course import dense


class Comparison(NamedTuple):
    """The share of zeros of the gradient, its norm, the squared norms of both, their product, and the squared norm of their difference.
    The last four add up over parameters.
    """

    zero: float = 0.0
    norm: float = 0.0
    square: float = 0.0
    own: float = 0.0
    product: float = 0.0
    apart: float = 0.0

    @property
    def cosine(self) -> float:
        return self.product / math.sqrt(self.own) / math.sqrt(self.square) if self.own and self.square else math.nan

    @property
    def share(self) -> float:
        """|g_other - g| / |g|"""
        if not self.own:
            return math.inf if self.apart else 0.0
        return math.sqrt(self.apart / self.own)


def compare_gradients(grad: Tensor | None, own: Tensor) -> Comparison:
    """None is a gradient of zeros."""
    mine = dense(own)
    other = torch.zeros_like(mine) if grad is None else mine if grad is own else dense(grad)
    apart = other - mine
    zero = float((other == 0).double().mean()) if other.numel() else 0.0
    squares = (float(first @ second) for first, second in ((other, other), (mine, mine), (mine, other), (apart, apart)))
    return Comparison(zero, float(other.norm()), *squares)
