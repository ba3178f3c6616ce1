"""One call of torch with all that it reads, and the text of a program that makes it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import resolve_name

from ..recording import BACKWARD

FUNCTION, METHOD = "function", "method"  # the syntax of a call
_IN_PLACE = ("__iadd__", "__isub__", "__imul__", "__itruediv__")
_MOST_LINES, _LONGEST_LINE = 10, 120
_ATEN = (type(torch.ops.aten.clamp), type(torch.ops.aten.clamp.default))
_MODULES = (torch, torch.nn.functional, torch.special, torch.linalg, torch.fft)
_DTYPES_OF_PYTHON = (torch.float32, torch.int64, torch.bool, torch.complex64)  # torch.tensor gives these to numbers
_LONGEST_LIST = 24  # more equal entries are written with torch.full


class NoProgramError(Exception):
    """No program of ten lines shows that the call differs. The text is the reason, as the end of a sentence."""


class SameAloneError(NoProgramError):
    """With the same arguments the call gives the same results under both torches."""

    def __init__(self) -> None:
        super().__init__("with the same arguments, the call alone gives the same under both, but for rounding")


@dataclass(frozen=True)
class Outcome:
    """The result of a call. tensors: its outputs as y0, y1, ..., and the gradients of its inputs as "grad of x"."""

    error: str | None
    tensors: Mapping[str, Tensor]
    is_random: bool = False
    is_tensor: bool = True  # not a tuple of tensors


@dataclass(frozen=True)
class Call:
    """args, kwargs: as texts, which name the `tensors`. kind: with BACKWARD its gradients are compared, else its outputs.

    requires: the tensors that require a gradient. grads: pairs of an output and the name of the gradient that arrives there. An output is
    None if it is the only one. The name is None if the sum of the output is differentiated.
    """

    kind: str
    syntax: str
    name: str
    args: tuple[str, ...]
    kwargs: Mapping[str, str]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    requires: frozenset[str] = frozenset()
    grads: tuple[tuple[int | None, str | None], ...] = ()

    @property
    def is_in_place(self) -> bool:
        """Does the call change its first tensor?"""
        last = self.name.rpartition(".")[2]
        is_named = last in _IN_PLACE or (last.endswith("_") and not last.endswith("__"))
        return is_named or self.kwargs.get("inplace") == "True"

    def but(self, **changes: Any) -> Call:
        """A changed call, without the tensors that it does not name any more."""
        call = replace(self, **changes)
        names = {name for _, name in call.grads if name}
        for argument in (*call.args, *call.kwargs.values()):
            names.update(re.findall(r"\w+", argument))
        tensors = {name: tensor for name, tensor in call.tensors.items() if name in names}
        return replace(call, tensors=tensors, requires=call.requires & tensors.keys())

    def lines(self, is_scalar: bool = False) -> list[str]:
        """The lines of the call, which follow those of its tensors. is_scalar: has y no dimension?"""
        args = list(self.args)
        if self.is_in_place:  # a leaf that requires a gradient cannot be changed in place
            first = next((at for at, argument in enumerate(args) if argument in self.tensors), None)
            if first is not None:
                args[first] += ".clone()"
        named = [f"{name}={argument}" for name, argument in self.kwargs.items()]
        attribute = re.fullmatch(r"torch\.Tensor\.(\w+)\.__get__", self.name)
        if attribute:
            call = f"y = {args[0]}.{attribute[1]}"
        else:
            function = f"{args.pop(0)}.{self.name}" if self.syntax == METHOD else self.name
            call = f"y = {function}({', '.join([*args, *named])})"
        return [call, self._backward_line(is_scalar)] if self.kind == BACKWARD else [call]

    def _backward_line(self, is_scalar: bool) -> str:
        outputs = ["y" if at is None else f"y[{at}]" for at, _ in self.grads]
        arriving = [name for _, name in self.grads]
        if not any(arriving):
            sums = [output if is_scalar else f"{output}.sum()" for output in outputs]
            return f"{sums[0]}.backward()" if len(sums) == 1 else f"({' + '.join(sums)}).backward()"
        if len(outputs) == 1:
            return f"{outputs[0]}.backward({arriving[0]})"
        return f"torch.autograd.backward([{', '.join(outputs)}], [{', '.join(map(str, arriving))}])"

    def programs(self, shown: str, outcome: Outcome) -> Iterator[str]:
        """A program that prints the tensor `shown`, then one that prints all its digits. NoProgramError if ten lines cannot hold it."""
        y = outcome.tensors.get("y0")
        is_scalar = outcome.is_tensor and y is not None and not y.dim()
        seed = ["torch.manual_seed(0)"] if outcome.is_random else []
        tensors = [f"{name} = {tensor_text(tensor, name in self.requires)}" for name, tensor in self.tensors.items()]
        if shown.startswith("grad of "):
            texts = [f"{shown.removeprefix('grad of ')}.grad"] * 2
        else:
            y_text = "y" if outcome.is_tensor else f"y[{shown.removeprefix('y')}]"
            texts = [y_text + (".detach()" if self.requires else ""), y_text]
        for text, method in zip(texts, ("", ".tolist()"), strict=True):
            lines = ["import torch", "", *seed, *tensors, *self.lines(is_scalar), f"print({text}{method})"]
            if len(max(lines, key=len)) > _LONGEST_LINE or len(lines) - 1 > _MOST_LINES:
                count = sum(tensor.numel() for tensor in self.tensors.values())
                raise NoProgramError(f"what is left of it has {count:,} numbers, more than ten lines hold")
            yield "\n".join(lines) + "\n"


def name_function(function: object) -> tuple[str, str]:
    """The syntax and the name of a function: a function's name has its modules, a method's has none."""
    name = _public_name(function)
    is_method = name.startswith("torch.Tensor.") and not name.endswith(".__get__")
    name = name.removeprefix("torch.Tensor.") if is_method else name
    if any(part.startswith("_") and not part.endswith("__") for part in name.split(".")):
        raise NoProgramError(f"{name} is not public")
    return METHOD if is_method else FUNCTION, name


def _public_name(function: object) -> str:
    if isinstance(function, _ATEN):
        space, _, rest = str(function).partition(".")
        if space != "aten":
            raise NoProgramError(f"{space}.{rest} is an op of another package")
        return f"torch.ops.aten.{rest}"
    name = str(getattr(function, "__name__", function))
    for module in _MODULES:
        if getattr(module, name, None) is function:
            return f"{module.__name__}.{name}"
    resolved: str | None = resolve_name(function)
    if resolved is None:
        raise NoProgramError(f"{name} is no function of torch that has a public name")
    return resolved


def argument_text(value: object, name: Callable[[Tensor], str]) -> str:
    """The argument as a program writes it. name: returns the name of a tensor."""
    if isinstance(value, Tensor):
        return name(value)
    if type(value) is float:
        return repr(value) if math.isfinite(value) else _nonfinite_text(value)
    if value is None or type(value) in (bool, int, str, complex):
        return repr(value)
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple, torch.Size):
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
    raise NoProgramError(f"an argument is a {type(value).__name__}, which has no short way to be written")


def _nonfinite_text(value: float) -> str:
    return "torch.nan" if math.isnan(value) else "torch.inf" if value > 0 else "-torch.inf"


def tensor_text(x: Tensor, requires: bool = False) -> str:
    """An expression for a tensor that is equal to the last bit and has the same strides."""
    gradient = ", requires_grad=True" if requires else ""
    if not x.is_contiguous():
        flat = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
        leaf = ".requires_grad_()" if requires else ""
        return f"{tensor_text(flat)}.as_strided({tuple(x.shape)}, {x.stride()}){leaf}"
    options = gradient if x.dtype in _DTYPES_OF_PYTHON else f", dtype={x.dtype}{gradient}"
    if 0 in x.shape:
        return f"torch.zeros({tuple(x.shape)}, dtype={x.dtype}{gradient})"
    values = x.reshape(-1)
    if x.numel() > _LONGEST_LIST and bool((values == values[0]).all()):
        return f"torch.full({tuple(x.shape)}, {number_text(values[0])}{options})"
    return f"torch.tensor({_nest([number_text(value) for value in values], list(x.shape))}{options})"


def _nest(numbers: list[str], shape: list[int]) -> str:
    if not shape:
        return numbers[0]
    size = len(numbers) // shape[0]
    rows = [numbers[at : at + size] for at in range(0, len(numbers), size)]
    return f"[{', '.join(_nest(row, shape[1:]) for row in rows)}]"


def number_text(entry: Tensor) -> str:
    """The shortest text that gives this number in its dtype."""
    value: object = entry.item()
    if isinstance(value, complex):
        return f"complex({_float_text(value.real, torch.float64)}, {_float_text(value.imag, torch.float64)})"
    return _float_text(value, entry.dtype) if isinstance(value, float) else repr(value)


def _float_text(value: float, dtype: torch.dtype) -> str:
    if not math.isfinite(value):
        return _nonfinite_text(value)
    shorter = (float(f"{value:.{digits}g}") for digits in range(18))
    return repr(next(short for short in shorter if torch.tensor(short, dtype=dtype).item() == value))


def copy_strided(tensor: Tensor) -> Tensor:
    """A copy with the same strides in memory of its own. It is contiguous if most of that memory would be gaps."""
    x = tensor.detach()
    sizes = list(zip(x.shape, x.stride(), strict=True))
    span = 1 + sum((size - 1) * stride for size, stride in sizes) if x.numel() else 0
    if not span or span > 4 * x.numel() or x.is_conj() or x.is_neg():
        return x.clone(memory_format=torch.contiguous_format)
    if 0 in x.stride():
        return x.as_strided((span,), (1,), x.storage_offset()).clone().as_strided(x.shape, x.stride(), 0)
    return x.new_zeros(span).as_strided(x.shape, x.stride()).copy_(x)
