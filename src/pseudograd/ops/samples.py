"""Inputs of the contract tests: values around the bounds and jumps of an op, and calls of the clamp family with numbers and tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from ..rule import Sample


def values(dtype: torch.dtype, *points: float) -> Tensor:
    """Both sides of each point, the points and their neighbours, both zeros, subnormals, the largest values, infinities, NaN."""
    info = torch.finfo(dtype)
    tiny = info.tiny * info.eps
    near = [
        point * factor + shift
        for point in points
        for factor in (1 - info.eps, 1, 1 + info.eps)
        for shift in (-0.25, 0, 0.25)
    ]
    far = [point + sign * distance for point in points for distance in (0.5, 3.0, 40.0) for sign in (-1, 1)]
    special = [0.0, -0.0, tiny, -tiny, info.tiny, -info.tiny, info.max, info.min, torch.inf, -torch.inf, torch.nan]
    return torch.tensor([*near, *far, *special], dtype=torch.float64).to(dtype)


def around(name: str, *points: float, others: tuple[object, ...] = ()) -> Sample:
    """x around these points, and the other inputs."""
    return Sample(name, lambda dtype: (values(dtype, *points), *others))


def matrix(end: float, shape: tuple[int, int], others: tuple[object, ...] = ()) -> Sample:
    """x from -end to end, and the other inputs."""
    count = shape[0] * shape[1]
    return Sample("a matrix", lambda dtype: (torch.linspace(-end, end, count).reshape(shape).to(dtype), *others))


def bounded(name: str, low: float | None, high: float | None) -> Sample:
    """x around two number bounds, of which one may be absent."""
    bounds = [bound for bound in (low, high) if bound is not None and abs(bound) != torch.inf]
    return around(name, *(bounds or [0.0]), others=(low, high))


def _sample_of_tensors(name: str, low: float | None, high: float | None, *, has_rows: bool = True) -> Sample:
    """x of shape (3, 9), or (9,) so that the bounds are larger. Each row has its own bounds, and some x are exactly at them."""

    def build(dtype: torch.dtype) -> tuple[object, ...]:
        def bound(value: float | None) -> Tensor | None:
            return None if value is None else torch.tensor([[value], [value / 2], [value / 4]], dtype=dtype)

        x = torch.linspace(-2.0, 2.0, 27, dtype=torch.float64).reshape(3, 9)
        x[:, 0], x[:, 1] = torch.tensor([-1.0, -0.5, -0.25]), torch.tensor([1.0, 0.5, 0.25])
        return (x if has_rows else x[0]).to(dtype), bound(low), bound(high)

    return Sample(name, build)


def samples_of_bounds(low: float | None, high: float | None) -> tuple[Sample, ...]:
    """The samples of an op with these bounds; None for a bound that the op does not have."""
    has_both = low is not None and high is not None
    pairs = {
        "numbers": (-1.0, 1.0),
        **({"from zero": (0.0, 1.0), "to zero": (-2.0, 0.0), "one point": (0.5, 0.5)} if has_both else {}),
        **({"infinite": (-torch.inf, torch.inf)} if has_both else {"zero in the bounds": (0.0, 0.0)}),
        "not representable": (-0.3, 0.7),
    }
    samples = [
        *(bounded(name, None if low is None else a, None if high is None else b) for name, (a, b) in pairs.items()),
        _sample_of_tensors("per channel", low, high),
        _sample_of_tensors("larger than x", low, high, has_rows=False),
    ]
    if has_both:
        build = _sample_of_tensors("", None, high).build
        mixed = Sample("a number and a tensor", lambda dtype: (build(dtype)[0], low, build(dtype)[2]))
        samples += [_sample_of_tensors("crossed", high, low), mixed]
    return tuple(samples)
