"""The gradients of a row by every way autograd can compute them, and by the reference."""

from typing import Any

import torch
from torch import Tensor

from .compare import assert_same_values
from .rows import Row, of_tensors, requiring_grad, rounding_to, spread, tensors_of

Gradients = list[Tensor | None]


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


def special_pairs(inputs: tuple[Any, ...], dtype: torch.dtype) -> tuple[tuple[Any, ...], Tensor]:
    """Every value of the inputs with every special grad."""
    grads = special_grads(dtype)
    flat = spread(inputs)
    count = tensors_of(flat)[0].numel()
    return tuple(v.repeat_interleave(len(grads)) if isinstance(v, Tensor) else v for v in flat), grads.repeat(count)


def random_pairs(inputs: tuple[Any, ...], dtype: torch.dtype) -> tuple[tuple[Any, ...], Tensor]:
    """Random first inputs, half of them near the range and half of any magnitude, with random grads of any magnitude."""
    count = 256
    generator = torch.Generator().manual_seed(1)
    near = torch.randn(count // 2, dtype=torch.float64, generator=generator).mul(2).to(dtype)
    first = torch.cat([near, random_bits(count // 2, dtype, seed=2)])
    flat = spread(inputs)
    others = [v.repeat(count // v.numel() + 1)[:count] if isinstance(v, Tensor) else v for v in flat[1:]]
    return (first, *others), random_bits(count, dtype, seed=3)


def by_backward(row: Row, inputs: tuple[Any, ...], grad: Tensor, **how: bool) -> Gradients:
    """One gradient per tensor input, through the recording path; create_graph=True forces the formula."""
    leaves = requiring_grad(inputs)
    found = torch.autograd.grad(row(*leaves), tensors_of(leaves), grad, allow_unused=True, **how)
    return [None if g is None else g.detach() for g in found]


def by_backward_of_first(row: Row, inputs: tuple[Any, ...], grad: Tensor) -> Gradients:
    """Only the first input requires grad: what the kernels for tensor bounds are made for."""
    leaf = inputs[0].detach().clone().requires_grad_()
    y = row(leaf, *inputs[1:])
    if not y.requires_grad:
        return [None]
    return list(torch.autograd.grad(y, [leaf], grad, allow_unused=True))


def by_vjp(row: Row, inputs: tuple[Any, ...], grad: Tensor) -> Gradients:
    """Through functorch."""
    return list(torch.func.vjp(of_tensors(row, inputs), *tensors_of(inputs))[1](grad))


def by_reference(row: Row, inputs: tuple[Any, ...], grad: Tensor) -> list[Tensor]:
    """One number at a time, unreduced: the shape of the result for every tensor input."""
    fl = rounding_to(grad.dtype)
    shape = torch.broadcast_shapes(*(t.shape for t in tensors_of(inputs)))
    columns = [
        v.expand(shape).reshape(-1).tolist() if isinstance(v, Tensor) else [None if v is None else fl(v)] * grad.numel()
        for v in inputs
    ]
    of_one = row.reference_in(grad.dtype)
    first, *others = columns
    found = [of_one(*numbers) for numbers in zip(first, grad.reshape(-1).tolist(), *others, strict=True)]
    kept = [position for position, value in enumerate(inputs) if isinstance(value, Tensor)]
    return [torch.tensor([f[k] for f in found], dtype=torch.float64).to(grad.dtype).reshape(shape) for k in kept]


def assert_equals_reference(
    found: Gradients,
    expected: list[Tensor],
    inputs: tuple[Any, ...],
    grad: Tensor,
    what: str,
    ulps: int = 0,
) -> None:
    """No difference on any pair."""
    shown = {"x": inputs[0].expand(grad.shape), "grad": grad}
    for position, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert_same_values(ours, theirs, f"{what}, gradient {position}", ulps=ulps, **shown)
