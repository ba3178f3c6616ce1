"""Pinned edges: the gradients that torch's own clamps have in an era, element for element, or with another edge in an era.

A pinned edge is a rule, made when it is first asked for. (Forward mode has the slope of backward; torch 2.13's own fmax has another one
at a tie.)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..geometry import (
    ALL_TO_MIN,
    ALL_TO_X,
    SHARES,
    Beside,
    Split,
    Standings,
    Stands,
    above_min,
    below_max,
    between_numbers,
    with_edge,
)
from ..rule import BOUNDED, Gradients, Pull, Rule, Wants
from ..torch_table.eras import ERAS, Era

OF_NUMBERS: dict[str, Rule] = {}
OF_TENSORS: dict[str, Rule] = {}
OF_FMIN: dict[str, Rule] = {}
OF_FMAX: dict[str, Rule] = {}


class Pin(NamedTuple):
    """What x gets at the edge as a share of grad, or None for what the era does; the era whose formula holds elsewhere."""

    share: float | None
    era: Era


def rule_named(edge: str, elsewhere: str) -> str:
    """The name of the rule for an era, or for an edge with what the era `elsewhere` does elsewhere."""
    if edge in ERAS:
        name, pin = f"zero/{edge}", Pin(None, ERAS[edge])
    else:
        name, pin = f"zero/{edge}, elsewhere {elsewhere}", Pin(SHARES[edge], ERAS[elsewhere])
    if name not in OF_NUMBERS:
        two = ("x", "other")
        of_tensors = None if pin.era.between is None else partial(_stands_of_tensors, pin)
        OF_NUMBERS[name] = _rule(name, partial(_pull_of_numbers, pin), partial(_stands_of_numbers, pin), BOUNDED)
        OF_TENSORS[name] = _rule(name, partial(_pull_of_tensors, pin), of_tensors, BOUNDED, compares=False)
        OF_FMIN[name] = _rule(name, partial(_pull_of_extreme, pin, torch.lt), partial(_stands_of_fmin, pin), two)
        OF_FMAX[name] = _rule(name, partial(_pull_of_extreme, pin, torch.gt), partial(_stands_of_fmax, pin), two)
    return name


def _rule(
    name: str, pull: Pull, stands: Callable[..., Stands] | None, keeps: tuple[str, ...], compares: bool = True
) -> Rule:
    return Rule(
        name=name,
        formula="0",
        source="torch's derivatives.yaml",
        pull=pull,
        reference=lambda *arguments, **parameters: (),
        is_linear=True,
        keeps=keeps,
        compares=compares,
        stands=stands,
    )


# --- as geometry, which kernels read; a test holds it to the formulas below -------------------------------------------


def _stands_of_numbers(pin: Pin, min: object, max: object) -> Stands:
    return Stands(min, max, _between_numbers(pin, min is not None, max is not None))


def _stands_of_tensors(pin: Pin, min: object, max: object) -> Stands:
    return Stands(min, max, _between_tensors(pin, min is not None, max is not None))


def _stands_of_fmin(pin: Pin, other: object) -> Stands:
    return Stands(None, other, below_max(_beside_other(pin)))


def _stands_of_fmax(pin: Pin, other: object) -> Stands:
    return Stands(other, None, above_min(_beside_other(pin)))


@lru_cache(maxsize=64)
def _between_numbers(pin: Pin, has_min: bool, has_max: bool) -> Standings:
    return between_numbers(SHARES[pin.era.edge] if pin.share is None else pin.share, has_min, has_max)


@lru_cache(maxsize=64)
def _between_tensors(pin: Pin, has_min: bool, has_max: bool) -> Standings:
    assert pin.era.between is not None, "rule_named asks"
    assert pin.era.beside is not None, "it comes with the other"
    if has_min and has_max:
        return pin.era.between if pin.share is None else with_edge(pin.era.between, pin.share)
    row = pin.era.beside
    if pin.share is not None:
        row = row._replace(at=Split(pin.share, min=1.0 - pin.share))
    return above_min(row) if has_min else below_max(row)


def _beside_other(pin: Pin) -> Beside:
    """Of two, NaN loses; where both are, x wins."""
    share = pin.era.of_fmax if pin.share is None else pin.share
    return Beside(ALL_TO_MIN, Split(share, min=1.0 - share), ALL_TO_X, nan=ALL_TO_MIN, bound_nan=ALL_TO_X)


# --- as formulas ------------------------------------------------------------------------------------------------------


def _share(grad: Tensor, share: float) -> Any:
    return grad if share == 1.0 else 0.0 if share == 0.0 else grad * share


def _pull_of_numbers(pin: Pin, grad: Tensor, x: Tensor, min: Any, max: Any, *, y: Tensor, wants: Wants) -> Gradients:
    """Away from the edge the eras agree: NaN gets 0."""
    share = SHARES[pin.era.edge] if pin.share is None else pin.share
    inside = (x > min) if max is None else (x < max) if min is None else (x > min) & (x < max)
    if share == 0.0:
        return torch.where(inside, grad, 0.0), None, None
    within = (x >= min) if max is None else (x <= max) if min is None else (x >= min) & (x <= max)
    at_edge = torch.where(within, _share(grad, share), 0.0)
    return (at_edge if share == 1.0 else torch.where(inside, grad, at_edge)), None, None


def _pull_of_tensors(pin: Pin, grad: Tensor, x: Tensor, min: Any, max: Any, *, y: None, wants: Wants) -> Gradients:
    """On the inputs as they were: of three dtypes torch promotes two at a time here, and all three in its forward."""
    grads = pin.era.of_tensors(grad, x, min, max)
    if pin.share is None:
        return grads
    nowhere = torch.zeros((), dtype=torch.bool, device=grad.device)
    at_min = nowhere if min is None else x == min
    at_max = nowhere if max is None else x == max
    if min is not None and max is not None:  # where bounds cross, x is replaced in both eras
        in_order = min <= max
        at_min, at_max = at_min & in_order, at_max & in_order
    to_x, to_bound = _share(grad, pin.share), _share(grad, 1.0 - pin.share)
    grad_x, grad_min, grad_max = grads
    assert grad_x is not None
    grad_x = torch.where(at_min | at_max, to_x, grad_x)
    grad_min = None if grad_min is None else torch.where(at_min, to_bound, torch.where(at_max, 0.0, grad_min))
    grad_max = None if grad_max is None else torch.where(at_min, 0.0, torch.where(at_max, to_bound, grad_max))
    return grad_x, grad_min, grad_max


def _pull_of_extreme(
    pin: Pin,
    beyond: Callable[[Tensor, Tensor], Tensor],
    grad: Tensor,
    x: Tensor,
    other: Tensor,
    *,
    y: Tensor,
    wants: Wants,
) -> Gradients:
    """fmin or fmax: `beyond(x, other)` is where x wins. A NaN loses; where both are NaN, x wins."""
    share = pin.era.of_fmax if pin.share is None else pin.share
    tied = x == other
    wins = beyond(x, other) | (other != other)
    return (
        torch.where(tied, _share(grad, share), torch.where(wins, grad, 0.0)),
        torch.where(tied, _share(grad, 1.0 - share), torch.where(wins, 0.0, grad)),
    )
