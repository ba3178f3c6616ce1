"""Four numbers of a tensor that tell it from another one, and rounding from more: computed where it lives, fetched once for each step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pseudograd.torch_table.private import is_batched, is_fake, is_wrapped

_ROW = 4096  # weights: a longer tensor is folded into rows
_FOLDED = 1 << 16


class Weights:
    """Pseudo-random ones, the same on every torch, for a projection in which no two elements count alike."""

    def __init__(self) -> None:
        self._made: dict[Any, Tensor] = {}

    def of(self, count: int, like: Tensor) -> Tensor:
        key = (like.dtype, like.device)
        made = self._made.get(key)
        if made is None or made.numel() < count:
            size = max(_ROW, 1 << (count - 1).bit_length())
            at = torch.arange(1, size + 1, dtype=torch.float64)
            made = ((at * 0.6180339887498949).remainder(1.0) - 0.5).to(like.dtype).to(like.device)
            self._made[key] = made
        return made[:count]


_weights = Weights()


def is_readable(value: object) -> bool:
    """Has it numbers that can be summed? Not a fake, nested, sparse or sharded one, nor one inside a transform."""
    return (
        isinstance(value, Tensor)
        and not (value.is_meta or value.is_nested or is_batched(value) or is_wrapped(value))
        and value.layout is torch.strided
        and (type(value) in (Tensor, torch.nn.Parameter) or not (is_fake(value) or hasattr(value, "placements")))
    )


def parts(value: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
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
    return (
        flat.sum(dtype=torch.float64),
        torch.linalg.vector_norm(flat, 1, dtype=torch.float64) if flat.numel() else nonzero.to(torch.float64),
        _projection(flat),
        nonzero,
    )


def _projection(flat: Tensor) -> Tensor:
    count = flat.numel()
    if count <= _FOLDED:
        return torch.dot(flat, _weights.of(count, flat))
    rows = count // _ROW
    folded = flat[: rows * _ROW].view(rows, _ROW) @ _weights.of(_ROW, flat)
    rest = flat[rows * _ROW :]
    return torch.dot(folded, _weights.of(rows, flat) + 1) + torch.dot(rest, _weights.of(rest.numel(), flat))


class Pending:
    """Digests that were computed and not fetched."""

    def __init__(self) -> None:
        self._parts: tuple[list[Tensor], ...] = ([], [], [], [])

    def __len__(self) -> int:
        return len(self._parts[0])

    def add(self, value: Tensor) -> int:
        """Returns its place in what `fetch` gives."""
        for some, one in zip(self._parts, parts(value), strict=True):
            some.append(one)
        return len(self) - 1

    def fetch(self) -> list[tuple[float, ...]]:
        columns = [_fetched(some) for some in self._parts]
        for some in self._parts:
            some.clear()
        return list(zip(*columns, strict=True))


def _fetched(some: list[Tensor]) -> list[float]:
    if len({(one.dtype, one.device) for one in some}) > 1:
        some = [one.to("cpu", torch.float64) for one in some]
    return torch.stack(some).to(torch.float64).tolist() if some else []  # type: ignore[no-any-return]
