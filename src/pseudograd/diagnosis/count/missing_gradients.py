"""Which entries of a parameter ever got a gradient: looked at in each backward until all of them did, counted when somebody reads it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...torch_table.private import local

_BY_ROW = 2**22  # entries, from which on a row is looked at as one: a mask costs a byte for each


class Missing(NamedTuple):
    """What never got a gradient: of all entries, and of the rows along the first dimension, a row for each unit of a layer."""

    entries: int
    without: int
    units: int
    dead_units: int


class Entries:
    """Of one tensor. Nothing is kept once every entry had a gradient, and nothing but one bit for what is no parameter."""

    def __init__(self, is_detailed: bool) -> None:
        self.looks = 0
        self.is_complete = False
        self._is_detailed = is_detailed
        self._moved: Any = (
            False  # did any gradient differ from 0? A bool, or a tensor of a device that must not be waited for
        )
        self._mask: Tensor | None = None
        self._bytes: Tensor | None = None  # the same memory
        self._counted: Missing | None = None

    def add(self, grad: Tensor) -> None:
        """Called in every backward, so it looks once and makes nothing that it can do without."""
        if self.is_complete:
            return
        self.looks += 1
        grad, mask = local(grad), self._mask
        if grad.layout is not torch.strided or not self._is_detailed:
            self._note(grad._values() if grad.is_sparse else grad)
        elif mask is None:
            self._begin(grad)
        elif mask.shape == grad.shape:
            torch.logical_or(mask, grad, out=mask)
            self._drop_if_complete()
        elif mask.numel() in (grad.numel(), grad.shape[0] if grad.dim() else 1):  # of rows, or laid out otherwise
            mask |= _found(grad)
            self._drop_if_complete()
        else:  # another shape than before: what the first one missed says nothing about it
            self.drop()

    def had(self, grad: Tensor) -> Tensor | None:
        """A byte for each entry of a gradient on CPU, to be brought up to date by who computes something else of it; then `looked`."""
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
        self._bytes = None
        self._moved, self._mask, self._counted, self.is_complete = True, None, None, True

    def _note(self, values: Tensor) -> None:
        if self._moved is not True:
            found = values.any()
            self._moved = self._moved | (bool(found) if found.device.type == "cpu" else found)

    def _begin(self, grad: Tensor) -> None:
        if grad.device.type == "cpu":
            count = int(torch.count_nonzero(grad))
            if count == grad.numel() and count:
                self.drop()
            if not count:
                self._counted = _of_zeros(grad)
            if not count or self.is_complete:
                return
        self._mask = _found(grad)

    def _drop_if_complete(self) -> None:
        """It looks at powers of two: a look costs as much as the mask."""
        if self.looks & (self.looks - 1) or self._mask is None or self._mask.device.type != "cpu":
            return
        if bool(self._mask.all()):
            self.drop()

    def settle(self) -> None:
        """The parameter is gone: the counts alone are kept, where that does not wait for a device."""
        if self._mask is not None and self._mask.device.type == "cpu":
            self._moved, self._counted, self._mask = self.moved, self.missing(), None
            self._bytes = None
            self.is_complete = True

    @property
    def moved(self) -> bool:
        """Did any entry get a gradient? Waits for the device."""
        if self._mask is not None:
            return bool(self._mask.any())
        return bool(self._moved)

    def missing(self) -> Missing | None:
        """None where all had one, and where nobody looked at each. Of a shard it may be all: the rest has what came."""
        if self._mask is None or not self._mask.numel():
            return self._counted
        mask = self._mask
        rows = mask.flatten(1).any(1) if mask.dim() > 1 else mask.reshape(-1)
        without = int(torch.count_nonzero(~mask))
        if not without:
            return None
        return Missing(mask.numel(), without, rows.numel(), int(torch.count_nonzero(~rows)))


def _of_zeros(grad: Tensor) -> Missing | None:
    units = grad.shape[0] if grad.dim() else 1
    return Missing(grad.numel(), grad.numel(), units, units) if grad.numel() else None


def _found(grad: Tensor) -> Tensor:
    if grad.numel() > _BY_ROW and grad.dim() > 1:
        return grad.flatten(1).any(1)
    return grad != 0
