"""Some entries of parameters that one optimiser steps: which of them ever had a gradient, and which ever moved by it.

Parameters of one dtype are looked at together: their entries stand one after the other in a few vectors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .course import Course
from .expected_step import expected_step, keeps_the_rest, plain_step, spacing
from .motion import some_of

_LOW = (torch.bfloat16, torch.float16)
_SELDOM = 8  # of full precision, whose steps are rarely swallowed, every so many steps are looked at
_LATER = 16  # and where they move, so many times as late as the last time
_CALM = 0.1  # of the entries with a gradient, that stay: at most that where they move
_LEAST = 10  # looks: of fewer nobody can say that they are noise
_NOISE = 2.0  # below it the gradients of all steps together are no larger than noise would leave of them
_FAINT = 1e-4  # of a weight: a gradient of full precision that is smaller asks for nothing


@dataclass(frozen=True)
class Stalled:
    """Of one parameter, of at most 1,024 entries that are looked at: what share of those that had a gradient never moved, and how it was
    by the number of backward passes. dtype: of the weights. size: of a step in the median, as a share of the distance to the next
    number; NaN where the optimiser is not known. is_noise: what came is no larger, over the steps together, than rounding noise would be.
    """

    parameter: str
    dtype: str
    steps: int
    share: float
    size: float
    by_step: tuple[tuple[int, float], ...]
    is_noise: bool


@dataclass
class Vectors:
    """An entry of each per looked-at entry of a parameter, or of several. sizes: of steps, in distances to the next number; NaN where they
    are not known. sum, squares: of gradients.
    """

    before: Tensor
    had: Tensor
    moved: Tensor
    sizes: Tensor
    sum: Tensor
    squares: Tensor

    @classmethod
    def fresh(cls, values: Tensor) -> Vectors:
        wide = torch.float64 if values.is_cpu else torch.float32
        had, moved = (torch.zeros_like(values, dtype=torch.bool) for _ in range(2))
        sums = (torch.zeros_like(values, dtype=wide) for _ in range(2))
        return cls(values, had, moved, torch.full_like(values, math.nan, dtype=torch.float32), *sums)

    @classmethod
    def together(cls, parts: Sequence[Vectors]) -> Vectors:
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in cls.__annotations__))

    def part(self, start: int, length: int) -> Vectors:
        return Vectors(*(getattr(self, name).narrow(0, start, length) for name in self.__annotations__))


class Watched:
    """One parameter."""

    def __init__(self, tensor: Tensor, leaf: Any) -> None:
        self.leaf = leaf
        self.size, self.dtype, self.device = tensor.numel(), tensor.dtype, tensor.device
        self.steps = 0
        self.looks = 0
        self.has_master = False  # does the optimiser keep what rounding takes?
        self.course = Course()
        self.home: Together | None = None  # the vectors in which it stands
        self.at = (0, 0)  # where it begins there, and how many entries it has
        self.apart: Vectors | None = None  # what is known of it while it stands in none

    def is_of(self, tensor: Tensor) -> bool:
        return self.size == tensor.numel() and self.dtype == tensor.dtype

    @property
    def vectors(self) -> Vectors:
        assert self.home is not None
        return self.home.vectors.part(*self.at) if self.apart is None else self.apart

    @property
    def counts(self) -> tuple[int, int]:
        """The entries that had a gradient, and those of them that never moved."""
        some = self.vectors
        return int(some.had.sum()), int((some.had & ~some.moved).sum())

    @property
    def is_noise(self) -> bool:
        """Of n gradients that are noise the sum has n times the square of one; of n that agree, n * n."""
        some = self.vectors
        squares = float(some.squares.sum())
        return self.looks >= _LEAST and squares > 0 and float((some.sum * some.sum).sum()) / squares < _NOISE

    @property
    def record(self) -> Stalled:
        (had, still), some = self.counts, self.vectors
        return Stalled(
            parameter=self.leaf.name,
            dtype=str(self.dtype).removeprefix("torch."),
            steps=self.steps,
            share=still / had if had else 0.0,
            size=float(some.sizes[some.had].median()) if had else math.nan,
            by_step=self.course.values,
            is_noise=self.is_noise,
        )


class Together:
    """Parameters of one dtype in one group of an optimiser."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.due = 0  # the step of the optimiser that is looked at next
        self.since = 0  # the last look: steps
        self.watched: list[Watched] = []
        self.vectors: Any = None
        self._parts: Any = None  # of each entry, the number of its parameter
        self._grads: Any = None  # of this step
        self._felt: Any = None  # which of them ask for something
        self._is_calm = False  # did nearly all of those move?
        self._are_measured = False  # the steps of all that stand here

    def is_due(self, step: int) -> bool:
        return self.dtype in _LOW or step >= self.due

    def before(self, watched: list[Watched], tensors: Sequence[Tensor]) -> None:
        now = torch.cat([some_of(tensor) for tensor in tensors])
        self._grads = torch.cat([some_of(tensor.grad) for tensor in tensors])  # type: ignore[arg-type]
        if watched != self.watched or any(one.home is not self for one in watched):
            self._arrange(watched, tensors, now)
        some = self.vectors
        # By something else, as by a copy from weights of full precision, which others keep, and in steps that nobody looked at.
        some.moved |= now != some.before
        some.before = now
        self._felt = _is_felt(self._grads, now)
        some.had |= self._felt
        wide = self._grads.to(some.sum.dtype)
        some.sum += wide
        some.squares.addcmul_(wide, wide)
        for one in watched:
            one.looks += 1

    def _arrange(self, watched: list[Watched], tensors: Sequence[Tensor], now: Tensor) -> None:
        """Parameters come and go: each brings along what is known of it."""
        lengths = [some_of(tensor).numel() for tensor in tensors]
        parts = [
            Vectors.fresh(one) if known.home is None else known.vectors
            for known, one in zip(watched, now.split(lengths), strict=True)
        ]
        for one in self.watched:
            if one.home is self:
                one.apart = one.vectors
        self.vectors, self.watched, start = Vectors.together(parts), watched, 0
        for one, length in zip(watched, lengths, strict=True):
            one.home, one.at, one.apart, start = self, (start, length), None, start + length
        self._are_measured = False
        self._parts = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)).to(now.device)

    def after(
        self,
        tensors: Sequence[Tensor],
        group: Mapping[str, object],
        states: Mapping[object, object],
        step: int,
        now_at: int,
    ) -> None:
        """step: of the optimiser, from 0. now_at: how many backward passes there were."""
        some, now = self.vectors, torch.cat([some_of(tensor) for tensor in tensors])
        stays = now == some.before
        decayed = _decayed(some.before, group)
        if decayed is not None:
            stays |= now == decayed
        if not self._are_measured or not (self._is_calm or step & (step - 1)):  # at powers of two
            self._measure(tensors, group, states)
        stays &= ~(some.sizes >= 1)  # what would have moved by more than the next number is held by something else
        stays &= self._felt
        some.moved |= self._felt ^ stays
        some.before = now
        self.count()
        shares = self._shares(stays)
        self._plan(shares, step)
        for one, share in zip(self.watched, shares.tolist() if shares.is_cpu else shares, strict=True):
            one.course.add(now_at, share)

    def _measure(self, tensors: Sequence[Tensor], group: Mapping[str, object], states: Mapping[object, Any]) -> None:
        self._are_measured = True
        kept = [states.get(tensor) or {} for tensor in tensors]
        steps = self._expected(tensors, group, kept) if any(kept) else plain_step(self._grads, group)
        if steps is not None:
            self.vectors.sizes = steps / spacing(self.vectors.before)
        for one, tensor, state in zip(self.watched, tensors, kept, strict=True):
            one.has_master |= keeps_the_rest(state, tensor)

    def _expected(
        self, tensors: Sequence[Tensor], group: Mapping[str, object], kept: Sequence[Mapping[str, object]]
    ) -> Tensor:
        unknown = torch.full_like(self.vectors.sizes, math.nan).split([one.at[1] for one in self.watched])
        known = [expected_step(tensor, group, state) for tensor, state in zip(tensors, kept, strict=True)]
        return torch.cat([other if one is None else one for one, other in zip(known, unknown, strict=True)])

    def count(self) -> None:
        """The steps since the last look."""
        for one in self.watched:
            one.steps += self.since
        self.since = 0

    def _shares(self, stays: Tensor) -> Tensor:
        """Of what is felt, by parameter."""
        both = torch.stack([stays, self._felt]).float()
        counts = both.new_zeros(2, len(self.watched)).index_add_(1, self._parts, both)
        return counts[0] / counts[1].clamp(min=1)

    def _plan(self, shares: Tensor, step: int) -> None:
        """Which step is looked at next. A device is not waited for."""
        self._is_calm = shares.is_cpu and float(shares.max()) <= _CALM
        self.due = max(_SELDOM, _LATER * step) if self._is_calm else step + (_SELDOM if step else 1)


def _is_felt(grad: Tensor, weight: Tensor) -> Tensor:
    """A model of full precision that has converged has gradients that no rate would make steps of."""
    return grad.abs() > _FAINT * weight.abs() if weight.dtype not in _LOW else grad != 0


def _decayed(before: Tensor, group: Mapping[str, object]) -> Tensor | None:
    """What weight decay alone would have made of it."""
    rate, decay = group.get("lr"), group.get("weight_decay")
    if not (isinstance(rate, float) and isinstance(decay, float) and decay):
        return None
    return before * (1 - rate * decay)
