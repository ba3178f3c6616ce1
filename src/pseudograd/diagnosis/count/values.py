"""What arrives at the clamps and relus of a program before any backward: does it start on a bound, and does it run away outside one?"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from ...listen import nodes
from ...listen.frames import Place
from ...listen.quietly import quietly
from ...rewrite import entered_contexts
from ...rule import BOUNDED, PRIMITIVES
from ...torch_table.forms import edge_family
from ...torch_table.private import physical
from ...torch_table.records import Spelling
from .grads import Number, are_readable, either_of
from .influence import Influence
from .leaves import Leaves
from .tally import note_slice

_LEAST = 10  # steps of a wind-up
_CLAMPS = ("clamp", "relu")

Bound = float | Tensor | None


class Values:
    """At one place: how much of x stands on a bound in the first call, and from step to step how far outside x stands."""

    def __init__(self, spelling: Spelling, place: Place, x: Tensor, low: Bound, high: Bound) -> None:
        self.op = spelling.name
        self.form = spelling.form
        self.place = place
        self.elements = x.numel()
        self.at_low: Number = 0 if low is None else torch.count_nonzero(x == low)
        self.at_high: Number = 0 if high is None else torch.count_nonzero(x == high)
        self.bounds = tuple(None if isinstance(bound, Tensor) else bound for bound in (low, high))
        self.has_tensor_bound = isinstance(low, Tensor) or isinstance(high, Tensor)
        self.is_pinned = edge_family(spelling.form) in entered_contexts.left_to_torch()  # to what this torch does
        self.is_rewritten = entered_contexts.decide_about(spelling.form)  # by a context, which decides what passes here
        self.leaf: int | None = None  # the bit of the parameter that x is
        self.upstream = 0
        self.round = 0  # the leaves upstream of what x was detached from
        self.detached = 0  # the bit of the parameter that x was detached from
        self.bit: int | None = None  # of its mark, where what comes of it is followed
        self.decides = False  # does the loss of this step depend on it, with a gradient for x that goes round it?
        self.outside: Number = 0  # elements, in the steps that count
        self.climb = Climb()
        self._now: Tensor | None = None
        self._outside: Number = 0

    def add(self, x: Tensor, low: Any, high: Any) -> None:
        """How far outside x stands, on average."""
        outside = torch.zeros_like(x)
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
        if now is not None and (has_gradient or self.decides):
            self.outside = self.outside + outside
            self.climb.add(float(now) if now.device.type == "cpu" else now)
        self._now, self._outside, self.decides = None, 0, False

    @property
    def starts_on_a_bound(self) -> bool:
        return self.elements > 0 and int(self.at_low) + int(self.at_high) >= self.elements

    @property
    def has_numbers(self) -> bool:
        """Are the bounds numbers, as far as there are any?"""
        return not self.has_tensor_bound

    @property
    def bounds_text(self) -> str:
        """Those that something stands on."""
        counts = zip(self.bounds, (self.at_low, self.at_high), strict=True)
        texts = [f"{bound:g}" for bound, count in counts if bound is not None and int(count)]
        return f"the bound {' or '.join(texts)}" if texts else "a bound"

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

    def add(self, now: Number) -> None:
        if self._before is None:
            self.first = self.last = self.lowest = self.highest = self._start = self._before = now
            return
        grows = now > self._before
        steps, grew = self._steps + 1, self._grew + grows
        holds = grew >= 0.8 * steps
        is_longest = grows & holds & (steps > self.longest) & (now > self._start)
        self.longest = either_of(is_longest, steps, self.longest)
        self.first, self.last = either_of(is_longest, self._start, self.first), either_of(is_longest, now, self.last)
        self.lowest = either_of(now < self.lowest, now, self.lowest)
        self.highest = either_of(now > self.highest, now, self.highest)
        self._steps, self._grew = either_of(holds, steps, 0), either_of(holds, grew, 0)
        self._start, self._before = either_of(holds, self._start, now), now


def _inputs_of_clamp(spelling: Spelling, args: Any, kwargs: Any) -> tuple[Tensor, Bound, Bound] | None:
    """x and its bounds, as tensors below every wrapper; None for what is no clamp of floating point numbers."""
    if spelling.form.switches[0] not in _CLAMPS:
        return None
    call = spelling.read(args, kwargs)
    if call is None or PRIMITIVES[call.primitive].inputs != BOUNDED or not call.inputs[0].is_floating_point():
        return None
    x, low, high = (physical(value).detach() if isinstance(value, Tensor) else value for value in call.inputs)
    return x, low, high


class Clamps:
    """The values at every clamp and relu that was called, by op and place."""

    def __init__(self, leaves: Leaves, influence: Influence) -> None:
        self.all: dict[tuple[str, Place], Values] = {}
        self._leaves, self._influence = leaves, influence

    def look(self, spelling: Spelling, place: Place, args: Any, kwargs: Any) -> Values | None:
        """Before a call. Returns the values of a clamp behind which something learns."""
        key = spelling.name, place
        values, is_clamp = self.all.get(key), spelling.form.switches[0] == "clamp"
        if values is not None and not is_clamp:
            return None  # of others the first call tells
        with quietly():
            inputs = _inputs_of_clamp(spelling, args, kwargs or {})
            if inputs is None or not are_readable(inputs):
                return None
            if values is None:
                values = self.all[key] = Values(spelling, place, *inputs)
                self._note_source(values, args[0] if args else None)
            if not is_clamp:
                return None
            values.add(*inputs)
            return values if values.upstream or values.round else None

    def _note_source(self, values: Values, source: object) -> None:
        """Where x comes from."""
        if isinstance(source, Tensor) and source.requires_grad:
            values.upstream = self._leaves.upstream_of(source)
            values.leaf = values.upstream if nodes.node_of(source) is None else None
        elif isinstance(source, Tensor):
            values.round, is_leaf = self._influence.cut_from(source)
            values.detached = values.round if is_leaf else 0

    def note_result(self, spelling: Spelling, values: Values | None, args: Any, result: object) -> None:
        """After a call: which slice it changed; or what it gave, to be followed, where no gradient arrives at it although something learns
        behind it. Does a loss depend on that all the same?
        """
        if isinstance(result, Tensor):
            if args and result is args[0]:
                note_slice(spelling.form, result)
            elif values is not None:
                self._influence.follow(values, result)

    def end_step(self, ran_at: Collection[Place]) -> None:
        for values in list(self.all.values()):
            if values.is_open:
                values.end_step(values.place in ran_at)
