"""Inputs for a function: which are tensors, special and random values of each dtype, and grads of both signs."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

Inputs = tuple[Any, ...]  # of a call: tensors, numbers and None
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def tensors_of(inputs: Iterable[object]) -> list[Tensor]:
    return [value for value in inputs if isinstance(value, Tensor)]


def tensors_among(call: Callable[..., Tensor], inputs: Inputs) -> Callable[..., Tensor]:
    """A function of its tensor inputs alone; the numbers among `inputs` stay."""
    positions = [position for position, value in enumerate(inputs) if isinstance(value, Tensor)]

    def f(*tensors: Tensor) -> Tensor:
        values: list[object] = list(inputs)
        for position, tensor in zip(positions, tensors):  # noqa: B905  Dynamo on torch 2.8 knows no strict
            values[position] = tensor
        return call(*values)

    return f


def requiring_grad(inputs: Iterable[Any]) -> Inputs:
    """The same inputs as fresh leaves that require grad; numbers and None stay."""
    return tuple([v.detach().clone().requires_grad_() if isinstance(v, Tensor) else v for v in inputs])


def spread(inputs: Inputs) -> Inputs:
    """The inputs broadcast against each other and made 1-d, so that no gradient is reduced."""
    shape = torch.broadcast_shapes(*(t.shape for t in tensors_of(inputs)))
    return tuple(v.expand(shape).reshape(-1).contiguous() if isinstance(v, Tensor) else v for v in inputs)


def special_grads(dtype: torch.dtype) -> Tensor:
    """Both signs of everything a gradient can be: zero, subnormal, tiny, ordinary, huge, infinite; and NaN."""
    info = torch.finfo(dtype)
    sizes = [0.0, info.tiny * info.eps, info.tiny / 2, info.tiny, 1e-5, 0.3, 1.0, 1.75, info.max, torch.inf]
    return torch.tensor([*sizes, *(-size for size in sizes), torch.nan], dtype=torch.float64).to(dtype)


def random_bits(count: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Numbers of every magnitude a dtype has, by random bit patterns."""
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    info = torch.iinfo(integer)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(info.min, info.max, (count,), dtype=integer, generator=generator).view(dtype)


def special_pairs(inputs: Inputs, dtype: torch.dtype) -> tuple[Inputs, Tensor]:
    """Every value of the inputs with every special grad."""
    grads = special_grads(dtype)
    flat = spread(inputs)
    count = tensors_of(flat)[0].numel()
    return tuple(v.repeat_interleave(len(grads)) if isinstance(v, Tensor) else v for v in flat), grads.repeat(count)


def random_pairs(inputs: Inputs, dtype: torch.dtype) -> tuple[Inputs, Tensor]:
    """Random first inputs, half of them near the range and half of any magnitude, with random grads of any magnitude."""
    count = 256
    generator = torch.Generator().manual_seed(1)
    near = torch.randn(count // 2, dtype=torch.float64, generator=generator).mul(2).to(dtype)
    first = torch.cat([near, random_bits(count // 2, dtype, seed=2)])
    flat = spread(inputs)
    others = [v.repeat(count // v.numel() + 1)[:count] if isinstance(v, Tensor) else v for v in flat[1:]]
    return (first, *others), random_bits(count, dtype, seed=3)
