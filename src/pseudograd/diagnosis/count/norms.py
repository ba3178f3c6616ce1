"""Measurements over the steps of a program, in bounded memory: series of numbers, samples of tensors, norms of gradients, and the size
of the step that an optimiser wants to take.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ...kernels.native.counts import Squares
from ...torch_table.private import local

_POINTS_OF_A_SERIES = 32  # of a series; when it has more than twice as many, every second one is dropped
SAMPLE = 1024  # entries of a parameter that are looked at
_TINY_NORM = 1e-18  # the squares of smaller numbers come near 0 in float32, so the norm is taken again in float64
_sequence = itertools.count()

Number = float | Tensor  # a 0-d tensor on a device that must not be waited for
Steps = tuple[tuple[int, float], ...]
# in the state of an optimiser that keeps what rounding takes
_REST_NAMES = ("kahan", "compensation", "shift", "master", "residual")
State = Mapping[str, Any]  # what an optimiser keeps of one parameter
Group = Mapping[str, Any]  # the settings of a group of an optimiser
Value = TypeVar("Value")


class Series(Generic[Value]):
    """Values by step in bounded memory, the first and the last among them. A value may be a 0-d tensor of a device."""

    def __init__(self) -> None:
        self._points: list[tuple[int, Value]] = []
        self._interval = 1
        self._count = 0
        self._last: list[tuple[int, Value]] = []

    @property
    def is_wanted(self) -> bool:
        """Will the next value be kept?"""
        return self._count % self._interval == 0

    def add(self, step: int, value: Value) -> None:
        if self.is_wanted:
            self._points.append((step, value))
            if len(self._points) > 2 * _POINTS_OF_A_SERIES:
                self._points = self._points[::2]
                self._interval *= 2
        self._count += 1
        self._last = [(step, value)]

    @property
    def steps(self) -> list[tuple[int, Value]]:
        """Each value with its step."""
        is_last_missing = self._last and self._last[0][0] != self._points[-1][0]
        return self._points + (self._last if is_last_missing else [])


def numbers_of(series: Series[float] | Series[float | Tensor]) -> Steps:
    """The numbers by step. Waits for the device."""
    return tuple((step, float(value)) for step, value in series.steps)


def view_of_sample(tensor: Tensor) -> Tensor:
    """A view of about 1,024 entries, evenly spread, or of all where they are fewer."""
    flat = tensor.detach().reshape(-1)
    interval = flat.numel() // SAMPLE
    return flat[::interval] if interval > 1 else flat


def sample(tensor: Tensor) -> Tensor:
    """A copy of about 1,024 entries."""
    return view_of_sample(tensor).clone()


class Sizes:
    """The norms of the gradients of one parameter, summed as squares, on its device until somebody reads them.

    number_of_backward: gives the number of the backward that runs.
    """

    def __init__(self, number_of_backward: Callable[[], int] = lambda: 0) -> None:
        self._number_of_backward = number_of_backward
        # Norms, each with the share of entries that are 0: of a sample, and now and then, unless a kernel counts them.
        self._series: Series[tuple[Number, Number | None]] = Series()
        self.count = 0
        self.order = 0  # of its first gradient among those of all parameters: the layer next to the loss comes first
        self._squares: Number = 0.0
        self._kernel: Squares | None = None

    def add(self, grad: Tensor) -> None:
        norm, zeros = _norm(grad), None
        self._squares = self._squares + norm * norm
        if self._series.is_wanted and not grad.is_sparse:
            values = view_of_sample(local(grad))
            count = torch.count_nonzero(values)
            zeros = 1.0 - (int(count) if count.is_cpu else count) / max(values.numel(), 1)
        self._note(norm, zeros)

    def add_by_kernel(self, grad: Tensor, had_gradient: Tensor | None) -> int:
        """Add a gradient that `can_square`, and note which entries had one. Returns what `Squares.add` returns."""
        if self._kernel is None:
            self._kernel = Squares()
        missing = self._kernel.add(grad, had_gradient)
        if missing >= 0:
            norm, zeros = self._kernel.last()
            self._note(norm, zeros / (grad.numel() or 1))
        return missing

    def _note(self, norm: Number, zeros: Number | None) -> None:
        if not self.count:
            self.order = next(_sequence)
        self.count += 1
        self._series.add(self._number_of_backward(), (norm, zeros))

    @property
    def norm_by_step(self) -> Steps:
        """The norm, by the number of the backward pass."""
        return tuple((step, float(norm)) for step, (norm, _) in self._series.steps)

    @property
    def zeros(self) -> Steps:
        """The share of entries that are 0, where they were counted."""
        return tuple((step, float(share)) for step, (_, share) in self._series.steps if share is not None)

    @property
    def mean(self) -> float:
        """The root of the mean square over the backward passes."""
        squares = float(self._squares) + (0.0 if self._kernel is None else self._kernel.read())
        return math.sqrt(squares / self.count) if self.count else 0.0


def _norm(grad: Tensor) -> Number:
    grad = grad._values() if grad.is_sparse else local(grad)
    norm = torch.linalg.vector_norm(
        grad, dtype=torch.float32 if grad.dtype in (torch.float16, torch.bfloat16) else None
    )
    if not norm.is_cpu:
        return norm.double() if norm.is_cuda else norm
    if not norm < _TINY_NORM or not grad.numel():
        return float(norm)
    largest = grad.abs().max().double()
    return float(largest * torch.linalg.vector_norm(grad.double() / largest)) if largest else 0.0


def expected_step(tensor: Tensor, group: Group, state: State, before: Tensor) -> Tensor | None:
    """How far the optimiser wants to move each sampled entry, in float32; None for an optimiser that is neither like Adam nor like SGD.

    before: the entries before the step.
    """
    rate, kept = group.get("lr"), _kept_by_entry(tensor, state)
    if (
        not isinstance(rate, (int, float, Tensor))
        or tensor.grad is None
        or not all(map(_is_plain_tensor, kept.values()))
    ):
        return None
    tensors = {name: sample(value).float() for name, value in kept.items()}
    if {"exp_avg", "exp_avg_sq"} <= tensors.keys():
        count = state.get("step", 1)
        first, second = group.get("betas", (0.0, 0.0))
        mean = tensors["exp_avg"] / _bias(first, count)
        square = tensors.get("max_exp_avg_sq", tensors["exp_avg_sq"]) / _bias(second, count)
        return rate * mean.abs() / (square.sqrt() + group.get("eps", 1e-8))
    pull = add_decay(sample(tensor.grad), before, group).float()
    if not tensors:
        return rate * pull.abs()
    if tensors.keys() != {"momentum_buffer"}:
        return None
    momentum = tensors["momentum_buffer"]
    return rate * (pull + group.get("momentum", 0.0) * momentum if group.get("nesterov") else momentum).abs()


def _bias(beta: float, count: float | Tensor) -> float | Tensor:
    bias = 1 - beta**count
    return bias if isinstance(bias, Tensor) else bias or 1.0


def add_decay(grads: Tensor, weights: Tensor, group: Group) -> Tensor:
    """The gradient with the weight decay that SGD and Adam add to it. AdamW does not."""
    decay = group.get("weight_decay")
    if not isinstance(decay, float) or not decay or group.get("decoupled_weight_decay"):
        return grads
    return grads + decay * weights


def is_zero(rate: object) -> bool:
    """A rate on a device counts as a rate other than 0: it is not waited for."""
    if isinstance(rate, Tensor):
        return rate.is_cpu and rate.numel() == 1 and bool(local(rate) == 0)
    return isinstance(rate, (int, float)) and rate == 0


def number_of(rate: object) -> float | None:
    """A device is not waited for."""
    if isinstance(rate, Tensor):
        return float(rate) if rate.is_cpu and rate.numel() == 1 else None
    return float(rate) if isinstance(rate, (int, float)) else None


def spacing(weight: Tensor) -> Tensor:
    """The distance from each weight to the next number of its dtype, in float32."""
    _, exponent = torch.frexp(weight.float())
    limits = torch.finfo(weight.dtype)
    distance = torch.ldexp(torch.full_like(weight, limits.eps, dtype=torch.float32), exponent - 1)
    return distance.clamp(min=max(limits.smallest_normal * limits.eps, 1e-45))


def keeps_rest(state: State, tensor: Tensor) -> bool:
    """Does the optimiser keep the weights in full precision, or what rounding took from them?"""
    for name, value in _kept_by_entry(tensor, state).items():
        if any(word in name.lower() for word in _REST_NAMES):
            return True
        is_wider = _is_plain_tensor(value) and value.dtype.itemsize > tensor.dtype.itemsize
        if is_wider and torch.equal(sample(value).to(tensor.dtype), sample(tensor)):
            return bool(sample(tensor).any())
    return False


def _kept_by_entry(tensor: Tensor, state: State) -> dict[str, Tensor]:
    """The tensors of a state with a number for each entry of the parameter."""
    return {
        name: value
        for name, value in state.items()
        if name != "step" and isinstance(value, Tensor) and value.shape == tensor.shape
    }


def _is_plain_tensor(value: object) -> bool:
    """Is it no tensor of a class of its own, as states of 8 bits are?"""
    return type(value) in (Tensor, torch.nn.Parameter)
