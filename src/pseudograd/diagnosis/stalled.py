"""Steps that rounding swallows: weights of half precision that have a gradient and do not move when their optimiser steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..torch_private import without_torch_function
from ..trace import frames
from ..trace.frames import NOWHERE
from .harmless import Errors, harmless
from .quietly import quietly

_SAMPLE = 1024  # entries of a parameter that are looked at
_LEAST = 10  # steps: with fewer nobody can say that an entry never moves
STALLED = 0.5  # of the entries that have a gradient
_LOW = (torch.bfloat16, torch.float16)


class Watched:
    """Some entries of one parameter: which of them ever had a gradient, and which ever moved."""

    def __init__(self, tensor: Tensor, leaf: Any) -> None:
        self.leaf = leaf
        self.size, self.dtype, self.device = tensor.numel(), tensor.dtype, tensor.device
        self.steps = 0
        self.had = self.moved = torch.zeros(())
        self._before: Any = None

    def before(self, tensor: Tensor) -> None:
        now = _sample(tensor.detach())
        if self._before is None:
            self.had = self.moved = torch.zeros_like(now, dtype=torch.bool)
        else:  # as after a copy from weights of full precision, which others keep
            self.moved = self.moved | (now != self._before)
        self._before = now
        self.had = self.had | (_sample(tensor.grad) != 0)  # type: ignore[arg-type]

    def after(self, tensor: Tensor) -> None:
        now = _sample(tensor.detach())
        self.moved = self.moved | (now != self._before)
        self._before = now
        self.steps += 1

    @property
    def counts(self) -> tuple[int, int]:
        """The entries that had a gradient, and those of them that never moved."""
        return int(self.had.sum()), int((self.had & ~self.moved).sum())


class Stalls:
    """The parameters of half precision that an optimiser steps. `Optimisers` hears the steps."""

    def __init__(self, leaf_of: Callable[[Tensor], Any], noted: Errors) -> None:
        self._leaf_of = leaf_of
        self.noted = noted
        self._all: dict[int, Watched] = {}  # by the id of the parameter: torch swaps no tensors that somebody refers to
        self.place = NOWHERE

    @harmless("a step of an optimiser")
    def before(self, optimizer: Any) -> None:
        some = _stepped(optimizer)
        if some:
            with quietly():
                self._look_before(some)

    def _look_before(self, some: list[Tensor]) -> None:
        if self.place is NOWHERE:
            self.place = frames.place(2)
        for tensor in some:
            known = self._all.get(id(tensor))
            if known is None or known.size != tensor.numel():
                known = self._all[id(tensor)] = Watched(tensor, self._leaf_of(tensor))
            known.before(tensor)

    @harmless("a step of an optimiser")
    def after(self, optimizer: Any) -> None:
        if not self._all:
            return
        some = _stepped(optimizer)
        with quietly():
            for tensor in some:
                known = self._all.get(id(tensor))
                if known is not None and known.size == tensor.numel():
                    known.after(tensor)

    def counted(self) -> list[Watched]:
        """The parameters that took enough steps."""
        return [one for one in self._all.values() if one.steps >= _LEAST and one.leaf is not None]


def _stepped(optimizer: Any) -> list[Tensor]:
    with without_torch_function():
        return [
            tensor
            for group in optimizer.param_groups
            if _moves(group.get("lr", 1.0))
            for tensor in group["params"]
            if tensor.dtype in _LOW
            and type(tensor) in (Tensor, torch.nn.Parameter)
            and tensor.grad is not None
            and not tensor.grad.is_sparse
        ]


def _moves(rate: Any) -> bool:
    """A warm-up may begin with a rate of 0. One on a device is not waited for."""
    return not (isinstance(rate, (int, float)) and rate == 0)


def _sample(tensor: Tensor) -> Tensor:
    flat = tensor.reshape(-1)
    return flat[:: max(flat.numel() // _SAMPLE, 1)].clone()
