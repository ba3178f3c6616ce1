"""Which parameters an optimiser of the program steps, and whether it saw the gradient that had come to them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_compiling
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ...listen.around import clearings
from ...listen.harmless import Errors, harmless
from ...listen.quietly import quietly, unheard
from ...torch_table.private import local, without_torch_function
from .leaves import Leaf, Leaves, has_numbers, moves
from .not_heard import Rest, are_plain, can_rest

_KEPT = 64  # optimisers that are gone


class _Group:
    """Of an optimiser's parameters, and whether it was ever stepped with a rate other than 0."""

    def __init__(self, leaves: list[Leaf]) -> None:
        self.leaves = leaves
        self.has_moved = False


class _Held:
    """What one optimiser holds. pending: of these, what it has not yet seen with a gradient other than 0."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.groups: list[_Group] = []
        self.pending: list[Leaf] = []
        self.given: Any = None
        self.are_plain = False  # its parameters
        self.steps = 0


class Optimisers:
    """Hears every step of every optimiser of torch. It changes nothing, and never raises into the step."""

    def __init__(
        self, leaves: Leaves, is_on: Callable[[], bool], noted: Errors, before_unheard: Callable[[Optimizer], None]
    ) -> None:
        self._leaves = leaves
        self._is_on = is_on
        self.noted = noted
        self._held: dict[int, _Held] = {}
        self._handles: list[Any] = []
        self.have_stepped = False
        self.rest: Rest | None = None
        self._before_unheard = before_unheard
        # What else looks at each step: `before(optimizer)` and `after(optimizer)`, which are harmless.
        self.watching: list[Any] = []

    def __enter__(self) -> Optimisers:
        self._handles = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]
        clearings.subscribe(self.clears)
        return self

    def __exit__(self, *exception: object) -> None:
        clearings.unsubscribe(self.clears)
        for handle in self._handles:
            handle.remove()

    def settle(self) -> None:
        """An optimiser whose rates are all 0, as before its first step of a warm-up, freezes nothing."""
        for held in self._held.values():
            if not any(group.has_moved for group in held.groups):
                for group in held.groups:
                    for leaf in group.leaves:
                        leaf.stepped = True

    @harmless("a step of an optimiser")
    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.rest is not None:
            self.rest.end()  # where the step before has raised
        if self._hears():
            held = self._heard(optimizer, len(args) > 1 or bool(kwargs.get("closure")), False)
            for one in self.watching:
                one.before(optimizer)
            if self.rest is not None and held is not None and held.are_plain and can_rest(optimizer, args, kwargs):
                with without_torch_function():
                    self._before_unheard(optimizer)
                self.rest.begin()

    @harmless("a step of an optimiser")
    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """A closure computes the gradient within the step."""
        if self.rest is not None:
            self.rest.end()
        if self._hears():
            if len(args) > 1 or kwargs.get("closure"):
                self._heard(optimizer, True, True)
            for one in self.watching:
                one.after(optimizer)

    @harmless("a zero_grad of an optimiser")
    def clears(self, optimizer: Optimizer, set_to_none: bool) -> Callable[[object], None] | None:
        """Its calls set `.grad` alone, in which there is nothing to hear, and are half of those of a step. Returns what comes after it."""
        rest = self.rest
        if rest is None or rest.is_on or not set_to_none or not self._hears():
            return None
        rest.begin()
        return self._has_cleared

    @harmless("a zero_grad of an optimiser")
    def _has_cleared(self, result: object) -> None:
        assert self.rest is not None
        self.rest.end()

    def _hears(self) -> bool:
        return self._is_on() and not unheard.depth and not is_compiling()

    @harmless("a step of an optimiser")
    def _heard(self, optimizer: Optimizer, has_closure: bool, is_after: bool) -> _Held:
        self.have_stepped = True
        with without_torch_function():
            held = self._of(optimizer)
        held.steps += not is_after
        if held.pending or not all(group.has_moved for group in held.groups):
            with quietly():
                self._look(held, optimizer, has_closure)
        return held

    def _of(self, optimizer: Optimizer) -> _Held:
        held = self._held.get(id(optimizer))
        if held is None or held.optimizer() is not optimizer:
            self._forget_the_gone()
            held = self._held[id(optimizer)] = _Held(optimizer)
        # Parameters are replaced in place where a program grows or prunes them, and frozen or set free.
        groups = [[one for one in group["params"] if one.requires_grad] for group in optimizer.param_groups]
        given = [(len(some), sum(map(id, some))) for some in groups]
        if held.given != given:
            held.given, held.are_plain = given, are_plain(optimizer)
            for group in held.groups:
                for leaf in group.leaves:
                    leaf.is_frozen = not getattr(leaf.tensor(), "requires_grad", True)
            met = [[self._leaves.meet(one) for one in some] for some in groups]
            held.groups = [_Group([leaf for leaf in some if leaf is not None]) for some in met]
            every = [leaf for group in held.groups for leaf in group.leaves]
            held.pending = [leaf for leaf in every if leaf.seen is not True]
            for leaf in every:
                leaf.held, leaf.is_frozen = True, False
        return held

    def _forget_the_gone(self) -> None:
        """A program may make a new optimiser in each step."""
        if len(self._held) >= _KEPT:
            self.settle()
            self._held = {key: held for key, held in self._held.items() if held.optimizer() is not None}

    def _look(self, held: _Held, optimizer: Optimizer, has_closure: bool) -> None:
        for group, given in zip(held.groups, optimizer.param_groups, strict=True):
            if not group.has_moved and not _is_zero(given.get("lr")):
                group.has_moved = True
                for leaf in group.leaves:
                    leaf.stepped = True
        for leaf in held.pending:
            self._look_at(leaf, has_closure)
        if not held.steps & (held.steps - 1):  # at powers of two, as a device has to be waited for
            held.pending = [leaf for leaf in held.pending if not _settled(leaf)]

    @staticmethod
    def _look_at(leaf: Leaf, has_closure: bool) -> None:
        tensor = leaf.tensor()
        if tensor is None or leaf.seen is True:
            return
        grad = tensor.grad
        if grad is not None and has_numbers(grad):
            leaf.seen = leaf.seen | moves(grad)
        if not has_closure and leaf.seen is not True and leaf.last is not None:
            leaf.missed = leaf.missed | leaf.last


def _is_zero(rate: object) -> bool:
    """A rate on a device counts as one that moves: it is not waited for."""
    if isinstance(rate, torch.Tensor):
        return rate.device.type == "cpu" and rate.numel() == 1 and bool(local(rate) == 0)
    return isinstance(rate, (int, float)) and rate == 0


def _settled(leaf: Leaf) -> bool:
    if isinstance(leaf.seen, torch.Tensor) and not _is_captured(leaf.seen):
        leaf.seen = bool(leaf.seen)
    return leaf.seen is True


def _is_captured(flag: torch.Tensor) -> bool:
    """Into a graph of a device, where to wait is an error."""
    return flag.is_cuda and torch.cuda.is_current_stream_capturing()
