"""Steps that rounding swallows: weights that have a gradient and do not move when their optimiser steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...listen import frames
from ...listen.frames import NOWHERE
from ...listen.harmless import Errors, harmless
from ...listen.quietly import quietly
from ...torch_table.private import without_torch_function
from .leaves import Leaves
from .swallowed import Together, Watched

_SELDOM = 8  # an optimiser without gradients is looked at again after so many steps
_Group = tuple[int, torch.dtype, torch.device]  # the number of a group of the optimiser, and what its tensors are


class _Steps:
    """The steps of one optimiser."""

    def __init__(self) -> None:
        self.count = 0
        self.together: dict[_Group, Together] = {}
        self.looked_at: list[tuple[Together, list[Tensor], Mapping[str, Any]]] = []  # in the step that is under way

    @property
    def is_due(self) -> bool:
        """Is something looked at in the step that comes?"""
        if not self.together:
            return self.count % _SELDOM == 0
        return any(together.is_due(self.count) for together in self.together.values())


class Stalls:
    """The parameters that an optimiser steps. `Optimisers` calls `before` and `after` at each step."""

    def __init__(self, leaves: Leaves, noted: Errors) -> None:
        self._leaves = leaves
        self.noted = noted
        self._all: dict[int, Watched] = {}  # by the id of the parameter: torch swaps no tensors that somebody refers to
        self._steps: dict[int, _Steps] = {}  # by the id of the optimiser
        self.place = NOWHERE

    @harmless("a step of an optimiser")
    def before(self, optimizer: Optimizer) -> None:
        steps = self._steps.setdefault(id(optimizer), _Steps())
        if steps.is_due:
            with quietly():
                self._look(steps, optimizer)

    def _look(self, steps: _Steps, optimizer: Optimizer) -> None:
        steps.looked_at = []  # those of a step that raised
        for key, tensors in _stepped(optimizer).items():
            if self.place is NOWHERE:
                self.place = frames.place(2)
            together = steps.together.setdefault(key, Together(key[1]))
            if together.is_due(steps.count):
                together.before([self._watched_of(tensor) for tensor in tensors], tensors)
                steps.looked_at.append((together, tensors, optimizer.param_groups[key[0]]))

    def _watched_of(self, tensor: Tensor) -> Watched:
        known = self._all.get(id(tensor))
        if known is None or not known.is_of(tensor):
            leaf = next(iter(self._leaves.named(self._leaves.set_of(tensor))), None)
            known = self._all[id(tensor)] = Watched(tensor, leaf)
        return known

    @harmless("a step of an optimiser")
    def after(self, optimizer: Optimizer) -> None:
        steps = self._steps.get(id(optimizer))
        if steps is None:
            return
        looked_at, steps.looked_at = steps.looked_at, []
        for together in steps.together.values():
            together.since += 1
        if looked_at:
            with quietly():
                for together, tensors, group in looked_at:
                    together.after(tensors, group, optimizer.state, steps.count, self._leaves.backwards)
        steps.count += 1

    def watched(self) -> list[Watched]:
        """The parameters that took a step."""
        for steps in self._steps.values():
            for together in steps.together.values():
                together.count()
        return [watched for watched in self._all.values() if watched.leaf is not None and watched.steps]


def _stepped(optimizer: Optimizer) -> dict[_Group, list[Tensor]]:
    """The parameters that move: with a gradient, and numbers that can be read here."""
    tensors: dict[_Group, list[Tensor]] = {}
    with without_torch_function():
        for number, group in enumerate(optimizer.param_groups):
            rate = group.get("lr", 1.0)
            if isinstance(rate, (int, float)) and rate == 0:
                continue  # as in a warm-up; a rate on a device is not waited for
            for tensor in filter(_is_plain, group["params"]):
                tensors.setdefault((number, tensor.dtype, tensor.device), []).append(tensor)
    return tensors


def _is_plain(tensor: Tensor) -> bool:
    grad = tensor.grad
    is_dense = grad is not None and not grad.is_sparse and tensor.is_floating_point() and tensor.numel() > 0
    return is_dense and type(tensor) in (Tensor, torch.nn.Parameter)
