"""What the installed torch does exactly at a bound, measured when asked: torch 2.14 changed it without an error."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional


def _at_zero(f: Callable[[Tensor], Tensor]) -> float:
    x = torch.zeros(1, requires_grad=True)
    f(x).sum().backward()
    assert x.grad is not None
    return float(x.grad)


_FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "clamp with a number": lambda x: torch.clamp(x, min=0.0),
    "clamp with a tensor": lambda x: torch.clamp(x, min=torch.zeros(1)),
    "maximum": lambda x: torch.maximum(x, torch.zeros(1)),
    "relu": torch.relu,
    "hardtanh": lambda x: functional.hardtanh(x, 0.0, 1.0),
}


def edge_slopes() -> dict[str, float]:
    """dy/dx of torch's own ops where x is exactly at the bound, by the form of the call."""
    return {form: _at_zero(f) for form, f in _FORMS.items()}


def installed_era() -> str:
    """The rule that equals the installed torch.clamp with number bounds: "zero/closed" or "zero/open"."""
    return "zero/closed" if edge_slopes()["clamp with a number"] == 1 else "zero/open"
