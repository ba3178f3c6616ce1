"""Measurements over the steps of a program, in bounded memory: series, samples and norms; the step that an optimiser would take; and the
facts about an op.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, SupportsFloat, TypeVar

import torch
from torch import Tensor

from ...kernels.native.counts import Squares
from ...torch_table.private import local

_POINTS_OF_A_SERIES = 32  # a series with more than twice as many points drops every second point
SAMPLE = 1024  # about so many entries of a parameter are read
_SMALLEST_FLOAT = 1e-45  # the smallest number of float32 above 0
_TINY_NORM = 1e-18  # the squares of smaller numbers underflow in float32, so their norm is computed in float64
LOSSES = ("MseLoss", "SmoothL1Loss", "HuberLoss")  # nodes of the difference of two tensors
PLAIN = (Tensor, torch.nn.Parameter)  # classes without code of a program or a package
HALF_PRECISION = (torch.bfloat16, torch.float16)
_sequence = itertools.count()

Number = float | Tensor  # a 0-d tensor stays on its device, so that nothing waits for the device
Steps = tuple[tuple[int, float], ...]  # pairs of step and value
# Parts of the names under which optimisers store the rounding error of a weight, or the weight in full precision
_NAMES_OF_ROUNDING_ERRORS = ("kahan", "compensation", "shift", "master", "residual")
State = Mapping[str, Any]  # an optimiser's state for one parameter
Group = Mapping[str, Any]  # an optimiser's settings for one group of parameters
Value = TypeVar("Value")


class Series(Generic[Value]):
    """Values by step in bounded memory. It always has the first and the last value. A value may be a 0-d tensor of a device."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, Value]] = []  # each value with its step
        self._interval = 1
        self._count = 0

    @property
    def is_wanted(self) -> bool:
        """Will the series keep the next value?"""
        return self._count % self._interval == 0

    def add(self, step: int, value: Value) -> None:
        if self._count and (self._count - 1) % self._interval:
            del self.steps[-1]  # it was kept only because it was the last value
        self.steps.append((step, value))
        if self.is_wanted and len(self.steps) > 2 * _POINTS_OF_A_SERIES:
            self.steps = self.steps[::2]
            self._interval *= 2
        self._count += 1


def is_power_of_two(count: int) -> bool:
    """What is costly is done only at these counts, so ever less often. 0 is one of them."""
    return not count & (count - 1)


def numbers_of(series: Series[float] | Series[float | Tensor]) -> Steps:
    """The numbers by step. Waits for the device."""
    return tuple((step, float(value)) for step, value in series.steps)


def view_of_sample(tensor: Tensor) -> Tensor:
    """A view of about 1,024 evenly spread entries. A smaller tensor is viewed whole."""
    flat = tensor.detach().reshape(-1)
    interval = flat.numel() // SAMPLE
    return flat[::interval] if interval > 1 else flat


def sample(tensor: Tensor) -> Tensor:
    """A copy of about 1,024 entries."""
    return view_of_sample(tensor).clone()


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the calls of one op at one line show beside their counts."""

    has_several_inputs: bool = field(default=False, repr=False)  # hands gradients on to several inputs
    # it normalises single numbers, so its result is constant
    normalises_one_number: bool = field(default=False, repr=False)
    # the next node of the backward cuts what passes exactly at a bound; None if nobody knows
    next_cuts_at_bound: bool | None = field(default=None, repr=False)
    steep_op: str = field(default="", repr=False)  # the op whose result is clamped here, if its slope grows without end
    # its input is used beside it, as in the loss of a policy, or in x - round(x)
    reuses_input: bool = field(default=False, repr=False)
    # it is one side of a difference whose other side is its input, as in x - clamp(x), which is what stands outside
    is_subtracted: bool = field(default=False, repr=False)
    # its only bound is a lower one: 0, or a number that guards against 0
    has_only_lower_bound: bool = field(default=False, repr=False)
    has_no_upper_bound: bool = field(default=False, repr=False)
    # it has only a lower bound, and only sums, powers and constant factors are between its result and the loss
    is_floor_of_loss: bool = field(default=False, repr=False)
    has_guard_bound: bool = field(default=False, repr=False)  # a bound is very near a whole number
    has_guards_alone: bool = field(default=False, repr=False)  # both its bounds are, as in clamp(1e-7, 1 - 1e-7)
    stops_overflow: bool = field(default=False, repr=False)  # all its bounds only keep x from infinity
    is_before_exp: bool = field(default=False, repr=False)  # an exp reads its result
    is_before_pole: bool = field(default=False, repr=False)  # it keeps what enters a log, a root or a division from 0
    is_activation: bool = field(default=False, repr=False)  # weights read its result
    is_window: bool = field(default=False, repr=False)  # sums and scales of a distance enter it
    is_ceiling: bool = field(default=False, repr=False)  # it has an upper bound, and no lower one or 0
    # only sums, powers and constant factors are between its result and the loss
    is_loss_term: bool = field(default=False, repr=False)
    # it is a product or clamp, and only sums and constant factors are between its result and the loss
    is_addend: bool = field(default=False, repr=False)


class Losses:
    """The losses with which the backward passes of one line began, by the number of the pass."""

    def __init__(self) -> None:
        self.values: Series[Number] = Series()
        self.count = 0
        self.repeated = 0  # the passes over a graph that had run before
        self.leaves = 0  # the set of leaves upstream
        # The device and dtype of the autocast that was on, with its cache, in every pass.
        self.cast: tuple[str, torch.dtype] | None = None
        self.stale = 0  # the passes over a cast of a weight that has moved since two earlier passes used this cast

    def add(self, step: int, loss: Tensor, is_again: bool) -> None:
        device = loss.device.type
        has_cast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        if not (has_cast and torch.is_autocast_cache_enabled()):
            self.cast = None
        elif not self.count:
            self.cast = device, torch.get_autocast_dtype(device)
        self.count += 1
        self.repeated += is_again
        self.values.add(step, loss.item() if loss.is_cpu else loss)


class Sizes:
    """The norms of the gradients of one parameter. Their sum of squares stays on the device until a report reads it."""

    def __init__(self, number_of_backward: Callable[[], int] = lambda: 0) -> None:
        self._number_of_backward = number_of_backward
        # Norms, each with the share of entries that are 0. Without a kernel this share is that of a sample, and None at most steps.
        self._series: Series[tuple[SupportsFloat, SupportsFloat | None]] = Series()
        self.count = 0
        self.is_finite = True  # is the last norm finite? True where that would wait for a device
        self.order = 0  # parameters numbered by their first gradient: the layer next to the loss comes first
        self._squares: Number = 0.0
        self._kernel: Squares | None = None
        # Reads the sum of the squares that were added on a device.
        self._read_device_squares: Callable[[], float] = float

    @property
    def is_wanted(self) -> bool:
        """Will the share of zeros of the next gradient be kept?"""
        return self._series.is_wanted

    def add(self, grad: Tensor) -> None:
        norm = norm_of(grad)
        self._squares = self._squares + norm * norm
        self._note(norm, share_of_zeros(grad) if self.is_wanted and not grad.is_sparse else None)

    def add_by_kernel(self, grad: Tensor, had_gradient: Tensor | None) -> int:
        """Add a gradient that the kernel can square, and mark its entries in `had_gradient`. Returns the result of `Squares.add`."""
        if self._kernel is None:
            self._kernel = Squares()
        missing = self._kernel.add(grad, had_gradient)
        if missing >= 0:
            norm, zeros = self._kernel.last()
            self._note(norm, zeros / (grad.numel() or 1))
        return missing

    def add_from_device(self, norm: SupportsFloat, zeros: SupportsFloat | None, read: Callable[[], float]) -> None:
        """Note a gradient that was measured on its device. read: returns the sum of squares of all gradients that were."""
        self._read_device_squares = read
        self._note(norm, zeros)

    def _note(self, norm: SupportsFloat, zeros: SupportsFloat | None) -> None:
        if not self.count:
            self.order = next(_sequence)
        self.count += 1
        self.is_finite = not isinstance(norm, float) or norm < math.inf
        self._series.add(self._number_of_backward(), (norm, zeros))

    @property
    def norm_by_step(self) -> Steps:
        """Pairs of the number of a backward pass and the norm of its gradient."""
        return tuple((step, float(norm)) for step, (norm, _) in self._series.steps)

    @property
    def zeros(self) -> Steps:
        """Pairs of the number of a backward pass and the share of entries that are 0, for the passes that counted them."""
        shares = ((step, float(share)) for step, (_, share) in self._series.steps if share is not None)
        return tuple((step, share) for step, share in shares if share == share)

    @property
    def mean(self) -> float:
        """The root mean square of the norms of all backward passes."""
        squares = (
            float(self._squares) + (0.0 if self._kernel is None else self._kernel.read()) + self._read_device_squares()
        )
        return math.sqrt(squares / self.count) if self.count else 0.0


def share_of_zeros(grad: Tensor) -> Number:
    """The share of zeros in a sample of the gradient."""
    values = view_of_sample(local(grad))
    count = torch.count_nonzero(values)
    return 1.0 - (int(count) if count.is_cpu else count) / max(values.numel(), 1)


def norm_of(grad: Tensor) -> Number:
    grad = grad._values() if grad.is_sparse else local(grad)
    norm = torch.linalg.vector_norm(grad, dtype=torch.float32 if grad.dtype in HALF_PRECISION else None)
    if not norm.is_cpu:
        return norm.double() if norm.is_cuda else norm
    if not norm < _TINY_NORM or not grad.numel():
        return float(norm)
    largest = grad.abs().max().double()
    return float(largest * torch.linalg.vector_norm(widened(grad) / largest)) if largest else 0.0


def widened(tensor: Tensor) -> Tensor:
    """The tensor in float64, or in complex128 if it is complex."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def expected_step(tensor: Tensor, group: Group, state: State, before: Tensor) -> Tensor | None:
    """How far the optimiser would move each entry of a sample from `before`, in float32; None if it is neither like Adam nor like SGD."""
    rate, buffers = group.get("lr"), _entry_buffers(tensor, state)
    if not isinstance(rate, (int, float, Tensor)) or tensor.grad is None or not are_plain(buffers.values()):
        return None
    tensors = {name: sample(value).float() for name, value in buffers.items()}
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
    """The number by which Adam divides an average after `count` steps; 1 in place of 0."""
    bias = 1 - beta**count
    return bias if isinstance(bias, Tensor) else bias or 1.0


def add_decay(grads: Tensor, weights: Tensor, group: Group) -> Tensor:
    """The gradient with the weight decay that SGD and Adam add to it. AdamW does not."""
    decay = group.get("weight_decay")
    if not isinstance(decay, float) or not decay or group.get("decoupled_weight_decay"):
        return grads
    return grads + decay * weights


def is_zero(rate: object) -> bool:
    """Is the learning rate 0? False for a rate on a device."""
    return number_of(rate) == 0


def number_of(rate: object) -> float | None:
    """The learning rate as a float. None for a rate on a device, because its value is not read."""
    if isinstance(rate, Tensor):
        # item(), because torch warns if float() is called for a rate that learns.
        return local(rate).item() if rate.is_cpu and rate.numel() == 1 else None
    return float(rate) if isinstance(rate, (int, float)) else None


def spacing(weight: Tensor) -> Tensor:
    """The distance from each weight to the next number of its dtype, in float32."""
    _, exponent = torch.frexp(weight.float())
    limits = torch.finfo(weight.dtype)
    distance = torch.ldexp(torch.full_like(weight, limits.eps, dtype=torch.float32), exponent - 1)
    return distance.clamp(min=max(limits.smallest_normal * limits.eps, _SMALLEST_FLOAT))


def keeps_rounding_errors(state: State, tensor: Tensor) -> bool:
    """Does the optimiser store the weights in full precision, or their rounding errors?"""
    for name, value in _entry_buffers(tensor, state).items():
        if any(word in name.lower() for word in _NAMES_OF_ROUNDING_ERRORS):
            return True
        is_wider = are_plain([value]) and value.dtype.itemsize > tensor.dtype.itemsize
        if is_wider and torch.equal(sample(value).to(tensor.dtype), sample(tensor)):
            return bool(sample(tensor).any())
    return False


def _entry_buffers(tensor: Tensor, state: State) -> dict[str, Tensor]:
    """The tensors of the state that have one number for each entry of the parameter."""
    return {name: value for name, value in state.items() if isinstance(value, Tensor) and value.shape == tensor.shape}


def are_plain(tensors: Iterable[Tensor]) -> bool:
    """False with a subclass of Tensor, such as the 8-bit states of some optimisers."""
    return all(type(tensor) in PLAIN for tensor in tensors)
