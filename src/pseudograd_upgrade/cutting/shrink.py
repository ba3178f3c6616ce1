"""A call that differs is made as small as it gets while it still differs.

A move offers smaller calls: fewer entries, arguments, gradients and dimensions, friendlier numbers. The first that still differs is taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Protocol

import torch
from torch import Tensor

from ..recording import BACKWARD
from . import text
from .call import Call
from .text import SameAloneError, UnwritableError, number_text, own_memory
from .workers import Gap, LateError, Outcome, gaps

_ROUNDINGS = 64
_SHARE = 0.01  # of the difference that there was at first
_ROUNDS = 3
_MANY = 256  # entries whose texts are compared
_SHORT, _LONG = 4, 6  # characters of a number that is left as it is, such as -1.0; of an argument that is left as it is
_FLOAT = re.compile(r"(?<![\w.])\d+(?:\.\d+(?:e[-+]?\d+)?|e[-+]?\d+)")


@dataclass(frozen=True)
class Mismatch:
    """A call, what it gave in both, and the tensor in which that differs most."""

    call: Call
    outcomes: tuple[Outcome, Outcome]
    gap: Gap

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor that differs."""
        tensor = self.outcomes[0].tensors.get(self.gap.name)
        return () if tensor is None or not self.gap.index else tuple(tensor.shape)

    def programs(self) -> Iterator[str]:
        outcome = self.outcomes[0]
        y = outcome.tensors.get("y0")
        is_scalar = outcome.is_tensor and y is not None and not y.dim()
        return self.call.programs(
            self.gap.name, is_random=outcome.is_random, is_tensor=outcome.is_tensor, is_scalar=is_scalar
        )


class Pair(Protocol):
    def outcomes(self, call: Call) -> Sequence[Outcome]:
        """What the call gives under the older torch and under the newer one."""


def shrink(pair: Pair, call: Call) -> Mismatch:
    """UnwritableError where the call alone does not differ."""
    mismatch, error = None, UnwritableError()
    for layout in _layouts(call):
        try:
            mismatch = _run(pair, layout, 0.0)
            break
        except UnwritableError as reason:
            error = reason
    if mismatch is None:
        raise error
    least = _SHARE * min(1.0, mismatch.gap.distance)
    try:
        for _ in range(_ROUNDS):
            before = mismatch.call
            for move in _MOVES:
                mismatch = _repeat(pair, mismatch, move, least)
            if mismatch.call is before:
                break
    except LateError:
        pass
    return mismatch


def _repeat(pair: Pair, mismatch: Mismatch, move: Move, least: float) -> Mismatch:
    """Takes moves of one kind as long as the call still differs."""
    calls = move(mismatch)
    while (call := next(calls, None)) is not None:
        try:
            mismatch = _run(pair, call, least)
            calls = move(mismatch)
        except UnwritableError:
            continue
    return mismatch


def _run(pair: Pair, call: Call, least: float) -> Mismatch:
    """The mismatch, beyond rounding, in what is looked at and in nothing before it; else UnwritableError says why there is none."""
    old, new = pair.outcomes(call)
    if old.error or new.error:
        raise UnwritableError(f"the call alone fails: {old.error or new.error}")
    kinds = {tensor.dtype for outcome in (old, new) for tensor in outcome.tensors.values()}
    floats = [torch.finfo(kind).eps for kind in kinds if kind.is_floating_point or kind.is_complex]
    far = [gap for gap in gaps(old, new) if gap.distance > max(least, _ROUNDINGS * max(floats, default=0.0))]
    results = [gap for gap in far if gap.name.startswith("y")]
    wanted = [gap for gap in far if gap not in results] if call.kind == BACKWARD else results
    if wanted and not (call.kind == BACKWARD and results):
        return Mismatch(call, (old, new), max(wanted, key=lambda gap: gap.distance))
    raise SameAloneError("with the same arguments, the call alone gives the same under both")


# --- moves ------------------------------------------------------------------------------------------------------------


def _layouts(call: Call) -> Iterator[Call]:
    """The call with simpler surroundings first: memory without gaps, no autocast."""
    plain = {name: tensor.contiguous() for name, tensor in call.tensors.items()}
    is_plain = all(tensor.is_contiguous() for tensor in call.tensors.values())
    for tensors, autocast in product(
        [plain] if is_plain else [plain, call.tensors], dict.fromkeys((None, call.autocast))
    ):
        yield replace(call, tensors=tensors, autocast=autocast)


def _entries(mismatch: Mismatch) -> Iterator[Call]:
    """The entry that differs alone, of every tensor that has this shape or is broadcast to it."""
    call, shape = mismatch.call, mismatch.shape
    if not any(size > 1 for size in shape):
        return
    for is_alike in (_is_broadcast, lambda tensor, shape: tuple(tensor.shape) == shape):
        spans = {}
        for name, tensor in call.tensors.items():
            if is_alike(tensor, shape):
                for dim, size in enumerate(tensor.shape):
                    if size > 1:
                        at = mismatch.gap.index[dim + len(shape) - tensor.dim()]
                        spans[name, dim] = (at, at + 1)
        if spans:
            yield _narrow(call, spans)


def _is_broadcast(tensor: Tensor, shape: Sequence[int]) -> bool:
    last = list(shape)[max(0, len(shape) - tensor.dim()) :]
    sizes = zip(tensor.shape, last, strict=True) if tensor.dim() <= len(shape) else [(0, 2)]
    return all(size in (1, other) for size, other in sizes)


def _gradients(mismatch: Mismatch) -> Iterator[Call]:
    """The sum in place of a gradient that arrives; one output alone; the gradient of the tensor that differs alone."""
    call = mismatch.call
    for at, name in call.grads:
        if name is not None:
            yield call.but(grads=((at, None),))
    if any(name for _, name in call.grads):
        yield call.but(grads=tuple((at, None) for at, _ in call.grads))
    if len(call.grads) > 1:
        for grad in call.grads:
            yield call.but(grads=(grad,))
    if call.kind == BACKWARD and len(call.requires) > 1:
        yield call.but(requires=frozenset({mismatch.gap.name.removeprefix("grad of ")}))


def _arguments(mismatch: Mismatch) -> Iterator[Call]:
    """Without one argument that may be left out, or with None in place of a tensor."""
    call = mismatch.call
    if call.form not in (text.FUNCTION, text.METHOD):
        return
    for name in call.kwargs:
        if not call.is_in_place or name != "inplace":
            yield call.but(kwargs={key: value for key, value in call.kwargs.items() if key != name})
    if len(call.args) > 1:
        yield call.but(args=call.args[:-1])
    for at, argument in enumerate(call.args):
        if at and argument in call.tensors:
            yield call.but(args=(*call.args[:at], "None", *call.args[at + 1 :]))


def _halves(mismatch: Mismatch) -> Iterator[Call]:
    """A part of all dimensions of one size together, as they are likely to be one dimension; then of each dimension alone."""
    call = mismatch.call
    sizes = {
        (name, dim): size for name, tensor in call.tensors.items() for dim, size in enumerate(tensor.shape) if size > 1
    }
    groups = [
        [key for key, other in sizes.items() if other == size] for size in sorted(set(sizes.values()), reverse=True)
    ]
    for group in [*groups, *([key] for key in sizes)]:
        size = sizes[group[0]]
        for start, stop in spans_within(size):
            smaller = _narrow(call, dict.fromkeys(group, (start, stop)))
            resized = _substitute(smaller, rf"(?<![\w.]){size}(?![\w.])", str(stop - start))
            if resized != smaller:
                yield resized
            yield smaller


def spans_within(size: int) -> list[tuple[int, int]]:
    half = size // 2
    spans = [(0, 1), (0, half), (half, size), (0, size - 1), (1, size)]
    return [span for span in dict.fromkeys(spans) if 0 < span[1] - span[0] < size]


def _narrow(call: Call, spans: Mapping[tuple[str, int], tuple[int, int]]) -> Call:
    tensors = dict(call.tensors)
    for (name, dim), (start, stop) in spans.items():
        tensors[name] = own_memory(tensors[name].narrow(dim, start, stop - start))
    return call.but(tensors=tensors)


def _substitute(call: Call, pattern: str, replacement: str) -> Call:
    return call.but(
        args=tuple(re.sub(pattern, replacement, argument) for argument in call.args),
        kwargs={name: re.sub(pattern, replacement, argument) for name, argument in call.kwargs.items()},
    )


def _dimensions(mismatch: Mismatch) -> Iterator[Call]:
    """Without dimensions of one entry."""
    call = mismatch.call
    choices: list[Callable[[Tensor], Tensor]] = [_squeeze]
    if all(tensor.numel() == 1 for tensor in call.tensors.values()):
        choices.insert(0, lambda tensor: tensor.reshape(()))
    for choice in choices:
        tensors = {name: choice(tensor) for name, tensor in call.tensors.items()}
        if any(tensor.shape != call.tensors[name].shape for name, tensor in tensors.items()):
            yield call.but(tensors=tensors)


def _squeeze(tensor: Tensor) -> Tensor:
    if 1 not in tensor.shape or tuple(tensor.shape) == (1,):
        return tensor
    return own_memory(tensor.squeeze() if tensor.numel() > 1 else tensor.reshape(1))


def _values(mismatch: Mismatch) -> Iterator[Call]:
    """Entries that are shorter to read: fewer digits, 1, 0."""
    call = mismatch.call
    for name, tensor in call.tensors.items():
        if any(size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
            continue
        cost = _cost(tensor)
        for simpler in _simpler(tensor):
            if _cost(simpler) < cost:
                memory = own_memory(tensor).copy_(simpler)  # of the same strides
                yield replace(call, tensors={**call.tensors, name: memory})


def _simpler(tensor: Tensor) -> Iterator[Tensor]:
    """The nearest first, so that the program still shows what happened."""
    if tensor.dtype.is_floating_point:
        for digits in (0, 1, 2, 3):
            rounded = tensor.double().mul(10.0**digits).round().div(10.0**digits)
            yield rounded.add(0.0).to(tensor.dtype)  # 0.0, not -0.0
        if tensor.numel() == 1 and bool(tensor.isfinite()):
            for digits in (1, 2, 3):
                yield torch.full_like(tensor, float(f"{float(tensor):.{digits}g}"))
    yield torch.ones_like(tensor)
    yield torch.zeros_like(tensor)


def _cost(tensor: Tensor) -> int:
    """How long it is to read: short numbers are as good as any, and the same number everywhere is good where there are many."""
    if tensor.numel() > _MANY:
        return _MANY + int((tensor != tensor.reshape(-1)[0]).any())
    texts = [number_text(entry) for entry in tensor.reshape(-1)]
    return sum(max(0, len(entry) - _SHORT) for entry in texts) + len(set(texts))


def _numbers(mismatch: Mismatch) -> Iterator[Call]:
    """Numbers among the arguments with fewer digits."""
    call = mismatch.call
    numbers = {number for argument in (*call.args, *call.kwargs.values()) for number in _FLOAT.findall(argument)}
    for number in sorted(numbers):
        if len(number) > _LONG:
            for digits in (1, 2, 3):
                short = repr(float(f"{float(number):.{digits}g}"))
                yield _substitute(call, rf"(?<![\w.]){re.escape(number)}(?![\w.])", short)


Move = Callable[[Mismatch], Iterator[Call]]
_MOVES: tuple[Move, ...] = (_entries, _gradients, _arguments, _halves, _dimensions, _values, _numbers)
