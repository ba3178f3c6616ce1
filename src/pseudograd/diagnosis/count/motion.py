"""How far a parameter came from where it was, by some of its entries."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...torch_table.private import local

SAMPLE = 1024


def some_of(tensor: Tensor) -> Tensor:
    """At most some entries of it, evenly spread."""
    flat = tensor.detach().reshape(-1)
    every = flat.numel() // SAMPLE
    return flat[::every] if every > 1 else flat


def sample(tensor: Tensor) -> Tensor:
    """A copy of them."""
    return some_of(tensor).clone()


class Motion:
    """Looks at a parameter now and then."""

    def __init__(self) -> None:
        self._first: Tensor | None = None
        self._last: Tensor | None = None

    def look(self, tensor: Any) -> None:
        if tensor is None:
            return
        now = sample(local(tensor))
        if self._first is None or self._first.shape != now.shape:
            self._first = now
        self._last = now

    @property
    def far(self) -> float:
        """|last - first| / |first|; infinite from 0 on, NaN where nothing was seen."""
        if self._first is None or self._last is None:
            return math.nan
        first, apart = (
            float(torch.linalg.vector_norm(one.double()))
            for one in (self._first, self._last.double() - self._first.double())
        )
        return apart / first if first else math.inf if apart else 0.0
