"""What became of the gradient of each parameter over the steps: what the page draws as one picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .sensitivity import Sensitivity
from .swallowed import Stalled

Steps = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class History:
    """Of one parameter, by the number of the backward pass and thinned out: the norm of its gradient, the share of its entries that are
    0, how much of it is convention (of the family with most; empty where it was not asked), and which share of what had a gradient did
    not move in the step behind it.
    """

    parameter: str
    norm: Steps
    zero: Steps
    sensitivity: Steps
    stalled: Steps


def histories(leaves: Iterable[Any], sensitivity: Sequence[Sensitivity], stalled: Sequence[Stalled]) -> list[History]:
    """In the order of the backward: the parameter next to the loss first."""
    some = sorted((leaf for leaf in leaves if leaf.sizes.count), key=lambda leaf: leaf.sizes.order)
    still = {one.parameter: one.by_step for one in stalled}
    return [
        History(
            leaf.name,
            leaf.sizes.by_step,
            leaf.sizes.zeros,
            _most([one.steps for one in sensitivity if one.where is None and one.parameter == leaf.name]),
            still.get(leaf.name, ()),
        )
        for leaf in some
    ]


def _most(some: Sequence[Steps]) -> Steps:
    """Of several families, the largest in each step."""
    found: dict[int, float] = {}
    for steps in some:
        for step, share in steps:
            found[step] = max(share, found.get(step, 0.0))
    return tuple(sorted(found.items()))
