"""What the installed torch does at a point, by route: eager and compiled, forward mode, kernels and dtypes."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .numbers import Outcome
from .point import Point

_NAMES = {"torch": torch, "F": torch.nn.functional}
_TILES = 64  # each value so often: whole vectors of every processor, and no rest for the scalar loop
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}
EAGER = "eager"
FILLED = ("forward", "aot_eager", "inductor")  # they say zero where eager mode gives no gradient


class Place:
    """Where a point is measured."""

    def __init__(self, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        self.device = device
        self.dtype = dtype

    def inputs(self, point: Point, tiles: int = 1) -> list[Tensor]:
        made = [torch.tensor(value, dtype=self.dtype, device=self.device) for value in point.inputs]
        return [value.tile(tiles) for value in made] if tiles > 1 else made

    def leaves(self, point: Point, tiles: int = 1) -> list[Tensor]:
        made = self.inputs(point, tiles)
        for at in point.differentiated:
            made[at].requires_grad_()
        return made


def measured(point: Point, route: str, device: str = "cpu") -> Outcome | None:
    """By one of ROUTES; None where the route says nothing of the point: there is no vectorised kernel for what is not element-wise."""
    if route == "vector" and not point.elementwise:
        return None
    return _tried(lambda: ROUTES[route](point, device))


def function_of(point: Point) -> Callable[..., Tensor]:
    return point.function("torch", _NAMES)


def weighted(point: Point, y: Tensor, tiles: int = 1) -> Tensor:
    """The sum of the result with the point's weights, of which a gradient is taken."""
    flat = y.reshape(-1)
    if not point.weights:
        return flat.sum()
    return (flat * torch.tensor(point.weights, dtype=flat.dtype, device=flat.device).tile(tiles)).sum()


def _reverse(point: Point, device: str, dtype: torch.dtype = torch.float32) -> Outcome:
    leaves = Place(device, dtype).leaves(point)
    return gradient_of(point, function_of(point)(*leaves), leaves)


def gradient_of(point: Point, y: Tensor, leaves: list[Tensor], tiles: int = 1) -> Outcome:
    """The gradient of what `leaves` have become."""
    asked = [leaves[at] for at in point.differentiated]
    if not y.requires_grad:
        return Outcome((None,) * len(asked))
    found = torch.autograd.grad(weighted(point, y, tiles), asked, allow_unused=True)
    return Outcome(tuple(None if one is None else numbers_of(one) for one in found))


def _vector(point: Point, device: str) -> Outcome:
    leaves = Place(device).leaves(point, _TILES)
    whole = gradient_of(point, function_of(point)(*leaves), leaves, _TILES).gradient
    assert whole is not None
    return Outcome(tuple(None if row is None else _of_one_tile(row) for row in whole))


def _of_one_tile(row: tuple[float, ...]) -> tuple[float, ...]:
    """The gradients of every tile are those of the first, or the kernel does not do the same everywhere."""
    size = len(row) // _TILES
    tiles = {str(row[start : start + size]) for start in range(0, len(row), size)}
    if len(tiles) > 1:
        raise ArithmeticError(f"equal entries get {len(tiles)} gradients in one tensor")
    return row[:size]


def _forward(point: Point, device: str) -> Outcome:
    """One entry of one input at a time, by torch's forward mode."""
    f = function_of(point)
    inputs = Place(device).inputs(point)
    rows: list[tuple[float, ...]] = []
    for at in point.differentiated:
        rows.append(tuple(_slope(point, f, inputs, at, entry) for entry in range(inputs[at].numel())))
    return Outcome(tuple(rows))


def _slope(point: Point, f: Callable[..., Tensor], inputs: list[Tensor], at: int, entry: int) -> float:
    tangent = torch.zeros_like(inputs[at])
    tangent.view(-1)[entry] = 1.0
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x.clone(), tangent) if i == at else x.clone() for i, x in enumerate(inputs)]
        slope = forward_ad.unpack_dual(weighted(point, f(*duals))).tangent
    return 0.0 if slope is None else float(slope)


def _of_dtype(dtype: torch.dtype) -> Callable[[Point, str], Outcome]:
    return lambda point, device: _reverse(point, device, dtype)


ROUTES: dict[str, Callable[[Point, str], Outcome]] = {
    EAGER: _reverse,
    "vector": _vector,
    "forward": _forward,
    **{name: _of_dtype(dtype) for name, dtype in _DTYPES.items()},
}


# --- what goes wrong --------------------------------------------------------------------------------------------------


def _tried(measurement: Callable[[], Outcome]) -> Outcome:
    """An error is an outcome, too."""
    try:
        with warnings.catch_warnings(), torch.inference_mode(False), torch.enable_grad():
            warnings.simplefilter(
                "ignore"
            )  # of complex half precision, of too few numbers for a variance: here they are meant
            return measurement()
    except AttributeError as error:
        is_absent = "has no attribute" in str(error)
        return Outcome(error=in_one_line(error), is_absent=is_absent)
    except Exception as error:
        return Outcome(error=in_one_line(error))


def in_one_line(error: Exception) -> str:
    """Its type and first line, without what differs from run to run."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {re.sub(r'0x[0-9a-f]+', '0x…', lines[0])[:160]}".rstrip(": ")


def numbers_of(tensor: Tensor) -> tuple[float, ...]:
    copied = torch.empty(tensor.numel(), dtype=torch.float64)  # torch keeps some zeros without storage
    return tuple(copied.copy_(tensor.detach().reshape(-1)).tolist())


def dtype_of(route: str) -> str:
    """What the numbers of a route are rounded to."""
    return route if route in _DTYPES else "float32"


def short_version(version: object) -> str:
    """ "2.13" of "2.13.0+cpu"."""
    return ".".join(str(version).split("+")[0].split(".")[:2])
