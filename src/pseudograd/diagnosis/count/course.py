"""How numbers go over the steps of a program, in bounded memory."""

from __future__ import annotations

import math
from typing import Generic, TypeVar

import torch
from torch import Tensor

from ...torch_table.private import local

_KEPT = 32  # values; when there are twice as many, every second one is dropped
SAMPLE = 1024  # entries of a parameter that are looked at

Value = TypeVar("Value")


class Course(Generic[Value]):
    """Values by step, the first and the last among them. A value may be a 0-d tensor of a device, which is read at the end."""

    def __init__(self) -> None:
        self._all: list[tuple[int, Value]] = []
        self._every = 1
        self._count = 0
        self._last: tuple[int, Value] | None = None

    @property
    def is_wanted(self) -> bool:
        """Will the next value be kept?"""
        return self._count % self._every == 0

    def add(self, step: int, value: Value) -> None:
        if self.is_wanted:
            self._all.append((step, value))
            if len(self._all) > 2 * _KEPT:
                self._all = self._all[::2]
                self._every *= 2
        self._count += 1
        self._last = step, value

    @property
    def steps(self) -> list[tuple[int, Value]]:
        """Each value with its step."""
        is_last_missing = self._last is not None and self._all and self._all[-1][0] != self._last[0]
        return [*self._all, self._last] if is_last_missing and self._last is not None else list(self._all)


def numbers_of(course: Course[float] | Course[float | Tensor]) -> tuple[tuple[int, float], ...]:
    """Waits for the device."""
    return tuple((step, float(value)) for step, value in course.steps)


def view_of_sample(tensor: Tensor) -> Tensor:
    """At most some entries of it, evenly spread."""
    flat = tensor.detach().reshape(-1)
    every = flat.numel() // SAMPLE
    return flat[::every] if every > 1 else flat


def sample(tensor: Tensor) -> Tensor:
    """A copy of them."""
    return view_of_sample(tensor).clone()


def dense(grad: Tensor) -> Tensor:
    """The numbers of a gradient, whatever it is kept as: in float64, as one dimension; a complex one as two numbers each."""
    values = local(grad.detach())
    values = values if values.layout is torch.strided else values.to_dense()
    return (torch.view_as_real(values.resolve_conj()) if values.is_complex() else values).double().flatten()


class Motion:
    """How far a parameter came from where it was, by some of its entries. It is looked at now and then."""

    def __init__(self) -> None:
        self._first: Tensor | None = None
        self._last: Tensor | None = None

    def look(self, tensor: Tensor | None) -> None:
        if tensor is None:
            return
        now = sample(local(tensor))
        if self._first is None or self._first.shape != now.shape:
            self._first = now
        self._last = now

    @property
    def far(self) -> float:
        """|last - first| / |first|; infinite from 0 on, NaN where nothing was seen."""
        if self._first is None or self._last is None:
            return math.nan
        first = float(torch.linalg.vector_norm(self._first.double()))
        apart = float(torch.linalg.vector_norm(self._last.double() - self._first.double()))
        return apart / first if first else math.inf if apart else 0.0
