"""Checks of the arguments of public functions, and the rounding that torch applies to a number bound."""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from numbers import Integral, Real
from typing import Any, TypeGuard

import torch
from torch import Tensor

from .errors import must

APPROXIMATE = ("none", "tanh")  # the forms of gelu; the primitive takes the position of one of these as an input


class _InGraph(threading.local):
    is_entered = False


_in_graph = _InGraph()


@contextmanager
def in_graph() -> Iterator[None]:
    """A context for a formula inside a node of a graph that hides it from Dynamo."""
    _in_graph.is_entered = True
    try:
        yield
    finally:
        _in_graph.is_entered = False


def is_compiling() -> bool:
    """Will a compiler change the operations of this formula? torch's function says no inside a node that hides it."""
    return torch.compiler.is_compiling() or _in_graph.is_entered


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float))


def as_number(value: Any) -> Any:
    """A scalar of NumPy as a number; any other value as it is. A compiler sees such a scalar as an array without dimensions."""
    if isinstance(value, (int, float, Tensor)):
        return value
    if torch.compiler.is_compiling():
        return float(value) if hasattr(value, "dtype") else value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def has_negative_zero(values: Iterable[object]) -> bool:
    """Is one of these numbers -0.0? A dictionary takes it for 0.0. A value may be None."""
    return any(value == 0 and math.copysign(1.0, value) == -1.0 for value in values)


def is_finite(value: float) -> bool:
    """Is the number neither infinite nor NaN? A compiler can compute value - value for a number from `.item()`, which it does not know."""
    return bool(value - value == 0)


def is_true(condition: bool) -> bool:
    """Is the condition true for certain? False for a number from `.item()` that a compiler does not know."""
    if not torch.compiler.is_compiling():
        return bool(condition)
    from torch.fx.experimental.symbolic_shapes import guard_or_false  # on demand: it imports sympy

    return guard_or_false(condition)


def is_constant(value: float) -> bool:
    """Is the number, which a compiler traces, a constant of its graph and no symbol?"""
    from torch.fx.experimental.symbolic_shapes import has_static_value  # on demand, as above

    return has_static_value(value)


def rounded(value: float | Tensor, like: Tensor) -> float | Tensor:
    """A number as torch compares it with `like`: rounded to like's dtype. Tensors are returned unchanged.

    torch.clamp rounds a number bound to the dtype of x, so "at the bound" must mean the rounded bound. A compiler that computes
    half precision in float32 would compare with the unrounded one; there the number becomes a tensor of that dtype.
    """
    if isinstance(value, Tensor) or like.dtype is torch.float64:
        return value
    if is_compiling():
        if like.dtype is torch.float32:
            return value
        # Through integers and back, or Inductor keeps the number that it was before it had this dtype.
        return torch.full((), value, dtype=like.dtype, device=like.device).view(torch.int16).view(like.dtype)
    return rounded_to(value, like.dtype)


def rounded_to(value: float, dtype: torch.dtype) -> float:
    """`value` rounded to a float dtype, to nearest even; inf where it does not fit, 0 where the processor flushes subnormals."""
    if value == 0:  # `lru_cache` takes -0.0 for 0.0
        return float(value)
    return _rounded_to(value, dtype, flushes_subnormals())


_SMALLEST_SUBNORMAL = 2.0**-1074


def flushes_subnormals() -> bool:
    """Did torch.set_flush_denormal(True) run in this thread? Python's floats obey the same switch of the processor.

    A memory of results that depend on small numbers needs this answer in its key.
    """
    return not _SMALLEST_SUBNORMAL > 0.0


@lru_cache(maxsize=4096)
def _rounded_to(value: float, dtype: torch.dtype, flushes: bool) -> float:
    """flushes: only a part of the key under which lru_cache keeps the result. The conversion itself obeys the processor's switch."""
    value = float(value)
    if dtype is torch.float64 or not math.isfinite(value):
        return value
    try:
        single: float = struct.unpack("f", struct.pack("f", value))[0]
        if dtype is torch.float16:
            return float(struct.unpack("e", struct.pack("e", single))[0])
    except OverflowError:
        return math.copysign(math.inf, value)
    if dtype is torch.bfloat16:
        bits = struct.unpack("I", struct.pack("f", single))[0]
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return float(struct.unpack("f", struct.pack("I", bits))[0])
    return single


def check_finite_number(op: str, argument: str, value: object) -> float:
    number = as_number(value)
    if isinstance(value, bool) or not is_number(number):
        raise TypeError(must(op, argument, "be a number", value))
    if not is_finite(number):
        raise ValueError(must(op, argument, "be finite", number))
    return number


def check_tensor(op: str, argument: str, value: object, remedy: str = "Wrap it in torch.tensor(...)") -> None:
    if not isinstance(value, Tensor):
        raise TypeError(must(op, argument, "be a tensor", value, remedy))
    if value.is_complex():
        raise TypeError(must(op, argument, "be real", value.dtype, "Complex numbers have no order; call x.real first"))


def check_floating(op: str, argument: str, value: Tensor, remedy: str = "Call .float() first") -> None:
    check_tensor(op, argument, value)
    if not value.is_floating_point():
        raise TypeError(must(op, argument, "be floating point", value.dtype, remedy))


def check_integer(op: str, argument: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(must(op, argument, "be an integer", value))


def is_broadcastable(shape: torch.Size, target: torch.Size, grows: bool = False) -> bool:
    """Does a tensor of `shape` broadcast with one of shape `target`? If `grows` is False, the result must have the shape `target`."""
    for back in range(1, min(len(shape), len(target)) + 1):
        if shape[-back] != target[-back] and shape[-back] != 1 and not (grows and target[-back] == 1):
            return False
    return grows or len(shape) <= len(target)


def check_broadcast(op: str, argument: str, value: Tensor, shape: torch.Size, target: str, grows: bool = True) -> None:
    """`value` must broadcast with `shape`, that of `target`. If `grows` is False, the result must have `shape`, too."""
    if torch.jit.is_tracing():  # type: ignore[attr-defined]  # sizes are tensors then, and reading them leaves a warning in the trace
        return
    if value.shape == shape:
        return
    if not is_broadcastable(value.shape, shape, grows):
        requirement = f"broadcast {'with' if grows else 'to'} {target} of shape {tuple(shape)}"
        raise ValueError(must(op, argument, requirement, tuple(value.shape), "Reshape or expand it"))


def check_device(op: str, argument: str, value: Tensor, device: torch.device, target: str) -> None:
    """`value` must be on this device, that of `target`, or be a 0-d CPU tensor, which torch combines with any device."""
    if value.device != device and not (value.dim() == 0 and value.device.type == "cpu"):
        requirement, remedy = f"be on {device}, the device of {target}", f"Call .to({str(device)!r}) first"
        raise ValueError(must(op, argument, requirement, str(value.device), remedy))
