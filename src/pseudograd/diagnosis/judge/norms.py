"""The norms of the gradients of the parameters as records, their history, and their fall along the network."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ...torch_table.private import local
from ..count.leaf import Leaf
from ..count.norms import Sizes, Steps, widened
from ..count.sensitivity import Sensitivity
from ..count.stalls import Stall

# A gradient vanishes if it falls from layer to layer: by DECADES factors of ten in all, by SPREAD factors of ten without the largest fall,
# and at least STEPS times by STEP factors of ten.
# At initialisation ResNets, transformers, U-Nets, LSTMs of six layers and MLPs of ten with relu, tanh or gelu fall by 0.3 to 5 factors of
# ten, plain convolutions of 16 layers without normalisation by 5 to 7, sigmoids by nearly one for each layer: 7 with eight, 9 with ten.
DECADES = 6.0
SPREAD = 5.0
STEPS = 4
STEP = 0.3


@dataclass(frozen=True)
class Norm:
    """The norm of the gradient of one parameter, as the root mean square over the backward passes that brought a gradient.

    share: the norm as a share of the largest norm. weight: the norm of the parameter itself at the time of the report; NaN if it is gone.
    """

    parameter: str
    norm: float
    share: float
    weight: float
    passes: int


def _measured_leaves(leaves: Iterable[Leaf]) -> list[tuple[Leaf, Sizes]]:
    """The measured leaves that got a gradient, in the order in which gradients arrived: the parameter nearest to the loss first."""
    pairs = ((leaf, leaf.sizes) for leaf in leaves)
    return sorted([(leaf, sizes) for leaf, sizes in pairs if sizes and sizes.count], key=lambda pair: pair[1].order)


def norms_of(leaves: Iterable[Leaf]) -> list[Norm]:
    """The norms, in the order in which gradients arrived."""
    norms = [(leaf, sizes.mean, sizes.count) for leaf, sizes in _measured_leaves(leaves)]
    largest = max((norm for _, norm, _ in norms if math.isfinite(norm)), default=0.0)
    return [
        Norm(leaf.name, norm, norm / largest if largest else 0.0, _weight(leaf.tensor()), count)
        for leaf, norm, count in norms
    ]


def _weight(tensor: Tensor | None) -> float:
    """The norm of the shard in this process. A norm of the whole sharded parameter would have to wait for the other ranks."""
    if tensor is None:
        return math.nan
    shard = local(tensor).detach()
    # FSDP frees the memory of a shard between uses, and torch would read the freed memory without an error.
    if shard.numel() and not shard.untyped_storage().nbytes():
        return math.nan
    return float(torch.linalg.vector_norm(widened(shard)))


class Fall(NamedTuple):
    """A gradient that falls along the network: from the layer next to the loss to the first layer."""

    first: str
    norm_first: float
    last: str
    norm_last: float
    layers: int


def find_fall(layers: Sequence[tuple[str, float]]) -> Fall | None:
    """The fall along weights with these norms, the weight next to the loss first.

    A layer counts with the largest norm from it to the input, because a skip connection brings the gradient past a layer.
    """
    finite = [(name, norm) for name, norm in layers if norm > 0 and math.isfinite(norm)]
    if len(finite) <= STEPS:
        return None
    ahead = list(itertools.accumulate((norm for _, norm in reversed(finite)), max))[::-1]
    falls = [math.log10(norm / after) for norm, after in itertools.pairwise(ahead)]
    total = sum(falls)
    if total < DECADES or total - max(falls) < SPREAD or sum(fall >= STEP for fall in falls) < STEPS:
        return None
    largest = max(finite, key=lambda layer: layer[1])
    return Fall(finite[-1][0], ahead[-1], largest[0], largest[1], len(finite))


@dataclass(frozen=True)
class History:
    """Measurements of the gradient of one parameter, each by the number of the backward pass, with at most 66 points.

    norm: its norm. zero: the share of its entries that are 0. sensitivity: the share that is convention, for the family with the largest
    share; empty if it was not measured. stalled: the share of entries with a gradient that did not move in the next step.
    """

    parameter: str
    norm: Steps
    zero: Steps
    sensitivity: Steps
    stalled: Steps


def histories(leaves: Iterable[Leaf], sensitivity: Iterable[Sensitivity], stalls: Iterable[Stall]) -> list[History]:
    """The history of each parameter, in the order in which gradients came."""
    shares: dict[str, dict[int, float]] = {}
    for row in sensitivity:
        if row.where is None and row.parameter is not None:
            largest = shares.setdefault(row.parameter, {})
            largest.update((step, max(share, largest.get(step, 0.0))) for step, share in row.steps)
    stalled = {stall.parameter: stall.by_step for stall in stalls}
    rows = [(leaf.name, sizes) for leaf, sizes in _measured_leaves(leaves)]
    by_step = {name: tuple(sorted(steps.items())) for name, steps in shares.items()}
    return [
        History(name, sizes.norm_by_step, sizes.zeros, by_step.get(name, ()), stalled.get(name, ()))
        for name, sizes in rows
    ]
