"""How large the gradients of the parameters are, by step and in all, and whether they fade along the network."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...kernels.native.counts import Squares
from ...torch_table.private import foreach_norm, local
from .course import SAMPLE, Course

_TINY = 1e-18  # below it the squares of float32 come near 0: the norm is taken again, in float64
_AS_THEY_ARE = (torch.float32, torch.float64)  # their norms are taken in the same dtype
_order = itertools.count()

Number = float | Tensor  # a 0-d tensor on a device that must not be waited for

# A gradient vanishes if it falls with one layer after another, by so many factors of ten in all and so many apart from the largest fall.
# At initialisation ResNets, transformers, U-Nets, LSTMs of six layers and MLPs of ten with relu, tanh or gelu fall by 0.3 to 5 factors of
# ten, plain convolutions of 16 layers without normalisation by 5 to 7, sigmoids by nearly one for each layer: 7 with eight, 9 with ten.
DECADES = 6.0
SPREAD = 5.0
STEPS = 4  # falls of
STEP = 0.3  # factors of ten or more


class Sizes:
    """The norms of what arrived at one parameter, summed as squares; on its device until they are read. now(): this backward's number."""

    def __init__(self, now: Callable[[], int] = lambda: 0) -> None:
        self._now = now
        # Of norms, each with the share of entries that are 0: without the kernels of at most 1,024 of them, now and then.
        self._course: Course[tuple[Number, Number | None]] = Course()
        self.count = 0
        self.order = 0  # of its first gradient among those of all: the layer next to the loss comes first
        self._squares: Number = 0.0
        self._at_once: Squares | None = None

    def add(self, grad: Tensor, norm: Number | None = None) -> None:
        """norm: of this gradient, where it is known."""
        norm = _norm(grad) if norm is None else norm
        self._squares = self._squares + norm * norm
        are_counted = self._course.is_wanted and not grad.is_sparse
        self._note(norm, _zero_share(local(grad)) if are_counted else None)

    def add_at_once(self, grad: Tensor, had: Tensor | None) -> int:
        """Of a gradient that `can_square`, with the entries that ever had one: see `Squares.add`. Below 0: it has to go the other way."""
        if self._at_once is None:
            self._at_once = Squares()
        missing = self._at_once.add(grad, had)
        if missing >= 0:
            norm, zeros = self._at_once.last()
            self._note(norm, zeros / (grad.numel() or 1))
        return missing

    def _note(self, norm: Number, zeros: Number | None) -> None:
        if not self.count:
            self.order = next(_order)
        self.count += 1
        self._course.add(self._now(), (norm, zeros))

    @property
    def norm_by_step(self) -> tuple[tuple[int, float], ...]:
        """The norm, by the number of the backward pass."""
        return tuple((step, float(norm)) for step, (norm, _) in self._course.steps)

    @property
    def zeros(self) -> tuple[tuple[int, float], ...]:
        """The share of entries that are 0, where they were counted."""
        return tuple((step, float(share)) for step, (_, share) in self._course.steps if share is not None)

    @property
    def mean(self) -> float:
        """The root of the mean square over the backward passes."""
        squares = float(self._squares) + (0.0 if self._at_once is None else self._at_once.read())
        return math.sqrt(squares / self.count) if self.count else 0.0


def _zero_share(grad: Tensor) -> Number:
    sampled = grad if grad.numel() <= SAMPLE else grad.detach().reshape(-1)[:: grad.numel() // SAMPLE]
    count = torch.count_nonzero(sampled)
    return 1.0 - (int(count) if count.device.type == "cpu" else count) / max(sampled.numel(), 1)


def _norm(grad: Tensor) -> Number:
    grad = grad._values() if grad.is_sparse else local(grad)
    dtype = torch.float32 if grad.dtype in (torch.float16, torch.bfloat16) else None
    norm = torch.linalg.vector_norm(grad, dtype=dtype)
    if grad.device.type != "cpu":
        return norm.double() if norm.device.type == "cuda" else norm
    return _precise(float(norm), grad)


def norms_at_once(grads: list[Tensor]) -> Iterator[Number]:
    """One after the other, in one call where that computes the same."""
    for grad in grads:
        is_plain = type(grad) is Tensor and grad.dtype in _AS_THEY_ARE and grad.layout is torch.strided and grad.is_cpu
        if foreach_norm is None or not is_plain:
            return map(_norm, grads)
    return map(_precise, map(float, foreach_norm(grads) if grads else ()), grads)


def _precise(norm: float, grad: Tensor) -> float:
    """Taken again in float64 where squares may have come near 0."""
    if not norm < _TINY or not grad.numel():
        return norm
    size = grad.abs().max().double()
    return float(size * torch.linalg.vector_norm(grad.double() / size)) if size else 0.0


@dataclass(frozen=True)
class Norm:
    """The gradient of one parameter: the root mean square of its norm over the backward passes that brought one.

    share: of the largest among the parameters. weight: the norm of the parameter itself when the report is made, NaN where it is gone.
    """

    parameter: str
    norm: float
    share: float
    weight: float
    passes: int


@dataclass(frozen=True)
class Fading:
    """A gradient that falls along the network: from the layer next to the loss to the first one."""

    first: str
    norm_first: float
    last: str
    norm_last: float
    layers: int


def measured_leaves(leaves: Iterable[Any]) -> list[Any]:
    """The measured leaves that got a gradient, in the order in which gradients came: the parameter next to the loss first."""
    return sorted((leaf for leaf in leaves if leaf.sizes.count), key=lambda leaf: leaf.sizes.order)


def norms_of(leaves: Iterable[Any]) -> list[Norm]:
    """In the order in which gradients came."""
    norms = [(leaf, leaf.sizes.mean) for leaf in measured_leaves(leaves)]
    largest = max((norm for _, norm in norms if math.isfinite(norm)), default=0.0)
    return [
        Norm(leaf.name, norm, norm / largest if largest else 0.0, _weight(leaf.tensor()), leaf.sizes.count)
        for leaf, norm in norms
    ]


def _weight(tensor: Tensor | None) -> float:
    """Of what this process holds: to read all of a sharded one would wait for the other ranks."""
    if tensor is None:
        return math.nan
    mine = local(tensor).detach()
    if mine.numel() and not mine.untyped_storage().nbytes():
        return (
            math.nan
        )  # FSDP frees the memory of a whole parameter between its uses, and torch reads it without asking
    return float(torch.linalg.vector_norm(mine.double()))


def fading(layers: Sequence[tuple[str, float]]) -> Fading | None:
    """Of the weights with their norms, the one next to the loss first. A skip past a layer keeps what is before it from fading: what counts
    of each is the largest norm from there on to the input.
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
    return Fading(finite[-1][0], ahead[-1], largest[0], largest[1], len(finite))


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


def histories(leaves: Iterable[Any], sensitivity: Iterable[Any], stalled: Iterable[Any]) -> list[History]:
    """What became of the gradient of each parameter over the steps: what the page draws as one picture."""
    shares: dict[str, dict[int, float]] = {}
    for row in sensitivity:
        if row.where is None:  # of several families, the largest in each step
            largest = shares.setdefault(row.parameter, {})
            for step, share in row.steps:
                largest[step] = max(share, largest.get(step, 0.0))
    still = {row.parameter: row.by_step for row in stalled}
    return [
        History(
            leaf.name,
            leaf.sizes.norm_by_step,
            leaf.sizes.zeros,
            tuple(sorted(shares.get(leaf.name, {}).items())),
            still.get(leaf.name, ()),
        )
        for leaf in measured_leaves(leaves)
    ]
