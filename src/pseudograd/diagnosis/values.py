"""What arrives at the clamps and relus of a program before any backward: does it start on a bound, and does it run away outside one?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..torch_forms import Form, Spelling
from ..torch_private import physical
from ..trace.frames import Place

_CLAMPS = ("clamp", "relu")


class Values:
    """At one place: how much of x stands on a bound in the first call, and from step to step how far outside x stands."""

    def __init__(self, spelling: Spelling, place: Place, x: Tensor, low: Any, high: Any) -> None:
        self.op = spelling.name
        self.form: Form = spelling.form
        self.place = place
        self.elements = x.numel()
        self.at_low: Any = 0 if low is None else torch.count_nonzero(x == low)
        self.at_high: Any = 0 if high is None else torch.count_nonzero(x == high)
        self.has_tensor_bound = isinstance(low, Tensor) or isinstance(high, Tensor)
        self.leaf: Any = None  # the bit of the parameter that x is
        self.upstream = 0
        self.bounds = tuple(None if isinstance(one, Tensor) else one for one in (low, high))
        self.steps = 0
        self.grew: Any = 0
        self.first: Any = None
        self.last: Any = None
        self._now: Any = None

    def add(self, x: Tensor, low: Any, high: Any) -> None:
        """How far outside x stands, on average."""
        outside: Any = 0
        if low is not None:
            outside = outside + torch.relu(low - x)
        if high is not None:
            outside = outside + torch.relu(x - high)
        mean = outside.mean(dtype=torch.float32) if outside.numel() else outside.sum()
        self._now = mean if self._now is None else self._now + mean

    def end_step(self) -> None:
        if self._now is None:
            return
        if self.last is not None:
            self.grew = self.grew + (self._now > self.last)
        else:
            self.first = self._now
        self.last, self._now = self._now, None
        self.steps += 1

    @property
    def starts_on_a_bound(self) -> bool:
        return self.elements > 0 and int(self.at_low) + int(self.at_high) >= self.elements

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
        """In ten steps or more, at least four of five went further out."""
        if self.steps < 10 or self.first is None:
            return False
        return float(self.last) > float(self.first) and int(self.grew) >= 0.8 * (self.steps - 1)


def read(spelling: Spelling, args: Any, kwargs: Any) -> tuple[Tensor, Any, Any] | None:
    """x and its bounds, as tensors below every wrapper; None for what is no clamp of floating point numbers."""
    if spelling.form.switches[0] not in _CLAMPS:
        return None
    found = spelling.read(args, kwargs)
    if found is None or len(found[1]) != 3 or not found[1][0].is_floating_point():
        return None
    x, low, high = (physical(one).detach() if isinstance(one, Tensor) else one for one in found[1])
    return x, low, high
