"""The gradients of all tensor inputs at once, with mixed dtypes. An input that was broadcast gets the sum, in its own dtype."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..measure.inputs import tensors_among, tensors_of
from ..measure.transforms import REVERSE, Function, Gradients, gradient_by_backward
from .cases import Case


class Problem(NamedTuple):
    """An op with values to try."""

    name: str
    f: Function  # the op as a function of all its tensors
    tensors: list[Tensor]  # finite values for these
    weight: Tensor  # the grad of the result, with both signs


def problems(case: Case) -> Iterator[Problem]:
    """Every sample of the case with several tensors: all in float64, with x in float32, and with the others in float32."""
    for sample in case.samples():
        inputs = sample.build(torch.float64)
        first, *others = (torch.nan_to_num(tensor, 0.5, 4.0, -4.0) for tensor in tensors_of(inputs))
        if others:
            f = tensors_among(case.function(), inputs)
            for kind, tensors in (
                ("one dtype", [first, *others]),
                ("x narrower", [first.float(), *others]),
                ("x wider", [first, *(other.float() for other in others)]),
            ):
                y = f(*tensors)
                weight = torch.linspace(-2, 2, y.numel(), dtype=y.dtype).reshape(y.shape)
                yield Problem(f"{sample.name}, {kind}", f, tensors, weight)


def assert_same_gradients(gradients: Gradients, expected: Gradients, tensors: list[Tensor], what: str) -> None:
    """The gradients have the shapes and dtypes of the inputs, and the expected values, except for the order of a sum."""
    near = 8 * max(torch.finfo(tensor.dtype).eps for tensor in tensors)
    for position, (ours, theirs, tensor) in enumerate(zip(gradients, expected, tensors, strict=True)):
        where = f"{what}, input {position}"
        assert (ours.shape, ours.dtype) == (tensor.shape, tensor.dtype), f"{where}: {ours.shape}, {ours.dtype}"
        assert torch.allclose(ours, theirs, rtol=near, atol=near), f"{where}: {ours}, by backward {theirs}"


def check_all_inputs(case: Case) -> None:
    """Every way to ask for gradients gives each tensor input the gradient of backward, also with mixed dtypes."""
    for name, f, tensors, weight in problems(case):
        expected = gradient_by_backward(f, tensors, weight)
        for way in REVERSE:
            assert_same_gradients(way(f, tensors, weight), expected, tensors, f"{name}, {way.__name__}")
