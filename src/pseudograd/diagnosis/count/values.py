"""What arrives at the clamps and relus of a program before any backward: does it start on a bound, and does it run away outside one?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...listen.frames import Place
from ...rule import BOUNDED, PRIMITIVES
from ...torch_table.private import physical
from ...torch_table.records import Form, Spelling
from .tally import either_of

_LEAST = 10  # steps of a wind-up
_CLAMPS = ("clamp", "relu")


class Values:
    """At one place: how much of x stands on a bound in the first call, and from step to step how far outside x stands."""

    def __init__(
        self,
        spelling: Spelling,
        place: Place,
        x: Tensor,
        low: Any,
        high: Any,
        *,
        is_pinned: bool,
        is_rewritten: bool,
    ) -> None:
        self.op = spelling.name
        self.form: Form = spelling.form
        self.place = place
        self.elements = x.numel()
        self.at_low = 0 if low is None else torch.count_nonzero(x == low)
        self.at_high: Any = 0 if high is None else torch.count_nonzero(x == high)
        self.has_tensor_bound = isinstance(low, Tensor) or isinstance(high, Tensor)
        self.leaf: int | None = None  # the bit of the parameter that x is
        self.upstream = 0
        self.is_pinned = is_pinned  # to what this torch does
        self.is_rewritten = is_rewritten  # by a context, which then decides what passes here
        self.round = 0  # the leaves upstream of what x was detached from
        self.detached = 0  # the bit of the parameter that x was detached from
        self.bounds = tuple(None if isinstance(one, Tensor) else one for one in (low, high))
        self.bit: int | None = None  # of its mark, where what comes of it is followed
        self.decides = False  # does the loss of this step depend on it, with a gradient for x that goes round it?
        self.outside: Any = 0  # elements, in the steps that count
        self.climb = Climb()
        self._now: Any = None
        self._outside: Any = 0

    def add(self, x: Tensor, low: Any, high: Any) -> None:
        """How far outside x stands, on average."""
        outside: Any = 0
        if low is not None:
            outside = outside + torch.relu(low - x)
        if high is not None:
            outside = outside + torch.relu(x - high)
        mean = outside.mean(dtype=torch.float32) if outside.numel() else outside.sum()
        self._now = mean if self._now is None else self._now + mean
        self._outside = self._outside + torch.count_nonzero(outside)

    @property
    def is_open(self) -> bool:
        """Has anything of this step been noted?"""
        return self._now is not None or self.decides

    def end_step(self, has_gradient: bool) -> None:
        """has_gradient: one has arrived at the clamp itself. A step counts with it, or where one goes round."""
        now, outside = self._now, self._outside
        is_counted = now is not None and (has_gradient or self.decides)
        self._now, self._outside, self.decides = None, 0, False
        if is_counted:
            self.outside = self.outside + outside
            self.climb.add(float(now) if now.device.type == "cpu" else now)

    @property
    def starts_on_a_bound(self) -> bool:
        return self.elements > 0 and int(self.at_low) + int(self.at_high) >= self.elements

    @property
    def has_numbers(self) -> bool:
        """Are the bounds numbers, as far as there are any?"""
        return not self.has_tensor_bound

    @property
    def shown_bounds(self) -> str:
        """Those that something stands on."""
        low, high = self.bounds
        found = [
            f"{bound:g}"
            for bound, count in ((low, self.at_low), (high, self.at_high))
            if bound is not None and int(count)
        ]
        return f"the bound {' or '.join(found)}" if found else "a bound"

    @property
    def runs_away(self) -> bool:
        """In ten steps or more went further out, by half of all that it ever moved."""
        climb = self.climb
        if climb.longest + 1 < _LEAST:
            return False
        return float(climb.last) - float(climb.first) >= 0.5 * (float(climb.highest) - float(climb.lowest))


class Climb:
    """The longest stretch of steps in which a number grew, in four of five of them. Numbers, or 0-d tensors of a device."""

    def __init__(self) -> None:
        self.longest: Any = 0
        self.first: Any = None
        self.last: Any = None
        self.lowest: Any = None
        self.highest: Any = None
        self._start: Any = None
        self._before: Any = None
        self._steps: Any = 0
        self._grew: Any = 0

    def add(self, now: float | Tensor) -> None:
        if self._before is None:
            self.first = self.last = self.lowest = self.highest = self._start = self._before = now
            return
        grows = now > self._before
        steps, grew = self._steps + 1, self._grew + grows
        holds = grew >= 0.8 * steps
        is_longest = grows & holds & (steps > self.longest) & (now > self._start)
        self.longest = either_of(is_longest, steps, self.longest)
        self.first, self.last = either_of(is_longest, self._start, self.first), either_of(is_longest, now, self.last)
        self.lowest, self.highest = (
            either_of(now < self.lowest, now, self.lowest),
            either_of(now > self.highest, now, self.highest),
        )
        self._steps, self._grew = either_of(holds, steps, 0), either_of(holds, grew, 0)
        self._start, self._before = either_of(holds, self._start, now), now


def read(spelling: Spelling, args: Any, kwargs: Any) -> tuple[Tensor, object, object] | None:
    """x and its bounds, as tensors below every wrapper; None for what is no clamp of floating point numbers."""
    if spelling.form.switches[0] not in _CLAMPS:
        return None
    found = spelling.read(args, kwargs)
    if found is None or PRIMITIVES[found.primitive].inputs != BOUNDED or not found.inputs[0].is_floating_point():
        return None
    x, low, high = (physical(one).detach() if isinstance(one, Tensor) else one for one in found.inputs)
    return x, low, high
