"""The digest of a tensor: four numbers that differ if the tensor does. They are computed on its device and fetched once per step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeAlias, TypeGuard

import torch
from torch import Tensor

from pseudograd.torch_table.private import is_batched, is_opaque, is_wrapped

Digest: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]
_ROW = 65_536  # a tensor with more entries is folded into rows of so many
_weights: dict[tuple[torch.dtype, torch.device], Tensor] = {}


def _projection_weights(count: int, like: Tensor) -> Tensor:
    """Pseudo-random numbers, the same on every torch, that give each entry another weight."""
    key = (like.dtype, like.device)
    weights = _weights.get(key)
    if weights is None or weights.numel() < count:
        draw = random.Random("weights")
        numbers = [draw.random() for _ in range(max(_ROW, count))]
        weights = _weights[key] = torch.tensor(numbers, dtype=like.dtype, device=like.device)
    return weights[:count]


def is_readable(value: object) -> TypeGuard[Tensor]:
    """Can its numbers be summed? False for a fake, nested, sparse or sharded tensor, and inside a transform."""
    return (
        isinstance(value, Tensor)
        and not (value.is_meta or value.is_nested or is_batched(value) or is_wrapped(value))
        and value.layout is torch.strided
        and (type(value) in (Tensor, torch.nn.Parameter) or not (is_opaque(value) or hasattr(value, "placements")))
    )


def digest(value: Tensor) -> Digest:
    """The sum, the sum of magnitudes, a projection, and the number of nonzero entries."""
    x = value.detach()
    if x.is_complex():
        x = torch.view_as_real(x)
    if x.is_quantized:
        x = x.dequantize()
    nonzero = torch.count_nonzero(x)
    if x.dtype not in (torch.float32, torch.float64):
        x = x.to(torch.float32 if x.is_floating_point() else torch.float64)
    flat = x.reshape(-1)
    if flat.numel() <= _ROW:
        flat = flat.double()
    norm = torch.linalg.vector_norm(flat, 1, dtype=torch.float64)
    return flat.sum(dtype=torch.float64), norm, _projection(flat), nonzero


def _projection(flat: Tensor) -> Tensor:
    rows = flat.numel() // _ROW
    if rows:
        folded = flat[: rows * _ROW].view(rows, _ROW) @ _projection_weights(_ROW, flat)
        flat = torch.cat([folded, flat[rows * _ROW :]])
    # Without the 1, entry 1 of row 0 would have the weight of entry 0 of row 1.
    return torch.dot(flat, _projection_weights(flat.numel(), flat) + 1)


def fetch(digests: Sequence[Digest]) -> list[tuple[float, float, float, float]]:
    """The numbers of all digests, in four transfers: one for each of the four numbers."""
    return list(zip(*map(_fetch_column, zip(*digests, strict=True)), strict=True))  # type: ignore[arg-type]


def _fetch_column(column: Sequence[Tensor]) -> list[float]:
    if len({(number.dtype, number.device) for number in column}) > 1:
        column = [number.to("cpu", torch.float64) for number in column]
    return torch.stack(list(column)).to(torch.float64).tolist()
