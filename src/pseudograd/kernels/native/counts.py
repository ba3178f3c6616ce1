"""Operators in C that count what a diagnosis wants to know of gradients, in one pass over memory.

The caller sees to it that no mode is active. A function returns None, or False, for tensors that no operator takes.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from ...arguments import rounded_to
from ...torch_table.private import is_wrapped
from .. import native
from ..bits import DTYPES, MOST_DIMENSIONS

# In the order of Tally in rules.h. "+" and "-" are the signs of the gradient.
_SIDES = ("recoverable", "at_bound", "below-", "below+", "at-", "at+", "above-", "above+", "all-", "all+")
_COUNTED = ("arrived", "cut", "nonfinite", "left", *_SIDES, "magnitude", "cut_magnitude", "elements")
_HAS_LEFT, _HAS_OTHER, _HAS_X, _HAS_MIN, _HAS_MAX, _IS_FULL = (1 << bit for bit in range(6))
Bound = float | Tensor | None  # a tensor only if x is None
is_active = native.operators is not None
_LEAVING = (0, _HAS_LEFT, _HAS_LEFT | _HAS_OTHER)


def tally(grad: Tensor, leaving: Sequence[Tensor], is_full: bool) -> dict[str, float] | None:
    """The counts of one backward call, by name. leaving: the gradients that leave, of the shape and dtype of grad; there may be none."""
    if not _are_served(grad, leaving, None):
        return None
    counts = native.operators.tally(*_arguments(grad, leaving, is_full, None, None, None)).tolist()
    return _name_counts((*counts, float(grad.numel())), is_full, False) if counts else None


def _arguments(
    grad: Tensor, leaving: Sequence[Tensor], is_full: bool, x: Tensor | None, low: Bound, high: Bound
) -> tuple[Tensor, ...]:
    """The arguments of an operator. In the place of a tensor that is absent is grad, which the operator does not read there."""
    first, second = (*leaving, grad, grad)[:2]
    for further in leaving[2:]:  # the operator takes two; it only has to know where all are 0
        second = second.abs() + further.abs()
    settings = _settings(len(leaving), is_full, x is not None, low, high, grad.dtype)
    return grad, first, second, grad if x is None else x, settings


class Sums:
    """The counts of `tally`, summed over backward calls with the same number of leaving gradients, the same bounds and the same dtype."""

    def __init__(self, is_full: bool) -> None:
        self._is_full = is_full
        self._all: dict[bool, Tensor] = {}  # the key: was x given?

    def add(self, grad: Tensor, leaving: Sequence[Tensor], x: Tensor | None, low: Bound, high: Bound) -> int | None:
        """Add a backward call. Returns how many of its gradients were cut."""
        if not _are_served(grad, leaving, x):
            return None
        arguments = _arguments(grad, leaving, self._is_full, x, low, high)
        cut: int = native.operators.add_tally(*arguments, self._sums_of(x is not None))
        return None if cut < 0 else cut

    def add_plain(self, arriving: Sequence[Any], leaving: Sequence[Any]) -> int | None:
        """A faster `add` for most ops: one gradient arrives, and one or two leave, all plain tensors of one shape. Nothing is known of x.

        The operator itself checks dtypes and dimensions.
        """
        grad, left = arriving[0], [other for other in leaving if other is not None]
        if grad is None or len(arriving) > 1 or not 0 < len(left) < 3 or native.operators is None:
            return None
        shape = grad.shape
        for tensor in (grad, *left):
            if not is_plain(tensor) or tensor.shape != shape or is_wrapped(tensor):
                return None
        settings = _settings(len(left), self._is_full, False, None, None, torch.float64)
        cut: int = native.operators.add_tally(grad, left[0], left[-1], grad, settings, self._sums_of(False))
        return None if cut < 0 else cut

    @cached_property
    def plain(self) -> Tensor:
        """The sums of calls without x."""
        return self._sums_of(False)

    def _sums_of(self, has_x: bool) -> Tensor:
        sums = self._all.get(has_x)
        if sums is None:
            sums = self._all[has_x] = torch.zeros(len(_COUNTED), dtype=torch.float64, device="cpu")
        return sums

    def read(self) -> list[dict[str, float]]:
        return [_name_counts(sums.tolist(), self._is_full, has_x) for has_x, sums in self._all.items()]


def add_together(grads: list[Tensor], sums: list[Tensor], is_full: bool) -> Sequence[int]:
    """Add several backward calls at once, at most 63. Returns the positions of the calls that were not added.

    grads: three for each call: the gradient that arrives, and the first and the last that leave. sums: `Sums.plain` of each call.
    """
    if not are_ordinary(grads):
        return range(len(sums))
    try:
        missed = native.operators.add_tallies(grads, sums, _IS_FULL if is_full else 0)
    except RuntimeError:  # for torch, one of the tensors is no plain tensor on the CPU
        return range(len(sums))
    return [position for position in range(len(sums)) if missed >> position & 1] if missed else ()


def are_ordinary(tensors: Sequence[Any]) -> bool:
    """Is each value of the class Tensor, and under no transform?"""
    return {*map(type, tensors)} <= {Tensor} and not any(map(is_wrapped, tensors))


def are_finite(values: Sequence[Any]) -> bool:
    """Are all numbers of these tensors known to be finite? None among them is left out."""
    tensors = [value for value in values if value is not None]
    if native.operators is None or not are_ordinary(tensors):
        return False
    try:
        if len(tensors) == 2:
            return bool(native.operators.are_finite(*tensors))
        return not (tensors and native.operators.count_nonfinite(tensors))
    except RuntimeError:  # as above
        return False


def _are_served(grad: Tensor, leaving: Sequence[Tensor], x: Tensor | None) -> bool:
    """The operators themselves check dtypes and dimensions."""
    return native.operators is not None and all(map(is_plain, (grad, *leaving) if x is None else (grad, *leaving, x)))


def is_plain(tensor: Tensor) -> bool:
    """Is it strided and on the CPU? torch hands such a tensor to an operator with its values: without the wrapper of a transform, and with
    lazy zeros and signs made real.
    """
    return type(tensor) is Tensor and tensor.is_cpu and tensor.layout is torch.strided


def _name_counts(numbers: Sequence[float], is_full: bool, has_x: bool) -> dict[str, float]:
    by_name = dict(zip(_COUNTED, numbers, strict=True))
    counts = {name: by_name[name] for name in ("elements", "arrived", "cut")}
    if is_full:
        counts.update((name, by_name[name]) for name in ("nonfinite", "magnitude", "cut_magnitude"))
    if has_x:
        counts.update((name, by_name[name]) for name in _SIDES)
    return counts


@lru_cache(maxsize=4096)
def _settings(leaving: int, is_full: bool, has_x: bool, low: Bound, high: Bound, dtype: torch.dtype) -> Tensor:
    flags = _LEAVING[min(leaving, 2)] | (_IS_FULL if is_full else 0)
    if has_x:
        flags |= _HAS_X | (0 if low is None else _HAS_MIN) | (0 if high is None else _HAS_MAX)
    return native.constants(_round_bound(low, dtype), _round_bound(high, dtype), float(flags))


def _round_bound(bound: Bound, dtype: torch.dtype) -> float:
    return 0.0 if bound is None else rounded_to(float(bound), dtype)


_NO_TENSOR = torch.empty(0, dtype=torch.uint8, device="cpu")


class Squares:
    """The sum of the squares of every gradient that arrived at one parameter, in float64."""

    def __init__(self) -> None:
        # The sum for all gradients, the sum for the last one, and how many of its entries are 0. Python reads the array without torch.
        self._numbers = array("d", bytes(24))
        self._tensor = torch.frombuffer(self._numbers, dtype=torch.float64)
        self._arrive = native.operators.arrive

    def add(self, grad: Tensor, had: Tensor | None = None) -> int:
        """Add a gradient. Returns how many entries never had one that was not 0; a number below 0 if nothing was added.

        had: a byte for each entry, 1 if it ever had such a gradient. It is brought up to date.
        """
        missing: int = self._arrive(grad, self._tensor, _NO_TENSOR if had is None else had)
        return missing

    def read(self) -> float:
        return self._numbers[0]

    def last(self) -> tuple[float, float]:
        """The norm of the last gradient, and how many of its entries are 0."""
        _, squares, zeros = self._numbers
        return math.sqrt(squares), zeros


def can_square(grad: Tensor) -> bool:
    return native.operators is not None and grad.dtype in DTYPES and grad.dim() <= MOST_DIMENSIONS and is_plain(grad)
