"""What one place of a program does to the gradient that arrives there, summed over its calls, on the device until it is read."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import torch_forms
from ..torch_private import physical
from ..trace.frames import Place
from .windows import Windows

SIDES = ("below", "at", "inside", "above")
SIGNS = ("-", "+")
COUNTS = ("elements", "arrived", "cut", "magnitude", "cut_magnitude", "nonfinite", "elsewhere")
_KNOWN = ("recoverable", "at_bound", *(f"{side}{sign}" for side in SIDES for sign in SIGNS))

Sums = dict[str, Any]  # numbers, or 0-d tensors of a device that must not be waited for


class Tally:
    """The sums of one op at one place."""

    def __init__(self, op: str, place: Place) -> None:
        self.op = op
        self.place = place
        self.form: torch_forms.Form | None = None
        self.calls = 0
        self.order = 0  # of its first call among those of a backward
        self.leaves = 0  # which leaves lie upstream: a bit each
        self.has_tensor_bound = False
        self.is_known = False  # are the sides counted?
        self.within: str | None = None  # the call of torch that runs this op inside, where no override reaches it
        self.sums: Sums = {}
        self.windows: dict[int, Windows] = {}  # of jumprelu, by the leaves that its thresholds come from

    def add(self, found: Sums) -> None:
        for key, value in found.items():
            self.sums[key] = self.sums[key] + value if key in self.sums else value

    def eras(self) -> dict[str, float]:
        """What each era of torch passes exactly at the bound; empty where this op has none."""
        return {} if self.form is None else torch_forms.shares_at_the_edge(self.form, self.has_tensor_bound)

    def read(self) -> dict[str, float]:
        """Waits for the device."""
        names = (*COUNTS, *(_KNOWN if self.is_known else ()))
        return {name: float(self.sums.get(name, 0)) for name in names}


class Grads(NamedTuple):
    """The gradient that arrived at a node, and where nothing of it left: None where nothing is cut."""

    arrived: Tensor
    cut: Tensor | None


class _Compared(NamedTuple):
    """How many gradients arrive, how many are cut, and where by position; whether what leaves stands elsewhere (None: it does not)."""

    arrived: Any
    count: Any
    cut: Tensor | None
    moves: Any = None


def of_grads(leaving: tuple[Any, ...], arriving: tuple[Any, ...], is_full: bool) -> tuple[Sums, Grads] | None:
    """The counts of one backward call; None where what arrives and what leaves cannot be compared element by element."""
    grad = next((one for one in arriving if one is not None), None)
    if grad is None or grad.is_sparse or not (grad.is_floating_point() or grad.is_complex()):
        return None
    alike = [one for one in leaving if one is not None and one.shape == grad.shape]
    if not alike and any(one is not None for one in leaving):
        return None
    others = [one for one in leaving if one is not None and one.shape != grad.shape]
    grad, alike = physical(grad.detach()), [physical(one.detach()) for one in alike]
    compared = _compared(grad, alike)
    found: Sums = {"elements": grad.numel(), "arrived": compared.arrived, "cut": compared.count}
    if others and compared.cut is not None:
        found["elsewhere"] = sum(torch.count_nonzero(physical(one.detach())) for one in others)
    if is_full:
        magnitude = grad.abs()
        found["magnitude"] = total = magnitude.sum(dtype=_wide(magnitude))
        found["cut_magnitude"] = _cut_magnitude(compared, magnitude, total, alike)
        found["nonfinite"] = _nonfinite(grad, total)
    return {key: _settled(value) for key, value in found.items()}, Grads(grad, compared.cut)


def _compared(grad: Tensor, alike: list[Tensor]) -> _Compared:
    """How many gradients other than 0 arrive, and where none of them leaves towards any input. Where nothing that leaves is 0, one
    look at it tells both, on a device that may be waited for.

    What leaves where nothing arrived came from elsewhere: flip, gather and sort move elements, softmax mixes them. Then numbers tell,
    not positions: as many are cut as fewer leave than arrive.
    """
    if any(one.data_ptr() == grad.data_ptr() for one in alike):
        return _Compared(torch.count_nonzero(grad), 0, None)
    left: Any = None
    if len(alike) == 1:
        left = _settled(torch.count_nonzero(alike[0]))
        if isinstance(left, int) and left == grad.numel():
            return _Compared(left, 0, None)
    cut = grad != 0
    arrived = _settled(torch.count_nonzero(cut))
    for one in alike:
        cut = cut & (one == 0)
    count = _settled(torch.count_nonzero(cut))
    if not alike or (isinstance(count, int) and not count):
        return _Compared(arrived, count, cut)
    if left is None:
        left = _settled(torch.count_nonzero(_any(alike)))
    moves, fewer = left + count > arrived, arrived - left
    if isinstance(moves, bool):
        return _Compared(arrived, max(fewer, 0), cut, moves) if moves else _Compared(arrived, count, cut)
    return _Compared(arrived, torch.where(moves, fewer.clamp(min=0), count), cut, moves)


def _any(some: list[Tensor]) -> Tensor:
    """Where one of them is not 0."""
    found = some[0] != 0
    for one in some[1:]:
        found = found | (one != 0)
    return found


def _cut_magnitude(compared: _Compared, magnitude: Tensor, total: Tensor, alike: list[Tensor]) -> Any:
    if compared.cut is None:
        return 0
    by_position = torch.where(compared.cut, magnitude, 0).sum(dtype=_wide(magnitude))
    if compared.moves is None:
        return by_position
    left = sum(one.abs().sum(dtype=_wide(magnitude)) for one in alike)
    lost = torch.where(torch.as_tensor(compared.count, device=total.device) > 0, (total - left).clamp(min=0), 0)
    return torch.where(torch.as_tensor(compared.moves, device=total.device), lost, by_position)


def sides(grads: Grads, kept: torch_forms.Kept) -> Sums | None:
    """Where x stands, by the sign of the gradient that arrives; what of the cut leads back inside."""
    grad, cut = grads
    x, low, high = _bounded(kept)
    if x is None or x.shape != grad.shape:
        return None
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


def _bounded(kept: torch_forms.Kept) -> tuple[Any, Any, Any]:
    """x and its two bounds, as torch compares them; x None where the primitive has other inputs."""
    _, primitive, inputs = kept
    if primitive in ("torch.fmin", "torch.fmax"):
        inputs = (inputs[0], None, inputs[1]) if primitive == "torch.fmin" else (inputs[0], inputs[1], None)
    if len(inputs) != 3:
        return None, None, None
    x, low, high = (physical(one.detach()) if isinstance(one, Tensor) else one for one in inputs)
    return x, low, high


def _either(one: Tensor | None, other: Tensor | None) -> Tensor:
    if one is None or other is None:
        found = other if one is None else one
        assert found is not None, "a clamp has a bound"
        return found
    return one | other


def _nonfinite(grad: Tensor, total: Tensor) -> Any:
    if grad.device.type == "cpu" and math.isfinite(float(total)):
        return 0
    return torch.count_nonzero(~grad.isfinite())


def _wide(magnitude: Tensor) -> torch.dtype:
    return torch.float64 if magnitude.device.type == "cpu" else torch.float32


def _settled(value: Any) -> Any:
    """A number where that costs nothing: a CPU need not be waited for."""
    return value.item() if isinstance(value, Tensor) and value.device.type == "cpu" else value
