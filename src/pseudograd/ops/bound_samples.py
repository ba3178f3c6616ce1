"""Inputs on which the contract tests run every rule of the clamp family: numbers, tensors, mixtures, and what is special."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..rule import Sample
from .samples import values


def numbers(name: str, low: float | None, high: float | None) -> Sample:
    edges = [edge for edge in (low, high) if edge is not None and abs(edge) != torch.inf]
    return Sample(name, lambda dtype: (values(dtype, *(edges or [0.0])), low, high))


def _tensors(name: str, low: float | None, high: float | None, *, shape: tuple[int, ...] = (3, 9)) -> Sample:
    """x of shape (3, 9), or (9,) where the bounds are the larger; one bound for each row, exact hits among the values."""

    def build(dtype: torch.dtype) -> tuple[object, ...]:
        def bound(value: float | None) -> Tensor | None:
            return None if value is None else torch.tensor([[value], [value / 2], [value / 4]], dtype=dtype)

        x = torch.linspace(-2.0, 2.0, 27, dtype=torch.float64).reshape(3, 9)
        x[:, 0], x[:, 1] = torch.tensor([-1.0, -0.5, -0.25]), torch.tensor([1.0, 0.5, 0.25])
        return (x if len(shape) == 2 else x[0]).to(dtype), bound(low), bound(high)

    return Sample(name, build)


def _mixed() -> Sample:
    build = _tensors("", None, 1.0).build
    return Sample("a number and a tensor", lambda dtype: (build(dtype)[0], -1.0, build(dtype)[2]))


def samples_of(low: bool, high: bool) -> Callable[[], Iterator[Sample]]:
    """The samples of an op with these bounds."""

    def samples() -> Iterator[Sample]:
        for name, least, most in (
            ("numbers", -1.0, 1.0),
            ("zero in the bounds", 0.0, 0.0),
            ("not representable", -0.3, 0.7),
        ):
            if low and high and least == most:
                yield numbers("from zero", 0.0, 1.0)
                yield numbers("to zero", -2.0, 0.0)
                yield numbers("one point", 0.5, 0.5)
                yield numbers("infinite", -torch.inf, torch.inf)
            else:
                yield numbers(name, least if low else None, most if high else None)
        yield _tensors("per channel", -1.0 if low else None, 1.0 if high else None)
        yield _tensors("larger than x", -1.0 if low else None, 1.0 if high else None, shape=(9,))
        if low and high:
            yield _tensors("crossed", 1.0, -1.0)
            yield _mixed()

    return samples
