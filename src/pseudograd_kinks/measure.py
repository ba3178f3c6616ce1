"""Measure the installed torch at a point, by a route: eager mode, vectorised kernels, forward mode, or another dtype."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .outcome import Numbers, Outcome
from .table import Point

_TILES = 64  # copies of the inputs: they fill the vectors of every processor, so no loop over single numbers runs
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}
EAGER = "eager"
ROUTES_WITH_ZEROS = ("forward", "aot_eager", "inductor")  # they give zeros where eager mode gives no gradient


def measure(point: Point, route: str, device: str = "cpu") -> Outcome | None:
    """The outcome at a point by one of ROUTES. None if the route does not apply: only element-wise points have vectorised kernels."""
    if route == "vector" and not point.elementwise:
        return None
    try:
        with warnings.catch_warnings(), torch.inference_mode(False), torch.enable_grad():
            warnings.simplefilter("ignore")  # of complex half precision, and of a variance of too few numbers
            return ROUTES[route](point, device)
    except AttributeError as error:
        return Outcome(error=error_line(error), is_absent="has no attribute" in str(error))
    except Exception as error:
        return Outcome(error=error_line(error))


def error_line(error: Exception) -> str:
    """The type and the first line of an error, without addresses, which differ from run to run."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {re.sub(r'0x[0-9a-f]+', '0x…', lines[0])[:160]}".rstrip(": ")


def torch_function(point: Point) -> Callable[..., Tensor]:
    return point.function("torch", {"torch": torch, "F": torch.nn.functional})


def make_inputs(
    point: Point, device: str, dtype: torch.dtype = torch.float32, tiles: int = 1, requires_grad: bool = True
) -> list[Tensor]:
    tensors = [torch.tensor(value, dtype=dtype, device=device) for value in point.inputs]
    tensors = [tensor.tile(tiles) for tensor in tensors] if tiles > 1 else tensors
    for index in point.differentiated:
        tensors[index].requires_grad_(requires_grad)
    return tensors


def weighted_sum(point: Point, y: Tensor, tiles: int = 1) -> Tensor:
    """The scalar whose gradient is taken."""
    flat = y.reshape(-1)
    if not point.weights:
        return flat.sum()
    return (flat * torch.tensor(point.weights, dtype=flat.dtype, device=flat.device).tile(tiles)).sum()


def gradient_of(point: Point, y: Tensor, leaves: list[Tensor], tiles: int = 1) -> Outcome:
    """The gradient of y, which was computed from `leaves`."""
    wanted = [leaves[index] for index in point.differentiated]
    if not y.requires_grad:
        return Outcome((None,) * len(wanted))
    gradients = torch.autograd.grad(weighted_sum(point, y, tiles), wanted, allow_unused=True)
    return Outcome(tuple(None if gradient is None else numbers_of(gradient) for gradient in gradients))


def numbers_of(tensor: Tensor) -> Numbers:
    copied = torch.empty(tensor.numel(), dtype=torch.float64)  # some zeros of torch have no storage
    return tuple(copied.copy_(tensor.detach().reshape(-1)).tolist())


def _measure_reverse(point: Point, device: str, dtype: torch.dtype = torch.float32) -> Outcome:
    leaves = make_inputs(point, device, dtype)
    return gradient_of(point, torch_function(point)(*leaves), leaves)


def _measure_vector(point: Point, device: str) -> Outcome:
    leaves = make_inputs(point, device, tiles=_TILES)
    rows = gradient_of(point, torch_function(point)(*leaves), leaves, _TILES).gradient
    assert rows is not None
    return Outcome(tuple(None if row is None else _first_tile(row) for row in rows))


def _first_tile(row: Numbers) -> Numbers:
    """The gradients of the first copy of the inputs. Raises ArithmeticError if another copy gets other gradients."""
    size = len(row) // _TILES
    tiles = {str(row[start : start + size]) for start in range(0, len(row), size)}
    if len(tiles) > 1:
        raise ArithmeticError(f"equal entries get {len(tiles)} gradients in one tensor")
    return row[:size]


def _measure_forward(point: Point, device: str) -> Outcome:
    """Forward mode, one entry of one input at a time."""
    f, inputs = torch_function(point), make_inputs(point, device, requires_grad=False)
    return Outcome(
        tuple(
            tuple(_tangent_slope(point, f, inputs, index, entry) for entry in range(inputs[index].numel()))
            for index in point.differentiated
        )
    )


def _tangent_slope(point: Point, f: Callable[..., Tensor], inputs: list[Tensor], index: int, entry: int) -> float:
    """The derivative by one entry of the input with this index."""
    tangent = torch.zeros_like(inputs[index])
    tangent.view(-1)[entry] = 1.0
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x.clone(), tangent) if i == index else x.clone() for i, x in enumerate(inputs)]
        slope = forward_ad.unpack_dual(weighted_sum(point, f(*duals))).tangent
    return 0.0 if slope is None else float(slope)


ROUTES: dict[str, Callable[[Point, str], Outcome]] = {
    EAGER: _measure_reverse,
    "vector": _measure_vector,
    "forward": _measure_forward,
    **{name: partial(_measure_reverse, dtype=dtype) for name, dtype in _DTYPES.items()},
}


def dtype_of(route: str) -> str:
    """The dtype in which the route computes."""
    return route if route in _DTYPES else "float32"
