"""Fused backward kernels, found by (family, rule). Neither the rules nor the engine name one.

A kernel serves an eager call of plain tensors that it `accepts`. It may bring its own forward and residual (two bits per element, say);
then it also brings `pull`, the differentiable formula on that residual. `fast` runs when no second derivative is being recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..rule import Call, Gradients

Residual = tuple[Any, ...]


@dataclass(frozen=True)
class Kernel:
    """One fused backward.

    serves(call) -> bool is asked once for each call, accepts(inputs, wants) -> bool every time;
    fast(grad, residual, call) -> one gradient per input, unreduced;
    forward(call, inputs) -> (y, residual); without it the residual is the op's inputs;
    pull(grad, residual, call) -> the gradients unreduced and differentiable; without it the rule's own.
    """

    name: str
    keys: tuple[tuple[str, str], ...]
    serves: Callable[[Call], bool]
    accepts: Callable[[tuple[Any, ...], tuple[bool, ...]], bool]
    fast: Callable[[Tensor, Residual, Call], Gradients]
    forward: Callable[[Call, tuple[Any, ...]], tuple[Tensor, Residual]] | None = None
    pull: Callable[[Tensor, Residual, Call], Gradients] | None = None


_kernels: dict[tuple[str, str], list[Kernel]] = {}


def register(kernel: Kernel) -> Kernel:
    for key in kernel.keys:
        _kernels.setdefault(key, []).append(kernel)
    return kernel


def find(call: Call, inputs: tuple[Any, ...], wants: tuple[bool, ...]) -> Kernel | None:
    """The first registered kernel that accepts this call."""
    if call.kernels is None:
        call.kernels = [k for k in _kernels.get((call.op.family, call.rule.name), ()) if k.serves(call)]
    for kernel in call.kernels:
        if kernel.accepts(inputs, wants):
            return kernel
    return None


def status() -> list[dict[str, str]]:
    """Which families of kernels run, and why the others do not."""
    served = ", ".join(sorted({f"{family}/{rule}" for family, rule in _kernels}))
    return [
        {"kernel": "portable", "state": "active", "why": f"fused ATen calls for {served}"},
        {"kernel": "native", "state": "not active", "why": "not part of this build"},
        {"kernel": "triton", "state": "not active", "why": "not part of this build"},
    ]


from . import portable  # noqa: E402, F401  (registers itself, last because it needs the table)
