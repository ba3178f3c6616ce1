"""Steps that rounding swallows: weights that have a gradient and do not move when their optimiser steps.

About 1,024 entries of each parameter are sampled. The samples of all parameters of one dtype in one group of an optimiser are joined to a
`Batch`, so that torch is called once for all of them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...listen import frames
from ...listen.frames import NOWHERE
from ...listen.harmless import Errors, harmless, quietly
from ...torch_table.private import without_torch_function
from .leaf import Leaf, has_numbers
from .leaves import Leaves
from .norms import (
    HALF_PRECISION,
    Group,
    Number,
    Series,
    State,
    add_decay,
    are_plain,
    expected_step,
    is_power_of_two,
    is_zero,
    keeps_rounding_errors,
    number_of,
    numbers_of,
    spacing,
    view_of_sample,
)

_STEPS_BETWEEN_LOOKS = 8  # for an optimiser without gradients
_LOOKS_FOR_NOISE = 10  # after fewer looks nobody can say that gradients are noise
_NOISE_RATIO = 2.0  # below this ratio the sum of all gradients is no larger than noise would make it
_FAINT_SHARE = 1e-4  # a gradient in full precision that is smaller than this share of its weight is no reason to move
_FULL_RATE = 0.5  # of the highest rate: steps at a lower rate are not counted
# If the loss goes on falling as it does now, the weights move a certain distance until the loss is 0.
_FAR = 100.0  # times the weight: if the distance is longer, the gradient is faint
_NEAR = 256.0  # distances to the next number: if the distance is shorter, the loss is as low as rounding allows
_BALANCE = 0.05  # of a gradient: if weight decay leaves a smaller share of it, the two are in balance
_SMALL_SIZE = 0.25  # distances to the next number: rounding to the nearest number swallows each smaller step
_RANDOM_SHARE = (0.3, 3.0)  # of the moves that random rounding would make: more or fewer moves have another cause
_ENOUGH_MOVES = 5.0  # expected moves after which it is known whether the optimiser rounds at random
_STEPS_MEASURED = 32  # steps in half precision that are all measured until that is known

_Key = tuple[int, torch.dtype, torch.device]  # the index of a group of the optimiser, and the kind of its tensors


@dataclass(frozen=True)
class Stall:
    """How much of one parameter stays where it is although it has a gradient."""

    parameter: str
    dtype: str  # of the weights
    steps: int
    share: float  # the share that never moved, of the sampled entries that had a gradient
    size: float  # the median step as a share of the distance to the next number; NaN for an optimiser that is not known
    by_step: tuple[tuple[int, float], ...]  # pairs of the number of backward passes and the share
    is_noise: bool  # the sum of all gradients is no larger than the sum of rounding noise would be


@dataclass
class Samples:
    """Facts about each sampled entry."""

    before: Tensor  # its value before the step
    had_gradient: Tensor  # did it ever have a gradient?
    moves: Tensor  # how often it moved
    sizes: Tensor  # the size of its step in distances to the next number; NaN if it is not known
    total: Tensor  # the sum of its gradients
    squares: Tensor  # the sum of the squares of its gradients

    @classmethod
    def start(cls, values: Tensor) -> Samples:
        wide = torch.float64 if values.is_cpu else torch.float32
        had_gradient, moves = (torch.zeros_like(values, dtype=dtype) for dtype in (torch.bool, torch.int32))
        total, squares = (torch.zeros_like(values, dtype=wide) for _ in range(2))
        sizes = torch.full_like(values, math.nan, dtype=torch.float32)
        return cls(values.clone(), had_gradient, moves, sizes, total, squares)

    def restart(self) -> None:
        for counts in (self.had_gradient, self.moves, self.total, self.squares):
            counts.zero_()

    @classmethod
    def join(cls, parts: Sequence[Samples]) -> Samples:
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in cls.__annotations__))

    def split(self, lengths: list[int]) -> list[Samples]:
        """Views of the same memory."""
        columns = (getattr(self, name).split(lengths) for name in self.__annotations__)
        return [Samples(*parts) for parts in zip(*columns, strict=True)]


class EntryCounts(NamedTuple):
    """Numbers of sampled entries."""

    had_gradient: int
    still: int  # had a gradient, and never moved


class ParameterSteps:
    """The steps of one parameter."""

    def __init__(self, tensor: Tensor, leaf: Leaf | None) -> None:
        self.leaf = leaf
        self.size, self.dtype, self.device = tensor.numel(), tensor.dtype, tensor.device
        self.steps = 0
        self.looks = 0  # the steps whose samples were read
        self.is_known = False  # does the optimiser look like Adam or SGD, so that the sizes of its steps are right?
        self.keeps_rounding_errors = False  # does the optimiser keep the rounding errors of its steps?
        self.shares: Series[float | Tensor] = Series()
        self.samples = Samples.start(view_of_sample(tensor))  # if there is a batch: views of its samples
        self._first_values = self.samples.before.clone()
        self.batch: Batch | None = None

    @property
    def counts(self) -> EntryCounts:
        had_gradient, moves = self.samples.had_gradient, self.samples.moves
        return EntryCounts(int(had_gradient.sum()), int((had_gradient & (moves == 0)).sum()))

    @property
    def relative_distance(self) -> float:
        """How far the sampled entries have moved in all, as a share of their norm at first."""
        norm = float(self._first_values.double().norm())
        return self._distance / norm if norm else 0.0

    @property
    def largest_loss_change(self) -> float:
        """The most by which these moves can have changed the loss, if each gradient had the mean norm of all."""
        scale = math.sqrt(self.size / self.samples.before.numel())
        return 0.0 if self.leaf is None or self.leaf.sizes is None else self.leaf.sizes.mean * self._distance * scale

    @property
    def _distance(self) -> float:
        return float((self.samples.before.double() - self._first_values.double()).norm())

    @property
    def is_noise(self) -> bool:
        """Are the gradients noise? If so, the square of the sum of n of them is n times that of one; if they agree, n * n times."""
        squares = float(self.samples.squares.sum())
        total = float(self.samples.total.square().sum())
        return self.looks >= _LOOKS_FOR_NOISE and squares > 0 and total / squares < _NOISE_RATIO

    @property
    def is_sampled(self) -> bool:
        return self.samples.before.numel() < self.size

    @property
    def moves_on_average(self) -> bool:
        """Does the optimiser keep rounding errors, or round at random, so that the weights move on average?"""
        return (
            self.keeps_rounding_errors
            or (self.batch is not None and self.batch.rounds_at_random)
            or self._moves_at_random
        )

    @property
    def _moves_at_random(self) -> bool:
        """Did other entries move each time, under an optimiser whose steps are not known? Rounding to the nearest moves the same ones."""
        samples = self.samples
        if self.is_known and not samples.sizes[samples.had_gradient].isnan().any():
            return False
        mean, moved = (float(counts.float().mean()) for counts in (samples.moves, samples.moves > 0))
        expected = 1 - math.exp(-mean)  # the share of entries that moved, if each move came to a random entry
        return moved > 0 and moved >= 0.5 * expected

    @property
    def name(self) -> str:
        return "" if self.leaf is None else self.leaf.name

    def restart(self) -> None:
        """Forget what was seen at smaller rates."""
        self.samples.restart()
        self.steps = self.looks = 0

    @property
    def record(self) -> Stall:
        had_gradient, still = self.counts
        samples = self.samples
        return Stall(
            parameter=self.name,
            dtype=str(self.dtype).removeprefix("torch."),
            steps=self.steps,
            share=still / had_gradient if had_gradient else 0.0,
            size=float(samples.sizes[samples.had_gradient].median()) if had_gradient and self.is_known else math.nan,
            by_step=numbers_of(self.shares),
            is_noise=self.is_noise,
        )


class Batch:
    """The parameters of one dtype in one group of an optimiser, with their joined samples."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.is_half = dtype in HALF_PRECISION
        self.uncounted_steps = 0  # since the last look
        self.is_counted = True  # is the rate of this step near the highest one?
        self.parameters: list[ParameterSteps] = []
        self._sizes_are_known = False
        self._highest_rate = 0.0
        # In steps that rounding to the nearest number would swallow: the moves expected under random rounding, and the moves seen.
        self._expected_moves: Number = 0.0
        self._seen_moves: Number = 0.0
        # Set by `before_step`:
        self.samples: Samples  # of all parameters
        self._owners: Tensor  # by entry: the index of its parameter
        self._scales: Tensor  # by parameter: how many of its entries each sampled one stands for
        self._wants_step: Tensor  # by entry: does its gradient ask for a step?

    def is_due(self, step: int) -> bool:
        """Is this step looked at? In full precision, where rounding rarely swallows a step, only powers of two are."""
        return self.is_half or is_power_of_two(step)

    def follow_rate(self, group: Group) -> None:
        """Count only steps near the highest rate: when the rate falls, rounding swallows steps of a good training, too.

        If the rate rises, as in a warm-up, begin again: nobody knows yet what rounding swallows at the highest rate.
        """
        rate = number_of(group.get("lr"))
        if rate is None:
            return
        if rate > self._highest_rate:
            self._highest_rate, self.uncounted_steps = rate, 0
            for parameter in self.parameters:
                parameter.restart()
        self.is_counted = rate >= _FULL_RATE * self._highest_rate

    @property
    def rounds_at_random(self) -> bool:
        """Does the optimiser round at random? Waits for the device."""
        expected, seen = float(self._expected_moves), float(self._seen_moves)
        least, most = (share * expected for share in _RANDOM_SHARE)
        return seen >= 1 and least <= seen <= most

    def before_step(
        self, parameters: list[ParameterSteps], tensors: Sequence[Tensor], group: Group, loss: Tensor | None
    ) -> None:
        """Note the gradients. loss: the loss of the last backward, if it was one number."""
        if parameters != self.parameters or any(parameter.batch is not self for parameter in parameters):
            self._join(parameters)
        samples, now = self.samples, torch.cat([view_of_sample(tensor) for tensor in tensors])
        grads = torch.cat([view_of_sample(tensor.grad) for tensor in tensors if tensor.grad is not None])
        # Something else may have moved the weights: a copy from weights in full precision, or a step that was not looked at.
        samples.moves += now != samples.before
        samples.before.copy_(now)
        pulls = add_decay(grads, now, group)
        self._wants_step = (grads != 0) & (pulls.abs() > _BALANCE * grads.abs())
        if not self.is_half:
            self._wants_step &= self._are_strong(pulls.abs(), now.abs(), loss)
        samples.had_gradient |= self._wants_step
        wide = grads.to(samples.total.dtype)
        samples.total += wide
        samples.squares.addcmul_(wide, wide)
        for parameter in parameters:
            parameter.looks += 1

    def _are_strong(self, pulls: Tensor, weights: Tensor, loss: Tensor | None) -> Tensor:
        """The entries whose gradient is no rounding error: it is large beside its weight, or the loss still has to fall."""
        are_strong = pulls > _FAINT_SHARE * weights
        if loss is None or loss.device != pulls.device:
            return are_strong
        sums = pulls.new_zeros(len(self.parameters)).index_add_(0, self._owners, pulls)
        distance = (loss.abs().to(pulls.dtype) / (sums * self._scales.to(sums.dtype)))[self._owners]  # see `_FAR`
        return are_strong | ((distance > _NEAR * spacing(weights)) & (distance < _FAR * weights) & (pulls > 0))

    def _join(self, parameters: list[ParameterSteps]) -> None:
        """Join the samples that these parameters have. Parameters may come and go from step to step."""
        lengths = [parameter.samples.before.numel() for parameter in parameters]
        self.samples = Samples.join([parameter.samples for parameter in parameters])
        owners = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
        device = self.samples.before.device
        self._owners, self._sizes_are_known = owners.to(device), False
        scales = [parameter.size / length for parameter, length in zip(parameters, lengths, strict=True)]
        self._scales = self.samples.before.new_tensor(scales)
        for parameter, part in zip(parameters, self.samples.split(lengths), strict=True):
            parameter.samples, parameter.batch = part, self
        self.parameters = parameters  # last: if a signal ends this function before, the next step joins again

    def after_step(
        self, tensors: Sequence[Tensor], group: Group, states: Mapping[Tensor, State], step: int, backwards: int
    ) -> None:
        """Note which entries moved. step: the number of the optimiser's step, from 0. backwards: the number of backward passes so far."""
        samples, now = self.samples, torch.cat([view_of_sample(tensor) for tensor in tensors])
        are_still = now == samples.before
        rate, decay = group.get("lr"), group.get("weight_decay")
        if isinstance(rate, float) and isinstance(decay, float) and decay:  # weight decay alone is no move
            are_still |= now == samples.before * (1 - rate * decay)
        is_undecided = self.is_half and step < _STEPS_MEASURED and self._is_undecided
        if not self._sizes_are_known or is_power_of_two(step) or is_undecided:
            self._measure(tensors, group, [states.get(tensor) or {} for tensor in tensors])
            self._compare(now, are_still, group)
        # An entry that is still at 0, or whose step is larger than the distance to the next number, is held by something else.
        are_swallowed = torch.where(samples.before == 0, samples.sizes < 1, ~(samples.sizes >= 1))
        are_still &= self._wants_step & are_swallowed
        samples.moves += self._wants_step & ~are_still
        samples.before.copy_(now)
        self.count_steps()
        flags = torch.stack([are_still, self._wants_step]).float()
        counts = flags.new_zeros(2, len(self.parameters)).index_add_(1, self._owners, flags)
        shares = counts[0] / counts[1].clamp(min=1)
        for parameter, share in zip(self.parameters, shares.tolist() if shares.is_cpu else shares, strict=True):
            parameter.shares.add(backwards, share)

    @property
    def _is_undecided(self) -> bool:
        """Is it unknown yet whether the optimiser rounds at random? On a device it counts as known."""
        return not isinstance(self._expected_moves, Tensor) and self._expected_moves < _ENOUGH_MOVES

    def _measure(self, tensors: Sequence[Tensor], group: Group, states: Sequence[State]) -> None:
        self._sizes_are_known = True
        self.samples.sizes.copy_(spacing(self.samples.before))  # of all at once, for speed
        for parameter, tensor, state in zip(self.parameters, tensors, states, strict=True):
            step = expected_step(tensor, group, state, parameter.samples.before)
            sizes = parameter.samples.sizes
            sizes.copy_(torch.full_like(sizes, math.nan) if step is None else step / sizes)
            parameter.is_known = "dampening" in group or "exp_avg_sq" in state
            parameter.keeps_rounding_errors |= keeps_rounding_errors(state, tensor)

    def _compare(self, now: Tensor, are_still: Tensor, group: Group) -> None:
        """Compare the measured steps with the moves. A parameter with an entry that moved further has no known step size."""
        samples = self.samples
        before = samples.before.float()
        distance = spacing(torch.where(now.abs() > samples.before.abs(), now, samples.before))
        limit = samples.sizes * spacing(samples.before) + 2 * distance
        decay, rate = group.get("weight_decay"), group.get("lr")
        if isinstance(decay, float) and isinstance(rate, (float, Tensor)):
            limit = limit + rate * decay * before.abs()
        counts = distance.new_zeros(len(self.parameters))
        counts.index_add_(0, self._owners, ((now.float() - before).abs() > limit).float())
        samples.sizes.masked_fill_(counts[self._owners] > 0, math.nan)
        # Rounding never holds an entry at 0.
        are_small = self._wants_step & (samples.before != 0) & (samples.sizes < _SMALL_SIZE)
        expected, seen = torch.where(are_small, samples.sizes, 0).sum(), (are_small & ~are_still).sum()
        self._expected_moves = self._expected_moves + (expected.item() if expected.is_cpu else expected)
        self._seen_moves = self._seen_moves + (seen.item() if seen.is_cpu else seen)

    def count_steps(self) -> None:
        for parameter in self.parameters:
            parameter.steps += self.uncounted_steps
        self.uncounted_steps = 0


# --- all optimisers ---------------------------------------------------------------------------------------------------


@dataclass
class _Optimiser:
    """The steps of one optimiser."""

    step: int = 0  # the number of steps that have ended
    batches: dict[_Key, Batch] = field(default_factory=dict)
    looks: list[tuple[Batch, list[Tensor], Group]] = field(default_factory=list)  # what the running step looks at


class Stalls:
    """The steps of all parameters. `Optimisers` calls `before` and `after` at each step."""

    def __init__(self, leaves: Leaves, noted: Errors, loss: Callable[[], Tensor | None]) -> None:
        self._leaves, self.noted, self._loss = leaves, noted, loss
        self.location = NOWHERE  # of the first step
        # By id, because torch swaps no tensor that has a weak reference.
        self._parameters: dict[int, ParameterSteps] = {}
        self._optimisers: defaultdict[int, _Optimiser] = defaultdict(_Optimiser)  # by id

    @harmless("a step of an optimiser")
    def before(self, optimizer: Optimizer) -> None:
        record = self._optimisers[id(optimizer)]
        groups = optimizer.param_groups
        for (index, _, _), batch in record.batches.items():
            batch.follow_rate(groups[index] if index < len(groups) else {"lr": 0})
        is_due = record.step % _STEPS_BETWEEN_LOOKS == 0
        if record.batches:
            is_due = any(batch.is_due(record.step) for batch in record.batches.values())
        if is_due:
            with quietly():
                self._look(optimizer, record)

    def _look(self, optimizer: Optimizer, record: _Optimiser) -> None:
        record.looks = []  # drops the looks of a step that raised
        for key, tensors in _group_parameters(optimizer).items():
            if self.location is NOWHERE:
                self.location = frames.location()
            batch, group = record.batches.setdefault(key, Batch(key[1])), optimizer.param_groups[key[0]]
            batch.follow_rate(group)
            if batch.is_due(record.step) and batch.is_counted:
                batch.before_step([self._steps_of(tensor) for tensor in tensors], tensors, group, self._loss())
                record.looks.append((batch, tensors, group))

    def _steps_of(self, tensor: Tensor) -> ParameterSteps:
        known = self._parameters.get(id(tensor))
        if known is None or known.size != tensor.numel() or known.dtype != tensor.dtype:
            known = self._parameters[id(tensor)] = ParameterSteps(tensor, self._leaves.add(tensor))
        return known

    @harmless("a step of an optimiser")
    def after(self, optimizer: Optimizer) -> None:
        record = self._optimisers[id(optimizer)]
        looks, record.looks = record.looks, []
        for batch in record.batches.values():
            batch.uncounted_steps += batch.is_counted
        if looks:
            with quietly():
                for batch, tensors, group in looks:
                    batch.after_step(tensors, group, optimizer.state, record.step, self._leaves.backwards)
        record.step += 1

    def parameters(self) -> list[ParameterSteps]:
        """The parameters that took a step."""
        for record in self._optimisers.values():
            for batch in record.batches.values():
                batch.count_steps()
        return [steps for steps in self._parameters.values() if steps.leaf is not None and steps.steps]


def _group_parameters(optimizer: Optimizer) -> dict[_Key, list[Tensor]]:
    """The plain tensors with a dense gradient, in groups whose rate is not known to be 0."""
    groups: dict[_Key, list[Tensor]] = {}
    with without_torch_function():
        for index, group in enumerate(optimizer.param_groups):
            if is_zero(group.get("lr")):
                continue
            for tensor in filter(_is_dense, group["params"]):
                groups.setdefault((index, tensor.dtype, tensor.device), []).append(tensor)
    return groups


def _is_dense(tensor: Tensor) -> bool:
    """Is it a plain tensor with a dense gradient?"""
    grad = tensor.grad
    has_dense_grad = grad is not None and has_numbers(grad) and not grad.is_sparse
    return has_dense_grad and tensor.is_floating_point() and tensor.numel() > 0 and are_plain([tensor])
