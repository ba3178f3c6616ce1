"""The digest of a tensor: four numbers that differ if the tensor does. They are computed on its device and fetched once per step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, TypeGuard

import torch
from torch import Tensor

from pseudograd.torch_table.private import is_batched, is_opaque, is_wrapped

Digest: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]
_ROW = 4096  # a long tensor is folded into rows of so many entries
_FOLDED = 1 << 16  # a tensor with more entries is folded
_weights: dict[tuple[torch.dtype, torch.device], Tensor] = {}


def _projection_weights(count: int, like: Tensor) -> Tensor:
    """Pseudo-random numbers, the same on every torch, that give each entry another weight."""
    key = (like.dtype, like.device)
    weights = _weights.get(key)
    if weights is None or weights.numel() < count:
        index = torch.arange(1, max(_ROW, 1 << (count - 1).bit_length()) + 1)
        mixed = index * 0x9E3779B1 % 2**32  # alone, entries 1 and 4 would weigh as much as entries 2 and 3
        mixed = (mixed ^ mixed >> 15) * 0x2C1B3C6D % 2**32
        shares = (mixed ^ mixed >> 12).double() / 2**32
        weights = _weights[key] = (shares - 0.5).to(like.dtype).to(like.device)
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
    if flat.numel() <= _FOLDED:
        flat = flat.double()
    norm = torch.linalg.vector_norm(flat, 1, dtype=torch.float64) if flat.numel() else nonzero.to(torch.float64)
    return flat.sum(dtype=torch.float64), norm, _projection(flat), nonzero


def _projection(flat: Tensor) -> Tensor:
    count = flat.numel()
    if count <= _FOLDED:
        return torch.dot(flat, _projection_weights(count, flat))
    rows = count // _ROW
    folded = flat[: rows * _ROW].view(rows, _ROW) @ _projection_weights(_ROW, flat)
    rest = flat[rows * _ROW :]
    rest_weights = _projection_weights(rest.numel(), flat)
    return torch.dot(folded, _projection_weights(rows, flat) + 1) + torch.dot(rest, rest_weights)


def fetch(digests: Sequence[Digest]) -> list[tuple[float, float, float, float]]:
    """The numbers of all digests, in four transfers: one for each of the four numbers."""
    return list(zip(*map(_fetch_column, zip(*digests, strict=True)), strict=True))  # type: ignore[arg-type]


def _fetch_column(column: Sequence[Tensor]) -> list[float]:
    if len({(number.dtype, number.device) for number in column}) > 1:
        column = [number.to("cpu", torch.float64) for number in column]
    return torch.stack(list(column)).to(torch.float64).tolist()
