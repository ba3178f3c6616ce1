"""A rule's formula on the inputs of a call: what every lowering without a kernel computes, and what every kernel is compared with."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

from . import layouts
from .arguments import is_number, rounded
from .rule import BOUNDED, Call, Gradients, Wants
from .torch_table.private import fake_mode_of

_is_compiling = torch.compiler.is_compiling


class Depth(threading.local):
    """A context that counts how deep this thread is in it."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *exception: object) -> None:
        self.depth -= 1


own = Depth()  # in computations of ours, which `rewrite` must leave alone: a second derivative records them


def pull(grad: Tensor, inputs: list[object], wants: Wants, call: Call) -> Gradients:
    """One gradient per input, unreduced: autograd sums each to the shape of its input, and casts it to its dtype and device."""
    if torch.compiler.is_dynamo_compiling():  # which cannot trace `own`
        return plain(grad, inputs, wants, call)
    with own, fake_mode_of(grad):
        if layouts.are_sparse(grad, inputs):
            return layouts.apply_to_values(lambda grad, inputs: plain(grad, inputs, wants, call), grad, inputs)
        return plain(grad, inputs, wants, call)


def plain(
    grad: Tensor, inputs: list[object], wants: Wants, call: Call, numbers: dict[str, float] | None = None
) -> Gradients:
    """For a rule that compares, on the inputs as torch compared them: tensors cast, numbers rounded to the dtype of y.

    `numbers` are parameters of the rule that stand for those of the call.
    """
    if not (call.rule.compares and call.keeps(wants)):
        return call.pull(grad, tuple(inputs), None, wants, numbers)
    y = call.primitive.forward(*inputs)
    operands: tuple[Any, ...] = tuple(
        value.to(y.dtype) if isinstance(value, Tensor) else rounded(value, y) if is_number(value) else value
        for value in inputs
    )
    if _is_compiling() and y.dtype.itemsize == 2 and call.primitive.inputs == BOUNDED:
        y = torch.clamp(*operands)  # to the rounded bounds: Inductor fuses what it rounds into what it does not
    return call.pull(grad, operands, y, wants, numbers)
