"""What one backward call of a node does to the gradient that arrives there: counts, on their device until somebody reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...kernels.native import counts as at_once
from ...rule import BOUNDED, PRIMITIVES
from ...torch_table.forms import SavedValues
from ...torch_table.private import is_batched, is_fake, physical

SIDES = ("below", "at", "inside", "above")
SIGNS = ("-", "+")
COUNTS = ("elements", "arrived", "cut", "magnitude", "cut_magnitude", "nonfinite")
ELSEWHERE = "elsewhere"  # what left towards inputs of other shapes, where something was cut

Number = float | Tensor  # a 0-d tensor on a device that must not be waited for
Sums = dict[str, Any]  # of numbers
Leaving = Sequence[Tensor | None]
Bounds = tuple[Tensor | None, Any, Any]  # x and its bounds; None for each where they are not known


class Grads:
    """The gradient that arrived at a node, what of its shape left, and what left in other shapes."""

    def __init__(self, arrived: Tensor, left: list[Tensor], others: list[Tensor]) -> None:
        self.arrived, self.left, self._others = arrived, left, others

    @classmethod
    def match(cls, leaving: Leaving, arriving: Leaving) -> Grads | None:
        """None where what arrives and what leaves cannot be compared element by element."""
        grad = next((grad for grad in arriving if grad is not None), None)
        if grad is None or grad.is_sparse or not (grad.is_floating_point() or grad.is_complex()):
            return None
        shape = grad.shape
        left: list[Tensor] = []
        others: list[Tensor] = []
        for other in leaving:
            if other is not None:
                (left if other.shape == shape else others).append(_detached(other))
        return None if others and not left else cls(_detached(grad), left, others)

    @cached_property
    def cut(self) -> Tensor | None:
        """Where nothing leaves towards any input; None where all does, because it is the same memory."""
        if any(left.data_ptr() == self.arrived.data_ptr() for left in self.left):
            return None
        cut = self.arrived != 0
        for left in self.left:
            cut = cut & (left == 0)
        return cut

    def elsewhere(self, cut: Number) -> Sums:
        """What left in other shapes, where something was cut."""
        if not self._others or _is_nothing(cut):
            return {}
        return {ELSEWHERE: _number(sum(torch.count_nonzero(other) for other in self._others))}


def count(
    leaving: Leaving, arriving: Leaving, is_full: bool, may_move: bool = False, saved: SavedValues | None = None
) -> Sums | None:
    """The counts of one backward call; None where what arrives and what leaves cannot be compared element by element.

    saved: what the node of a clamp keeps. Then the counts tell too where x stands, by the sign of the gradient that arrives, and what
    of the cut leads back inside, if that can be known: see `has_sides`.
    """
    grads = Grads.match(leaving, arriving)
    if grads is None:
        return None
    sums = _count(grads, is_full, bounds_of(grads, saved))
    if may_move:
        sums |= _count_by_numbers(grads, sums, is_full)
    return sums | grads.elsewhere(sums["cut"])


def has_sides(sums: Sums) -> bool:
    """Do they tell where x stands?"""
    return "recoverable" in sums


def are_readable(values: Any) -> bool:
    """Can the tensors among these be read? Not on the device "meta", nor where they are fake, those of a program that traces itself, nor
    element by element where they are nested.
    """
    for value in values:  # each gradient comes here, so what `is_fake` asks first stands here too
        if isinstance(value, Tensor) and (
            value.is_meta or value.is_nested or is_batched(value) or (type(value) is not Tensor and is_fake(value))
        ):
            return False
    return True


def _detached(grad: Tensor) -> Tensor:
    grad = physical(grad)
    return grad.detach() if grad.requires_grad else grad


def _is_nothing(number: Number) -> bool:
    """A tensor is on a device that must not be waited for."""
    return not isinstance(number, Tensor) and not number


def _number(value: Number) -> Number:
    """A number where that costs nothing: a CPU need not be waited for."""
    return value.item() if isinstance(value, Tensor) and value.device.type == "cpu" else value


def either_of(condition: bool | Tensor, first: Any, second: Any) -> Any:
    """The first where the condition holds; a tensor, without waiting, where the condition is one on a device."""
    if isinstance(condition, Tensor):
        return torch.where(condition, first, second)
    return first if condition else second


# --- element by element -----------------------------------------------------------------------------------------------


def _count(grads: Grads, is_full: bool, bounds: Bounds) -> Sums:
    grad, (x, low, high) = grads.arrived, bounds
    has_numbers = x is not None and not (isinstance(low, Tensor) or isinstance(high, Tensor))
    counts = at_once.tally(grad, grads.left, is_full, x, low, high) if has_numbers else None
    if counts is not None:
        return add_inside(counts)
    sides = {} if x is None else _count_sides(grads, x, low, high)
    counts = at_once.tally(grad, grads.left, is_full)
    if counts is not None:
        return {**counts, **sides}
    arrived, cut = _arrived_and_cut(grads)
    sums: Sums = {"elements": grad.numel(), "arrived": arrived, "cut": 0 if cut is None else torch.count_nonzero(cut)}
    if is_full:
        magnitude = grad.abs()
        wide = _wide(grad)
        total = magnitude.sum(dtype=wide)
        is_finite = grad.device.type == "cpu" and math.isfinite(float(total))
        sums["magnitude"] = total
        sums["cut_magnitude"] = 0 if cut is None else torch.where(cut, magnitude, 0).sum(dtype=wide)
        sums["nonfinite"] = 0 if is_finite else torch.count_nonzero(~grad.isfinite())
    return {**{name: _number(value) for name, value in sums.items()}, **sides}


def _arrived_and_cut(grads: Grads) -> tuple[Number, Tensor | None]:
    """How many gradients other than 0 arrive, and where they are cut. Where nothing that leaves is 0, one look at it tells both, on a
    device that may be waited for.
    """
    grad, left = grads.arrived, grads.left
    if len(left) == 1 and grad.device.type == "cpu":
        leaves = int(torch.count_nonzero(left[0]))
        if leaves == grad.numel():
            return leaves, None
    return torch.count_nonzero(grad), grads.cut


def _count_by_numbers(grads: Grads, sums: Sums, is_full: bool) -> Sums:
    """What leaves where nothing arrived came from elsewhere: flip, gather and sort move elements, softmax mixes them. Then positions tell
    nothing: as many are cut as fewer leave than arrive.
    """
    arrived, cut = sums["arrived"], sums["cut"]
    if not grads.left or _is_nothing(cut):
        return {}
    leaves = grads.left[0] != 0
    for other in grads.left[1:]:
        leaves = leaves | (other != 0)
    left = _number(torch.count_nonzero(leaves))
    is_moved, fewer = left + cut > arrived, arrived - left
    if isinstance(is_moved, bool) and not is_moved:
        return {}
    instead: Sums = {"cut": either_of(is_moved, fewer * (fewer > 0), cut)}
    if is_full:
        size = _number(sum(other.abs().sum(dtype=_wide(other)) for other in grads.left))
        lost = sums["magnitude"] - size
        instead["cut_magnitude"] = either_of(is_moved, lost * (lost > 0) * (fewer > 0), sums["cut_magnitude"])
    return instead


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.device.type == "cpu" else torch.float32


# --- where x stands ---------------------------------------------------------------------------------------------------


def bounds_of(grads: Grads, saved: SavedValues | None) -> Bounds:
    """x and its bounds, as torch compares them, where x has the shape of the gradient."""
    if saved is None:
        return None, None, None
    if saved.primitive == "torch.fmin":
        inputs: Sequence[Any] = (saved.inputs[0], None, saved.inputs[1])
    elif saved.primitive == "torch.fmax":
        inputs = (*saved.inputs, None)
    elif PRIMITIVES[saved.primitive].inputs == BOUNDED:
        inputs = saved.inputs
    else:
        return None, None, None
    x, low, high = (physical(value).detach() if isinstance(value, Tensor) else value for value in inputs)
    return (x, low, high) if x is not None and x.shape == grads.arrived.shape else (None, None, None)


def _count_sides(grads: Grads, x: Tensor, low: Any, high: Any) -> Sums:
    """Where x stands, by the sign of the gradient that arrives; what of the cut leads back inside."""
    grad, cut = grads.arrived, grads.cut
    nowhere = torch.zeros_like(x, dtype=torch.bool)
    below, at_low = (nowhere, nowhere) if low is None else (x < low, x == low)
    above, at_high = (nowhere, nowhere) if high is None else (x > high, x == high)
    at, up, down = at_low | at_high, grad < 0, grad > 0  # a descent step raises x where grad is negative
    back = ((below | at_low) & up) | ((above | at_high) & down)
    sums: Sums = {
        "recoverable": 0 if cut is None else torch.count_nonzero(back & cut),
        "at_bound": torch.count_nonzero(at & (grad != 0)),
    }
    for sign, signed in (("-", up), ("+", down)):
        for side, where in (("below", below), ("at", at), ("above", above)):
            sums[side + sign] = torch.count_nonzero(where & signed)
        sums[f"all{sign}"] = torch.count_nonzero(signed)
    return add_inside({name: _number(value) for name, value in sums.items()})


def add_inside(counts: Sums) -> Sums:
    """Those on neither side and at no bound, of all with that sign."""
    if has_sides(counts):
        for sign in SIGNS:
            others = sum(counts[side + sign] for side in SIDES if side != "inside")
            counts[f"inside{sign}"] = counts.pop(f"all{sign}") - others
    return counts
