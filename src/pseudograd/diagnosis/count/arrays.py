"""Arrays of NumPy that share their memory with a tensor: what is made of them again has its mark."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

from torch import Tensor

from ...listen.harmless import forget
from ...torch_table.private import is_wrapped


class Arrays:
    """Those that live, each by the memory it spans, with the mark of the tensor."""

    def __init__(self) -> None:
        self.all: dict[int, tuple[Any, int, int, int]] = {}  # by id: a weak reference, first and last address, the mark

    def add(self, array: Any, mark: int) -> None:
        """Nothing for a number, which has no memory of its own."""
        spans = getattr(array, "__array_interface__", None)
        if spans is None:
            return
        key, start, some = id(array), spans["data"][0], self.all
        some[key] = weakref.ref(array, partial(forget, some, key)), start, start + max(array.nbytes, 1), mark

    def mark_of(self, value: object) -> int:
        """Of a tensor, or of an array that a call is given."""
        if not self.all:
            return 0
        at = _address(value)
        return 0 if at is None else self._at(at)

    def _at(self, address: int) -> int:
        found = 0
        for _, start, end, mark in list(self.all.values()):
            if start <= address < end:
                found |= mark
        return found


def _address(value: object) -> int | None:
    if not isinstance(value, Tensor):
        spans = getattr(value, "__array_interface__", None)
        return None if spans is None else int(spans["data"][0])
    if (
        value.device.type != "cpu"
        or is_wrapped(value)
        or type(value).__torch_dispatch__ is not Tensor.__torch_dispatch__
    ):
        return None
    try:
        return value.data_ptr()
    except RuntimeError:  # neither sparse nor fake tensors have one
        return None
