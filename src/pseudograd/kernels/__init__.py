"""Residuals and the kernels that compute with them, in a table that may change at any time. Neither the rules nor the engine name one.

`residual_of` says what a call keeps; `backward` runs the first kernel that is ready for the tensors at hand, else the residual's own
plain formula. Compiled and functorch calls keep the inputs and run the formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..rule import Call, Gradients, Wants
from ..torch_private import dispatch_keys, is_zero
from .residuals import INPUTS, Inputs, Kept, Residual

Key = tuple[str, str]  # a rule set and the name of a rule


@dataclass(frozen=True, eq=False, repr=False)
class Kernel:
    """A faster way to the gradients of a residual, and perhaps to the residual.

    serves(call) -> bool is asked once for each call.
    backward(grad, kept, wants, call) -> one gradient per input, unreduced, or None to decline;
    forward(call, inputs, wants) -> (y, kept), or None to decline; for residuals other than the inputs, which cost nothing to keep.
    Both get tensors that are `plain`, and run where no mode watches and no second derivative is recorded.
    """

    name: str
    residual: Residual
    serves: Callable[[Call], bool]
    backward: Callable[[Tensor, Kept, Wants, Call], Gradients | None]
    forward: Callable[[Call, Inputs, Wants], tuple[Tensor, Kept] | None] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class _Served:
    """What the table has for one call, as long as the table does not change."""

    state: int
    residuals: tuple[Residual, ...]
    kernels: dict[str, tuple[Kernel, ...]]  # by the name of their residual


_residuals: dict[Key, list[Residual]] = {}
_kernels: dict[Key, list[Kernel]] = {}
_off: set[str] = set()
_state = 0  # of the table: another number after each change


def register(entry: Residual | Kernel, keys: Iterable[Key]) -> None:
    """For the rules of these keys. What is registered first is asked first."""
    table: dict[Key, list[Any]] = _kernels if isinstance(entry, Kernel) else _residuals
    for key in keys:
        table.setdefault(key, []).append(entry)
    _changed()


def remove(entry: Residual | Kernel) -> None:
    """Take it out again. A backward still to come finds the residual that its forward kept."""
    table: dict[Key, list[Any]] = _kernels if isinstance(entry, Kernel) else _residuals
    for entries in table.values():
        if entry in entries:
            entries.remove(entry)
    _changed()


@contextmanager
def off(*names: str) -> Iterator[None]:
    """Without the kernels of these names, in every thread. What calls keep stays the same."""
    added = set(names) - _off
    _off.update(added)
    _changed()
    try:
        yield
    finally:
        _off.difference_update(added)
        _changed()


def _changed() -> None:
    global _state
    _state += 1


def _served(call: Call) -> _Served:
    """Every call of every op comes by here, twice."""
    found: _Served | None = call.served
    if found is not None and found.state == _state:
        return found
    key = call.primitive.rule_set, call.rule.name
    residuals = () if call.primitive.saves != "rule" else tuple(_residuals.get(key, ()))
    serving = [kernel for kernel in _kernels.get(key, ()) if kernel.name not in _off and kernel.serves(call)]
    by_residual = {
        name: tuple(kernel for kernel in serving if kernel.residual.name == name)
        for name in {kernel.residual.name for kernel in serving}
    }
    call.served = found = _Served(_state, residuals, by_residual)
    return found


def residual_of(call: Call, inputs: Inputs, wants: Wants) -> Residual:
    """The first residual that serves the call; the inputs where none does."""
    for residual in _served(call).residuals:
        if residual.serves(call, inputs, wants):
            return residual
    return INPUTS


def forward(residual: Residual, call: Call, inputs: Inputs, wants: Wants) -> tuple[Tensor, Kept] | None:
    """By the first kernel that can; None where none can."""
    for kernel in _served(call).kernels.get(residual.name, ()):
        if kernel.forward is not None and are_plain(inputs):
            made = kernel.forward(call, inputs, wants)
            if made is not None:
                return made
    return None


def backward(residual: Residual, grad: Tensor, kept: Kept, wants: Wants, call: Call) -> Gradients | None:
    """By the first kernel that can; None where none can."""
    for kernel in _served(call).kernels.get(residual.name, ()):
        if not are_plain((grad, *kept)):
            return None
        found = kernel.backward(grad, kept, wants, call)
        if found is not None:
            return found
    return None


# By a tensor's dispatch keys, which say all of it: the methods of `_is_plain` would be calls of torch to every mode of functions.
_plain_keys: dict[int, bool] = {}


def are_plain(values: Iterable[Any]) -> bool:
    """Numbers, and tensors with strided memory of their own that holds their values: out= and raw pointers are safe."""
    for value in values:
        kind = type(value)
        if kind is Tensor or kind is torch.nn.Parameter:
            keys = dispatch_keys(value).raw_repr()
            if not (_plain_keys[keys] if keys in _plain_keys else _is_plain(value, keys)):
                return False
        elif isinstance(value, Tensor):
            return False
    return True


def _is_plain(value: Tensor, keys: int) -> bool:
    plain = value.layout is torch.strided and not (
        value.is_mkldnn or value.is_meta or value.is_neg() or value.is_conj() or is_zero(value)
    )
    if keys:
        _plain_keys[keys] = plain
    return plain


def status() -> list[dict[str, str]]:
    """Which kernels run, and why others do not."""
    served = ", ".join(sorted({"/".join(key) for key in _kernels}))
    return [
        {"kernel": "portable", "state": "active", "why": f"fused ATen calls for {served}"},
        {"kernel": "native", "state": "not active", "why": "not part of this build"},
        {"kernel": "triton", "state": "not active", "why": "not part of this build"},
    ]


from . import few_bits, portable  # noqa: E402, F401  (they register themselves, last because they need the table)
