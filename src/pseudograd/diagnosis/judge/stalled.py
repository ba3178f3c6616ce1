"""Steps that rounding swallows: weights that have a gradient and do not move when their optimiser steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ...listen import frames
from ...listen.frames import NOWHERE
from ...listen.harmless import Errors, harmless
from ...listen.quietly import quietly
from ...torch_table.private import without_torch_function
from ..count.swallowed import Together, Watched

STALLED = 0.5  # of the entries that have a gradient
_LEAST = 10  # steps: with fewer nobody can say that an entry never moves
_SELDOM = 8  # an optimiser without gradients is asked again after so many steps


class _Steps:
    """Those of one optimiser."""

    def __init__(self) -> None:
        self.count = 0
        self.together: dict[Any, Together] = {}  # by group, dtype and device
        self.looked_at: list[tuple[Together, list[Tensor], Mapping[str, Any]]] = []  # in the step that is under way

    @property
    def is_due(self) -> bool:
        """Is something looked at in the step that comes?"""
        if not self.together:
            return self.count % _SELDOM == 0
        return any(one.is_due(self.count) for one in self.together.values())


class Stalls:
    """The parameters that an optimiser steps. `Optimisers` hears the steps."""

    def __init__(self, leaf_of: Callable[[Tensor], object], noted: Errors, now: Callable[[], int] = lambda: 0) -> None:
        """now(): how many backward passes there were."""
        self._leaf_of = leaf_of
        self._now = now
        self.noted = noted
        self._all: dict[int, Watched] = {}  # by the id of the parameter: torch swaps no tensors that somebody refers to
        self._steps: dict[int, _Steps] = {}  # by the id of the optimiser
        self.place = NOWHERE

    @harmless("a step of an optimiser")
    def before(self, optimizer: object) -> None:
        steps = self._steps.get(id(optimizer))
        if steps is None:
            steps = self._steps[id(optimizer)] = _Steps()
        if steps.is_due:
            with quietly():
                self._look(steps, optimizer)

    def _look(self, steps: _Steps, optimizer: Any) -> None:
        steps.looked_at = []  # those of a step that raised
        for key, tensors in _stepped(optimizer).items():
            if self.place is NOWHERE:
                self.place = frames.place(2)
            group, dtype, _ = key
            together = steps.together.setdefault(key, Together(dtype))
            if together.is_due(steps.count):
                together.before([self._watched(tensor) for tensor in tensors], tensors)
                steps.looked_at.append((together, tensors, optimizer.param_groups[group]))

    def _watched(self, tensor: Tensor) -> Watched:
        known = self._all.get(id(tensor))
        if known is None or not known.is_of(tensor):
            known = self._all[id(tensor)] = Watched(tensor, self._leaf_of(tensor))
        return known

    @harmless("a step of an optimiser")
    def after(self, optimizer: Any) -> None:
        steps = self._steps.get(id(optimizer))
        if steps is None:
            return
        looked_at, steps.looked_at = steps.looked_at, []
        for one in steps.together.values():
            one.since += 1
        if looked_at:
            with quietly():
                for together, tensors, group in looked_at:
                    together.after(tensors, group, optimizer.state, steps.count, self._now())
        steps.count += 1

    def counted(self) -> list[Watched]:
        """The parameters that took enough steps, and whose optimiser keeps nothing of what rounding takes."""
        return [one for one in self.watched() if one.steps >= _LEAST and not one.has_master]

    def watched(self) -> list[Watched]:
        for steps in self._steps.values():
            for one in steps.together.values():
                one.count()
        return [one for one in self._all.values() if one.leaf is not None and one.steps]


def _stepped(optimizer: Any) -> dict[tuple[int, torch.dtype, torch.device], list[Tensor]]:
    """By the number of the group, dtype and device."""
    found: dict[tuple[int, torch.dtype, torch.device], list[Tensor]] = {}
    with without_torch_function():
        for at, group in enumerate(optimizer.param_groups):
            for tensor in group["params"] if _moves(group.get("lr", 1.0)) else ():
                if _is_plain(tensor):
                    found.setdefault((at, tensor.dtype, tensor.device), []).append(tensor)
    return found


def _is_plain(tensor: Tensor) -> bool:
    """With a gradient, and numbers that can be read here."""
    grad = tensor.grad
    return (
        grad is not None
        and type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.is_floating_point()
        and tensor.numel() > 0
        and not grad.is_sparse
    )


def _moves(rate: object) -> bool:
    """A warm-up may begin with a rate of 0. One on a device is not waited for."""
    return not (isinstance(rate, (int, float)) and rate == 0)
