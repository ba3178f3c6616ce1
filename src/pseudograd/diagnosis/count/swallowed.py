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

from .course import Course, numbers_of, sample, view_of_sample

_LOW = (torch.bfloat16, torch.float16)
_SELDOM = 8  # of full precision, whose steps are rarely swallowed, every so many steps are looked at
_LATER = 16  # and where they move, so many times as late as the last time
_CALM = 0.1  # of the entries with a gradient, that stay: at most that where they move
_LEAST = 10  # looks: of fewer nobody can say that they are noise
_NOISE = 2.0  # below it the gradients of all steps together are no larger than noise would leave of them
_FAINT = 1e-4  # of a weight: a gradient of full precision that is smaller asks for nothing
_REST = ("kahan", "compensation", "shift", "master", "residual")  # in names of what an optimiser keeps


State = Mapping[str, Any]  # what an optimiser keeps of one parameter


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
        self.course: Course[float | Tensor] = Course()
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
        vectors = self.vectors
        return int(vectors.had.sum()), int((vectors.had & ~vectors.moved).sum())

    @property
    def is_noise(self) -> bool:
        """Of n gradients that are noise the sum has n times the square of one; of n that agree, n * n."""
        vectors = self.vectors
        squares = float(vectors.squares.sum())
        return self.looks >= _LEAST and squares > 0 and float((vectors.sum * vectors.sum).sum()) / squares < _NOISE

    @property
    def record(self) -> Stalled:
        (had, still), sizes = self.counts, self.vectors.sizes
        return Stalled(
            parameter=self.leaf.name,
            dtype=str(self.dtype).removeprefix("torch."),
            steps=self.steps,
            share=still / had if had else 0.0,
            size=float(sizes[self.vectors.had].median()) if had else math.nan,
            by_step=numbers_of(self.course),
            is_noise=self.is_noise,
        )


class Together:
    """Parameters of one dtype in one group of an optimiser."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.due = 0  # the step of the optimiser that is looked at next
        self.since = 0  # the last look: steps
        self.watched: list[Watched] = []
        self._is_calm = False  # did nearly all entries with a gradient move?
        self._are_measured = False  # the steps of all that stand here
        # Set by `before`: of all parameters together; of each entry, the number of its parameter; the gradients of this step; and which
        # of these ask for something.
        self.vectors: Vectors
        self._parts: Tensor
        self._grads: Tensor
        self._felt: Tensor

    def is_due(self, step: int) -> bool:
        return self.dtype in _LOW or step >= self.due

    def before(self, watched: list[Watched], tensors: Sequence[Tensor]) -> None:
        now = torch.cat([view_of_sample(tensor) for tensor in tensors])
        self._grads = torch.cat([view_of_sample(tensor.grad) for tensor in tensors if tensor.grad is not None])
        if watched != self.watched or any(parameter.home is not self for parameter in watched):
            self._arrange(watched, tensors, now)
        vectors = self.vectors
        # By something else, as by a copy from weights of full precision, which others keep, and in steps that nobody looked at.
        vectors.moved |= now != vectors.before
        vectors.before = now
        self._felt = _is_felt(self._grads, now)
        vectors.had |= self._felt
        wide = self._grads.to(vectors.sum.dtype)
        vectors.sum += wide
        vectors.squares.addcmul_(wide, wide)
        for parameter in watched:
            parameter.looks += 1

    def _arrange(self, watched: list[Watched], tensors: Sequence[Tensor], now: Tensor) -> None:
        """Parameters come and go: each brings along what is known of it."""
        lengths = [view_of_sample(tensor).numel() for tensor in tensors]
        parts = [
            Vectors.fresh(values) if known.home is None else known.vectors
            for known, values in zip(watched, now.split(lengths), strict=True)
        ]
        for parameter in self.watched:
            if parameter.home is self:
                parameter.apart = parameter.vectors
        self.vectors, self.watched, start = Vectors.together(parts), watched, 0
        for parameter, length in zip(watched, lengths, strict=True):
            parameter.home, parameter.at, parameter.apart = self, (start, length), None
            start += length
        self._are_measured = False
        self._parts = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)).to(now.device)

    def after(
        self,
        tensors: Sequence[Tensor],
        group: Mapping[str, object],
        states: Mapping[Tensor, Any],
        step: int,
        backwards: int,
    ) -> None:
        """step: of the optimiser, from 0. backwards: how many backward passes there were."""
        vectors, now = self.vectors, torch.cat([view_of_sample(tensor) for tensor in tensors])
        stays = now == vectors.before
        rate, decay = group.get("lr"), group.get("weight_decay")
        if (
            isinstance(rate, float) and isinstance(decay, float) and decay
        ):  # what weight decay alone would have made of it
            stays |= now == vectors.before * (1 - rate * decay)
        if not self._are_measured or not (self._is_calm or step & (step - 1)):  # at powers of two
            self._measure(tensors, group, [states.get(tensor) or {} for tensor in tensors])
        stays &= ~(vectors.sizes >= 1)  # what would have moved by more than the next number is held by something else
        stays &= self._felt
        vectors.moved |= self._felt ^ stays
        vectors.before = now
        self.count()
        shares = self._shares(stays)
        # Which step is looked at next. A device is not waited for.
        self._is_calm = shares.is_cpu and float(shares.max()) <= _CALM
        self.due = max(_SELDOM, _LATER * step) if self._is_calm else step + (_SELDOM if step else 1)
        for parameter, share in zip(self.watched, shares.tolist() if shares.is_cpu else shares, strict=True):
            parameter.course.add(backwards, share)

    def _measure(self, tensors: Sequence[Tensor], group: Mapping[str, object], states: Sequence[State]) -> None:
        self._are_measured = True
        steps = self._expected(tensors, group, states) if any(states) else plain_step(self._grads, group)
        if steps is not None:
            self.vectors.sizes = steps / spacing(self.vectors.before)
        for parameter, tensor, state in zip(self.watched, tensors, states, strict=True):
            parameter.has_master |= keeps_the_rest(state, tensor)

    def _expected(self, tensors: Sequence[Tensor], group: Mapping[str, object], states: Sequence[State]) -> Tensor:
        unknown = torch.full_like(self.vectors.sizes, math.nan).split([parameter.at[1] for parameter in self.watched])
        known = [expected_step(tensor, group, state) for tensor, state in zip(tensors, states, strict=True)]
        return torch.cat([nans if step is None else step for step, nans in zip(known, unknown, strict=True)])

    def count(self) -> None:
        """The steps since the last look."""
        for parameter in self.watched:
            parameter.steps += self.since
        self.since = 0

    def _shares(self, stays: Tensor) -> Tensor:
        """Of what is felt, by parameter."""
        both = torch.stack([stays, self._felt]).float()
        counts = both.new_zeros(2, len(self.watched)).index_add_(1, self._parts, both)
        return counts[0] / counts[1].clamp(min=1)


def _is_felt(grad: Tensor, weight: Tensor) -> Tensor:
    """A model of full precision that has converged has gradients that no rate would make steps of."""
    return grad.abs() > _FAINT * weight.abs() if weight.dtype not in _LOW else grad != 0


# --- how far an optimiser of torch wants to move a parameter, against the distance to the next number ------------------


def expected_step(tensor: Tensor, group: Mapping[str, Any], state: State) -> Tensor | None:
    """Of some entries, in float32, from what the optimiser keeps; None for one that keeps other things than Adam and SGD do."""
    rate = group.get("lr")
    if not isinstance(rate, (int, float)) or tensor.grad is None:
        return None
    names = {name for name, value in state.items() if isinstance(value, Tensor) and value.shape == tensor.shape}
    if {"exp_avg", "exp_avg_sq"} <= names:
        count = float(state.get("step", 1) or 1)
        first, second = group.get("betas", (0.0, 0.0))
        mean = sample(state["exp_avg"]).float() / (1 - first**count or 1)
        square = sample(state["exp_avg_sq"]).float() / (1 - second**count or 1)
        return float(rate) * mean.abs() / (square.sqrt() + group.get("eps", 1e-8))
    if not names:
        return plain_step(sample(tensor.grad), group)
    return rate * sample(state["momentum_buffer"]).float().abs() if names == {"momentum_buffer"} else None


def plain_step(grad: Tensor, group: Mapping[str, object]) -> Tensor | None:
    """Of an optimiser that keeps nothing."""
    rate = group.get("lr")
    return rate * grad.float().abs() if isinstance(rate, (int, float)) else None


def spacing(weight: Tensor) -> Tensor:
    """The distance from each weight to the next number of its dtype, in float32."""
    _, exponent = torch.frexp(weight.float())
    limits = torch.finfo(weight.dtype)
    distance = torch.ldexp(torch.full_like(weight, limits.eps, dtype=torch.float32), exponent - 1)
    return distance.clamp(min=max(limits.smallest_normal * limits.eps, 1e-45))


def keeps_the_rest(state: State, tensor: Tensor) -> bool:
    """Weights of full precision, or what summation has lost."""
    for name, value in state.items():
        if not isinstance(value, Tensor) or value.shape != tensor.shape:
            continue
        if any(word in str(name).lower() for word in _REST):
            return True
        if value.dtype.itemsize > tensor.dtype.itemsize and torch.equal(sample(value).to(tensor.dtype), sample(tensor)):
            return bool(sample(tensor).any())
    return False
