"""Candidates with friendlier numbers: 0, 1, fewer digits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from . import trees
from .call import Call
from .literals import number_text
from .memory import own_memory
from .trees import Tree
from .workers import Found

_FEW = 16  # entries that are tried one by one
_MANY = 256  # entries whose texts are compared
_SHORT = 4  # characters of a number that is left as it is, such as -1.0 and 0.25
_LONG = 6  # characters of a number that may be rounded


def values(found: Found) -> Iterator[Call]:
    call = found.call
    for name, one in call.tensors.items():
        if not 0 < one.numel() <= _MANY or name in call.made or _overlaps(one):
            continue
        cost = _cost(one)
        for other in _simpler(one):
            if _cost(other) < cost:
                yield _with(call, name, other)
        if 1 < one.numel() <= _FEW:
            for at in product(*map(range, one.shape)):
                for entry in _simpler(one[at]):
                    changed = own_memory(one)
                    changed[at] = entry
                    if _cost(changed) < cost:
                        yield _with(call, name, changed)


def _overlaps(one: Tensor) -> bool:
    return any(size > 1 and not stride for size, stride in zip(one.shape, one.stride(), strict=True))


def _with(call: Call, name: str, one: Tensor) -> Call:
    """With other numbers, in memory of the same strides."""
    return replace(call, tensors={**call.tensors, name: own_memory(call.tensors[name]).copy_(one)})


def _simpler(one: Tensor) -> Iterator[Tensor]:
    """The nearest first, so that the program still shows what happened."""
    if one.dtype.is_floating_point:
        for digits in (0, 1, 2, 3):
            rounded = one.double().mul(10.0**digits).round().div(10.0**digits)
            yield rounded.add(0.0).to(one.dtype)  # 0.0, not -0.0
        if one.numel() == 1 and bool(one.isfinite()):
            for digits in (1, 2, 3):
                yield torch.full_like(one, float(f"{float(one):.{digits}g}"))
    yield torch.ones_like(one)
    yield torch.zeros_like(one)


def _cost(one: Tensor) -> int:
    """How long it is to read: short numbers are as good as any, and the same number everywhere is good where there are many."""
    texts = [number_text(entry) for entry in one.reshape(-1)]
    return sum(max(0, len(text) - _SHORT) for text in texts) + len(set(texts))


def numbers(found: Found) -> Iterator[Call]:
    """Those among the arguments, where they have many digits."""
    call = found.call
    some = {leaf for one in (*call.args, *call.kwargs.values()) for leaf in trees.leaves(one) if type(leaf) is float}
    for value in some:
        if len(repr(value)) > _LONG:
            for digits in (1, 2, 3):
                yield _renumbered(call, value, float(f"{value:.{digits}g}"))


def _renumbered(call: Call, value: float, to: float) -> Call:
    def change(leaf: Tree) -> object:
        return to if type(leaf) is float and leaf == value else leaf

    return call.but(
        args=tuple(trees.replaced(one, change) for one in call.args),
        kwargs={name: trees.replaced(one, change) for name, one in call.kwargs.items()},
    )


def recipes(found: Found) -> Iterator[Call]:
    """For tensors that stay too large for a list of numbers: the same shape, of one number, or made by one call."""
    call = found.call
    for name, one in call.tensors.items():
        if one.numel() <= _FEW or name in call.made or not one.is_contiguous():
            continue
        for other in (torch.ones_like(one), torch.zeros_like(one)):
            if (one != one.reshape(-1)[0]).any():
                yield _with(call, name, other)
        if one.dtype is torch.float32:
            count, shape = one.numel(), tuple(one.shape)
            text = f"torch.linspace(-1, 1, {count}){f'.reshape({shape})' if len(shape) > 1 else ''}"
            made = torch.linspace(-1, 1, count).reshape(shape)
            yield replace(call, tensors={**call.tensors, name: made}, made={**call.made, name: text})
