"""What a diagnosis counts of gradients, in one pass over memory. No mode may see it; None, or False, for what no operator here serves."""

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

# In the order of Tally in rules.h. A sign is that of the gradient.
_SIDES = ("recoverable", "at_bound", "below-", "below+", "at-", "at+", "above-", "above+", "all-", "all+")
_COUNTED = ("arrived", "cut", "nonfinite", "left", *_SIDES, "magnitude", "cut_magnitude", "elements")
_HAS_LEFT, _HAS_OTHER, _HAS_X, _HAS_MIN, _HAS_MAX, _IS_FULL = (1 << bit for bit in range(6))
Number = float | Tensor | None  # a bound; no tensor where it is used
_ORDINARY = {Tensor}
is_active = native.operators is not None
_LEAVING = (0, _HAS_LEFT, _HAS_LEFT | _HAS_OTHER)


def tally(grad: Tensor, leaving: Sequence[Tensor], is_full: bool) -> dict[str, float] | None:
    """The counts of one backward call, by name. leaving: tensors of the shape and dtype of grad, or none where nothing leaves."""
    if not _are_served(grad, leaving, None):
        return None
    counts = native.operators.tally(*_arguments(grad, leaving, is_full, None, None, None)).tolist()
    return _named((*counts, float(grad.numel())), is_full, False) if counts else None


def _arguments(
    grad: Tensor, leaving: Sequence[Tensor], is_full: bool, x: Tensor | None, low: Number, high: Number
) -> tuple[Tensor, ...]:
    """The arguments of an operator: the tensors that are absent are grad, which it does not read again."""
    first, second = (*leaving, grad, grad)[:2]
    for further in leaving[2:]:  # the operator reads two: it asks only where all are 0
        second = second.abs() + further.abs()
    settings = _settings(len(leaving), is_full, x is not None, low, high, grad.dtype)
    return grad, first, second, grad if x is None else x, settings


class Sums:
    """Those counts summed over calls of one kind: of the same number of leaving gradients, the same bounds and the same dtype."""

    def __init__(self, is_full: bool) -> None:
        self._is_full = is_full
        self._all: dict[bool, Tensor] = {}  # by whether x was given

    def add(self, grad: Tensor, leaving: Sequence[Tensor], x: Tensor | None, low: Number, high: Number) -> int | None:
        """How many were cut in this call."""
        if not _are_served(grad, leaving, x):
            return None
        arguments = _arguments(grad, leaving, self._is_full, x, low, high)
        cut: int = native.operators.add_tally(*arguments, self._sums_of(x is not None))
        return None if cut < 0 else cut

    def add_plain(self, arriving: Sequence[Any], leaving: Sequence[Any]) -> int | None:
        """The same of one that arrives and one or two that leave, all ordinary and of one shape: for speed, as most ops are so.

        The operator itself looks at their dtype and dimensions.
        """
        grad, left = arriving[0], [other for other in leaving if other is not None]
        if grad is None or len(arriving) > 1 or not 0 < len(left) < 3 or native.operators is None:
            return None
        shape = grad.shape
        for tensor in (grad, *left):
            if not (
                type(tensor) is Tensor and tensor.is_cpu and tensor.layout is torch.strided and tensor.shape == shape
            ):
                return None
            if is_wrapped(tensor):
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
        return [_named(sums.tolist(), self._is_full, has_x) for has_x, sums in self._all.items()]


def add_together(grads: list[Tensor], sums: list[Tensor], is_full: bool) -> Sequence[int]:
    """Add several calls of `Sums`, at most 63. Of each: what arrives, and the first and the last that leave; and its `plain` sums.

    Returns the numbers of those that were not added.
    """
    if not are_ordinary(grads):
        return range(len(sums))
    try:
        missed = native.operators.add_tallies(grads, sums, _IS_FULL if is_full else 0)
    except RuntimeError:  # torch takes a tensor of them for no ordinary one on CPU
        return range(len(sums))
    return [number for number in range(len(sums)) if missed >> number & 1] if missed else ()


def are_ordinary(tensors: Sequence[Any]) -> bool:
    """Is each of them a tensor, of no subclass and under no transform?"""
    return {*map(type, tensors)} <= _ORDINARY and not any(map(is_wrapped, tensors))


def are_finite(values: Sequence[Any]) -> bool:
    """Are all numbers of these tensors known to be finite? None stands for no tensor."""
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
    dtype = grad.dtype
    if native.operators is None or dtype not in DTYPES or grad.dim() > MOST_DIMENSIONS:
        return False
    for tensor in (grad, *leaving) if x is None else (grad, *leaving, x):
        if tensor.dtype is not dtype or not is_plain(tensor):
            return False
    return True


def is_plain(tensor: Tensor) -> bool:
    """Strided and on CPU. Of one that has numbers, below every wrapper of a transform: torch hands it over as it is, or with its zeros or
    its sign made real.
    """
    return type(tensor) is Tensor and tensor.is_cpu and tensor.layout is torch.strided


def _named(numbers: Sequence[float], is_full: bool, has_x: bool) -> dict[str, float]:
    by_name = dict(zip(_COUNTED, numbers, strict=True))
    counts = {name: by_name[name] for name in ("elements", "arrived", "cut")}
    if is_full:
        counts.update((name, by_name[name]) for name in ("nonfinite", "magnitude", "cut_magnitude"))
    if has_x:
        counts.update((name, by_name[name]) for name in _SIDES)
    return counts


@lru_cache(maxsize=4096)
def _settings(leaving: int, is_full: bool, has_x: bool, low: Number, high: Number, dtype: torch.dtype) -> Tensor:
    has = _LEAVING[min(leaving, 2)] | (_IS_FULL if is_full else 0)
    if has_x:
        has |= _HAS_X | (0 if low is None else _HAS_MIN) | (0 if high is None else _HAS_MAX)
    return native.constants(_bound(low, dtype), _bound(high, dtype), float(has))


def _bound(number: Number, dtype: torch.dtype) -> float:
    return 0.0 if number is None else rounded_to(float(number), dtype)


_NONE = torch.empty(0, dtype=torch.uint8, device="cpu")


class Squares:
    """The squares of every gradient that arrived at one parameter, summed in float64."""

    def __init__(self) -> None:
        # Of all, of the last, and how much of that is 0. Python reads it without torch.
        self._receive = array("d", bytes(24))
        self._sum = torch.frombuffer(self._receive, dtype=torch.float64)
        self._arrive = native.operators.arrive

    def add(self, grad: Tensor, had: Tensor | None = None) -> int:
        """How many entries never had a gradient, as far as `had` says: a byte for each, 1 where one was ever not 0, which is brought up to
        date. Below 0 where nothing was added.
        """
        missing: int = self._arrive(grad, self._sum, _NONE if had is None else had)
        return missing

    def read(self) -> float:
        return self._receive[0]

    def last(self) -> tuple[float, float]:
        """The norm of the last one, and how many of its entries are 0."""
        _, squares, zeros = self._receive
        return math.sqrt(squares), zeros


def can_square(grad: Tensor) -> bool:
    return native.operators is not None and grad.dtype in DTYPES and grad.dim() <= MOST_DIMENSIONS and is_plain(grad)
