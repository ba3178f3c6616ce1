"""One parameter of a program, or another leaf: whether gradients came, which of its entries got one, and what an optimiser made of them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...kernels.native.counts import can_square, look
from ...torch_table.private import hooks_of, is_batched, is_fake, is_wrapped, local
from .names import Names
from .norms import Sizes

_BY_ROW = 2**22  # entries, from which on a row is looked at as one: a mask costs a byte for each

Flag = bool | Tensor  # a tensor on a device that must not be waited for


class Missing(NamedTuple):
    """What never got a gradient: of all entries, and of the rows along the first dimension, a row for each unit of a layer."""

    entries: int
    without: int
    units: int
    dead_units: int


class Entries:
    """Which entries of a tensor ever got a gradient, counted when somebody reads it.

    Nothing is kept once every entry had a gradient, and nothing but one bit for what is no parameter.
    """

    def __init__(self, is_detailed: bool) -> None:
        self.looks = 0
        self.is_complete = False
        self._is_detailed = is_detailed
        self._moved: Flag = False  # did any gradient differ from 0?
        self._mask: Tensor | None = None
        self._bytes: Tensor | None = None  # the same memory
        self._missing: Missing | None = None

    def add(self, grad: Tensor) -> None:
        """Called in every backward, so it looks once and makes nothing that it can do without."""
        if self.is_complete:
            return
        self.looks += 1
        grad, mask = local(grad), self._mask
        if grad.layout is not torch.strided or not self._is_detailed:
            if self._moved is not True:
                self._moved = self._moved | moves(grad)
        elif mask is None:
            self._begin(grad)
        elif mask.shape == grad.shape:
            torch.logical_or(mask, grad, out=mask)
            self._drop_if_complete()
        elif mask.numel() in (grad.numel(), grad.shape[0] if grad.dim() else 1):  # of rows, or laid out otherwise
            mask |= _nonzero(grad)
            self._drop_if_complete()
        else:  # another shape than before: what the first one missed says nothing about it
            self.drop()

    def bytes_of(self, grad: Tensor) -> Tensor | None:
        """A byte for each entry of a gradient on CPU, which a kernel brings up to date while it computes something else; then `looked`."""
        mask = self._mask
        if mask is None or mask.shape != grad.shape:
            return None
        if self._bytes is None:
            self._bytes = mask.view(torch.uint8)
        return self._bytes

    def looked(self, missing: int) -> None:
        """missing: how many entries never had a gradient."""
        self.looks += 1
        if not missing:
            self.drop()

    def drop(self) -> None:
        """Some gradient came, and no more can be said."""
        self._moved, self._mask, self._bytes, self._missing, self.is_complete = True, None, None, None, True

    def _begin(self, grad: Tensor) -> None:
        if grad.device.type == "cpu":
            count = int(torch.count_nonzero(grad))
            if count == grad.numel() and count:
                self.drop()
            if not count:
                units = grad.shape[0] if grad.dim() else 1
                self._missing = Missing(grad.numel(), grad.numel(), units, units) if grad.numel() else None
            if not count or self.is_complete:
                return
        self._mask = _nonzero(grad)

    def _drop_if_complete(self) -> None:
        """It looks at powers of two: a look costs as much as the mask."""
        if self.looks & (self.looks - 1) or self._mask is None or self._mask.device.type != "cpu":
            return
        if bool(self._mask.all()):
            self.drop()

    def settle(self) -> None:
        """The parameter is gone: the counts alone are kept, where that does not wait for a device."""
        if self._mask is not None and self._mask.device.type == "cpu":
            self._moved, self._missing, self._mask, self._bytes = self.moved, self.missing(), None, None
            self.is_complete = True

    @property
    def moved(self) -> bool:
        """Did any entry get a gradient? Waits for the device."""
        return bool(self._moved if self._mask is None else self._mask.any())

    def missing(self) -> Missing | None:
        """None where all had one, and where nobody looked at each. Of a shard it may be all: the rest has what came."""
        if self._mask is None or not self._mask.numel():
            return self._missing
        mask = self._mask
        rows = mask.flatten(1).any(1) if mask.dim() > 1 else mask.reshape(-1)
        without = int(torch.count_nonzero(~mask))
        if not without:
            return None
        return Missing(mask.numel(), without, rows.numel(), int(torch.count_nonzero(~rows)))


def _nonzero(grad: Tensor) -> Tensor:
    if grad.numel() > _BY_ROW and grad.dim() > 1:
        return grad.flatten(1).any(1)
    return grad != 0


class Leaf:
    """One parameter, or another tensor that a program asks the gradient of. The tensor itself is not kept alive."""

    def __init__(self, number: int, tensor: Tensor, names: Names, since: int) -> None:
        self.number = number  # of those without a name
        self.since = since  # the backward passes that there were before it was met
        self.shape = tuple(tensor.shape)
        self.is_empty = not local(tensor).numel()
        self.is_parameter = isinstance(tensor, nn.Parameter)
        self.tensor: Callable[[], Tensor | None] = weakref.ref(tensor)
        self.gradients = 0
        self.sizes: Sizes | None = None
        self.entries = Entries(self.is_parameter)
        self.elsewhere: Flag = (
            False  # did what stands for it in a forward get a gradient? As FSDP's whole parameters do
        )
        self.has_whole = False  # does anything stand for it?
        # Did the gradient that came last differ from 0? Followed until an optimiser has seen one that does.
        self.last: Flag | None = None
        self.has_run = False  # is it of a module that ran, or of the model that the user named?
        self.held = False  # by an optimiser that stepped,
        self.stepped = False  # with a rate other than 0
        self.is_frozen = False  # while an optimiser holds it
        self.seen: Flag = False  # did such an optimiser see a gradient other than 0?
        self.missed: Flag = False  # was there a step that saw none although one had just come?
        # Where no optimiser steps it: was .grad after a backward ever other than 0? None: nobody saw it.
        self.after: Flag | None = None
        self.has_hooks = False  # the program's own, when zeros came: they may have made them
        self.asked = False  # for its gradient, by an autograd.grad
        self.is_looked_up = False  # are rows of it chosen by an index?
        self.padding: int | None = None  # the row that gets no gradient although it is
        self.function: str | None = None  # the node of a custom Function that it is an input of
        self._names = names

    @property
    def name(self) -> str:
        """As it is known now: a module that holds it may be found until the report is made."""
        kind = "parameter" if self.is_parameter else "leaf"
        return self._names.name_of(self) or f"{kind} {self.number} of shape {self.shape}"

    @property
    def is_named(self) -> bool:
        """By a module, so that model.get_parameter finds it."""
        return self._names.name_of(self) is not None

    @property
    def _awaits_a_step(self) -> bool:
        return self.held and self.seen is not True

    def arrived(self, grad: Tensor | None, norm: float | Tensor | None = None) -> None:
        """A gradient is about to be added to it; None where the backward of a custom Function gave none. norm: see `Sizes.add`."""
        if grad is None:
            return
        self.gradients += 1
        is_followed = self.gradients < 2 or self._awaits_a_step
        is_measured = norm is None and self._measured(grad)
        is_readable = is_measured or norm is not None or has_numbers(grad)
        if self.sizes is not None and is_readable and not is_measured:
            self.sizes.add(grad, norm)
        if self.entries.is_complete and not is_followed:
            return
        if is_readable:
            if not is_measured:
                self.entries.add(grad)
            self.last = moves(grad) if is_followed else None
            if self.last is False:
                self.has_hooks = bool(hooks_of(self.tensor()))
        else:  # nobody can say that it was 0
            self.entries.drop()
            self.last = None

    def arrived_again(self, grad: Tensor) -> bool:
        """As `arrived`, for speed: whether that was all that there is to note."""
        if not self.gradients or self._awaits_a_step or not self._measured(grad):
            return False
        self.gradients += 1
        return True

    def _measured(self, grad: Tensor) -> bool:
        """Its norm, and which entries have had a gradient, in one look; False where that has to be two."""
        sizes, entries = self.sizes, self.entries
        if not can_square(grad) or is_wrapped(grad) or is_batched(grad):
            return False
        had = None
        if not entries.is_complete:
            had = entries.bytes_of(grad)
            if had is None:
                return False
        missing = 0
        if sizes is not None:
            missing = sizes.add_at_once(grad, had)
        elif had is not None:
            missing = look(grad, had)
        if missing < 0:
            return False
        if had is not None:
            entries.looked(missing)
        return True

    def arrived_in_its_place(self, grad: Tensor | None) -> None:
        """At what stands for it in a forward."""
        if grad is not None:
            self.gradients += 1
            if self.elsewhere is not True:
                self.elsewhere = self.elsewhere | moves(grad) if has_numbers(grad) else True

    def look_after(self) -> bool:
        """At .grad, when a backward has ended; whether it has to be looked at again."""
        tensor = self.tensor()
        grad = None if tensor is None else tensor.grad
        if grad is not None and has_numbers(grad):
            if self.has_whole:  # what FSDP2 has summed and handed out
                self.entries.add(grad)
            if self.after is not True:
                self.after = moves(grad) if self.after is None else self.after | moves(grad)
        return tensor is not None and (self.after is not True or (self.has_whole and not self.entries.is_complete))

    @property
    def moved(self) -> bool:
        """Did a gradient other than 0 come, whatever became of it?"""
        return bool(self.elsewhere) or self.entries.moved

    @property
    def is_swallowed(self) -> bool:
        """One came, and was 0 or gone whenever an optimiser stepped, or in .grad itself where none steps it."""
        if bool(self.seen) or not self.entries.moved:  # of a shard, itself: the rest may have got all that came
            return False
        return bool(self.missed) if self.held else self.after is not None and not bool(self.after)

    @property
    def starves(self) -> bool:
        """No gradient, or nothing but zeros, or nothing of it left when it should have been used."""
        return not bool(self.seen) and (not self.moved or self.is_swallowed)


def has_numbers(grad: Tensor) -> bool:
    """Can they be read? Not under a transform, nor on the device "meta"."""
    return not (is_wrapped(grad) or is_batched(grad) or is_fake(grad) or grad.is_meta)


def moves(grad: Tensor) -> Flag:
    """Is any entry other than 0? On a device that must not be waited for, a tensor."""
    grad = local(grad)
    values = grad._values() if grad.is_sparse else grad
    return bool(torch.count_nonzero(values)) if values.device.type == "cpu" else values.any()
