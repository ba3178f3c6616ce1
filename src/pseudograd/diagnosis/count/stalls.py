"""Steps that rounding swallows: weights that have a gradient and do not move when their optimiser steps.

At most 1,024 entries of each parameter are sampled. The samples of all parameters of one dtype in one group of an optimiser are joined to
a `Batch`, so that torch is called once for all of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...listen import frames
from ...listen.frames import NOWHERE
from ...listen.harmless import Errors, harmless, quietly
from ...torch_table.private import without_torch_function
from .leaf import Leaf
from .leaves import Leaves
from .norms import Series, numbers_of, sample, view_of_sample

_HALF_PRECISION = (torch.bfloat16, torch.float16)
_STEPS_BETWEEN_LOOKS = 8  # at an optimiser without gradients
_LOOKS_FOR_NOISE = 10  # after fewer looks nobody can say that gradients are noise
_NOISE_RATIO = 2.0  # below this ratio the sum of all gradients is no larger than noise would make it
_FAINT_SHARE = 1e-4  # a gradient in full precision that is smaller than this share of its weight is no reason to move
_REST_NAMES = (
    "kahan",
    "compensation",
    "shift",
    "master",
    "residual",
)  # in the state of an optimiser that keeps what rounding takes

State = Mapping[str, Any]  # what an optimiser keeps of one parameter
Group = Mapping[str, Any]  # the settings of a group of an optimiser
_Key = tuple[int, torch.dtype, torch.device]  # the number of a group of the optimiser, and the kind of its tensors


@dataclass(frozen=True)
class Stall:
    """How much of one parameter stays where it is although it has a gradient.

    dtype: the dtype of the weights. share: the share of sampled entries that had a gradient and never moved. size: the median step as a
    share of the distance to the next number; NaN for an optimiser that is not known. by_step: the share by the number of backward passes.
    is_noise: the sum of all gradients is no larger than the sum of rounding noise would be.
    """

    parameter: str
    dtype: str
    steps: int
    share: float
    size: float
    by_step: tuple[tuple[int, float], ...]
    is_noise: bool


@dataclass
class Samples:
    """Facts about each sampled entry: its value before the step, whether it ever had a gradient and ever moved, the size of its steps in
    distances to the next number (NaN where it is not known), and the sums of its gradients and of their squares.
    """

    before: Tensor
    had_gradient: Tensor
    moved: Tensor
    sizes: Tensor
    total: Tensor
    squares: Tensor

    @classmethod
    def start(cls, values: Tensor) -> Samples:
        wide = torch.float64 if values.is_cpu else torch.float32
        had_gradient, moved = (torch.zeros_like(values, dtype=torch.bool) for _ in range(2))
        total, squares = (torch.zeros_like(values, dtype=wide) for _ in range(2))
        sizes = torch.full_like(values, math.nan, dtype=torch.float32)
        return cls(values.clone(), had_gradient, moved, sizes, total, squares)

    @classmethod
    def join(cls, parts: Sequence[Samples]) -> Samples:
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in cls.__annotations__))

    def split(self, lengths: list[int]) -> list[Samples]:
        """Views of the same memory."""
        columns = (getattr(self, name).split(lengths) for name in self.__annotations__)
        return [Samples(*parts) for parts in zip(*columns, strict=True)]


class ParameterSteps:
    """The steps of one parameter."""

    def __init__(self, tensor: Tensor, leaf: Leaf | None) -> None:
        self.leaf = leaf
        self.size, self.dtype, self.device = tensor.numel(), tensor.dtype, tensor.device
        self.steps = 0
        self.looks = 0
        self.keeps_rest = False  # does the optimiser keep what rounding takes?
        self.shares: Series[float | Tensor] = Series()
        self.samples = Samples.start(view_of_sample(tensor))
        self.batch: Batch | None = None  # its samples are views of those of this batch

    @property
    def counts(self) -> tuple[int, int]:
        """The entries that had a gradient, and those of them that never moved."""
        samples = self.samples
        return int(samples.had_gradient.sum()), int((samples.had_gradient & ~samples.moved).sum())

    @property
    def is_noise(self) -> bool:
        """The square of the sum of n gradients is n times the square of one gradient if they are noise, n * n times if they agree."""
        squares = float(self.samples.squares.sum())
        total = float(self.samples.total.square().sum())
        return self.looks >= _LOOKS_FOR_NOISE and squares > 0 and total / squares < _NOISE_RATIO

    @property
    def name(self) -> str:
        return "" if self.leaf is None else self.leaf.name

    @property
    def record(self) -> Stall:
        (had_gradient, still), samples = self.counts, self.samples
        return Stall(
            parameter=self.name,
            dtype=str(self.dtype).removeprefix("torch."),
            steps=self.steps,
            share=still / had_gradient if had_gradient else 0.0,
            size=float(samples.sizes[samples.had_gradient].median()) if had_gradient else math.nan,
            by_step=numbers_of(self.shares),
            is_noise=self.is_noise,
        )


class Batch:
    """The parameters of one dtype in one group of an optimiser, with their joined samples."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.uncounted_steps = 0  # since the last look
        self.parameters: list[ParameterSteps] = []
        self._sizes_are_known = False
        # Set by `before_step`: all samples; the index of the parameter of each entry; the entries whose gradient asks for a step.
        self.samples: Samples
        self._owners: Tensor
        self._asks: Tensor

    def is_due(self, step: int) -> bool:
        """In full precision, where rounding rarely swallows a step, a look at each power of two is enough."""
        return self.dtype in _HALF_PRECISION or _is_power_of_two(step)

    def before_step(self, parameters: list[ParameterSteps], tensors: Sequence[Tensor]) -> None:
        if parameters != self.parameters or any(parameter.batch is not self for parameter in parameters):
            self._join(parameters)
        samples, now = self.samples, torch.cat([view_of_sample(tensor) for tensor in tensors])
        grads = torch.cat([view_of_sample(tensor.grad) for tensor in tensors if tensor.grad is not None])
        # Something else may have moved the weights: a copy from weights in full precision, or a step without a look.
        samples.moved |= now != samples.before
        samples.before.copy_(now)
        is_half = self.dtype in _HALF_PRECISION
        self._asks = (
            grads != 0 if is_half else grads.abs() > _FAINT_SHARE * now.abs()
        )  # a converged model has faint gradients
        samples.had_gradient |= self._asks
        wide = grads.to(samples.total.dtype)
        samples.total += wide
        samples.squares.addcmul_(wide, wide)
        for parameter in parameters:
            parameter.looks += 1

    def _join(self, parameters: list[ParameterSteps]) -> None:
        """Parameters come and go; each brings along its samples."""
        lengths = [parameter.samples.before.numel() for parameter in parameters]
        self.samples, self.parameters = Samples.join([parameter.samples for parameter in parameters]), parameters
        for parameter, part in zip(parameters, self.samples.split(lengths), strict=True):
            parameter.samples, parameter.batch = part, self
        owners = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
        self._owners, self._sizes_are_known = owners.to(self.samples.before.device), False

    def after_step(
        self, tensors: Sequence[Tensor], group: Group, states: Mapping[Tensor, State], step: int, backwards: int
    ) -> None:
        """step: the number of the optimiser's step, from 0. backwards: the number of backward passes so far."""
        samples, now = self.samples, torch.cat([view_of_sample(tensor) for tensor in tensors])
        stays = now == samples.before
        rate, decay = group.get("lr"), group.get("weight_decay")
        if isinstance(rate, float) and isinstance(decay, float) and decay:  # weight decay alone is no move
            stays |= now == samples.before * (1 - rate * decay)
        if not self._sizes_are_known or _is_power_of_two(step):
            self._measure(tensors, group, [states.get(tensor) or {} for tensor in tensors])
        stays &= ~(
            samples.sizes >= 1
        )  # the step is larger than the distance to the next number, so something else holds the entry
        stays &= self._asks
        samples.moved |= self._asks ^ stays
        samples.before.copy_(now)
        self.count_steps()
        flags = torch.stack([stays, self._asks]).float()
        counts = flags.new_zeros(2, len(self.parameters)).index_add_(1, self._owners, flags)
        shares = counts[0] / counts[1].clamp(min=1)
        for parameter, share in zip(self.parameters, shares.tolist() if shares.is_cpu else shares, strict=True):
            parameter.shares.add(backwards, share)

    def _measure(self, tensors: Sequence[Tensor], group: Group, states: Sequence[State]) -> None:
        self._sizes_are_known = True
        for parameter, tensor, state in zip(self.parameters, tensors, states, strict=True):
            step = expected_step(tensor, group, state)
            if step is not None:
                parameter.samples.sizes.copy_(step / spacing(parameter.samples.before))
            parameter.keeps_rest |= keeps_rest(state, tensor)

    def count_steps(self) -> None:
        for parameter in self.parameters:
            parameter.steps += self.uncounted_steps
        self.uncounted_steps = 0


def _is_power_of_two(step: int) -> bool:
    return not step & (step - 1)


# --- the size of a step -----------------------------------------------------------------------------------------------


def expected_step(tensor: Tensor, group: Group, state: State) -> Tensor | None:
    """How far the optimiser wants to move each sampled entry, in float32; None for an optimiser that is neither like Adam nor like SGD."""
    rate = group.get("lr")
    if not isinstance(rate, (int, float)) or tensor.grad is None:
        return None
    tensors = {name: sample(value).float() for name, value in state.items() if _has_shape_of(tensor, value)}
    if {"exp_avg", "exp_avg_sq"} <= tensors.keys():
        count = float(state.get("step", 1) or 1)
        first, second = group.get("betas", (0.0, 0.0))
        mean = tensors["exp_avg"] / (1 - first**count or 1)
        square = tensors["exp_avg_sq"] / (1 - second**count or 1)
        return rate * mean.abs() / (square.sqrt() + group.get("eps", 1e-8))
    if not tensors:
        return rate * sample(tensor.grad).float().abs()
    return rate * tensors["momentum_buffer"].abs() if tensors.keys() == {"momentum_buffer"} else None


def spacing(weight: Tensor) -> Tensor:
    """The distance from each weight to the next number of its dtype, in float32."""
    _, exponent = torch.frexp(weight.float())
    limits = torch.finfo(weight.dtype)
    distance = torch.ldexp(torch.full_like(weight, limits.eps, dtype=torch.float32), exponent - 1)
    return distance.clamp(min=max(limits.smallest_normal * limits.eps, 1e-45))


def keeps_rest(state: State, tensor: Tensor) -> bool:
    """Does the optimiser keep the weights in full precision, or what rounding took from them?"""
    for name, value in state.items():
        if not _has_shape_of(tensor, value):
            continue
        if any(word in name.lower() for word in _REST_NAMES):
            return True
        if value.dtype.itemsize > tensor.dtype.itemsize and torch.equal(sample(value).to(tensor.dtype), sample(tensor)):
            return bool(sample(tensor).any())
    return False


def _has_shape_of(tensor: Tensor, value: object) -> bool:
    return isinstance(value, Tensor) and value.shape == tensor.shape


# --- all optimisers ---------------------------------------------------------------------------------------------------


class Stalls:
    """The steps of all parameters. `Optimisers` calls `before` and `after` at each step."""

    def __init__(self, leaves: Leaves, noted: Errors) -> None:
        self._leaves, self.noted = leaves, noted
        self.place = NOWHERE  # of the first step
        # By id: torch swaps no tensor with a weak reference.
        self._parameters: dict[int, ParameterSteps] = {}
        self._steps: Counter[int] = Counter()  # by optimiser
        self._batches: dict[int, dict[_Key, Batch]] = {}  # by optimiser
        self._looks: dict[int, list[tuple[Batch, list[Tensor], Group]]] = {}  # by optimiser, in the step that runs now

    @harmless("a step of an optimiser")
    def before(self, optimizer: Optimizer) -> None:
        step, batches = self._steps[id(optimizer)], self._batches.setdefault(id(optimizer), {})
        if any(batch.is_due(step) for batch in batches.values()) if batches else step % _STEPS_BETWEEN_LOOKS == 0:
            with quietly():
                self._look(optimizer, step, batches)

    def _look(self, optimizer: Optimizer, step: int, batches: dict[_Key, Batch]) -> None:
        looks = self._looks[id(optimizer)] = []  # drops those of a step that raised
        for key, tensors in _group_parameters(optimizer).items():
            if self.place is NOWHERE:
                self.place = frames.place(2)
            batch = batches.setdefault(key, Batch(key[1]))
            if batch.is_due(step):
                batch.before_step([self._steps_of(tensor) for tensor in tensors], tensors)
                looks.append((batch, tensors, optimizer.param_groups[key[0]]))

    def _steps_of(self, tensor: Tensor) -> ParameterSteps:
        known = self._parameters.get(id(tensor))
        if known is None or known.size != tensor.numel() or known.dtype != tensor.dtype:
            leaf = next(iter(self._leaves.named(self._leaves.set_of(tensor))), None)
            known = self._parameters[id(tensor)] = ParameterSteps(tensor, leaf)
        return known

    @harmless("a step of an optimiser")
    def after(self, optimizer: Optimizer) -> None:
        key = id(optimizer)
        looks, step = self._looks.pop(key, []), self._steps[key]
        for batch in self._batches.get(key, {}).values():
            batch.uncounted_steps += 1
        if looks:
            with quietly():
                for batch, tensors, group in looks:
                    batch.after_step(tensors, group, optimizer.state, step, self._leaves.backwards)
        self._steps[key] += 1

    def parameters(self) -> list[ParameterSteps]:
        """The parameters that took a step."""
        for batch in (batch for batches in self._batches.values() for batch in batches.values()):
            batch.count_steps()
        return [steps for steps in self._parameters.values() if steps.leaf is not None and steps.steps]


def _group_parameters(optimizer: Optimizer) -> dict[_Key, list[Tensor]]:
    """The plain tensors with a dense gradient, whose group has a rate other than 0. A rate on a device is not waited for."""
    groups: dict[_Key, list[Tensor]] = {}
    with without_torch_function():
        for number, group in enumerate(optimizer.param_groups):
            rate = group.get("lr", 1.0)
            if isinstance(rate, (int, float)) and rate == 0:
                continue
            for tensor in filter(_is_plain, group["params"]):
                groups.setdefault((number, tensor.dtype, tensor.device), []).append(tensor)
    return groups


def _is_plain(tensor: Tensor) -> bool:
    grad = tensor.grad
    is_dense = grad is not None and not grad.is_sparse and tensor.is_floating_point() and tensor.numel() > 0
    return is_dense and type(tensor) in (Tensor, torch.nn.Parameter)
