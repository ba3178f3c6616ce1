"""A tensor as a program writes it, to the last bit."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .memory import own_memory
from .trees import not_finite

_PLAIN = (torch.float32, torch.int64, torch.bool, torch.complex64)  # what torch.tensor makes of Python's numbers
_WIDE = 24  # entries that are alike: then by torch.full


def tensor_text(x: Tensor, requires: bool = False) -> str:
    if not x.is_contiguous():
        memory = own_memory(x)
        flat = memory.as_strided((memory.untyped_storage().nbytes() // memory.element_size(),), (1,), 0)
        made = f"{tensor_text(flat)}.as_strided({tuple(x.shape)}, {x.stride()})"
        return f"{made}.requires_grad_()" if requires else made
    options = _options(x, requires)
    if 0 in x.shape:
        return f"torch.zeros({tuple(x.shape)}{options})"
    values = x.reshape(-1)
    if x.numel() > _WIDE and bool((values == values[0]).all()):
        return _alike(values[0], tuple(x.shape), options)
    numbers = [number_text(one) for one in values]
    return f"torch.tensor({_nested(numbers, list(x.shape))}{options})"


def _options(x: Tensor, requires: bool) -> str:
    plain = (torch.float32,) if 0 in x.shape else _PLAIN
    return ("" if x.dtype in plain else f", dtype={x.dtype}") + (", requires_grad=True" if requires else "")


def _alike(value: Tensor, shape: tuple[int, ...], options: str) -> str:
    if value.dtype is torch.float32 and float(value) in (0.0, 1.0) and not math.copysign(1.0, float(value)) < 0:
        return f"torch.{'ones' if float(value) else 'zeros'}({shape}{options})"
    return f"torch.full({shape}, {number_text(value)}{options})"


def _nested(numbers: list[str], shape: list[int]) -> str:
    if not shape:
        return numbers[0]
    size = len(numbers) // shape[0]
    return f"[{', '.join(_nested(numbers[at : at + size], shape[1:]) for at in range(0, len(numbers), size))}]"


def number_text(entry: Tensor) -> str:
    """The fewest digits that make this number in its dtype."""
    value: object = entry.item()
    if isinstance(value, complex):
        return f"complex({_float_text(value.real, torch.float64)}, {_float_text(value.imag, torch.float64)})"
    return _float_text(value, entry.dtype) if isinstance(value, float) else repr(value)


def _float_text(value: float, dtype: torch.dtype) -> str:
    if not math.isfinite(value):
        return not_finite(value)
    for digits in range(1, 18):
        short = float(f"{value:.{digits}g}")
        if torch.tensor(short, dtype=dtype).item() == value:
            return repr(short)
    return repr(value)
