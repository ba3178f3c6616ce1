"""How large the gradients of the parameters are, and whether they fade along the network."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...kernels.native.counts import Squares
from ...torch_table.private import foreach_norm, local
from .course import Course
from .motion import SAMPLE

_TINY = 1e-18  # below it the squares of float32 come near 0: the norm is taken again, in float64
_AS_THEY_ARE = (torch.float32, torch.float64)  # their norms are taken in the same dtype
_order = itertools.count()

# A gradient vanishes if it falls with one layer after another, by so many factors of ten in all and so many apart from the largest fall.
# At initialisation ResNets, transformers, U-Nets, LSTMs of six layers and MLPs of ten with relu, tanh or gelu fall by 0.3 to 5 factors of
# ten, plain convolutions of 16 layers without normalisation by 5 to 7, sigmoids by nearly one for each layer: 7 with eight, 9 with ten.
DECADES = 6.0
SPREAD = 5.0
STEPS = 4  # falls of
STEP = 0.3  # factors of ten or more


class Sizes:
    """The norms of what arrived at one parameter, summed as squares; on its device until they are read."""

    def __init__(self, now: Callable[[], int] = lambda: 0) -> None:
        """now(): the number of this backward."""
        self._now = now
        # Of norms, each with the share of entries that are 0: without the kernels of at most 1,024 of them, now and then.
        self._course = Course()
        self.count = 0
        self.order = 0  # of its first gradient among those of all: the layer next to the loss comes first
        self._squares: Any = 0.0
        self._at_once: Squares | None = None

    def add(self, grad: Tensor, norm: Any = None) -> None:
        """norm: of this gradient, where it is known."""
        if not self.count:
            self.order = next(_order)
        self.count += 1
        if norm is None:
            norm = _norm(grad)
        self._squares = self._squares + norm * norm
        self._note(grad, norm)

    def add_at_once(self, grad: Tensor, had: Tensor | None) -> int:
        """Of a gradient that `can_square`, with the entries that ever had one: see `Squares.add`. Below 0: it has to go the other way."""
        if self._at_once is None:
            self._at_once = Squares()
        missing = self._at_once.add(grad, had)
        if missing >= 0:
            if not self.count:
                self.order = next(_order)
            self.count += 1
            norm, zeros = self._at_once.last()
            self._course.add(self._now(), (norm, zeros / (grad.numel() or 1)))
        return missing

    def _note(self, grad: Tensor, norm: object) -> None:
        are_counted = self._course.is_wanted and not grad.is_sparse
        self._course.add(self._now(), (norm, _zero_share(local(grad)) if are_counted else None))

    @property
    def by_step(self) -> tuple[tuple[int, float], ...]:
        """The norm, by the number of the backward pass."""
        return tuple((step, float(norm)) for step, (norm, _) in self._course.kept)

    @property
    def zeros(self) -> tuple[tuple[int, float], ...]:
        """The share of entries that are 0, where they were counted."""
        return tuple((step, float(share)) for step, (_, share) in self._course.kept if share is not None)

    @property
    def mean(self) -> float:
        """The root of the mean square over the backward passes."""
        squares = float(self._squares) + (0.0 if self._at_once is None else self._at_once.read())
        return math.sqrt(squares / self.count) if self.count else 0.0


def _zero_share(grad: Tensor) -> float | Tensor:
    some = grad if grad.numel() <= SAMPLE else grad.detach().reshape(-1)[:: grad.numel() // SAMPLE]
    count = torch.count_nonzero(some)
    return 1.0 - (int(count) if count.device.type == "cpu" else count) / max(some.numel(), 1)


def _norm(grad: Tensor) -> float | Tensor:
    grad = grad._values() if grad.is_sparse else local(grad)
    dtype = torch.float32 if grad.dtype in (torch.float16, torch.bfloat16) else None
    norm = torch.linalg.vector_norm(grad, dtype=dtype)
    if grad.device.type != "cpu":
        return norm.double() if norm.device.type == "cuda" else norm
    return _precise(float(norm), grad)


def norms_at_once(grads: list[Tensor]) -> Iterator[Any]:
    """One after the other, in one call where that computes the same."""
    for grad in grads:
        is_plain = type(grad) is Tensor and grad.dtype in _AS_THEY_ARE and grad.layout is torch.strided and grad.is_cpu
        if foreach_norm is None or not is_plain:
            return map(_norm, grads)
    return map(_precise, map(float, foreach_norm(grads) if grads else ()), grads)


def _precise(norm: float, grad: Tensor) -> float:
    return norm if not norm < _TINY or not grad.numel() else _in_double(grad)


def _in_double(grad: Tensor) -> float:
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


def norms_of(leaves: Sequence[Any]) -> list[Norm]:
    """In the order in which gradients came."""
    some = sorted((leaf for leaf in leaves if leaf.sizes.count), key=lambda leaf: leaf.sizes.order)
    found = [(leaf, leaf.sizes.mean) for leaf in some]
    largest = max((norm for _, norm in found if math.isfinite(norm)), default=0.0)
    return [
        Norm(leaf.name, norm, norm / largest if largest else 0.0, _weight(leaf), leaf.sizes.count)
        for leaf, norm in found
    ]


def _weight(leaf: Any) -> float:
    """Of what this process holds: to read all of a sharded one would wait for the other ranks."""
    tensor = leaf.tensor()
    if tensor is None:
        return math.nan
    here = local(tensor).detach()
    if here.numel() and not here.untyped_storage().nbytes():
        return (
            math.nan
        )  # FSDP frees the memory of a whole parameter between its uses, and torch reads there without asking
    return float(torch.linalg.vector_norm(here.double()))


def fading(layers: Sequence[tuple[str, float]]) -> Fading | None:
    """Of the weights with their norms, the one next to the loss first. A skip past a layer keeps what is before it from fading: what counts
    of each is the largest norm from there on to the input.
    """
    some = [(name, norm) for name, norm in layers if norm > 0 and math.isfinite(norm)]
    if len(some) <= STEPS:
        return None
    ahead = list(itertools.accumulate((norm for _, norm in reversed(some)), max))[::-1]
    falls = [math.log10(one / other) for one, other in itertools.pairwise(ahead)]
    total = sum(falls)
    if total < DECADES or total - max(falls) < SPREAD or sum(fall >= STEP for fall in falls) < STEPS:
        return None
    at_most = ahead[-1]
    last = max(some, key=lambda one: one[1])
    return Fading(some[-1][0], at_most, last[0], last[1], len(some))
