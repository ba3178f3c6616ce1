"""The grid on which both eras were measured: python -m tests.rewrite.eras FILE, run on torch 2.13 and on torch 2.15.

`eras.json` holds what those two torches gave; `test_pin_edge.py` holds pin_edge against it on every torch.
"""

import itertools
import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

VALUES = [-torch.inf, -2.0, -1.0, 0.0, 1.0, 2.0, torch.inf, torch.nan]
BOUNDS = [None, -1.0, 1.0, torch.nan, torch.inf, -torch.inf]
GRAD = [1.0, -2.0, 3.0, -4.0, 5.0, -6.0, 7.0, -8.0]


def cases() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """(name, function, its bounds as numbers or "tensor:" numbers)."""
    for low, high in itertools.product(BOUNDS, BOUNDS):
        if (low, high) != (None, None):
            yield f"clamp {low} {high}", torch.clamp, (low, high)
            yield f"clamp tensors {low} {high}", torch.clamp, tuple(_tensor(bound) for bound in (low, high))
    for bound in BOUNDS[1:]:
        for name in ("clamp_min", "clamp_max"):
            yield f"{name} {bound}", getattr(torch, name), (bound,)
            yield f"{name} tensor {bound}", getattr(torch, name), (_tensor(bound),)
        for name in ("fmin", "fmax"):
            yield f"{name} {bound}", getattr(torch, name), (_tensor(bound),)


def composites() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """The same for functions that torch runs as one call, with an op of the table inside."""
    other = torch.zeros(8, dtype=torch.float64, requires_grad=True)
    for reduction, margin, target in itertools.product(("none", "mean", "sum"), (0.0, 1.0, -1.0), (1.0, -1.0)):
        yield (
            f"margin_ranking_loss {reduction} {margin} {target}",
            _weighed(functional.margin_ranking_loss, torch.full((8,), target), margin=margin, reduction=reduction),
            (other,),
        )


def _weighed(function: Any, *args: Any, **kwargs: Any) -> Any:
    """A loss of each x. A loss that is reduced to one number is repeated for each x."""
    return lambda *tensors: function(*tensors, *args, **kwargs).expand(8)


def _tensor(value: float | None) -> torch.Tensor | None:
    return None if value is None else torch.full((8,), value, dtype=torch.float64, requires_grad=True)


def gradients(function: Any, bounds: tuple[Any, ...]) -> list[list[float]]:
    """The gradients of x and of each tensor bound."""
    x = torch.tensor(VALUES, dtype=torch.float64, requires_grad=True)
    tensors = [x, *[bound for bound in bounds if isinstance(bound, torch.Tensor)]]
    grads = torch.autograd.grad(function(x, *bounds), tensors, torch.tensor(GRAD, dtype=torch.float64))
    return [(grad + 0.0).tolist() for grad in grads]  # + 0.0: the sign of a zero is free


def measured() -> dict[str, list[list[float]]]:
    return {name: gradients(function, bounds) for name, function, bounds in (*cases(), *composites())}


if __name__ == "__main__":
    with open(sys.argv[1], "w") as file:
        json.dump(measured(), file)
