"""Four numbers of a tensor that tell it from another one, and rounding from more: computed where it lives, fetched once for each step."""

from __future__ import annotations

import torch
from torch import Tensor

from pseudograd.torch_table.private import is_batched, is_fake, is_wrapped

_ROW = 4096  # weights: a longer tensor is folded into rows
_FOLDED = 1 << 16
_weights: dict[tuple[torch.dtype, torch.device], Tensor] = {}


def _projection_weights(count: int, like: Tensor) -> Tensor:
    """Pseudo-random numbers, the same on every torch, for a projection in which no two elements count alike."""
    key = (like.dtype, like.device)
    weights = _weights.get(key)
    if weights is None or weights.numel() < count:
        size = max(_ROW, 1 << (count - 1).bit_length())
        index = torch.arange(1, size + 1, dtype=torch.float64)
        weights = ((index * 0.6180339887498949).remainder(1.0) - 0.5).to(like.dtype).to(like.device)
        _weights[key] = weights
    return weights[:count]


def is_readable(value: object) -> bool:
    """Has it numbers that can be summed? Not a fake, nested, sparse or sharded tensor, nor one inside a transform."""
    return (
        isinstance(value, Tensor)
        and not (value.is_meta or value.is_nested or is_batched(value) or is_wrapped(value))
        and value.layout is torch.strided
        and (type(value) in (Tensor, torch.nn.Parameter) or not (is_fake(value) or hasattr(value, "placements")))
    )


def _digest(value: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Its sum, the sum of its magnitudes, a projection, and how many of it are not 0."""
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
    return torch.dot(folded, _projection_weights(rows, flat) + 1) + torch.dot(
        rest, _projection_weights(rest.numel(), flat)
    )


class Pending:
    """Digests that were computed and not fetched."""

    def __init__(self) -> None:
        self._columns: tuple[list[Tensor], ...] = ([], [], [], [])

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(self, value: Tensor) -> int:
        """Returns the position of the digest in what `fetch` gives."""
        for column, number in zip(self._columns, _digest(value), strict=True):
            column.append(number)
        return len(self) - 1

    def fetch(self) -> list[tuple[float, ...]]:
        columns = [_fetch_column(column) for column in self._columns]
        for column in self._columns:
            column.clear()
        return list(zip(*columns, strict=True))


def _fetch_column(column: list[Tensor]) -> list[float]:
    if len({(number.dtype, number.device) for number in column}) > 1:
        column = [number.to("cpu", torch.float64) for number in column]
    return torch.stack(column).to(torch.float64).tolist() if column else []  # type: ignore[no-any-return]
