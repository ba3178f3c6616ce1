"""The counts of a diagnosis on a device. They are made in few launches, and read when a report asks or their memory is full.

This module is imported where a gradient is on a device. Each call of a node gets a row of numbers there. A few calls are measured together:
the kernel fills their rows, and `grads.count` fills the rows that no kernel can fill.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ...kernels import bits
from ...torch_table.private import stream_key
from .grads import ELSEWHERE, Gradients, MatchedGradients, count
from .leaf import is_recorded
from .norms import norm_of, share_of_zeros

if TYPE_CHECKING:
    from .leaf import Leaf
    from .norms import Sizes

_ROWS = 2**14  # calls whose numbers lie on a device; more of them are read
_MOST_CALLS = 15  # that are measured together
_MOST_BYTES = 2**26  # of gradients that are kept for it
# As kernels.h has them. An entry is an int: the row in the bits from 4 up, the number of gradients that left in bits 2 and 3, and the kind.
_CALL, _ELSEWHERE, _SQUARES = 0, 1, 2  # kinds of an entry
_MOST_LEFT = 3  # gradients that leave one call
_MOST_ENTRIES = 56  # that are measured at once
# the columns of a row, as measures.cu has them
_COLUMNS = ("arrived", "cut", "left", "nonfinite", ELSEWHERE, "magnitude", "cut_magnitude", "left_magnitude")
_TOTALS = ("elements", "arrived", "cut", "magnitude", "cut_magnitude", "nonfinite", ELSEWHERE)
# the columns that detail="counts" leaves out
_COLUMNS_OF_FULL = [_COLUMNS.index(name) for name in ("nonfinite", "magnitude", "cut_magnitude", "left_magnitude")]


def _kernel_for(device: torch.device) -> Callable[[list[Tensor], list[int], Tensor], int] | None:
    """The operator that measures several gradients in one launch; None where there is none."""
    if device.type != "cuda" or "cuda" not in bits.devices:
        return None
    from ...kernels.native import operators

    operator: Callable[[list[Tensor], list[int], Tensor], int] = operators.measure
    return operator


class _Call(NamedTuple):
    """A call of a node, whose counts are one row on the device."""

    number: int  # of its `DeviceSums`
    elements: int
    may_move: bool  # may its elements have moved?


class DeviceSums:
    """The sums of one op at one location on one device. They take the place of the sums of the kernel in C."""

    def __init__(self, ledger: Ledger, number: int, may_move: bool) -> None:
        self._ledger, self._number, self._may_move = ledger, number, may_move

    def add_plain(self, arriving: Gradients, leaving: Gradients) -> int | None:
        """Add a call. Returns 0, as the kernel in C does; None if its gradients are not on the device, or cannot be compared."""
        return 0 if self.add(MatchedGradients.match(leaving, arriving)) else None

    def add(self, grads: MatchedGradients | None) -> bool:
        if grads is None or grads.arrived.device != self._ledger.device or is_recorded(grads.arrived):
            return False
        self._ledger.add(self._number, grads, self._may_move)
        return True

    def read(self) -> dict[str, float]:
        return self._ledger.read(self._number)


class Ledger:
    """All calls on one device. Some wait to be measured together while `may_wait`, as long as nothing can change their gradients."""

    def __init__(self, device: torch.device, is_full: bool) -> None:
        self.device, self.is_full = device, is_full
        self.may_wait = False
        self._dtype = torch.float32 if device.type == "mps" else torch.float64
        self._measure = _kernel_for(device)
        self._rows: Tensor | None = None
        self._calls: list[_Call] = []  # by row
        self._totals = torch.zeros(0, len(_TOTALS), dtype=torch.float64, device="cpu")
        self.waiting: list[MatchedGradients] = []  # the gradients of the last calls, which are not measured yet
        # The streams on which calls were measured. The calls that wait belong to the last one.
        self._streams: dict[torch.cuda.Stream, None] = {}
        self._stream_key: object = None  # of the last stream
        self._bytes = 0  # of the gradients that wait
        self._count = 0  # of `DeviceSums`
        self._squares = torch.zeros(
            0, dtype=self._dtype, device=device
        )  # the sum of the squared gradients of each parameter
        self._number_of: dict[Sizes, int] = {}  # the place of each parameter in these sums
        self._last_numbers: tuple[int, ...] = ()  # the places of the last backward
        self._last_index: Tensor  # the same on the device
        self._lock = threading.RLock()  # the threads of several devices, and of the program

    def make_sums(self, may_move: bool) -> DeviceSums:
        with self._lock:
            self._count += 1
            return DeviceSums(self, self._count - 1, may_move)

    def add(self, number: int, grads: MatchedGradients, may_move: bool) -> None:
        grad = grads.arrived
        with self._lock:
            if self.device.type == "cuda" and (key := stream_key(self.device.index)) != self._stream_key:
                self._stream_key = key
                self._go_to(torch.cuda.current_stream(self.device))
            self._calls.append(_Call(number, grad.numel(), may_move))
            self.waiting.append(grads)
            self._bytes += grad.nbytes * (1 + len(grads.left))
            if not self.may_wait or len(self.waiting) >= _MOST_CALLS or self._bytes > _MOST_BYTES:
                self.flush()

    def _go_to(self, stream: torch.cuda.Stream) -> None:
        if stream != next(reversed(self._streams), None):
            self.flush()
            self._streams.pop(stream, None)
            self._streams[stream] = None

    def flush(self) -> None:
        """Measure the calls that wait, on the stream that made them. Nothing may see the calls of torch that it makes."""
        stream = next(reversed(self._streams), None)
        with self._lock, contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
            waiting, self.waiting, self._bytes = self.waiting, [], 0
            if not waiting:
                return
            if self._rows is None:
                self._rows = torch.zeros(_ROWS, len(_COLUMNS), dtype=self._dtype, device=self.device)
            first = len(self._calls) - len(waiting)
            for number in self._measure_by_kernel(waiting, first):
                row = first + number
                sums = count(waiting[number], self.is_full, self._calls[row].may_move)
                for column, name in enumerate(_COLUMNS):
                    value = sums.get(name, 0)
                    if isinstance(value, Tensor) or value:
                        self._rows[row, column] = value
            if len(self._calls) > _ROWS - _MOST_CALLS:
                self._fold()

    def _measure_by_kernel(self, waiting: Sequence[MatchedGradients], first: int) -> Sequence[int]:
        """Measure calls in one launch. Their rows begin at `first`. Returns the numbers of the calls that the kernel could not measure."""
        if self._rows is None or self._measure is None:
            return range(len(waiting))
        tensors: list[Tensor] = []
        entries: list[int] = []
        numbers: list[int] = []  # of the call, by entry
        rest: set[int] = set()
        for number, grads in enumerate(waiting):
            left, others = grads.left, grads.others
            if len(left) > _MOST_LEFT or len(entries) + 1 + len(others) > _MOST_ENTRIES:
                rest.add(number)
                continue
            row = (first + number) << 4
            tensors += grads.arrived, *left, *others
            entries += row | len(left) << 2 | _CALL, *[row | _ELSEWHERE] * len(others)
            numbers += [number] * (1 + len(others))
        missed = self._measure(tensors, entries, self._rows)
        if missed < 0:
            self._give_up()
        if missed:
            rest.update(number for entry, number in enumerate(numbers) if missed >> entry & 1)
        return sorted(rest)

    def _give_up(self) -> None:
        """No kernel could be started. The warning is that of every kernel."""
        self._measure = None
        from ...kernels.native.on_cuda import decline

        decline()

    def _add_sizes_by_kernel(self, sizes: Sequence[Sizes], grads: Sequence[Tensor]) -> bool:
        if self._measure is None:
            return False
        rows = torch.zeros(len(grads), len(_COLUMNS), dtype=self._dtype, device=self.device)
        for start in range(0, len(grads), _MOST_ENTRIES):
            part = list(grads[start : start + _MOST_ENTRIES])
            missed = self._measure(part, [(start + row) << 4 | _SQUARES for row in range(len(part))], rows)
            if missed < 0:
                self._give_up()
            if missed:
                return False
        numbers, figures = self._add_squares(sizes, rows[:, 0]), Figures(rows[:, :2])
        for number, (size, grad) in enumerate(zip(sizes, grads, strict=True)):
            norm = Later(partial(_root, figures, number))
            share = Later(partial(_share_of_zeros, figures, number, grad.numel()))
            size.add_from_device(norm, share, partial(self._read_squares, numbers[number]))
        return True

    def add_arrivals(self, pairs: Sequence[tuple[Leaf, Tensor]]) -> None:
        """Gradients arrived at leaves that had some before."""
        measured = [(leaf.sizes, grad) for leaf, grad in pairs if leaf.sizes is not None and grad.numel()]
        if measured:
            self._add_sizes([sizes for sizes, _ in measured], [grad for _, grad in measured])
        for leaf, grad in pairs:
            leaf.gradients += 1
            leaf.entries.add(grad)

    def _add_squares(self, sizes: Sequence[Sizes], squares: Tensor) -> tuple[int, ...]:
        """Add the squares of gradients. Returns the places of their sums."""
        numbers = tuple(self._number_of.setdefault(size, len(self._number_of)) for size in sizes)
        if len(self._number_of) > len(self._squares):
            more = len(self._number_of) + 64
            self._squares = torch.cat([self._squares, self._squares.new_zeros(more)])
        if numbers != self._last_numbers:
            self._last_numbers, self._last_index = numbers, torch.tensor(numbers).to(self.device)
        self._squares.index_add_(0, self._last_index, squares)
        return numbers

    def _add_sizes(self, sizes: Sequence[Sizes], grads: Sequence[Tensor]) -> None:
        if self._add_sizes_by_kernel(sizes, grads):
            return
        norms = torch.stack([torch.as_tensor(norm_of(grad)) for grad in grads]).to(self._dtype)
        numbers, figures = self._add_squares(sizes, norms * norms), Figures(norms)
        for number, (size, grad) in enumerate(zip(sizes, grads, strict=True)):
            share = share_of_zeros(grad) if size.is_wanted else None
            size.add_from_device(
                Later(partial(figures.at, number)), share, partial(self._read_squares, numbers[number])
            )

    def _read_squares(self, number: int) -> float:
        return float(self._squares[number])

    def read(self, number: int) -> dict[str, float]:
        with self._lock:
            self.flush()
            self._fold()
            totals = self._totals[number].tolist() if number < len(self._totals) else [0.0] * len(_TOTALS)
        return dict(zip(_TOTALS, totals, strict=True))

    def _fold(self) -> None:
        """Read the rows, and add them up on the CPU. Whether elements moved is decided for each call, as in `grads.count`."""
        calls, self._calls = self._calls, []
        if not calls or self._rows is None:
            return
        for stream in self._streams if len(self._streams) > 1 else ():
            torch.cuda.current_stream(self.device).wait_stream(stream)
        rows = self._rows[: len(calls)].to("cpu", torch.float64, copy=True)
        self._rows[: len(calls)].zero_()
        if not self.is_full:
            rows[:, _COLUMNS_OF_FULL] = 0
        numbers, elements, may_move = (torch.tensor(column) for column in zip(*calls, strict=True))
        arrived, cut, left, nonfinite, elsewhere, magnitude, cut_magnitude, left_magnitude = rows.unbind(1)
        is_moved, fewer = may_move & (cut > 0) & (left + cut > arrived), arrived - left
        lost = magnitude - left_magnitude
        cut = torch.where(is_moved, fewer * (fewer > 0), cut)
        cut_magnitude = torch.where(is_moved, lost * (lost > 0) * (fewer > 0), cut_magnitude)
        elsewhere = torch.where(cut > 0, elsewhere, 0)
        each = torch.stack([elements.double(), arrived, cut, magnitude, cut_magnitude, nonfinite, elsewhere], 1)
        if self._count > len(self._totals):
            more = self._totals.new_zeros(self._count - len(self._totals), len(_TOTALS))
            self._totals = torch.cat([self._totals, more])
        self._totals.index_add_(0, numbers, each)


class Figures:
    """Rows of numbers, one row for each leaf. They lie on their device until one of them is read."""

    def __init__(self, values: Tensor) -> None:
        self._values: Tensor | None = values
        self._rows: list[list[float]] = []

    def at(self, place: int, column: int = 0) -> float:
        if self._values is not None:
            self._rows, self._values = self._values.reshape(len(self._values), -1).tolist(), None
        return self._rows[place][column]


class Later(NamedTuple):
    """A number on a device, which is read when somebody asks for it."""

    read: Callable[[], float]

    def __float__(self) -> float:
        return self.read()


def _root(squares: Figures, place: int) -> float:
    return math.sqrt(squares.at(place))


def _share_of_zeros(counts: Figures, place: int, elements: int) -> float:
    """counts: of the squares, and of the entries that are not 0."""
    return 1 - counts.at(place, 1) / elements
