"""Residuals: the data that a call saves for its backward, apart from the kernels that compute with it.

The call and its tensors alone decide which residual is saved, because a checkpoint runs the forward twice, perhaps under other modes and
on other kernels, and compares what both runs saved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .. import formula
from ..record import Record
from ..rule import Call, Gradients, Wants

Inputs = tuple[Any, ...]
Saved = list[Any]  # the tensors and other values of a residual


class Residual(Record):
    """suits(call) -> bool: could the residual serve the call with some inputs? Asked once for each call.

    serves(call, inputs, wants) -> bool: does it serve the call with these inputs? The answer must not depend on a mode, nor on the values
        of tensors.
    encode(call, inputs, wants) -> (y, saved), in plain ATen. It defines the residual.
    pull(grad, saved, wants, call) -> one gradient per input, not summed over broadcast dimensions, in plain ATen that can be
        differentiated. grad is dense.
    nbytes(call, inputs, wants) -> the bytes of the saved tensors.
    priority: if several residuals serve a call, the one with the largest number is saved.
    """

    name: str
    serves: Callable[[Call, Inputs, Wants], bool]
    encode: Callable[[Call, Inputs, Wants], tuple[Tensor, Saved]]
    pull: Callable[[Tensor, Saved, Wants, Call], Gradients]
    nbytes: Callable[[Call, Inputs, Wants], int]
    suits: Callable[[Call], bool] = lambda call: True
    priority: int = 0


def select_inputs(call: Call, inputs: Inputs, wants: Wants) -> Saved:
    """The inputs that the call keeps, and None in the place of each other input."""
    names = call.keeps(wants)
    if names == call.primitive.inputs:
        return list(inputs)
    return [value if name in names else None for name, value in zip(call.primitive.inputs, inputs)]  # noqa: B905  Dynamo on torch 2.8


def _encode(call: Call, inputs: Inputs, wants: Wants) -> tuple[Tensor, Saved]:
    return call.primitive.forward(*inputs), select_inputs(call, inputs, wants)


def _nbytes(call: Call, inputs: Inputs, wants: Wants) -> int:
    return sum(value.nbytes for value in select_inputs(call, inputs, wants) if isinstance(value, Tensor))


INPUTS = Residual("inputs", lambda call, inputs, wants: True, _encode, formula.pull, _nbytes)
