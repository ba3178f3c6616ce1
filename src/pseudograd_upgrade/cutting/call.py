"""One call of torch with all that it reads, and the program of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ..recording import BACKWARD
from . import text
from .text import UnwritableError, tensor_text

_IN_PLACE = ("__iadd__", "__isub__", "__imul__", "__itruediv__")
_LINES, _WIDE = 10, 120


@dataclass(frozen=True)
class Call:
    """kind: of the event that differs; of a backward the gradients are looked at, else what the call returns. args, kwargs: as texts.

    grads: of an output (None: the only one) the name of the tensor that arrives there; with None for that, its sum is differentiated.
    autocast: device and dtype.
    """

    kind: str
    form: str
    name: str
    args: tuple[str, ...]
    kwargs: Mapping[str, str]
    tensors: Mapping[str, Tensor]
    requires: frozenset[str] = frozenset()
    grads: tuple[tuple[int | None, str | None], ...] = ()
    autocast: tuple[str, str] | None = None

    @property
    def is_in_place(self) -> bool:
        """Does it change its first tensor?"""
        last = self.name.rpartition(".")[2]
        is_named = last in _IN_PLACE or (last.endswith("_") and not last.endswith("__"))
        return self.form in (text.FUNCTION, text.METHOD) and (self.kwargs.get("inplace") == "True" or is_named)

    def but(self, **changes: Any) -> Call:
        """A changed call, without the tensors that nothing names any more."""
        call = replace(self, **changes)
        names = {name for _, name in call.grads if name}
        for argument in (*call.args, *call.kwargs.values()):
            names.update(re.findall(r"\w+", argument))
        tensors = {name: tensor for name, tensor in call.tensors.items() if name in names}
        return replace(call, tensors=tensors, requires=call.requires & tensors.keys())

    def lines(self, is_scalar: bool = False) -> list[str]:
        """The lines behind those of its tensors. `y` is what it returns. is_scalar: has y one entry and no dimension?"""
        lines = [f"y = {self.expression()}"]
        if self.autocast is not None:
            device, dtype = self.autocast
            lines = [f"with torch.autocast({device!r}, {dtype}):", f"    {lines[0]}"]
        return [*lines, self._backward_line(is_scalar)] if self.kind == BACKWARD else lines

    def expression(self) -> str:
        args = list(self.args)
        if self.is_in_place:  # a leaf that requires a gradient cannot be changed in place
            first = next((at for at, argument in enumerate(args) if argument in self.tensors), None)
            if first is not None:
                args[first] += ".clone()"
        if self.form == text.OPERATOR:
            return text.OPERATORS[self.name].format(*args)
        if self.form == text.PROPERTY:
            return f"{args[0]}.{self.name}"
        named = [f"{name}={argument}" for name, argument in self.kwargs.items()]
        if self.form == text.METHOD:
            return f"{args[0]}.{self.name}({', '.join([*args[1:], *named])})"
        return f"{self.name}({', '.join([*args, *named])})"

    def _backward_line(self, is_scalar: bool) -> str:
        outputs = ["y" if at is None else f"y[{at}]" for at, _ in self.grads]
        arriving = [name for _, name in self.grads]
        if not any(arriving):
            sums = [output if is_scalar else f"{output}.sum()" for output in outputs]
            return f"{sums[0]}.backward()" if len(sums) == 1 else f"({' + '.join(sums)}).backward()"
        if len(outputs) == 1:
            return f"{outputs[0]}.backward({arriving[0]})"
        return f"torch.autograd.backward([{', '.join(outputs)}], [{', '.join(map(str, arriving))}])"

    def programs(self, shown: str, *, is_random: bool, is_tensor: bool, is_scalar: bool) -> Iterator[str]:
        """The program that prints as torch does, then the one with all digits. UnwritableError where ten lines do not hold it.

        shown: the result that differs, `y1` or `grad of x`. is_random, is_tensor, is_scalar: of the call and of y.
        """
        for printed in ("{}", "{}.tolist()"):
            lines = self._program(shown, printed, is_random, is_tensor, is_scalar)
            if len(max(lines, key=len)) > _WIDE or sum(map(bool, lines)) > _LINES:
                count = sum(tensor.numel() for tensor in self.tensors.values())
                raise UnwritableError(f"what is left of it has {count:,} numbers, more than ten lines hold")
            yield "\n".join(lines) + "\n"

    def _program(self, shown: str, printed: str, is_random: bool, is_tensor: bool, is_scalar: bool) -> list[str]:
        lines = self.lines(is_scalar)
        if shown.startswith("grad of "):
            shown = f"{shown.removeprefix('grad of ')}.grad"
        else:
            shown = "y" if is_tensor else f"y[{shown.removeprefix('y')}]"
            shown += ".detach()" if printed == "{}" and self.requires else ""
        seed = ["torch.manual_seed(0)"] if is_random else []
        tensors = [f"{name} = {tensor_text(tensor, name in self.requires)}" for name, tensor in self.tensors.items()]
        return ["import torch", "", *seed, *tensors, *lines, f"print({printed.format(shown)})"]
