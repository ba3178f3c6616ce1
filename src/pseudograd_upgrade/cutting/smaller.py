"""Candidates for a smaller call: fewer entries, fewer arguments, no gradient of its own. Nobody says yet that they differ, too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from torch import Tensor

from ..recorded import UPDATE
from . import names, trees
from .call import Call
from .memory import own_memory
from .trees import Tree
from .workers import Found

Span = tuple[int, int]


def layouts(call: Call) -> Iterator[Call]:
    """As it was, the simpler first: memory without gaps, no autocast. Of an optimiser one step, two, three."""
    plain = {name: one.contiguous() for name, one in call.tensors.items()}
    same = all(one.is_contiguous() for one in call.tensors.values())
    casts = dict.fromkeys((None, call.autocast))
    for tensors, autocast in product([plain] if same else [plain, call.tensors], casts):
        for times in (1, 2, 3) if call.kind == UPDATE else (1,):
            yield replace(call, tensors=tensors, autocast=autocast, times=times)


def gradients(found: Found) -> Iterator[Call]:
    """One output alone, and of that the sum."""
    call = found.call
    for at, name in call.grads:
        if name is not None:
            yield call.but(grads=((at, None),))
    if any(name for _, name in call.grads):
        yield call.but(grads=tuple((at, None) for at, _ in call.grads))
    if len(call.grads) > 1:
        for one in call.grads:
            yield call.but(grads=(one,))


def required(found: Found) -> Iterator[Call]:
    """The gradient of the tensor that differs alone. Of an optimiser one parameter."""
    call = found.call
    if call.kind == UPDATE:
        parameters = [name for name in call.tensors if name.startswith("p")]
        if len(parameters) > 1:
            name = parameters[int(found.worst.name.removeprefix("y"))]
            kept = (name, f"grad{name.removeprefix('p')}")
            yield replace(call, tensors={one: call.tensors[one] for one in kept}, requires=frozenset({name}))
    elif call.is_of_gradients and len(call.requires) > 1:
        yield call.but(requires=frozenset({found.worst.name.removeprefix("grad of ")}))


def entries(found: Found) -> Iterator[Call]:
    """The entry that differs, of every tensor that goes with it."""
    call, shape = found.call, found.shape
    if not any(size > 1 for size in shape):
        return
    for is_alike in (_goes_with, _is_same):
        cuts = {}
        for name, one in call.tensors.items():
            if is_alike(one, shape):
                offset = len(shape) - one.dim()
                for dim, size in enumerate(one.shape):
                    if size > 1:
                        at = found.worst.at[dim + offset]
                        cuts[name, dim] = (at, at + 1)
        if cuts:
            yield _narrowed(call, cuts)


def _goes_with(one: Tensor, shape: Sequence[int]) -> bool:
    last = list(shape)[max(0, len(shape) - one.dim()) :]
    return one.dim() <= len(shape) and all(size in (1, other) for size, other in zip(one.shape, last, strict=True))


def _is_same(one: Tensor, shape: Sequence[int]) -> bool:
    return list(one.shape) == list(shape)


def halves(found: Found) -> Iterator[Call]:
    """Of all dimensions of one size together, as they are likely to be one; then of each alone."""
    call = found.call
    dims = [((name, dim), size) for name, one in call.tensors.items() for dim, size in enumerate(one.shape) if size > 1]
    groups = [
        [key for key, other in dims if other == size] for size in sorted({size for _, size in dims}, reverse=True)
    ]
    sizes = dict(dims)
    for group in [*groups, *([key] for key, _ in dims)]:
        size = sizes[group[0]]
        for span in _spans(size):
            other = _narrowed(call, dict.fromkeys(group, span))
            if any(_is_size(leaf, size) for leaf in _numbers(call)):
                yield _resized(other, size, span[1] - span[0])
            yield other


def _spans(size: int) -> list[Span]:
    half = size // 2
    found = [(0, 1), (0, half), (half, size), (0, size - 1), (1, size)]
    return [span for span in dict.fromkeys(found) if 0 < span[1] - span[0] < size]


def _numbers(call: Call) -> Iterator[Tree]:
    for one in (*call.args, *call.kwargs.values()):
        yield from trees.leaves(one)


def _is_size(leaf: Tree, size: int) -> bool:
    return type(leaf) is int and leaf == size


def _resized(call: Call, size: int, to: int) -> Call:
    def change(leaf: Tree) -> Tree:
        return to if _is_size(leaf, size) else leaf

    return call.but(
        args=tuple(trees.replaced(one, change) for one in call.args),
        kwargs={name: trees.replaced(one, change) for name, one in call.kwargs.items()},
    )


def _narrowed(call: Call, cuts: dict[tuple[str, int], Span]) -> Call:
    tensors = dict(call.tensors)
    for (name, dim), (start, stop) in cuts.items():
        tensors[name] = own_memory(tensors[name].narrow(dim, start, stop - start))
    return call.but(tensors=tensors)


def arguments(found: Found) -> Iterator[Call]:
    """Without one that may be left out."""
    call = found.call
    if call.form not in (names.FUNCTION, names.METHOD):
        return
    for name in call.kwargs:
        if not call.is_in_place or name != "inplace":
            yield call.but(kwargs={one: value for one, value in call.kwargs.items() if one != name})
    if len(call.args) > 1:
        yield call.but(args=call.args[:-1])
    for at, one in enumerate(call.args):
        if at and isinstance(one, dict) and "tensor" in one:
            yield call.but(args=(*call.args[:at], None, *call.args[at + 1 :]))


def ranks(found: Found) -> Iterator[Call]:
    """Without dimensions of one entry."""
    call = found.call
    if call.kind != UPDATE and all(one.numel() == 1 for one in call.tensors.values()):
        yield from _reshaped(call, {name: one.reshape(()) for name, one in call.tensors.items()})
    yield from _reshaped(call, {name: _without_ones(one) for name, one in call.tensors.items()})


def _without_ones(one: Tensor) -> Tensor:
    if 1 not in one.shape or tuple(one.shape) == (1,):
        return one
    return own_memory(one.squeeze() if one.numel() > 1 else one.reshape(1))


def _reshaped(call: Call, tensors: dict[str, Tensor]) -> Iterator[Call]:
    if any(one.shape != call.tensors[name].shape for name, one in tensors.items()):
        yield call.but(tensors=tensors)
