"""The parameters that an optimiser of the program steps, and the gradients that it saw.

Half of the calls of a training step are made inside torch's own optimisers, and each of them only changes a parameter by its gradient.
So the listener rests meanwhile, off torch's stack of modes.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterable
from types import CodeType
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.optim import Optimizer

from ...listen.frames import NOWHERE, Location, is_torchs, location
from ...listen.harmless import Errors, harmless, quietly, unheard
from ...torch_table.private import (
    PARTS_OF_A_STEP,
    mode_count,
    mode_stack,
    pop_mode,
    push_mode,
    step_hooks,
    without_torch_function,
)
from ...torch_table.records import Arguments, Keywords
from .leaf import Leaf, has_numbers, is_recorded, moves
from .leaves import Leaves
from .norms import are_plain, is_zero

if TYPE_CHECKING:
    from .nonfinite import Nonfinite
    from .stalls import Stalls
    from .unheld import Unheld

_MOST_OPTIMIZERS = 64  # from here on, those that are gone are dropped
_HOOKS_OF_OURS = [1, 1, 0, 0]  # before and after each step of all optimisers, and of this one


class SteppedOptimiser:
    """An optimiser that stepped, with its parameters by group."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.settings = frozenset(optimizer.defaults)  # their names
        self.kind = type(optimizer).__name__
        # Added in the dtype of a parameter, but in a fused step.
        self.eps = 1.0 if optimizer.defaults.get("fused") else optimizer.defaults.get("eps", 1.0)
        self.groups: list[list[Leaf]] = []
        self.have_moved: list[bool] = []  # by group: was there a step with a rate other than 0?
        self.pending: list[Leaf] = []  # the optimiser saw no gradient of them yet that differs from 0
        self.key: list[tuple[int, int]] | None = None  # by group: how many parameters, and which
        self.are_plain = False
        self.steps = 0
        self.location = NOWHERE  # of the first step
        self.still_steps = 0  # the last steps, whose rates were all 0
        self.still_at = NOWHERE  # the first of these
        self.has_schedule = False  # did a scheduler set the rates?
        self.parameters = 0  # that it holds, frozen ones too
        self.frozen = 0  # of these
        self.name = ""  # in the program
        self.frozen_steps = 0  # the steps in which no parameter required a gradient

    @property
    def leaves(self) -> list[Leaf]:
        return [leaf for group in self.groups for leaf in group]


class Optimisers:
    """Hears every step of every optimiser of torch. It changes nothing, and never raises into the step.

    before_unheard(optimizer) is called before a step in which the listener rests.
    """

    def __init__(
        self, leaves: Leaves, is_on: Callable[[], bool], noted: Errors, before_unheard: Callable[[Optimizer], None]
    ) -> None:
        self.noted = noted
        self.have_stepped = False
        self.is_known = False  # did an optimiser step, or clear its gradients?
        self.rest: Rest | None = None
        self.stalls: Stalls | None = None  # looks at each step too
        self.unheld: Unheld | None = None  # where parameters get a gradient and no optimiser holds them
        self.nonfinite: Nonfinite | None = None  # and this, once a gradient was not finite
        self.missed: list[Leaf] = []  # a step missed their gradient, and no call is known that took it away
        self.watched: dict[Leaf, int] = {}  # those of them with a gradient, and its id, between a backward and a step
        self._leaves, self._is_on, self._before_unheard = leaves, is_on, before_unheard
        self._known: dict[int, SteppedOptimiser] = {}  # by the id of the optimiser
        self._steps = 0  # of all optimisers
        self._seen = 0  # the number of leaves at the last look at those that no optimiser holds

    @property
    def all(self) -> list[SteppedOptimiser]:
        """Those that stepped, with their parameters."""
        return list(self._known.values())

    def settle(self) -> None:
        """An optimiser whose rates are all 0, as before its first step of a warm-up, freezes nothing."""
        for known in self._known.values():
            if not any(known.have_moved):
                for leaf in known.leaves:
                    leaf.is_stepped = True

    @harmless("a step of an optimiser")
    def before_step(self, optimizer: Optimizer, args: Arguments, kwargs: Keywords) -> None:
        if self.rest is not None:
            self.rest.end()  # if the last step has raised
        self.watched = {}
        if self._hears():
            known = self._look_at_step(optimizer, len(args) > 1 or bool(kwargs.get("closure")), False)
            if self.stalls is not None:
                self.stalls.before(optimizer)
            self._look_at_broken(optimizer)
            if self.rest is not None and known is not None and known.are_plain and can_rest(optimizer, args, kwargs):
                with without_torch_function():
                    self._before_unheard(optimizer)
                self.rest.begin()

    @harmless("a step of an optimiser")
    def after_step(self, optimizer: Optimizer, args: Arguments, kwargs: Keywords) -> None:
        if self.rest is not None:
            self.rest.end()
        if self._hears():
            if len(args) > 1 or kwargs.get("closure"):  # a closure computes the gradient within the step
                self._look_at_step(optimizer, True, True)
                self._look_at_broken(optimizer)
            if self.stalls is not None:
                self.stalls.after(optimizer)

    def _look_at_broken(self, optimizer: Optimizer) -> None:
        if self.nonfinite is not None:
            with quietly():
                self.nonfinite.look_at_step(optimizer)

    @harmless("a zero_grad of an optimiser")
    def on_clearing(self, optimizer: Optimizer, set_to_none: bool) -> Callable[[object], None] | None:
        """Rest while `.grad` is set to None: these calls are half of those of a step, and there is nothing to hear in them."""
        self.is_known = True
        rest = self.rest
        if rest is None or rest.is_on or not set_to_none or not self._hears():
            return None
        call = location(1) if self.watched else NOWHERE
        rest.begin()

        @harmless("a zero_grad of an optimiser")
        def end(result: object) -> None:
            rest.end()
            for leaf in self.watched:
                if getattr(leaf.tensor(), "grad", None) is None:
                    leaf.taken_at = call

        return end

    def begin_watch(self) -> None:
        """A backward has ended."""
        grads = [(leaf, getattr(leaf.tensor(), "grad", None)) for leaf in self.missed]
        self.watched = {leaf: id(grad) for leaf, grad in grads if _is_plain(grad) and moves(grad) is True}

    def note_taken(self, call: Location, written: Iterable[Tensor]) -> None:
        """Note a call of which one of these tensors was the gradient of a parameter, if that is 0 since."""
        storages = {tensor.untyped_storage().data_ptr() for tensor in written if _is_plain(tensor)}
        for leaf, key in list(self.watched.items()):
            grad = getattr(leaf.tensor(), "grad", None)
            if grad is None or id(grad) != key:  # another tensor was put there, which nobody hears
                del self.watched[leaf]
            elif grad.untyped_storage().data_ptr() in storages and not moves(grad):
                leaf.taken_at = call

    def _hears(self) -> bool:
        return self._is_on() and not unheard.depth and not is_compiling()

    @harmless("a step of an optimiser")
    def _look_at_step(self, optimizer: Optimizer, has_closure: bool, is_after: bool) -> SteppedOptimiser:
        self.have_stepped = self.is_known = True
        with without_torch_function():
            known = self._update_groups(optimizer)
        if not is_after:
            known.steps += 1
            self._steps += 1
            self._note_step(known, optimizer)
            self.look_at_unheld(is_last=False)
        if known.pending or not all(known.have_moved):
            with quietly():
                self._look(known, optimizer, has_closure)
        return known

    def _note_step(self, known: SteppedOptimiser, optimizer: Optimizer) -> None:
        """Count the steps that move nothing: those with a rate of 0, and those without a parameter that requires a gradient."""
        if known.location is NOWHERE:
            known.location = location(2)
        if not known.leaves:
            known.frozen_steps += 1
        if not all(is_zero(group.get("lr")) for group in optimizer.param_groups):
            known.still_steps = 0
        else:
            known.still_steps += 1
            if known.still_steps == 1:
                known.still_at = location(2)
                known.has_schedule = all("initial_lr" in group for group in optimizer.param_groups)

    def look_at_unheld(self, is_last: bool) -> None:
        """At new leaves in each step, and at all in ever fewer steps. is_last: the program ends."""
        leaves, is_power_of_two = self._leaves.all, not self._steps & (self._steps - 1)
        new, self._seen = leaves[0 if is_last or is_power_of_two else self._seen :], len(leaves)
        others = [
            leaf for leaf in new if (leaf.is_parameter or leaf.place) and leaf.gradients and not leaf.is_in_optimizer
        ]
        if not others or not self.have_stepped:
            return
        from .unheld import Unheld  # few programs have such parameters

        self.unheld = self.unheld or Unheld()
        with quietly():
            self.unheld.look(others)
            if is_last or (is_power_of_two and self._steps > 1):
                optimizers = {key for key, known in self._known.items() if known.optimizer() is not None}
                self.unheld.search(others, optimizers, self._leaves.names.owner_of)
                for key, known in self._known.items():
                    known.name = self.unheld.variables.get(key, known.name)

    def _update_groups(self, optimizer: Optimizer) -> SteppedOptimiser:
        known = self._known.get(id(optimizer))
        if known is None or known.optimizer() is not optimizer:
            if len(self._known) >= _MOST_OPTIMIZERS:  # a program may make a new optimiser in each step
                self.settle()
                self._known = {key: old for key, old in self._known.items() if old.optimizer() is not None}
            known = self._known[id(optimizer)] = SteppedOptimiser(optimizer)
        # A program replaces parameters in place where it grows or prunes them, and freezes them or sets them free.
        groups = [[tensor for tensor in group["params"] if tensor.requires_grad] for group in optimizer.param_groups]
        key = [(len(tensors), sum(map(id, tensors))) for tensors in groups]
        if known.key != key:
            known.key = key
            known.parameters = sum(len(group["params"]) for group in optimizer.param_groups)
            known.frozen = known.parameters - sum(map(len, groups))
            known.are_plain = all(are_plain(group["params"]) for group in optimizer.param_groups)
            for leaf in known.leaves:
                leaf.is_frozen = not getattr(leaf.tensor(), "requires_grad", True)
            leaves = [[self._leaves.add(tensor) for tensor in tensors] for tensors in groups]
            known.groups = [[leaf for leaf in group if leaf is not None] for group in leaves]
            known.have_moved = [False] * len(groups)
            known.pending = [leaf for leaf in known.leaves if leaf.step_saw_gradient is not True]
            for leaf in known.leaves:
                leaf.is_in_optimizer, leaf.is_frozen = True, False
        return known

    def _look(self, known: SteppedOptimiser, optimizer: Optimizer, has_closure: bool) -> None:
        for number, settings in enumerate(optimizer.param_groups):
            if not known.have_moved[number] and not is_zero(settings.get("lr")):
                known.have_moved[number] = True
                for leaf in known.groups[number]:
                    leaf.is_stepped, leaf.ascends = True, bool(settings.get("maximize"))
                    if leaf.stepped_after is None:
                        leaf.stepped_after = self._leaves.backwards
        for leaf in known.pending:
            _look_at_grad(leaf, has_closure)
        self.missed = [leaf for leaf in known.pending if leaf.step_missed_gradient is True and leaf.taken_at is None]
        if not known.steps & (known.steps - 1):  # at powers of two, because a device has to be waited for
            _settle(known.pending)
            known.pending = [leaf for leaf in known.pending if leaf.step_saw_gradient is not True]


def _look_at_grad(leaf: Leaf, has_closure: bool) -> None:
    tensor = leaf.tensor()
    if tensor is None or leaf.step_saw_gradient is True:
        return
    grad = tensor.grad
    if grad is not None and has_numbers(grad):
        leaf.step_saw_gradient = leaf.step_saw_gradient | moves(grad)
    if not has_closure and leaf.step_saw_gradient is not True and leaf.last_moved is not None:
        leaf.step_missed_gradient = leaf.step_missed_gradient | leaf.last_moved


def _is_plain(tensor: Tensor | None) -> TypeGuard[Tensor]:
    return tensor is not None and are_plain([tensor]) and tensor.layout is torch.strided and has_numbers(tensor)


def _settle(leaves: Iterable[Leaf]) -> None:
    """Read what lies on a device, of all leaves at once, unless it is captured into a graph of the device."""
    flags: dict[torch.device, list[tuple[Leaf, Tensor]]] = {}
    for leaf in leaves:
        flag = leaf.step_saw_gradient
        if isinstance(flag, Tensor) and not is_recorded(flag):
            flags.setdefault(flag.device, []).append((leaf, flag))
    for pairs in flags.values():
        for (leaf, _), flag in zip(pairs, torch.stack([flag for _, flag in pairs]).tolist(), strict=True):
            leaf.step_saw_gradient = flag


# --- steps in which the listener rests --------------------------------------------------------------------------------


def can_rest(optimizer: Optimizer, args: Arguments, kwargs: Keywords) -> bool:
    """If the parameters are plain: does this step run torch's own code alone, with no closure and no hook of somebody else?"""
    if kwargs or any(value is not None for value in args[1:]):
        return False
    kind: type = type(optimizer)
    if not _is_of_torch(kind, type(optimizer).step) or optimizer.defaults.get("differentiable"):
        return False
    return list(map(len, step_hooks(optimizer))) == _HOOKS_OF_OURS and PARTS_OF_A_STEP.isdisjoint(vars(optimizer))


@functools.lru_cache(maxsize=64)
def _is_of_torch(kind: type, step: object) -> bool:
    """step: the program may replace the method in its class."""
    function = step
    while function is not None:
        code = getattr(function, "__code__", None)
        if not isinstance(code, CodeType) or not is_torchs(code.co_filename):
            return False
        function = getattr(function, "__wrapped__", None)
    return kind.__module__.startswith("torch.optim.")


class Rest:
    """Takes a mode off torch's stack between `begin` and `end`.

    If a step raises, nobody calls `end`. Then the next event of the program calls it. The mode never comes to lie above a mode that was
    entered since.
    """

    def __init__(self, mode: object) -> None:
        self._mode = mode
        self._below: list[object] | None = None  # the modes under it, while it is off the stack
        self._thread = 0

    @property
    def is_on(self) -> bool:
        return self._below is not None

    def begin(self) -> None:
        """The note comes before the deed, here and below, so that after an error in between the next `end` puts things right."""
        if self._below is not None:
            return
        stack = mode_stack()
        if stack and stack[-1] is self._mode:
            self._below, self._thread = stack[:-1], threading.get_ident()
            pop_mode()

    def end(self, is_last: bool = False) -> None:
        """is_last: the context ends, and torch pops the mode on top, which must not be somebody else's. Each thread has its own stack."""
        below = self._below
        if below is None or self._thread != threading.get_ident():
            return
        stack = mode_stack() if below or mode_count() else below
        if any(mode is self._mode for mode in stack):
            self._below = None
        elif is_last or (len(stack) == len(below) and all(a is b for a, b in zip(stack, below, strict=True))):
            push_mode(self._mode)
            self._below = None
