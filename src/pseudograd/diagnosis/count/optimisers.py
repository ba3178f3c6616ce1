"""Which parameters an optimiser of the program steps, and whether it saw the gradient that had come to them.

Of what torch's own optimisers compute a diagnosis needs nothing: each parameter is changed by its gradient. Half of the calls of a
training step are made there, so the listener rests meanwhile, off torch's stack of modes.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.optim import Optimizer

from ...listen.frames import is_torchs
from ...listen.harmless import Errors, harmless
from ...listen.quietly import quietly, unheard
from ...torch_table.private import (
    PARTS_OF_A_STEP,
    local,
    mode_count,
    mode_stack,
    pop_mode,
    push_mode,
    step_hooks,
    without_torch_function,
)
from .leaf import Leaf, has_numbers, moves
from .leaves import Leaves

_GONE = 64  # optimisers, of which some may be gone
_PLAIN = (Tensor, torch.nn.Parameter)
_OURS_ALONE = [1, 1, 0, 0]  # hooks: before and after each step of all optimisers, and of this one


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
        self.look: list[tuple[int, int]] | None = None  # of the groups: how many parameters, and which
        self.are_plain = False  # its parameters
        self.steps = 0

    @property
    def leaves(self) -> list[Leaf]:
        return [leaf for group in self.groups for leaf in group.leaves]


class Optimisers:
    """Hears every step of every optimiser of torch. It changes nothing, and never raises into the step.

    before_unheard(optimizer) is called before a step that nobody hears.
    """

    def __init__(
        self, leaves: Leaves, is_on: Callable[[], bool], noted: Errors, before_unheard: Callable[[Optimizer], None]
    ) -> None:
        self.noted = noted
        self.have_stepped = False
        self.rest: Rest | None = None
        # What else looks at each step: `before(optimizer)` and `after(optimizer)`, which are harmless.
        self.watching: list[Any] = []
        self._leaves, self._is_on, self._before_unheard = leaves, is_on, before_unheard
        self._held: dict[int, _Held] = {}

    def settle(self) -> None:
        """An optimiser whose rates are all 0, as before its first step of a warm-up, freezes nothing."""
        for held in self._held.values():
            if not any(group.has_moved for group in held.groups):
                for leaf in held.leaves:
                    leaf.stepped = True

    @harmless("a step of an optimiser")
    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.rest is not None:
            self.rest.end()  # where the step before has raised
        if self._hears():
            held = self._look_at_step(optimizer, len(args) > 1 or bool(kwargs.get("closure")), False)
            for watcher in self.watching:
                watcher.before(optimizer)
            if self.rest is not None and held is not None and held.are_plain and can_rest(optimizer, args, kwargs):
                with without_torch_function():
                    self._before_unheard(optimizer)
                self.rest.begin()

    @harmless("a step of an optimiser")
    def after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """A closure computes the gradient within the step."""
        if self.rest is not None:
            self.rest.end()
        if self._hears():
            if len(args) > 1 or kwargs.get("closure"):
                self._look_at_step(optimizer, True, True)
            for watcher in self.watching:
                watcher.after(optimizer)

    @harmless("a zero_grad of an optimiser")
    def on_clearing(self, optimizer: Optimizer, set_to_none: bool) -> Callable[[object], None] | None:
        """Its calls set `.grad` alone, in which there is nothing to hear, and are half of those of a step. Returns what comes after it."""
        rest = self.rest
        if rest is None or rest.is_on or not set_to_none or not self._hears():
            return None
        rest.begin()
        return self._after_clearing

    @harmless("a zero_grad of an optimiser")
    def _after_clearing(self, result: object) -> None:
        assert self.rest is not None
        self.rest.end()

    def _hears(self) -> bool:
        return self._is_on() and not unheard.depth and not is_compiling()

    @harmless("a step of an optimiser")
    def _look_at_step(self, optimizer: Optimizer, has_closure: bool, is_after: bool) -> _Held:
        self.have_stepped = True
        with without_torch_function():
            held = self._meet(optimizer)
        held.steps += not is_after
        if held.pending or not all(group.has_moved for group in held.groups):
            with quietly():
                self._look(held, optimizer, has_closure)
        return held

    def _meet(self, optimizer: Optimizer) -> _Held:
        held = self._held.get(id(optimizer))
        if held is None or held.optimizer() is not optimizer:
            self._forget_gone()
            held = self._held[id(optimizer)] = _Held(optimizer)
        # Parameters are replaced in place where a program grows or prunes them, and frozen or set free.
        groups = [[tensor for tensor in group["params"] if tensor.requires_grad] for group in optimizer.param_groups]
        look = [(len(tensors), sum(map(id, tensors))) for tensors in groups]
        if held.look != look:
            held.look, held.are_plain = look, are_plain(optimizer)
            for leaf in held.leaves:
                leaf.is_frozen = not getattr(leaf.tensor(), "requires_grad", True)
            met = [[self._leaves.meet(tensor) for tensor in tensors] for tensors in groups]
            held.groups = [_Group([leaf for leaf in leaves if leaf is not None]) for leaves in met]
            held.pending = [leaf for leaf in held.leaves if leaf.seen is not True]
            for leaf in held.leaves:
                leaf.held, leaf.is_frozen = True, False
        return held

    def _forget_gone(self) -> None:
        """A program may make a new optimiser in each step."""
        if len(self._held) >= _GONE:
            self.settle()
            self._held = {key: held for key, held in self._held.items() if held.optimizer() is not None}

    def _look(self, held: _Held, optimizer: Optimizer, has_closure: bool) -> None:
        for group, settings in zip(held.groups, optimizer.param_groups, strict=True):
            if not group.has_moved and not _is_zero(settings.get("lr")):
                group.has_moved = True
                for leaf in group.leaves:
                    leaf.stepped = True
        for leaf in held.pending:
            _look_at_grad(leaf, has_closure)
        if not held.steps & (held.steps - 1):  # at powers of two, as a device has to be waited for
            held.pending = [leaf for leaf in held.pending if not _is_settled(leaf)]


def _look_at_grad(leaf: Leaf, has_closure: bool) -> None:
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
    if isinstance(rate, Tensor):
        return rate.device.type == "cpu" and rate.numel() == 1 and bool(local(rate) == 0)
    return isinstance(rate, (int, float)) and rate == 0


def _is_settled(leaf: Leaf) -> bool:
    """A flag that is captured into a graph of a device must not be waited for."""
    flag = leaf.seen
    if isinstance(flag, Tensor) and not (flag.is_cuda and torch.cuda.is_current_stream_capturing()):
        leaf.seen = bool(flag)
    return leaf.seen is True


# --- steps in which the listener rests --------------------------------------------------------------------------------


def can_rest(optimizer: Optimizer, args: Any, kwargs: object) -> bool:
    """Does nothing run in this step but torch's own code, if its tensors are plain? No closure, no hook of somebody else."""
    if kwargs or (len(args) > 1 and any(value is not None for value in args[1:])):
        return False
    kind: Any = type(optimizer)
    if not _is_torchs_own(kind, kind.step) or optimizer.defaults.get("differentiable"):
        return False
    return list(map(len, step_hooks(optimizer))) == _OURS_ALONE and PARTS_OF_A_STEP.isdisjoint(vars(optimizer))


def are_plain(optimizer: Optimizer) -> bool:
    """No tensor with code of its own."""
    return all(type(tensor) in _PLAIN for group in optimizer.param_groups for tensor in group["params"])


@functools.lru_cache(maxsize=64)
def _is_torchs_own(kind: object, step: Callable[..., object]) -> bool:
    """step: it may be replaced in its class."""
    function: object = step
    while function is not None:
        code = getattr(function, "__code__", None)
        if not isinstance(code, CodeType) or not is_torchs(code.co_filename):
            return False
        function = getattr(function, "__wrapped__", None)
    return kind.__module__.startswith("torch.optim.")


class Rest:
    """Of one mode: it is off the stack between `begin` and `end`. Where a step raises, nobody calls `end`: whoever hears of the program
    next does, and nothing is put back above a mode that was entered since.
    """

    def __init__(self, mode: object) -> None:
        self._mode = mode
        self._below: list[Any] | None = None  # what was under it on the stack, while it is off
        self._thread = 0

    @property
    def is_on(self) -> bool:
        return self._below is not None

    def begin(self) -> None:
        """What is noted comes before what is done, here and below: whatever raises between, the next `end` puts it right."""
        if self._below is not None:
            return
        stack = mode_stack()
        if stack and stack[-1] is self._mode:
            self._below, self._thread = stack[:-1], threading.get_ident()
            pop_mode()

    def end(self, is_last: bool = False) -> None:
        """In another thread, whose stack is another one, it does nothing. is_last: the context ends, and torch takes off what lies on top,
        which must not be somebody else's.
        """
        below = self._below
        if below is None or self._thread != threading.get_ident():
            return
        stack = mode_stack() if below or mode_count() else below
        if any(mode is self._mode for mode in stack):
            self._below = None
        elif is_last or (len(stack) == len(below) and all(a is b for a, b in zip(stack, below, strict=True))):
            push_mode(self._mode)
            self._below = None
