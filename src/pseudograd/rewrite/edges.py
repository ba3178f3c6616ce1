"""Pinned edges: the gradients that torch's own clamps have in each era, element for element, and each edge within an era.

The formulas are those of torch's derivatives.yaml: 2.13 for "torch<=2.13", 2.15 for "torch>=2.14". They also fix what is not at the edge
but differs between eras: NaN in x or in a tensor bound, and bounds that cross. (Forward mode has the slope of backward; torch 2.13's own
fmax has another one at a tie.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..rule import Gradients, Rule
from ..torch_facts import CLOSED_ERA, ERAS

SHARES = {"closed": 1.0, "open": 0.0, "half": 0.5}
# (what x gets at the edge, or None for what the era does; the era whose formula holds elsewhere)
WAYS: dict[str, tuple[float | None, str]] = {era: (None, era) for era in ERAS} | {
    f"{edge}, elsewhere {era}": (share, era) for edge, share in SHARES.items() for era in ERAS
}


def way(edge: str, installed: str) -> str:
    """The name in WAYS for what the user asked, given the installed torch's era."""
    return edge if edge in ERAS else f"{edge}, elsewhere {installed}"


def rule(pull: Callable[..., Gradients], keeps: Callable[..., tuple[str, ...]], compares: bool = True) -> Rule:
    return Rule(
        name="zero",
        formula="0",
        source="torch's derivatives.yaml",
        pull=pull,
        reference=lambda *arguments, **parameters: (),
        is_linear=lambda **parameters: True,
        keeps=keeps,
        compares=compares,
    )


def _share(grad: Tensor, share: float) -> Any:
    return grad if share == 1.0 else 0.0 if share == 0.0 else grad / 2


def pull_of_numbers(
    grad: Tensor, x: Tensor, min: Any, max: Any, *, y: Tensor, wants: tuple[bool, ...], edge: str
) -> Gradients:
    """Away from the edge the eras agree: NaN gets 0."""
    share, era = WAYS[edge]
    at_edge = _share(grad, (1.0 if era == CLOSED_ERA else 0.0) if share is None else share)
    inside = (x > min) if max is None else (x < max) if min is None else (x > min) & (x < max)
    within = (x >= min) if max is None else (x <= max) if min is None else (x >= min) & (x <= max)
    return torch.where(inside, grad, torch.where(within, at_edge, 0.0)), None, None


def pull_of_tensors(
    grad: Tensor, x: Tensor, min: Any, max: Any, *, y: None, wants: tuple[bool, ...], edge: str
) -> Gradients:
    """On the inputs as they were: of three dtypes torch promotes two at a time here, and all three in its forward."""
    share, era = WAYS[edge]
    of_era = _tensors_closed_era if era == CLOSED_ERA else _tensors_open_era
    grads = of_era(grad, x, min, max)
    if share is None:
        return grads
    nowhere = torch.zeros((), dtype=torch.bool, device=grad.device)
    at_min = nowhere if min is None else x == min
    at_max = nowhere if max is None else x == max
    if min is not None and max is not None:  # where bounds cross, x is replaced in both eras
        at_min, at_max = at_min & (min <= max), at_max & (min <= max)
    to_x, to_bound = _share(grad, share), _share(grad, 1.0 - share)
    grad_x, grad_min, grad_max = grads
    assert grad_x is not None
    grad_x = torch.where(at_min | at_max, to_x, grad_x)
    grad_min = None if grad_min is None else torch.where(at_min, to_bound, torch.where(at_max, 0.0, grad_min))
    grad_max = None if grad_max is None else torch.where(at_min, 0.0, torch.where(at_max, to_bound, grad_max))
    return grad_x, grad_min, grad_max


def _tensors_closed_era(grad: Tensor, x: Tensor, min: Any, max: Any) -> Gradients:
    if max is None:
        return torch.where(x >= min, grad, 0.0), torch.where(x < min, grad, 0.0), None
    if min is None:
        return torch.where(x <= max, grad, 0.0), None, torch.where(x > max, grad, 0.0)
    return (
        torch.where((x >= min) & (x <= max), grad, 0.0),
        torch.where((min < max) & (x < min), grad, 0.0),
        torch.where((x > max) | (max < min), grad, 0.0),
    )


def _tensors_open_era(grad: Tensor, x: Tensor, min: Any, max: Any) -> Gradients:
    half = grad / 2
    if max is None or min is None:
        bound = min if max is None else max
        passes, replaced = (x < bound, x > bound) if max is None else (x > bound, x < bound)
        tied = torch.where(x == bound, half, grad)
        to_x, to_bound = torch.where(passes, 0.0, tied), torch.where(replaced, 0.0, tied)
        return (to_x, to_bound, None) if max is None else (to_x, None, to_bound)
    apart, ordered = min < max, min <= max
    split = apart & ((x == min) | (x == max))
    return (
        torch.where((x < min) | (x > max), 0.0, torch.where(split, half, grad)),
        torch.where(ordered & (x < min), grad, torch.where(apart & (x == min), half, 0.0)),
        torch.where((max < min) | (ordered & (x > max)), grad, torch.where(apart & (x == max), half, 0.0)),
    )


def _pull_of_extreme(beyond: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Gradients]:
    """fmin or fmax: `beyond(x, other)` is where x wins. A NaN loses; where both are, x wins in the closed era and the other gets it."""

    def pull(grad: Tensor, x: Tensor, other: Tensor, *, y: Tensor, wants: tuple[bool, ...], edge: str) -> Gradients:
        share, era = WAYS[edge]
        if share is None:
            share = 1.0 if era == CLOSED_ERA else 0.5
        tied = x == other
        wins = beyond(x, other) | (other != other)
        return (
            torch.where(tied, _share(grad, share), torch.where(wins, grad, 0.0)),
            torch.where(tied, _share(grad, 1.0 - share), torch.where(wins, 0.0, grad)),
        )

    return pull


PULLS = {
    "fmin": _pull_of_extreme(lambda x, other: x < other),
    "fmax": _pull_of_extreme(lambda x, other: x > other),
}
