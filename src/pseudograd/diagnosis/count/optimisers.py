"""The parameters that an optimiser of the program steps, and the gradients that it saw.

Half of the calls of a training step are made inside torch's own optimisers, and each of them only changes a parameter by its gradient.
So the listener *rests* during a step of these: it leaves torch's stack of modes.
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
from .leaf import Leaf, has_numbers, is_nonzero, read_together
from .leaves import Leaves
from .norms import are_plain, is_power_of_two, is_zero

if TYPE_CHECKING:
    from .nonfinite import Nonfinite
    from .stalls import Stalls
    from .unheld import Unheld

_MOST_OPTIMIZERS = 64  # if there are more, those that are gone are dropped
_HOOKS_OF_OURS = [1, 1, 0, 0]  # our hooks before and after a step: of all optimisers, and of a single one


class SteppedOptimiser:
    """An optimiser that stepped, with its parameters by group."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.settings = frozenset(optimizer.defaults)  # the names of its settings
        self.kind = type(optimizer).__name__
        # The epsilon, if a step adds it in the dtype of the parameter; else 1. A fused step adds it in full precision.
        self.eps = 1.0 if optimizer.defaults.get("fused") else optimizer.defaults.get("eps", 1.0)
        self.groups: list[list[Leaf]] = []
        self.have_moved: list[bool] = []  # by group: was there a step with a rate other than 0?
        self.pending: list[Leaf] = []  # leaves of which the optimiser saw no gradient other than 0 yet
        self.key: list[tuple[int, int]] | None = None  # by group: the number of parameters, and the sum of their ids
        self.are_plain = False  # are all parameters of classes without code of a program?
        self.steps = 0
        self.location = NOWHERE  # the line of the first step
        self.still_steps = 0  # the number of last steps with a rate of 0 in all groups
        self.still_at = NOWHERE  # the line of the first of these
        self.has_schedule = False  # did a scheduler set the rates?
        self.parameters = 0  # the number of parameters, with frozen ones
        self.frozen = 0  # the number of frozen ones
        self.name = ""  # the variable of the program
        self.frozen_steps = 0  # the number of steps in which no parameter required a gradient
        self.passes = 0  # backward passes before the last step
        # Does a step move the parameters and ask for their gradient again, as LBFGS or SAM does?
        self.searches = "line_search_fn" in self.settings

    @property
    def leaves(self) -> list[Leaf]:
        return [leaf for group in self.groups for leaf in group]


class Optimisers:
    """Follows every step of every optimiser of torch. It changes nothing, and never raises into the step."""

    def __init__(self, leaves: Leaves, is_on: Callable[[], bool], noted: Errors) -> None:
        self.noted = noted
        self.have_stepped = False
        self.is_known = False  # did an optimiser step, or clear its gradients?
        self.rest: Rest | None = None
        self.stalls: Stalls | None = None
        self.unheld: Unheld | None = None  # None as long as optimisers hold all parameters that get a gradient
        self.nonfinite: Nonfinite | None = None  # None as long as all gradients are finite
        # Leaves whose gradient was gone at a step, and nobody knows which call took it away.
        self.missed: list[Leaf] = []
        self.watched: dict[Leaf, int] = {}  # between a backward and a step: missed leaves with a gradient, and its id
        self._leaves, self._is_on = leaves, is_on
        self._records: dict[int, SteppedOptimiser] = {}  # by the id of the optimiser
        self._steps = 0  # the steps of all optimisers
        self._seen = 0  # the number of leaves at the last `look_at_unheld`

    @property
    def all(self) -> list[SteppedOptimiser]:
        return list(self._records.values())

    def settle(self) -> None:
        """Count parameters as stepped whose optimiser had only rates of 0, as in the first step of a warm-up."""
        for record in self._records.values():
            if not any(record.have_moved):
                for leaf in record.leaves:
                    leaf.is_stepped = True

    @harmless("a step of an optimiser")
    def before_step(self, optimizer: Optimizer, args: Arguments, kwargs: Keywords) -> None:
        if self.rest is not None:
            self.rest.end()  # if the last step has raised
        self.watched = {}
        if self._hears():
            record = self._look_at_step(optimizer, len(args) > 1 or bool(kwargs.get("closure")), False)
            record.passes = self._leaves.backwards
            if self.stalls is not None:
                self.stalls.before(optimizer)
            self._look_at_broken(optimizer)
            if self.rest is not None and record is not None and record.are_plain and can_rest(optimizer, args, kwargs):
                self.rest.begin()

    @harmless("a step of an optimiser")
    def after_step(self, optimizer: Optimizer, args: Arguments, kwargs: Keywords) -> None:
        if self.rest is not None:
            self.rest.end()
        if self._hears():
            if len(args) > 1 or kwargs.get("closure"):  # a closure computes the gradient within the step
                record = self._look_at_step(optimizer, True, True)
                record.searches |= self._leaves.backwards > record.passes + 1
                self._look_at_broken(optimizer)
            if self.stalls is not None:
                self.stalls.after(optimizer)

    def _look_at_broken(self, optimizer: Optimizer) -> None:
        if self.nonfinite is not None:
            with quietly():
                self.nonfinite.look_at_step(optimizer)

    @harmless("a zero_grad of an optimiser")
    def on_clearing(self, optimizer: Optimizer, set_to_none: bool) -> Callable[[object], None] | None:
        """Rest while `.grad` is set to None: these calls are half of those of a step, and none of them computes anything."""
        self.is_known = True
        rest = self.rest
        if rest is None or rest.is_on or not set_to_none or not self._hears():
            return None
        call = location() if self.watched else NOWHERE
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
        self.watched = {leaf: id(grad) for leaf, grad in grads if _is_plain(grad) and is_nonzero(grad) is True}

    def note_taken(self, call: Location, written: Iterable[Tensor]) -> None:
        """Note a call that wrote to one of these tensors, if that is the gradient of a parameter and is 0 now."""
        storages = {tensor.untyped_storage().data_ptr() for tensor in written if _is_plain(tensor)}
        for leaf, key in list(self.watched.items()):
            grad = getattr(leaf.tensor(), "grad", None)
            if grad is None or id(grad) != key:  # the program put another tensor there, which is no call of torch
                del self.watched[leaf]
            elif grad.untyped_storage().data_ptr() in storages and not is_nonzero(grad):
                leaf.taken_at = call

    def _hears(self) -> bool:
        return self._is_on() and not unheard.depth and not is_compiling()

    @harmless("a step of an optimiser")
    def _look_at_step(self, optimizer: Optimizer, has_closure: bool, is_after: bool) -> SteppedOptimiser:
        self.have_stepped = self.is_known = True
        with without_torch_function():
            record = self._update_groups(optimizer)
        if not is_after:
            record.steps += 1
            self._steps += 1
            self._note_step(record, optimizer)
            self.look_at_unheld(is_last=False)
        if record.pending or not all(record.have_moved):
            with quietly():
                self._look_at_gradients(record, optimizer, has_closure)
        return record

    def _note_step(self, record: SteppedOptimiser, optimizer: Optimizer) -> None:
        """Count the steps that move nothing, because the rate is 0 or no parameter requires a gradient."""
        if record.location is NOWHERE:
            record.location = location()
        if not record.leaves:
            record.frozen_steps += 1
        if not all(is_zero(group.get("lr")) for group in optimizer.param_groups):
            record.still_steps = 0
        else:
            record.still_steps += 1
            if record.still_steps == 1:
                record.still_at = location()
                record.has_schedule = all("initial_lr" in group for group in optimizer.param_groups)

    def look_at_unheld(self, is_last: bool) -> None:
        """Look at leaves with a gradient that no optimiser holds: at new ones in each step, at all in ever fewer steps and at the end."""
        leaves, looks_at_all = self._leaves.all, is_power_of_two(self._steps)
        new, self._seen = leaves[0 if is_last or looks_at_all else self._seen :], len(leaves)
        others = [leaf for leaf in new if leaf.is_parameter and leaf.gradients and not leaf.is_in_optimizer]
        if not others or not self.have_stepped:
            return
        from .unheld import Unheld  # few programs have such parameters

        self.unheld = self.unheld or Unheld()
        with quietly():
            self.unheld.look(others)
            if is_last or (looks_at_all and self._steps > 1):
                optimizers = {key for key, record in self._records.items() if record.optimizer() is not None}
                self.unheld.search(others, optimizers, self._leaves.names.owner_of)
                for key, record in self._records.items():
                    record.name = self.unheld.variables.get(key, record.name)

    def _update_groups(self, optimizer: Optimizer) -> SteppedOptimiser:
        record = self._records.get(id(optimizer))
        if record is None or record.optimizer() is not optimizer:
            if len(self._records) >= _MOST_OPTIMIZERS:  # a program may make a new optimiser in each step
                self.settle()
                self._records = {key: old for key, old in self._records.items() if old.optimizer() is not None}
            record = self._records[id(optimizer)] = SteppedOptimiser(optimizer)
        # The parameters may have changed: a program may grow, prune, freeze or unfreeze them.
        groups = [[tensor for tensor in group["params"] if tensor.requires_grad] for group in optimizer.param_groups]
        key = [(len(tensors), sum(map(id, tensors))) for tensors in groups]
        if record.key != key:
            record.key = key
            record.parameters = sum(len(group["params"]) for group in optimizer.param_groups)
            record.frozen = record.parameters - sum(map(len, groups))
            record.are_plain = all(are_plain(group["params"]) for group in optimizer.param_groups)
            for leaf in record.leaves:
                leaf.is_frozen = not getattr(leaf.tensor(), "requires_grad", True)
            leaves = [[self._leaves.add(tensor) for tensor in tensors] for tensors in groups]
            record.groups = [[leaf for leaf in group if leaf is not None] for group in leaves]
            record.have_moved = [False] * len(groups)
            record.pending = [leaf for leaf in record.leaves if not leaf.step_saw_gradient.is_certain]
            for leaf in record.leaves:
                leaf.is_in_optimizer, leaf.is_frozen = True, False
        return record

    def _look_at_gradients(self, record: SteppedOptimiser, optimizer: Optimizer, has_closure: bool) -> None:
        for index, settings in enumerate(optimizer.param_groups):
            if not record.have_moved[index] and not is_zero(settings.get("lr")):
                record.have_moved[index] = True
                for leaf in record.groups[index]:
                    leaf.is_stepped, leaf.ascends = True, bool(settings.get("maximize"))
                    if leaf.stepped_after is None:
                        leaf.stepped_after = self._leaves.backwards
        for leaf in record.pending:
            _look_at_grad(leaf, has_closure)
        self.missed = [
            leaf for leaf in record.pending if leaf.step_missed_gradient.is_certain and leaf.taken_at is None
        ]
        if is_power_of_two(record.steps):  # because a device has to be waited for
            _read_flags(record.pending)
            record.pending = [leaf for leaf in record.pending if not leaf.step_saw_gradient.is_certain]


def _look_at_grad(leaf: Leaf, has_closure: bool) -> None:
    tensor = leaf.tensor()
    if tensor is None or leaf.step_saw_gradient.is_certain:
        return
    grad = tensor.grad
    if grad is not None and has_numbers(grad):
        leaf.step_saw_gradient.add_nonzero(grad)
    if not has_closure and not leaf.step_saw_gradient.is_certain and leaf.last_was_nonzero is not None:
        leaf.step_missed_gradient.add(leaf.last_was_nonzero)


def _is_plain(tensor: Tensor | None) -> TypeGuard[Tensor]:
    return tensor is not None and are_plain([tensor]) and tensor.layout is torch.strided and has_numbers(tensor)


def _read_flags(leaves: Iterable[Leaf]) -> None:
    """Read `step_saw_gradient` from devices, for all leaves at once, unless a CUDA graph is being captured."""
    flags = {leaf: flag for leaf in leaves if (flag := leaf.step_saw_gradient.unread) is not None}
    for leaf, answer in read_together(flags):
        leaf.step_saw_gradient.add(bool(answer))


# --- steps in which the listener rests --------------------------------------------------------------------------------


def can_rest(optimizer: Optimizer, args: Arguments, kwargs: Keywords) -> bool:
    """Does this step run only torch's own code, with no closure and no hook of the program? The parameters must be plain."""
    if kwargs or any(value is not None for value in args[1:]):
        return False
    kind: type = type(optimizer)
    if not _is_of_torch(kind, type(optimizer).step) or optimizer.defaults.get("differentiable"):
        return False
    return list(map(len, step_hooks(optimizer))) == _HOOKS_OF_OURS and PARTS_OF_A_STEP.isdisjoint(vars(optimizer))


@functools.lru_cache(maxsize=64)
def _is_of_torch(kind: type, step: object) -> bool:
    """Is it an optimiser of torch with its own step, which the program may have replaced?"""
    function = step
    while function is not None:
        code = getattr(function, "__code__", None)
        if not isinstance(code, CodeType) or not is_torchs(code.co_filename):
            return False
        function = getattr(function, "__wrapped__", None)
    return kind.__module__.startswith("torch.optim.")


class Rest:
    """Takes a mode off torch's stack between `begin` and `end`.

    If a step raises, the next event of the program calls `end`. The mode is never put on top of a mode that was entered meanwhile.
    """

    def __init__(self, mode: object) -> None:
        self._mode = mode
        self._below: list[object] | None = None  # the modes under it, while it is off the stack
        self._thread = 0

    @property
    def is_on(self) -> bool:
        return self._below is not None

    def begin(self) -> None:
        """Take the mode off the stack. The attributes are set first, so that after an error in between the next `end` puts it back."""
        if self._below is not None:
            return
        stack = mode_stack()
        if stack and stack[-1] is self._mode:
            self._below, self._thread = stack[:-1], threading.get_ident()
            pop_mode()

    def end(self, is_last: bool = False) -> None:
        """Put the mode back, in its own thread. is_last: the context ends, so torch will pop the top mode, which has to be ours."""
        if self._thread != threading.get_ident():
            if is_last:  # nobody puts the mode back
                self._mode = self._below = None
            return
        below = self._below
        if below is None:
            return
        stack = mode_stack() if below or mode_count() else below
        if any(mode is self._mode for mode in stack):
            self._below = None
        elif is_last or (len(stack) == len(below) and all(a is b for a, b in zip(stack, below, strict=True))):
            push_mode(self._mode)
            self._below = None
