"""How torch reads the arguments of its losses: numbers, and reductions with the two deprecated ways to ask for them."""

from __future__ import annotations

import numbers
import warnings

import torch
from torch import Tensor

NONE, MEAN, SUM = 0, 1, 2
_REDUCTIONS = {"none": NONE, "mean": MEAN, "sum": SUM}
LEGACY = {
    "size_average": None,
    "reduce": None,
    "reduction": "mean",
}  # what a function of torch.nn.functional takes last


def reduced(unreduced: Tensor, reduction: int) -> Tensor:
    if reduction == MEAN:
        return unreduced.mean()
    return unreduced.sum() if reduction == SUM else unreduced


def reduction_of(size_average: object, reduce: object, reduction: object) -> int | None:
    """Torch's number of what a function of torch.nn.functional is asked for, with torch's warning; None for what it refuses."""
    if size_average is None and reduce is None:
        return _REDUCTIONS.get(reduction) if isinstance(reduction, str) else None
    averages = size_average is None or size_average
    found = ("mean" if averages else "sum") if reduce is None or reduce else "none"
    text = f"size_average and reduce args will be deprecated, please use reduction='{found}' instead."
    warnings.warn(text, stacklevel=2)
    return _REDUCTIONS[found]


def as_float(number: object) -> float | None:
    """As torch reads an argument that is a float; None for what it may refuse."""
    if isinstance(number, (int, float)):
        return float(number)
    if torch.compiler.is_compiling():
        return None
    if isinstance(number, Tensor):
        is_one = number.dim() == 0 and not number.is_complex() and not number.requires_grad
        return float(number) if is_one else None
    return float(number) if isinstance(number, numbers.Real) else None
