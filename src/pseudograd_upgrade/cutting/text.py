"""Python text of what a call reads: its function by a public name, its arguments, and its tensors to the last bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import resolve_name

FUNCTION, METHOD, PROPERTY, OPERATOR = "function", "method", "property", "operator"
OPERATORS = {
    "__getitem__": "{0}[{1}]",
    "__rsub__": "{1} - {0}",
    "__pow__": "{0} ** {1}",
    "__rpow__": "{1} ** {0}",
    "__rdiv__": "{1} / {0}",
    "__rtruediv__": "{1} / {0}",
    "__matmul__": "{0} @ {1}",
    "__rmatmul__": "{1} @ {0}",
    "__neg__": "-{0}",
}
_ATEN = (type(torch.ops.aten.clamp), type(torch.ops.aten.clamp.default))
_SPACES = ("torch", "torch.nn.functional", "torch.special", "torch.linalg", "torch.fft")
_PLAIN = (torch.float32, torch.int64, torch.bool, torch.complex64)  # what torch.tensor makes of Python's numbers
_MANY = 24  # entries that torch.full writes where they are equal


class UnwritableError(Exception):
    """Something cannot stand in a program of ten lines. The text says why, as the end of a sentence."""


class SameAloneError(UnwritableError):
    """With the same arguments the call gives the same under both."""


# --- functions --------------------------------------------------------------------------------------------------------


def name_function(function: object) -> tuple[str, str]:
    """How a user calls it, and by which name: a function with its modules, a method or an operator without.

    UnwritableError for a function that has no public name in torch.
    """
    name = _resolve(function)
    if name is None:
        raise UnwritableError(
            f"{getattr(function, '__name__', function)} is no function of torch that has a public name"
        )
    form = FUNCTION
    if name.startswith("torch.Tensor."):
        name = name.removeprefix("torch.Tensor.")
        if name.endswith(".__get__"):
            return PROPERTY, name.removesuffix(".__get__")
        if name in OPERATORS:
            return OPERATOR, name
        form = METHOD
    is_special = form == METHOD and name.startswith("__")
    if not is_special and any(part.startswith("_") for part in name.split(".")):
        raise UnwritableError(f"{name} is not public")
    return form, name


def _resolve(function: object) -> str | None:
    if isinstance(function, _ATEN):
        space, _, rest = str(function).partition(".")
        if space != "aten":
            raise UnwritableError(f"{space}.{rest} is an op of another package")
        return f"torch.ops.aten.{rest}"
    name = getattr(function, "__name__", "")
    for space in _SPACES:
        module: object = torch
        for part in space.split(".")[1:]:
            module = getattr(module, part)
        if getattr(module, name, None) is function:
            return f"{space}.{name}"
    resolved = resolve_name(function)
    return None if resolved is None else str(resolved)


# --- arguments --------------------------------------------------------------------------------------------------------


def argument_text(value: Any, name: Callable[[Tensor], str]) -> str:
    """name: gives each tensor in the value its name."""
    if isinstance(value, Tensor):
        return name(value)
    if value is None or type(value) in (bool, int, str, complex):
        return repr(value)
    if type(value) is float:
        return repr(value) if math.isfinite(value) else _infinity(value)
    if type(value) in (list, tuple, torch.Size):
        inside = ", ".join(argument_text(item, name) for item in value)
        if type(value) is list:
            return f"[{inside}]"
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if isinstance(value, slice):
        return f"slice({', '.join(argument_text(part, name) for part in (value.start, value.stop, value.step))})"
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value)
    if isinstance(value, torch.device):
        return repr(value.type)
    if value is Ellipsis:
        return "..."
    raise UnwritableError(f"an argument is a {type(value).__name__}, which has no short way to be written")


def index_text(value: Any, name: Callable[[Tensor], str]) -> str:
    """Text between brackets."""
    if isinstance(value, tuple) and value:
        return ", ".join(index_text(item, name) for item in value)
    if isinstance(value, slice):
        start, stop, step = ("" if x is None else argument_text(x, name) for x in (value.start, value.stop, value.step))
        return f"{start}:{stop}" + (f":{step}" if step else "")
    return argument_text(value, name)


def _infinity(value: float) -> str:
    return "torch.nan" if value != value else "torch.inf" if value > 0 else "-torch.inf"


# --- tensors ----------------------------------------------------------------------------------------------------------


def tensor_text(x: Tensor, requires: bool = False) -> str:
    gradient = ", requires_grad=True" if requires else ""
    if not x.is_contiguous():
        flat = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
        leaf = ".requires_grad_()" if requires else ""
        return f"{tensor_text(flat)}.as_strided({tuple(x.shape)}, {x.stride()}){leaf}"
    options = gradient if x.dtype in _PLAIN else f", dtype={x.dtype}{gradient}"
    if 0 in x.shape:
        return f"torch.zeros({tuple(x.shape)}, dtype={x.dtype}{gradient})"
    values = x.reshape(-1)
    if x.numel() > _MANY and bool((values == values[0]).all()):
        return f"torch.full({tuple(x.shape)}, {number_text(values[0])}{options})"
    return f"torch.tensor({_nest([number_text(value) for value in values], list(x.shape))}{options})"


def _nest(numbers: list[str], shape: list[int]) -> str:
    if not shape:
        return numbers[0]
    size = len(numbers) // shape[0]
    return f"[{', '.join(_nest(numbers[at : at + size], shape[1:]) for at in range(0, len(numbers), size))}]"


def number_text(entry: Tensor) -> str:
    """The fewest digits that make this number in its dtype."""
    value: object = entry.item()
    if isinstance(value, complex):
        return f"complex({_float_text(value.real, torch.float64)}, {_float_text(value.imag, torch.float64)})"
    return _float_text(value, entry.dtype) if isinstance(value, float) else repr(value)


def _float_text(value: float, dtype: torch.dtype) -> str:
    if not math.isfinite(value):
        return _infinity(value)
    for digits in range(1, 18):
        short = float(f"{value:.{digits}g}")
        if torch.tensor(short, dtype=dtype).item() == value:
            return repr(short)
    return repr(value)


def own_memory(tensor: Tensor) -> Tensor:
    """A copy with the same strides, in memory that holds nothing else; contiguous where most of that memory would be gaps."""
    x = tensor.detach()
    sizes = list(zip(x.shape, x.stride(), strict=True))
    span = 1 + sum((size - 1) * stride for size, stride in sizes) if x.numel() else 0
    if not span or span > 4 * x.numel() or x.is_conj() or x.is_neg():
        return x.clone(memory_format=torch.contiguous_format)
    if any(size > 1 and not stride for size, stride in sizes):
        return x.as_strided((span,), (1,), x.storage_offset()).clone().as_strided(x.shape, x.stride(), 0)
    return x.new_zeros(span).as_strided(x.shape, x.stride()).copy_(x)
