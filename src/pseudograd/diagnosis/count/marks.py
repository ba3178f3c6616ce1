"""What is noted of tensors while they live, and of arrays that share their memory: marks, as integers with a bit for each cause."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any

from torch import Tensor

from ...listen.harmless import forget
from ...torch_table.private import is_wrapped

Notes = dict[int, tuple[weakref.ref[Tensor], int]]  # bits by the id of a tensor, as long as it lives


def noted(notes: Notes, tensor: Tensor) -> int:
    known = notes.get(id(tensor))
    return known[1] if known is not None and known[0]() is tensor else 0


def note(notes: Notes, tensor: Tensor, bits: int) -> None:
    """Add to what is noted of a tensor, as long as it lives."""
    key = id(tensor)
    known = notes.get(key)
    if known is not None and known[0]() is tensor:
        notes[key] = known[0], known[1] | bits
        return
    notes[key] = weakref.ref(tensor, partial(forget, notes, key)), bits


class Arrays:
    """Arrays of NumPy that share their memory with a tensor: what is made of them again has its mark."""

    def __init__(self) -> None:
        # By id: a weak reference, the first and last address, the mark.
        self.all: dict[int, tuple[weakref.ref[Any], int, int, int]] = {}

    def add(self, array: Any, mark: int) -> None:
        """Nothing for a number, which has no memory of its own."""
        spans = getattr(array, "__array_interface__", None)
        if spans is None:
            return
        key, start, arrays = id(array), spans["data"][0], self.all
        arrays[key] = weakref.ref(array, partial(forget, arrays, key)), start, start + max(array.nbytes, 1), mark

    def mark_of(self, value: object) -> int:
        """Of a tensor, or of an array that a call is given."""
        address = _address(value) if self.all else None
        mark = 0
        if address is not None:
            for _, start, end, bits in list(self.all.values()):
                mark |= bits if start <= address < end else 0
        return mark


def _address(value: object) -> int | None:
    if not isinstance(value, Tensor):
        spans = getattr(value, "__array_interface__", None)
        return None if spans is None else int(spans["data"][0])
    has_code = type(value).__torch_dispatch__ is not Tensor.__torch_dispatch__
    if value.device.type != "cpu" or is_wrapped(value) or has_code:
        return None
    try:
        return value.data_ptr()
    except RuntimeError:  # neither sparse nor fake tensors have one
        return None


def tensors_in(values: Iterable[object]) -> list[Tensor]:
    """Those among the values, in lists and dictionaries too."""
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors += tensors_in(value)
        elif isinstance(value, dict):
            tensors += tensors_in(value.values())
    return tensors
