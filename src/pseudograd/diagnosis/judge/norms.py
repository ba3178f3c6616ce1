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

# A gradient vanishes if it falls from layer to layer, in each of these three ways. Falls are counted in factors of ten.
# At initialisation ResNets, transformers, U-Nets, LSTMs of six layers and MLPs of ten with relu, tanh or gelu fall by 0.3 to 5 factors of
# ten, plain convolutions of 16 layers without normalisation by 5 to 7, sigmoids by nearly one for each layer: 7 with eight, 9 with ten.
DECADES = 6.0  # the least fall in all
SPREAD = 5.0  # the least fall without the largest fall between two layers
STEPS = 4  # the least number of falls by STEP or more
STEP = 0.3


@dataclass(frozen=True)
class Norm:
    """The norm of the gradient of one parameter."""

    parameter: str
    norm: float  # the root mean square over the backward passes that brought a gradient
    share: float  # the norm as a share of the largest norm
    weight: float  # the norm of the parameter itself at the time of the report; NaN if the parameter is gone
    passes: int  # the number of backward passes that brought a gradient


def _measured_leaves(leaves: Iterable[Leaf]) -> list[tuple[Leaf, Sizes]]:
    """The measured leaves that got a gradient, in the order in which gradients arrived: the parameter nearest to the loss first."""
    pairs = ((leaf, leaf.sizes) for leaf in leaves)
    return sorted([(leaf, sizes) for leaf, sizes in pairs if sizes and sizes.count], key=lambda pair: pair[1].order)


def norms_of(leaves: Iterable[Leaf]) -> list[Norm]:
    """The norms, in the order in which gradients arrived."""
    norms = [(leaf, sizes.mean, sizes.count) for leaf, sizes in _measured_leaves(leaves)]
    largest = max((norm for _, norm, _ in norms if math.isfinite(norm)), default=0.0)
    return [
        Norm(leaf.name, norm, norm / largest if largest else 0.0, _norm_of_weight(leaf.tensor()), count)
        for leaf, norm, count in norms
    ]


def _norm_of_weight(tensor: Tensor | None) -> float:
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
    ahead = list(itertools.accumulate((norm for _, norm in reversed(finite)), max))[::-1]
    falls = [math.log10(norm / after) for norm, after in itertools.pairwise(ahead)]
    total = sum(falls)
    if total < DECADES or total - max(falls) < SPREAD or sum(fall >= STEP for fall in falls) < STEPS:
        return None
    largest = max(finite, key=lambda layer: layer[1])
    return Fall(finite[-1][0], ahead[-1], largest[0], largest[1], len(finite))


@dataclass(frozen=True)
class History:
    """Measurements of the gradient of one parameter, each by the number of the backward pass, with at most 66 points."""

    parameter: str
    norm: Steps
    zero: Steps  # the share of entries that are 0
    sensitivity: Steps  # the share that is convention, for the family with the largest share; empty if not measured
    stalled: Steps  # the share of entries with a gradient that did not move in the next step


def histories(leaves: Iterable[Leaf], sensitivity: Iterable[Sensitivity], stalls: Iterable[Stall]) -> list[History]:
    """The history of each parameter, in the order in which gradients came."""
    shares: dict[str, dict[int, float]] = {}
    for record in sensitivity:
        if record.where is None and record.parameter is not None:
            largest = shares.setdefault(record.parameter, {})
            largest.update((step, max(share, largest.get(step, 0.0))) for step, share in record.steps)
    stalled = {stall.parameter: stall.by_step for stall in stalls}
    by_step = {name: tuple(sorted(steps.items())) for name, steps in shares.items()}
    records = []
    for leaf, sizes in _measured_leaves(leaves):
        shares_and_stalls = by_step.get(leaf.name, ()), stalled.get(leaf.name, ())
        records.append(History(leaf.name, sizes.norm_by_step, sizes.zeros, *shares_and_stalls))
    return records
