"""The values that enter the clamps and relus of a program: do they start at a bound, and do they wind up outside the bounds?"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from ...listen import hooks, nodes
from ...listen.frames import Location
from ...listen.harmless import quietly
from ...rewrite import entered_contexts
from ...rule import BOUNDED, PRIMITIVES
from ...torch_table.forms import edge_family
from ...torch_table.private import physical
from ...torch_table.records import Arguments, Keywords, Spelling
from .grads import Bound, are_readable
from .influence import Followed, Influence
from .leaves import Leaves
from .norms import Number
from .tally import note_slice

_STEPS_OF_WIND_UP = 10
_WOUND_UP_SHARE = 0.5  # of the range of all distances: so much a stretch has to climb
_RISING_SHARE = 0.8  # of the steps of a stretch raise the distance
_CLAMPS = ("clamp", "relu")
_MOST_UNREAD = 512  # steps whose distances may lie unread on a device


class Values(Followed):
    """The values at one location: how many are at a bound in the first call, and how far outside they are from step to step."""

    def __init__(self, spelling: Spelling, location: Location, x: Tensor, low: Bound, high: Bound) -> None:
        self.op, self.form, self.location = spelling.name, spelling.form, location
        self.elements = x.numel()
        at_low = torch.zeros_like(x, dtype=torch.bool) if low is None else x == low
        self.at_low: Number = torch.count_nonzero(at_low)
        self.at_high: Number = 0 if high is None else torch.count_nonzero((x == high) & ~at_low)
        self.bounds = _fixed_bounds((low, high))
        names = zip(("low", "high"), (low, high), strict=True)
        # The two bounds in the source of a call; the name of a bound stands for a tensor.
        self.pair = ", ".join(name if isinstance(bound, Tensor) else repr(bound) for name, bound in names)
        self.has_tensor_bound = isinstance(low, Tensor) or isinstance(high, Tensor)
        # Is it pinned to the installed torch?
        self.is_pinned = edge_family(spelling.form) in entered_contexts.families_left_to_torch()
        self.is_rewritten = entered_contexts.is_replaced(spelling.form)  # by a context, which decides what passes
        self.may_pass = False  # may a gradient pass at this call?
        self.leaf = 0  # the set with the leaf that x is; empty if x is no leaf
        self.detached = 0  # the set with the leaf that x was detached from
        self.reads_leaf = False  # did each call read a leaf itself, between the same bounds, which do not learn?
        self.leaves = 0  # the set of the leaves that the calls read
        self.outside: Number = 0  # elements outside, in the steps that count
        self.climb = Climb()
        self._distance: Tensor | None = None  # in this step
        self._outside: Number = 0  # elements in this step

    def add(self, x: Tensor, low: Bound, high: Bound) -> None:
        """Add the mean distance of x from its bounds."""
        outside = torch.zeros_like(x)
        if low is not None:
            outside = outside + torch.relu(low - x)
        if high is not None:
            outside = outside + torch.relu(x - high)
        mean = outside.mean(dtype=torch.float32) if outside.numel() else outside.sum()
        distance = self._distance  # read once: a step that ends in another thread clears it
        self._distance = mean if distance is None else distance + mean
        self._outside = self._outside + torch.count_nonzero(outside)

    def end_step(self, has_gradient: bool) -> None:
        """Add the distance of this step, if a gradient has arrived at the clamp, or goes around it."""
        distance, outside = self._distance, self._outside
        if distance is not None and (has_gradient or self.decides):
            self.outside = self.outside + outside
            self.climb.add(distance)
        self._distance, self._outside, self.decides = None, 0, False

    @property
    def starts_on_a_bound(self) -> bool:
        return self.elements > 0 and int(self.at_low) + int(self.at_high) >= self.elements

    @property
    def bounds_text(self) -> str:
        """The bounds at which values are."""
        counts = zip(self.bounds, (self.at_low, self.at_high), strict=True)
        texts = [f"{bound:g}" for bound, count in counts if bound is not None and int(count)]
        return f"the bound {' or '.join(texts)}" if texts else "a bound"

    @property
    def runs_away(self) -> bool:
        """Did the values move further outside in ten steps or more, by half of all that they ever moved?"""
        climb = self.climb.update()
        is_most = climb.last - climb.first >= _WOUND_UP_SHARE * (climb.highest - climb.lowest)
        return climb.longest + 1 >= _STEPS_OF_WIND_UP and is_most


class Climb:
    """The longest stretch of steps of which four in five raised a number: its first and last number, and the range of all numbers."""

    def __init__(self) -> None:
        self.longest = 0
        self.first = self.last = self.lowest = self.highest = 0.0
        self._unread: list[Tensor] = []
        self._start: float | None = None  # the first number of the stretch that goes on
        self._before = 0.0  # the number of the step before
        self._steps = self._rises = 0  # of that stretch

    def add(self, number: Tensor) -> None:
        self._unread.append(number)
        if len(self._unread) >= _MOST_UNREAD:
            self.update()

    def update(self) -> Climb:
        """Include the numbers that were not read yet. Waits for the device."""
        unread, self._unread = self._unread, []
        for number in unread:
            self._add(float(number))
        return self

    def _add(self, number: float) -> None:
        if self._start is None:
            self.first = self.last = self.lowest = self.highest = self._start = self._before = number
            return
        rises = number > self._before
        self._steps, self._rises, self._before = self._steps + 1, self._rises + rises, number
        self.lowest, self.highest = min(self.lowest, number), max(self.highest, number)
        if self._rises < _RISING_SHARE * self._steps:
            self._start, self._steps, self._rises = number, 0, 0
        elif rises and self._steps > self.longest and number > self._start:
            self.longest, self.first, self.last = self._steps, self._start, number


class Clamps:
    """The values at every clamp and relu that was called, by op and location."""

    def __init__(self, leaves: Leaves, influence: Influence) -> None:
        self.all: dict[tuple[str, Location, bool], Values] = {}  # the bool: does autograd record the call?
        self._leaves, self._influence = leaves, influence

    def look(self, spelling: Spelling, location: Location, args: Arguments, kwargs: Keywords) -> Values | None:
        """Look at the inputs of a call. Returns its values if it is a clamp whose x depends on a tensor that learns, else None."""
        is_recorded = torch.is_grad_enabled()
        key = spelling.name, location, is_recorded
        values, is_clamp = self.all.get(key), spelling.form.switches[0] == "clamp"
        if values is not None and not is_clamp:
            return None  # the first call of a relu is enough
        with quietly():
            inputs = _inputs_of_clamp(spelling, args, kwargs or {})
            if inputs is None:
                return None
            if values is None:
                values = self.all[key] = Values(spelling, location, *inputs)
                self._note_source(values, is_recorded, args, kwargs or {})
            elif values.reads_leaf:
                leaf = self._leaves.upstream_of(args[0]) if nodes.node_of(args[0]) is None else 0
                values.leaves |= leaf
                values.reads_leaf = leaf > 0 and _fixed_bounds(inputs[1:]) == values.bounds
            if not is_clamp:
                return None
            values.add(*inputs)
            return values if values.upstream or values.detached_upstream else None

    def _note_source(self, values: Values, is_recorded: bool, args: Arguments, kwargs: Keywords) -> None:
        """Note where x comes from at the first call: from leaves, or from a tensor that was detached from leaves."""
        source = args[0] if args else None
        values.may_pass = is_recorded or hooks.is_inside_function()
        if not isinstance(source, Tensor):
            return
        if not source.requires_grad:
            values.detached_upstream, is_leaf = self._influence.source_of_detached(source)
            values.detached = values.detached_upstream if is_leaf else 0
            return
        upstream = self._leaves.upstream_of(source)
        leaf = upstream if nodes.node_of(source) is None else 0
        if is_recorded:
            values.upstream, values.leaf, values.leaves = upstream, leaf, leaf
            bounds = (*args[1:], *kwargs.values())
            values.reads_leaf = leaf > 0 and not any(isinstance(x, Tensor) and x.requires_grad for x in bounds)
        else:  # no gradient passes, as if x were detached
            values.detached_upstream, values.detached = upstream, leaf

    def note_result(self, spelling: Spelling, values: Values | None, args: Arguments, result: object) -> None:
        """Note the slice that a call changed in place. If the call is not in place, follow its result, if `values` are given."""
        if isinstance(result, Tensor):
            if args and result is args[0]:
                note_slice(spelling.form, result)
            elif values is not None:
                self._influence.follow(values, result)

    def end_step(self, ran_at: Collection[Location]) -> None:
        for values in list(self.all.values()):
            values.end_step(values.may_pass and values.location in ran_at)


def _fixed_bounds(bounds: Sequence[Bound]) -> tuple[float | None, ...]:
    return tuple(None if isinstance(bound, Tensor) else bound for bound in bounds)


def _inputs_of_clamp(spelling: Spelling, args: Arguments, kwargs: Keywords) -> tuple[Tensor, Bound, Bound] | None:
    """x and its bounds, without wrappers of transforms; None if it is no clamp of floating-point numbers that can be read."""
    if spelling.form.switches[0] not in _CLAMPS:
        return None
    call = spelling.read(args, kwargs)
    if call is None or PRIMITIVES[call.primitive].inputs != BOUNDED or not call.inputs[0].is_floating_point():
        return None
    if call.inputs[0].layout is not torch.strided:
        return None
    inputs = [physical(value) if isinstance(value, Tensor) else value for value in call.inputs]
    if not are_readable(inputs):
        return None
    x, low, high = (value.detach() if isinstance(value, Tensor) else value for value in inputs)
    tensors = [value for value in (x, low, high) if isinstance(value, Tensor)]
    try:
        torch.broadcast_tensors(*tensors)  # broadcast_shapes would load SymPy
    except RuntimeError:  # the call of the program raises, too
        return None
    return x, low, high
