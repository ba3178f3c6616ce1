"""Find a small call of torch whose result still differs between two versions of torch.

A move yields smaller calls: fewer entries, arguments, gradients or dimensions, or shorter numbers. The first that still differs is taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from ..recording import BACKWARD
from .call import Call, NoProgramError, Outcome, SameAloneError, copy_strided, number_text

_ROUNDINGS = 64  # results that differ by at most so many roundings are equal
_LEAST_SHARE = 0.01  # a smaller call must show this share of the first difference
_MOST_TEXTS = 256  # a larger tensor is judged without the texts of its entries
_SHORT_ENTRY = 4  # characters of a number that is short enough, such as -1.0


class LateError(Exception):
    """A pair raises this error when the time is over. The smallest call so far is the result."""


class Pair(Protocol):
    def run(self, call: Call) -> tuple[Outcome, Outcome]:
        """The outcomes under the older and the newer torch."""


@dataclass(frozen=True)
class Mismatch:
    """A call, its outcome under the older torch, and the name of the tensor that differs most, with its relative distance."""

    call: Call
    outcome: Outcome
    name: str
    distance: float


def shrink(pair: Pair, call: Call) -> Mismatch:
    """The smallest call that still differs. Raises NoProgramError if the call alone fails, SameAloneError if it does not differ."""
    try:  # a program is shorter if its tensors are contiguous
        contiguous = {name: tensor.contiguous() for name, tensor in call.tensors.items()}
        mismatch = _run(pair, replace(call, tensors=contiguous), least=0.0)
    except NoProgramError:
        mismatch = _run(pair, call, least=0.0)
    least = _LEAST_SHARE * min(1.0, mismatch.distance)
    try:
        before = None
        while mismatch.call is not before:
            before = mismatch.call
            for move in _MOVES:
                mismatch = _repeat(pair, mismatch, move, least)
    except LateError:
        pass
    return mismatch


def _repeat(pair: Pair, mismatch: Mismatch, move: Move, least: float) -> Mismatch:
    """Make moves of one kind as long as the call still differs."""
    calls = move(mismatch)
    while (call := next(calls, None)) is not None:
        try:
            mismatch = _run(pair, call, least)
            calls = move(mismatch)
        except NoProgramError:
            continue
    return mismatch


def _run(pair: Pair, call: Call, least: float) -> Mismatch:
    """The mismatch of a call, if larger than `least`. For a backward, gradients must differ and outputs be equal. Raises as `shrink`."""
    old, new = pair.run(call)
    if old.error or new.error:
        raise NoProgramError(f"the call alone fails: {old.error or new.error}")
    dtypes = {tensor.dtype for outcome in (old, new) for tensor in outcome.tensors.values()}
    roundings = [torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point or dtype.is_complex]
    limit = max(least, _ROUNDINGS * max(roundings, default=0.0))
    distances = {name: distance for name, distance in measure_distances(old, new).items() if distance > limit}
    outputs = {name: distance for name, distance in distances.items() if name.startswith("y")}
    candidates = outputs
    if call.kind == BACKWARD:
        candidates = {} if outputs else distances
    if not candidates:
        raise SameAloneError
    name = max(candidates, key=candidates.__getitem__)
    return Mismatch(call, old, name, candidates[name])


def measure_distances(old: Outcome, new: Outcome) -> dict[str, float]:
    """The distance of each tensor, relative to its largest entry. Infinite if shapes or dtypes differ, or only one entry is finite."""
    names = dict.fromkeys([*old.tensors, *new.tensors])
    return {name: _distance(old.tensors.get(name), new.tensors.get(name)) for name in names}


def _distance(a: Tensor | None, b: Tensor | None) -> float:
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
        return torch.inf
    kind = torch.complex128 if a.is_complex() else torch.float64
    a, b = a.to(kind).flatten(), b.to(kind).flatten()
    differs = ~((a == b) | (a.isnan() & b.isnan()))
    if not differs.any():
        return 0.0
    distance = float((a - b)[differs].abs().nan_to_num(torch.inf, torch.inf).max())
    largest = max(float(tensor.abs().nan_to_num(0.0, 0.0).max()) for tensor in (a, b))
    return distance / largest if largest else distance


def _simplify_gradients(mismatch: Mismatch) -> Iterator[Call]:
    """Differentiate the sum of an output; or only one output; or only by the tensor whose gradient differs."""
    call = mismatch.call
    for output, name in call.grads:
        if name is not None:
            yield call.but(grads=((output, None),))
    if any(name for _, name in call.grads):
        yield call.but(grads=tuple((output, None) for output, _ in call.grads))
    if len(call.grads) > 1:
        for grad in call.grads:
            yield call.but(grads=(grad,))
    if len(call.requires) > 1:
        yield call.but(requires=frozenset({mismatch.name.removeprefix("grad of ")}))


def _drop_arguments(mismatch: Mismatch) -> Iterator[Call]:
    """Leave out one argument, or write None in place of a tensor. `inplace=True` stays, because without it the call is another one."""
    call = mismatch.call
    for name in call.kwargs:
        if name != "inplace" or not call.is_in_place:
            yield call.but(kwargs={key: value for key, value in call.kwargs.items() if key != name})
    if len(call.args) > 1:
        yield call.but(args=call.args[:-1])
    for at, argument in enumerate(call.args):
        if at and argument in call.tensors:
            yield call.but(args=(*call.args[:at], "None", *call.args[at + 1 :]))


def _drop_entries(mismatch: Mismatch) -> Iterator[Call]:
    """Shorten all dimensions of equal size together, because they are likely to belong together; then each dimension alone."""
    call = mismatch.call
    sizes = {(name, dim): size for name, tensor in call.tensors.items() for dim, size in enumerate(tensor.shape)}
    groups = [[key for key in sizes if sizes[key] == size] for size in sorted(set(sizes.values()), reverse=True)]
    for group in [*groups, *([key] for key in sizes)]:
        size = sizes[group[0]]
        for start, stop in spans_within(size):
            tensors = dict(call.tensors)
            for name, dim in group:
                part = tensors[name].narrow(dim, start, stop - start)
                if tensors[name].is_contiguous():
                    tensors[name] = part.clone(memory_format=torch.contiguous_format)
                else:
                    tensors[name] = copy_strided(part)
            smaller = call.but(tensors=tensors)
            # An argument may repeat the size, as in "(3, 4)"; the pattern does not match a part of another number or name.
            resize = partial(re.sub, rf"(?<![\w.]){size}(?![\w.])", str(stop - start))
            args = tuple(map(resize, call.args))
            kwargs = {name: resize(argument) for name, argument in call.kwargs.items()}
            if (args, kwargs) != (call.args, call.kwargs):
                yield smaller.but(args=args, kwargs=kwargs)
            yield smaller


def spans_within(size: int) -> list[tuple[int, int]]:
    half = size // 2
    spans = [(0, 1), (0, half), (half, size), (0, size - 1), (1, size)]
    return [span for span in dict.fromkeys(spans) if 0 < span[1] - span[0] < size]


def _drop_dimensions(mismatch: Mismatch) -> Iterator[Call]:
    """Remove dimensions of size 1."""
    call = mismatch.call
    reshapings: list[Callable[[Tensor], Tensor]] = [_squeeze]
    if all(tensor.numel() == 1 for tensor in call.tensors.values()):
        reshapings.insert(0, lambda tensor: tensor.reshape(()))
    for reshape in reshapings:
        tensors = {name: reshape(tensor) for name, tensor in call.tensors.items()}
        if any(tensor.shape != call.tensors[name].shape for name, tensor in tensors.items()):
            yield call.but(tensors=tensors)


def _squeeze(tensor: Tensor) -> Tensor:
    return copy_strided(tensor.reshape(tensor.shape[:1]) if tensor.numel() == 1 else tensor.squeeze())


def _shorten_entries(mismatch: Mismatch) -> Iterator[Call]:
    """Round entries to fewer digits, or replace all of them by 1 or by 0."""
    call = mismatch.call
    for name, tensor in call.tensors.items():
        is_expanded = any(size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        if is_expanded:
            continue
        cost = _reading_cost(tensor)
        for simpler in _simpler_tensors(tensor):
            if _reading_cost(simpler) < cost:
                same_strides = copy_strided(tensor).copy_(simpler)
                yield call.but(tensors={**call.tensors, name: same_strides})


def _simpler_tensors(tensor: Tensor) -> Iterator[Tensor]:
    """Tensors with shorter entries, the most similar first, so that the program still shows what happened."""
    if tensor.dtype.is_floating_point:
        for digits in (0, 1, 2, 3):
            rounded = tensor.double().mul(10.0**digits).round().div(10.0**digits)
            yield rounded.add(0.0).to(tensor.dtype)  # 0.0, not -0.0
        if tensor.numel() == 1 and bool(tensor.isfinite()):
            for digits in (1, 2, 3):
                yield torch.full_like(tensor, float(f"{float(tensor):.{digits}g}"))
    yield torch.ones_like(tensor)
    yield torch.zeros_like(tensor)


def _reading_cost(tensor: Tensor) -> int:
    """The characters by which entries are longer than a short number, plus the count of different entries."""
    if tensor.numel() > _MOST_TEXTS:
        has_different_entries = bool((tensor != tensor.reshape(-1)[0]).any())
        return _MOST_TEXTS + has_different_entries
    texts = [number_text(entry) for entry in tensor.reshape(-1)]
    return sum(max(0, len(text) - _SHORT_ENTRY) for text in texts) + len(set(texts))


Move = Callable[[Mismatch], Iterator[Call]]
_MOVES: tuple[Move, ...] = (
    _simplify_gradients,
    _drop_entries,
    _drop_arguments,
    _drop_dimensions,
    _shorten_entries,
)
