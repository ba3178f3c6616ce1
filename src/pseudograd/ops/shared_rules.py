"""Functions that the rules of several ops share. A pull gets None in place of each input that its rule does not keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..arguments import is_compiling
from ..geometry import Interval, Steps
from ..rule import Adapter, Gradients, Pull, Rule, Wants
from ..torch_table.private import in_forward_mode

UserFormula = Callable[..., Tensor]
Reference = Callable[..., tuple[float, ...]]


def row_of(name: str, pull: Pull, reference: Reference, *, is_linear: bool = True, **row: Any) -> Rule:
    """The row of a rule that does not compare its inputs with bounds. For the rules that do, see `bound_rules`."""
    return Rule(name=name, pull=pull, reference=reference, is_linear=is_linear, compares=False, **row)


def zeros_of(grad: Tensor) -> Tensor:
    """Zeros, also where grad is infinite or NaN; connected to grad, so that a second derivative exists and is 0."""
    if grad.is_nested:  # no tensor broadcasts to a nested tensor
        return torch.where(torch.zeros_like(grad, dtype=torch.bool), grad, 0.0)
    return torch.where(torch.zeros((), dtype=torch.bool, device=grad.device), grad, 0.0)


def pull_identity(grad: Tensor, *inputs: None, wants: Wants) -> Gradients:
    """The pull of a rule that passes grad, for an op whose only tensor is its first input."""
    return grad, *(None for _ in wants[1:])


def pull_zero(grad: Tensor, *inputs: None, wants: Wants) -> Gradients:
    """The pull of a rule that passes 0, for the same ops as `pull_identity`."""
    return zeros_of(grad), *(None for _ in wants[1:])


def alias(x: Tensor) -> Tensor:
    """The same storage under a new tensor. A compiler gets a copy: it refuses outputs that alias inputs, and fuses the copy away.

    Forward mode gets a copy, too: it wants the tangent to be a view where the value is one. Sparse and nested tensors have no view.
    """
    if is_compiling() or in_forward_mode() or x.layout is not torch.strided or x.is_nested:
        return x.clone()
    return x.view_as(x)


def widened(x: Tensor) -> Tensor:
    """Half precision as float32, so that a formula does not round each of its steps to half precision. Other dtypes as they are."""
    return x.float() if x.dtype is torch.float16 or x.dtype is torch.bfloat16 else x


def steps_at(slopes: tuple[float, float], interval: Interval) -> Steps:
    """The first slope outside an interval, the second inside. One bit tells them apart, so `planes` returns a list of one tensor."""
    return Steps(slopes, lambda x: [interval.holds(widened(x))], interval=interval)


def adapt(function: UserFormula, is_linear: bool, scalar_formula: Callable[..., float], /, **row: Any) -> Rule:
    """The row of a user's function(grad, x, **settings), for an element-wise op. Inputs other than x are numbers and get no gradient.

    scalar_formula: the same function on Python floats, for `reference`. fl: rounds to the dtype under test.
    """

    def pull(grad: Tensor, x: Tensor, *others: None, wants: Wants, settings: Mapping[str, float]) -> Gradients:
        return function(widened(grad), widened(x), **settings), *others

    def reference(
        x: float, grad: float, *others: float, fl: Callable[[float], float], settings: Mapping[str, float]
    ) -> tuple[float, ...]:
        return (fl(scalar_formula(grad, x, fl=fl, settings=settings)),)

    return row_of(pull=pull, reference=reference, is_linear=is_linear, keeps=("x",), is_from_user=True, **row)


def _trial() -> tuple[object, ...]:
    """grad and x of the one call that checks a user's function."""
    return torch.ones(5), torch.linspace(-2, 2, 5)


ADAPTER = Adapter(adapt, ("grad", "x"), _trial)
