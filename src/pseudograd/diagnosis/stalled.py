"""Steps that rounding swallows: weights that have a gradient and do not move when their optimiser steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..torch_private import without_torch_function
from ..trace import frames
from ..trace.frames import NOWHERE
from .course import Course
from .expected_step import expected_step, keeps_the_rest, spacing
from .harmless import Errors, harmless
from .motion import sample, some_of
from .quietly import quietly

_LEAST = 10  # steps: with fewer nobody can say that an entry never moves
STALLED = 0.5  # of the entries that have a gradient
_LOW = (torch.bfloat16, torch.float16)
_SELDOM = 8  # of others, whose steps are rarely swallowed, every so many steps are looked at
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


class Watched:
    """Some entries of one parameter: which of them ever had a gradient, and which ever moved by it."""

    def __init__(self, tensor: Tensor, leaf: Any) -> None:
        self.leaf = leaf
        self.size, self.dtype, self.device = tensor.numel(), tensor.dtype, tensor.device
        self.steps = 0
        self.has_master = False  # does the optimiser keep what rounding takes?
        self.course = Course()
        self.sizes: Any = None  # of steps, in distances to the next number
        self.had = self.moved = torch.zeros(())
        self._before: Any = None
        self._now: Any = None  # the gradient of this step
        self._sum: Any = 0.0
        self._squares: Any = 0.0
        self._looks = 0

    @property
    def is_looked_at(self) -> bool:
        """In the step that comes."""
        return self.dtype in _LOW or self.steps < 2 or self.steps % _SELDOM == 0

    def before(self, tensor: Tensor) -> None:
        now = sample(tensor)
        if self._before is None:
            self.had = self.moved = torch.zeros_like(now, dtype=torch.bool)
        else:  # as after a copy from weights of full precision, which others keep, and after steps that nobody looked at
            self.moved = self.moved | (now != self._before)
        self._before = now
        grad = some_of(tensor.grad)  # type: ignore[arg-type]
        self._now = _is_felt(grad, now)
        self.had = self.had | self._now
        wide = grad.double() if grad.is_cpu else grad.float()
        self._sum, self._squares, self._looks = wide + self._sum, torch.dot(wide, wide) + self._squares, self._looks + 1

    def after(self, tensor: Tensor, group: Mapping[str, Any], state: Mapping[str, Any], now_at: int) -> None:
        """now_at: how many backward passes there were."""
        now = sample(tensor)
        stays = now == self._before
        decayed = _decayed(self._before, group)
        if decayed is not None:
            stays |= now == decayed
        if not self.steps & (self.steps - 1):  # at powers of two
            self.has_master |= keeps_the_rest(state, tensor)
            step = expected_step(tensor, group, state)
            if step is not None:
                self.sizes = step / spacing(self._before)
        if self.sizes is not None:  # what would have moved by more than the next number is held by something else
            stays = stays & (self.sizes < 1)
        share = _Share(self._now & stays, self._now)
        self.course.add(now_at, share.read() if self.course.is_wanted else share)
        self.moved = self.moved | (self._now & ~stays)
        self._before = now

    @property
    def counts(self) -> tuple[int, int]:
        """The entries that had a gradient, and those of them that never moved."""
        return int(self.had.sum()), int((self.had & ~self.moved).sum())

    @property
    def is_noise(self) -> bool:
        """Of n gradients that are noise the sum has n times the square of one; of n that agree, n * n."""
        squares = float(self._squares)
        return self._looks >= _LEAST and squares > 0 and float((self._sum * self._sum).sum()) / squares < _NOISE

    @property
    def record(self) -> Stalled:
        had, still = self.counts
        had_one = self.had if self.sizes is not None else None
        some = self.sizes[had_one] if had_one is not None and had else None
        return Stalled(
            parameter=self.leaf.name,
            dtype=str(self.dtype).removeprefix("torch."),
            steps=self.steps,
            share=still / had if had else 0.0,
            size=float(some.median()) if some is not None else math.nan,
            by_step=self.course.values,
            is_noise=self.is_noise,
        )


class _Share:
    """How many of some entries stay; counted when it is read, of the last step that is."""

    def __init__(self, stay: Tensor, some: Tensor) -> None:
        self._stay = stay
        self._some = some

    def read(self) -> Tensor:
        return self._stay.sum() / self._some.sum().clamp(min=1)

    def __float__(self) -> float:
        return float(self.read())


def _is_felt(grad: Tensor, weight: Tensor) -> Any:
    """A model of full precision that has converged has gradients that no rate would make steps of."""
    return grad.abs() > _FAINT * weight.abs() if weight.dtype not in _LOW else grad != 0


def _decayed(before: Tensor, group: Mapping[str, Any]) -> Tensor | None:
    """What weight decay alone would have made of it."""
    rate, decay = group.get("lr"), group.get("weight_decay")
    if not (isinstance(rate, float) and isinstance(decay, float) and decay):
        return None
    return before * (1 - rate * decay)


class _Seen:
    """The steps of one optimiser: without weights of half precision most of them are not looked at."""

    def __init__(self) -> None:
        self.has_low = True
        self._steps = 0
        self._since = 0

    @property
    def is_due(self) -> bool:
        return self.has_low or self._steps < 2 or self._steps % _SELDOM == 0

    def count(self) -> int:
        """After a step; how many there were since the last look, 0 where this was none."""
        was_due = self.is_due
        self._steps += 1
        self._since += 1
        if not was_due:
            return 0
        steps, self._since = self._since, 0
        return steps


class Stalls:
    """The parameters that an optimiser steps. `Optimisers` hears the steps."""

    def __init__(self, leaf_of: Callable[[Tensor], Any], noted: Errors, now: Callable[[], int] = lambda: 0) -> None:
        """now(): how many backward passes there were."""
        self._leaf_of = leaf_of
        self._now = now
        self.noted = noted
        self._all: dict[int, Watched] = {}  # by the id of the parameter: torch swaps no tensors that somebody refers to
        self._looking: set[int] = set()
        self._seen: dict[int, _Seen] = {}  # by the id of the optimiser
        self.place = NOWHERE

    @harmless("a step of an optimiser")
    def before(self, optimizer: Any) -> None:
        seen = self._seen.setdefault(id(optimizer), _Seen())
        if not seen.is_due:
            return
        some = [tensor for tensor, _ in _stepped(optimizer)]
        with without_torch_function():
            seen.has_low = any(tensor.dtype in _LOW for tensor in some)
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
            if known.is_looked_at:
                self._looking.add(id(tensor))
                known.before(tensor)

    @harmless("a step of an optimiser")
    def after(self, optimizer: Any) -> None:
        seen = self._seen.get(id(optimizer))
        if seen is None:
            return
        steps = seen.count()
        if steps and self._all:
            with quietly():
                for tensor, group in _stepped(optimizer):
                    self._look_after(tensor, group, optimizer, steps)

    def _look_after(self, tensor: Tensor, group: Mapping[str, Any], optimizer: Any, steps: int) -> None:
        """steps: of this optimiser since the last look."""
        known = self._all.get(id(tensor))
        if known is None or known.size != tensor.numel():
            return
        if id(tensor) in self._looking:
            self._looking.discard(id(tensor))
            known.after(tensor, group, optimizer.state.get(tensor, {}), self._now())
        known.steps += steps

    def counted(self) -> list[Watched]:
        """The parameters that took enough steps, and whose optimiser keeps nothing of what rounding takes."""
        return [one for one in self.watched() if one.steps >= _LEAST and not one.has_master]

    def watched(self) -> list[Watched]:
        return [one for one in self._all.values() if one.leaf is not None and one.steps]


def _stepped(optimizer: Any) -> Iterator[tuple[Tensor, Mapping[str, Any]]]:
    with without_torch_function():
        return iter(
            [
                (tensor, group)
                for group in optimizer.param_groups
                if _moves(group.get("lr", 1.0))
                for tensor in group["params"]
                if tensor.is_floating_point()
                and type(tensor) in (Tensor, torch.nn.Parameter)
                and tensor.numel()
                and tensor.grad is not None
                and not tensor.grad.is_sparse
            ]
        )


def _moves(rate: Any) -> bool:
    """A warm-up may begin with a rate of 0. One on a device is not waited for."""
    return not (isinstance(rate, (int, float)) and rate == 0)
