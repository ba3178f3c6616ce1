"""The effect of one backward call of a node on the gradient that arrives there: counts, on their device until somebody reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from ...kernels.native import counts as kernel
from ...rule import BOUNDED, PRIMITIVES
from ...torch_table.forms import SavedValues
from ...torch_table.private import is_batched, is_opaque, physical
from .norms import Number

SIDES = ("below", "at", "inside", "above")
SIGNS = ("-", "+")
COUNTS = ("elements", "arrived", "cut", "magnitude", "cut_magnitude", "nonfinite")
ELSEWHERE = "elsewhere"  # if something was cut: the elements other than 0 that left towards inputs of other shapes

Sums = dict[str, Number]
Gradients = Sequence[Tensor | None]  # that arrive at a node, or leave it
Bound = float | Tensor | None
Bounds = tuple[Tensor | None, Bound, Bound]  # x and its bounds; None for each if they are not known


class MatchedGradients:
    """The gradient that arrived at a node, and the gradients that left it."""

    def __init__(self, arrived: Tensor, left: list[Tensor], others: list[Tensor]) -> None:
        self.arrived = arrived
        self.left = left  # the gradients that left with the same shape
        self.others = others  # the gradients that left with another shape

    @classmethod
    def match(cls, leaving: Gradients, arriving: Gradients) -> MatchedGradients | None:
        """None if the gradients cannot be compared element by element."""
        grad = next((grad for grad in arriving if grad is not None), None)
        if grad is None or grad.layout is not torch.strided or not (grad.is_floating_point() or grad.is_complex()):
            return None
        shape, placements = grad.shape, getattr(grad, "placements", None)  # a distributed tensor has its parts there
        left: list[Tensor] = []
        others: list[Tensor] = []
        for other in leaving:
            if other is not None:
                if other.layout is not torch.strided or other.is_nested:
                    return None
                if other.shape == shape and getattr(other, "placements", None) != placements:
                    return None
                (left if other.shape == shape else others).append(_detached(other))
        return None if others and not left else cls(_detached(grad), left, others)

    @cached_property
    def cut(self) -> Tensor | None:
        """What arrived where nothing leaves towards any input, and 0 elsewhere. None if nothing is cut: what leaves is what arrived."""
        if any(left.data_ptr() == self.arrived.data_ptr() for left in self.left):
            return None
        if not self.left:
            return self.arrived
        is_cut = self.left[0] == 0
        for left in self.left[1:]:
            is_cut = is_cut & (left == 0)
        return torch.where(is_cut, self.arrived, 0)

    def count_elsewhere(self, cut: Number) -> Sums:
        """The count ELSEWHERE, if something was cut. cut: the number of elements that were."""
        if not self.others or _is_known_zero(cut):
            return {}
        return {ELSEWHERE: _to_number(sum(torch.count_nonzero(other) for other in self.others))}


def count(grads: MatchedGradients, is_full: bool, may_move: bool = False, bounds: Bounds = (None, None, None)) -> Sums:
    """The counts of one backward call.

    may_move: the op may move or mix elements.
    bounds: those of a clamp. With x the counts also tell the regions of x by the sign of the gradient, and how many of the cut elements
        lead back inside. `has_sides` says whether they do.
    """
    sums = _count(grads, is_full, bounds)
    if may_move:
        sums |= _count_moved(grads, sums, is_full)
    return sums | grads.count_elsewhere(sums["cut"])


def has_sides(sums: Sums) -> bool:
    """Do the counts tell the region of x?"""
    return "recoverable" in sums


def are_readable(values: Iterable[object]) -> bool:
    """Can the tensors among these be read element by element? Not on the device "meta", nor fake ones of a trace, nor nested ones."""
    for value in values:  # each gradient comes here, so a plain one is not asked
        if isinstance(value, Tensor) and (
            value.is_meta or value.is_nested or is_batched(value) or (type(value) is not Tensor and is_opaque(value))
        ):
            return False
    return True


def _detached(grad: Tensor) -> Tensor:
    grad = physical(grad)
    return grad.detach() if grad.requires_grad else grad


def _is_known_zero(number: Number) -> bool:
    """Is it known to be 0, without waiting for a device?"""
    return not isinstance(number, Tensor) and not number


def _to_number(value: Number) -> Number:
    """The value as a number of Python, if that does not wait for a device; else the value itself."""
    return value.item() if isinstance(value, Tensor) and value.is_cpu else value


# --- element by element -----------------------------------------------------------------------------------------------


def _count(grads: MatchedGradients, is_full: bool, bounds: Bounds) -> Sums:
    grad, (x, low, high) = grads.arrived, bounds
    sides = {} if x is None else _count_sides(grads, x, low, high)
    counts = kernel.tally(grad, grads.left, is_full)
    if counts is not None:
        return {**counts, **sides}
    cut = grads.cut
    sums: Sums = {"elements": grad.numel(), "arrived": torch.count_nonzero(grad)}
    sums["cut"] = 0 if cut is None else torch.count_nonzero(cut)
    if is_full:
        sums["magnitude"] = _magnitude(grad)
        sums["cut_magnitude"] = 0 if cut is None else _magnitude(cut)
        sums["nonfinite"] = torch.count_nonzero(grad * 0)  # inf * 0 is nan, which is not 0
    return {**{name: _to_number(value) for name, value in sums.items()}, **sides}


def _count_moved(grads: MatchedGradients, sums: Sums, is_full: bool) -> Sums:
    """The counts that replace `sums` if the op has moved elements, as flip, gather and softmax do: some then leave where none arrived.

    These counts do not ask where an element is: as many are cut as arrive more than leave.
    """
    arrived, cut = sums["arrived"], sums["cut"]
    if not grads.left or _is_known_zero(cut):
        return {}
    leaves = grads.left[0] != 0
    for other in grads.left[1:]:
        leaves = leaves | (other != 0)
    left = _to_number(torch.count_nonzero(leaves))
    is_moved, lost = left + cut > arrived, arrived - left
    if isinstance(is_moved, bool) and not is_moved:
        return {}
    moved: Sums = {"cut": lost * (lost > 0)}
    if is_full:
        magnitude = sums["magnitude"] - _to_number(sum(map(_magnitude, grads.left)))
        moved["cut_magnitude"] = magnitude * (magnitude > 0) * (lost > 0)
    if not isinstance(is_moved, Tensor):
        return moved
    return {name: torch.where(is_moved, value, sums[name]) for name, value in moved.items()}


def _magnitude(grad: Tensor) -> Tensor:
    """The sum of |grad|."""
    wide = torch.float64 if grad.is_cpu else torch.float32
    return torch.linalg.vector_norm(grad, 1, dtype=torch.promote_types(grad.dtype, wide))


# --- the region of x --------------------------------------------------------------------------------------------------


def bounds_of(grads: MatchedGradients, saved: SavedValues | None) -> Bounds:
    """x and its bounds, if they are saved and x has the shape of the gradient."""
    inputs: Sequence[Bound] | None = None
    if saved is not None and saved.primitive == "torch.fmin":
        inputs = (saved.inputs[0], None, saved.inputs[1])
    elif saved is not None and saved.primitive == "torch.fmax":
        inputs = (*saved.inputs, None)
    elif saved is not None and PRIMITIVES[saved.primitive].inputs == BOUNDED:
        inputs = saved.inputs
    if inputs is None:
        return None, None, None
    x, low, high = (physical(value).detach() if isinstance(value, Tensor) else value for value in inputs)
    if isinstance(x, Tensor) and x.shape == grads.arrived.shape:
        return x, low, high
    return None, None, None


def _count_sides(grads: MatchedGradients, x: Tensor, low: Bound, high: Bound) -> Sums:
    """The regions of x by the sign of the gradient, and the elements that are cut and lead back inside."""
    grad, cut = grads.arrived, grads.cut
    nowhere = torch.zeros_like(x, dtype=torch.bool)
    below, at_low = (nowhere, nowhere) if low is None else (x < low, x == low)
    above, at_high = (nowhere, nowhere) if high is None else (x > high, x == high)
    at, up, down = at_low | at_high, grad < 0, grad > 0  # up: a descent step raises x
    leads_back = ((below | at_low) & up) | ((above | at_high) & down)
    sums: Sums = {
        "recoverable": 0 if cut is None else torch.count_nonzero(leads_back & (cut != 0)),
        "at_bound": torch.count_nonzero(at & (grad != 0)),
    }
    for sign, signed in (("-", up), ("+", down)):
        for side, where in (("below", below), ("at", at), ("above", above)):
            sums[side + sign] = torch.count_nonzero(where & signed)
        sums[f"all{sign}"] = torch.count_nonzero(signed)
    return add_inside({name: _to_number(value) for name, value in sums.items()})


def add_inside(counts: Sums) -> Sums:
    """Replace the count of all elements of a sign by the count of those inside the bounds."""
    if has_sides(counts):
        for sign in SIGNS:
            others = sum(counts[side + sign] for side in SIDES if side != "inside")
            counts[f"inside{sign}"] = counts.pop(f"all{sign}") - others
    return counts
