"""Which of the classes that people copy is this one? By what it computes, not by how it is written."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .. import familiar

Apply = Callable[..., Tensor]
_CLAMPS = ("ClampWithGrad", "ClampWithGradProposed", "ClampWithGradThatWorks")
_BOUNDS = ((-1.0, 1.0), (-0.3, 0.7), (0.0, 1.0))
_STEPS, _RATE = 5, 0.4


def name_of(cls: type) -> str | None:
    """The name in `pseudograd.familiar`, or None. Never raises what the class raises."""
    known = ("ReplaceGrad",) if _arguments(cls) == 2 else _CLAMPS if _arguments(cls) == 3 else ()
    for name in known:
        try:
            if _does_the_same(cls.apply, getattr(familiar, name).apply, name):  # type: ignore[attr-defined]
                return name
        except Exception:  # of other code, asked in a way that it may not expect
            continue
    return None


def _arguments(cls: Any) -> int:
    """Of forward, behind ctx."""
    try:
        return len(inspect.signature(cls.forward).parameters) - 1
    except (AttributeError, TypeError, ValueError):
        return 0


def _does_the_same(theirs: Apply, ours: Apply, name: str) -> bool:
    cases = list(_pairs() if name == "ReplaceGrad" else _clamps())
    is_same = all(_equal(_pulled(theirs, case), _pulled(ours, case)) for case in cases)
    return is_same and _equal(_trained(theirs, name), _trained(ours, name))


def _clamps() -> Iterator[tuple[object, ...]]:
    """Below, at, inside and above both bounds, with both signs of grad."""
    for low, high in _BOUNDS:
        at = torch.tensor([low - 1, low - 1e-3, low, (low + high) / 2, high, high + 1e-3, high + 2])
        for grad in (torch.ones(7), -torch.ones(7), torch.linspace(-2, 3, 7), torch.zeros(7)):
            yield (at.clone().requires_grad_(), low, high), grad


def _pairs() -> Iterator[tuple[object, ...]]:
    """Of one shape, and where the first is larger."""
    for shape in ((3, 4), (4,), (3, 1)):
        yield (
            (torch.randn(3, 4, generator=_chance()), torch.randn(shape).requires_grad_()),
            torch.randn(3, 4, generator=_chance()),
        )


def _chance() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _pulled(apply: Apply, case: tuple[Any, ...]) -> list[Tensor]:
    """The value, and the gradients that arrive."""
    inputs, grad = case
    leaves = [
        one.detach().clone().requires_grad_(one.requires_grad) if isinstance(one, Tensor) else one for one in inputs
    ]
    y = apply(*leaves)
    wanted = [one for one in leaves if isinstance(one, Tensor) and one.requires_grad]
    return [y.detach(), *torch.autograd.grad(y, wanted, grad)]


def _trained(apply: Apply, name: str) -> list[Tensor]:
    """Five steps of descent from values on both sides."""
    x = torch.linspace(-2, 2, 33)
    found = []
    for _ in range(_STEPS):
        x = x.detach().requires_grad_()
        y = apply((x * 8).round() / 8, x) if name == "ReplaceGrad" else apply(x, -1.0, 1.0)
        (grad,) = torch.autograd.grad((y - torch.linspace(1, -0.5, 33) * math.pi / 3).square().sum(), x)
        x = x - _RATE * grad
        found.append(x.detach())
    return found


def _equal(some: list[Tensor], others: list[Tensor]) -> bool:
    """To the bit, but for the sign of a zero."""
    return len(some) == len(others) and all(torch.equal(a, b) for a, b in zip(some, others, strict=True))
