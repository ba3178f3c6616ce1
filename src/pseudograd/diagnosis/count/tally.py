"""What one place of a program does to the gradient that arrives there, summed over its calls, on the device until it is read."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...kernels.native import counts as at_once
from ...listen.frames import Place
from ...rule import BOUNDED, PRIMITIVES, Call
from ...torch_table import forms as torch_forms
from ...torch_table.private import physical
from ...torch_table.records import Form
from .windows import Windows

SIDES = ("below", "at", "inside", "above")
SIGNS = ("-", "+")
COUNTS = ("elements", "arrived", "cut", "magnitude", "cut_magnitude", "nonfinite")
_ELSEWHERE = "elsewhere"  # what left towards inputs of other shapes, where something was cut
_KNOWN = ("recoverable", "at_bound", *(f"{side}{sign}" for side in SIDES for sign in SIGNS))

# They neither move nor mix elements, so that positions tell what is cut. For speed alone.
_ELEMENTWISE = frozenset(
    f"{name}Backward"
    for name in (
        *(
            "Mul",
            "Div",
            "Sub",
            "Neg",
            "Abs",
            "Pow",
            "Exp",
            "Log",
            "Sqrt",
            "Rsqrt",
            "Tanh",
            "Sigmoid",
            "Softplus",
            "Elu",
            "Threshold",
        ),
        *("NativeDropout", "Where", "MaskedFill"),
    )
)

_MOST_CALLS = 8  # of one line: with as many rules nobody asks for the ninth
Sums = dict[str, Any]  # numbers, or 0-d tensors of a device that must not be waited for


class Tally:
    """The sums of one op at one place."""

    def __init__(self, op: str, place: Place) -> None:
        self.op = op
        self.place = place
        self.form: Form | None = None
        self.calls = 0
        self.order = 0  # of its first call among those of a backward
        self.leaves = 0  # which leaves lie upstream: a bit each
        self.has_tensor_bound = False
        self.is_known = False  # are the sides counted?
        self.pinned: frozenset[str] = frozenset()  # the families that are pinned to what this torch does
        self.calling: object = None  # the function of torch that made the node last
        self.within: str | None = None  # the call of torch that runs this op inside, where no override reaches it
        self.may_move = torch_forms.form_of_node(op) is None and op.rstrip("0123456789") not in _ELEMENTWISE
        self.own_calls: dict[
            tuple[Any, ...], Call
        ] = {}  # of an op of ours: what its nodes compute, by what tells them apart
        self.function: object = None  # the class of a custom Function
        self.zeroed = 0  # leaves that it handed zeros alone, where something arrived
        self.passed = 0  # and those that it handed more
        self.hook: object = None  # what torch calls when a node of it has run
        self.sums: Sums = {}
        self._at_once: at_once.Sums | None = None
        self.windows: dict[int, Windows] = {}  # of jumprelu, by the leaves that its thresholds come from

    def hear(self, call: Call) -> None:
        """A node of ours ran."""
        if len(self.own_calls) < _MOST_CALLS:
            self.own_calls.setdefault(call.spec, call)

    def add(self, found: Sums) -> None:
        sums = self.sums
        for key, value in found.items():
            sums[key] = sums[key] + value if key in sums else value

    def add_at_once(
        self, leaving: tuple[object, ...], arriving: tuple[object, ...], is_full: bool, kept: Any
    ) -> bool | None:
        """The counts of one backward call, added in one pass; whether they tell where x stands. None where it has to go the other way."""
        if self.may_move:
            return None
        if self._at_once is None:
            self._at_once = at_once.Sums(is_full)
        if (
            kept is None
            and len(leaving) == len(arriving) == 1
            and self._at_once.add_pair(arriving[0], leaving[0]) is not None
        ):
            return False
        found = _grads(leaving, arriving)
        if found is None:
            return None
        grads, others = found
        x, low, high = _x_of(grads, kept)
        if isinstance(low, Tensor) or isinstance(high, Tensor):
            return None
        cut = self._at_once.add(grads.arrived, grads.left, x, low, high)
        if cut is None:
            return None
        if cut and others:
            self.add({_ELSEWHERE: _nonzero_of(others)})
        return x is not None

    def eras(self) -> dict[str, float]:
        """What each era of torch passes exactly at the bound; empty where this op has none, and where it is pinned."""
        return (
            {}
            if self.form is None or torch_forms.edge_family(self.form) in self.pinned
            else torch_forms.shares_at_the_edge(self.form, self.has_tensor_bound)
        )

    def read(self) -> dict[str, float]:
        """Waits for the device."""
        names = (*COUNTS, _ELSEWHERE, *(_KNOWN if self.is_known else ()))
        parts = [self.sums, *map(_with_inside, () if self._at_once is None else self._at_once.read())]
        return {name: float(sum(part.get(name, 0) for part in parts)) for name in names}


class Grads:
    """The gradient that arrived at a node, and what of its shape left."""

    def __init__(self, arrived: Tensor, left: list[Tensor]) -> None:
        self.arrived = arrived
        self.left = left

    @cached_property
    def cut(self) -> Tensor | None:
        """Where nothing leaves towards any input; None where all does, because it is the same memory."""
        if any(one.data_ptr() == self.arrived.data_ptr() for one in self.left):
            return None
        cut = self.arrived != 0
        for one in self.left:
            cut = cut & (one == 0)
        return cut


def of_grads(
    leaving: tuple[object, ...],
    arriving: tuple[object, ...],
    is_full: bool,
    may_move: bool = False,
    kept: torch_forms.SavedValues | None = None,
) -> Sums | None:
    """The counts of one backward call; None where what arrives and what leaves cannot be compared element by element.

    kept: what the node of a clamp keeps. Then the counts tell too where x stands, by the sign of the gradient that arrives, and what
    of the cut leads back inside, if that can be known: see `has_sides`.
    """
    some = _grads(leaving, arriving)
    if some is None:
        return None
    grads, others = some
    found = _counted(grads, is_full, kept)
    if may_move:
        found.update(_by_numbers(grads, found, is_full))
    if others and not _is_nothing(found["cut"]):
        found[_ELSEWHERE] = _nonzero_of(others)
    return found


def _grads(leaving: tuple[Any, ...], arriving: tuple[object, ...]) -> tuple[Grads, list[Tensor]] | None:
    """What can be compared element by element, and what leaves in other shapes."""
    grad = _first(arriving)
    if grad is None or grad.is_sparse or not (grad.is_floating_point() or grad.is_complex()):
        return None
    shape = grad.shape
    alike: list[Tensor] = []
    others: list[Tensor] = []
    for one in leaving:
        if one is not None:
            if one.shape == shape:
                alike.append(_here(one))
            else:
                others.append(one)
    if others and not alike:
        return None
    return Grads(_here(grad), alike), others


def _nonzero_of(others: list[Tensor]) -> float | Tensor:
    return _settled(sum(map(torch.count_nonzero, map(_here, others))))


def _first(arriving: tuple[object, ...]) -> Any:
    for grad in arriving:
        if grad is not None:
            return grad
    return None


def _here(grad: Tensor) -> Tensor:
    grad = physical(grad)
    return grad.detach() if grad.requires_grad else grad


def _is_nothing(count: float | Tensor) -> bool:
    """A tensor is on a device that must not be waited for."""
    return not isinstance(count, Tensor) and not count


def has_sides(counts: Sums) -> bool:
    """Do they tell where x stands?"""
    return "recoverable" in counts


def _counted(grads: Grads, is_full: bool, kept: torch_forms.SavedValues | None) -> Sums:
    """Element by element."""
    grad, alike = grads.arrived, grads.left
    x, low, high = _x_of(grads, kept)
    has_numbers = x is not None and not (isinstance(low, Tensor) or isinstance(high, Tensor))
    counts = at_once.tally(grad, alike, is_full, x, low, high) if has_numbers else None
    if counts is not None:
        return _with_inside(counts)
    sides = {} if x is None else _sides(grads, x, low, high)
    counts = at_once.tally(grad, alike, is_full)
    if counts is not None:
        counts.update(sides)
        return counts
    arrived, cut = _arrived_and_cut(grads)
    found: Sums = {"elements": grad.numel(), "arrived": arrived}
    found["cut"] = 0 if cut is None else torch.count_nonzero(cut)
    if is_full:
        magnitude = grad.abs()
        found["magnitude"] = total = magnitude.sum(dtype=_wide(magnitude))
        found["cut_magnitude"] = 0 if cut is None else torch.where(cut, magnitude, 0).sum(dtype=_wide(magnitude))
        found["nonfinite"] = _nonfinite(grad, total)
    return {**{key: _settled(value) for key, value in found.items()}, **sides}


def _by_numbers(grads: Grads, found: Sums, is_full: bool) -> Sums:
    """What leaves where nothing arrived came from elsewhere: flip, gather and sort move elements, softmax mixes them. Then positions tell
    nothing: as many are cut as fewer leave than arrive.
    """
    arrived, cut = found["arrived"], found["cut"]
    if not grads.left or _is_nothing(cut):
        return {}
    leaves = grads.left[0] != 0
    for one in grads.left[1:]:
        leaves = leaves | (one != 0)
    left = _settled(torch.count_nonzero(leaves))
    is_moved, fewer = left + cut > arrived, arrived - left
    if isinstance(is_moved, bool) and not is_moved:
        return {}
    instead: Sums = {"cut": either_of(is_moved, fewer * (fewer > 0), cut)}
    if is_full:
        size = _settled(sum(one.abs().sum(dtype=_wide(one)) for one in grads.left))
        lost = found["magnitude"] - size
        instead["cut_magnitude"] = either_of(is_moved, lost * (lost > 0) * (fewer > 0), found["cut_magnitude"])
    return instead


def either_of(condition: bool | Tensor, one: Any, other: Any) -> Any:
    """The one or the other; a tensor, without waiting, where the condition is one on a device."""
    return torch.where(condition, one, other) if isinstance(condition, Tensor) else one if condition else other


def _arrived_and_cut(grads: Grads) -> tuple[float | Tensor, Tensor | None]:
    """How many gradients other than 0 arrive, and where they are cut. Where nothing that leaves is 0, one look at it tells both, on a
    device that may be waited for.
    """
    grad, left = grads.arrived, grads.left
    if len(left) == 1 and grad.device.type == "cpu":
        leaves = int(torch.count_nonzero(left[0]))
        if leaves == grad.numel():
            return leaves, None
    return torch.count_nonzero(grad), grads.cut


def _sides(grads: Grads, x: Tensor, low: Any, high: Any) -> Sums:
    """Where x stands, by the sign of the gradient that arrives; what of the cut leads back inside."""
    grad, cut = grads.arrived, grads.cut
    below = x < low if low is not None else None
    above = x > high if high is not None else None
    at = _either(x == low if low is not None else None, x == high if high is not None else None)
    up, down = grad < 0, grad > 0  # a descent step raises x where grad is negative
    back = _either(
        (x <= low) & up if low is not None else None,
        (x >= high) & down if high is not None else None,
    )
    found: Sums = {
        "recoverable": 0 if cut is None else torch.count_nonzero(back & cut),
        "at_bound": torch.count_nonzero(at & (grad != 0)),
    }
    outside = {"-": 0, "+": 0}
    for side, where in (("below", below), ("at", at), ("above", above)):
        for sign, signed in (("-", up), ("+", down)):
            found[side + sign] = 0 if where is None else _settled(torch.count_nonzero(where & signed))
            outside[sign] = outside[sign] + found[side + sign]
    for sign, signed in (("-", up), ("+", down)):
        found[f"inside{sign}"] = torch.count_nonzero(signed) - outside[sign]
    return {key: _settled(value) for key, value in found.items()}


def _with_inside(counts: Sums) -> Sums:
    """Those on neither side and at no bound, of all with that sign."""
    if has_sides(counts):
        for sign in SIGNS:
            all_but = sum(counts[side + sign] for side in SIDES if side != "inside")
            counts[f"inside{sign}"] = counts.pop(f"all{sign}") - all_but
    return counts


def _x_of(grads: Grads, kept: torch_forms.SavedValues | None) -> tuple[Any, object, object]:
    """x and its bounds; None for each where they are not known, or have not the shape of the gradient."""
    x, low, high = (None, None, None) if kept is None else _bounded(kept)
    return (None, None, None) if x is None or x.shape != grads.arrived.shape else (x, low, high)


def _bounded(kept: torch_forms.SavedValues) -> tuple[Any, object, object]:
    """x and its two bounds, as torch compares them; x None where the primitive has other inputs."""
    if kept.primitive == "torch.fmin":
        inputs: tuple[object, ...] = (kept.inputs[0], None, kept.inputs[1])
    elif kept.primitive == "torch.fmax":
        inputs = (*kept.inputs, None)
    elif PRIMITIVES[kept.primitive].inputs == BOUNDED:
        inputs = kept.inputs
    else:
        return None, None, None
    x, low, high = (physical(one).detach() if isinstance(one, Tensor) else one for one in inputs)
    return x, low, high


def _either(one: Tensor | None, other: Tensor | None) -> Tensor:
    if one is None or other is None:
        found = other if one is None else one
        assert found is not None, "a clamp has a bound"
        return found
    return one | other


def _nonfinite(grad: Tensor, total: Tensor) -> float | Tensor:
    if grad.device.type == "cpu" and math.isfinite(float(total)):
        return 0
    return torch.count_nonzero(~grad.isfinite())


def _wide(magnitude: Tensor) -> torch.dtype:
    return torch.float64 if magnitude.device.type == "cpu" else torch.float32


def _settled(value: float | Tensor) -> float | Tensor:
    """A number where that costs nothing: a CPU need not be waited for."""
    return value.item() if isinstance(value, Tensor) and value.device.type == "cpu" else value
