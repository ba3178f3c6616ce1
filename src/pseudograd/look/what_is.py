"""Which rule of this library is a function? The answer comes from measured values and gradients, never from a name.

`what_is` takes an autograd.Function of somebody's program and does no harm: it calls forward and backward alone, with a ctx and numbers
of its own. It calls no `apply` and makes no graph, so no hook and no mode of the program sees it. It calls a class only where the source
shows that the class does nothing but compute: see `purity`. `name_measured` takes what an audit measured of any function.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..rule import OPS
from ..testing.measure.behaviour import gradient_of
from ..torch_table.private import outside_of_transforms, without_dispatch_modes, without_torch_function
from .candidates import CLOSE, GRADS, Candidate, candidates, forwards
from .measure import Measured
from .purity import is_pure, is_pure_forward

_X = (-3.0, -2.5, -1.5, -1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5)
_RANGES = ((-0.3, 0.7), (-1.0, 1.0), (0.0, 1.0))
_USUAL = (1.0, -1.0, 0.75, -2.5, 0.0)
_LARGE = tuple(sign * 10.0**power for power in (1, 2, 3, 4, 5, 6, 9, 20, 30) for sign in (1, -1))
_SPECIAL = (*(sign * 10.0**-power for power in (3, 6, 12, 30) for sign in (1, -1)), math.inf, -math.inf, math.nan)
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_FAMILIAR = {"inward": "ClampWithGrad", "sign": "ClampWithGradProposed", "zero": "ClampWithGradThatWorks"}

Compute = Callable[[Sequence[Any], Tensor], tuple[Tensor, tuple[Any, ...]]]  # inputs, grad -> value, gradients


@dataclass(frozen=True)
class Match:
    """A Function with the call that does the same.

    meaning: as a person says it. instead: the line that replaces the class, under its name. familiar: its name in `pseudograd.familiar`.
    dtypes: those in which value and gradient were equal to the bit at every x and for every finite gradient of usual or large size that
    was tried. differences: an example for each kind of number where the class gives something else, such as an infinite gradient.
    defaults: the default arguments of its forward, which the class in `familiar` does not have.
    """

    meaning: str
    instead: str
    familiar: str | None = None
    dtypes: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    defaults: tuple[str, ...] = ()


def what_is(function: object) -> Match | None:
    """The call that computes what this autograd.Function, or its `apply`, computes. None for what is no op of this library, and for a
    class that cannot be called without harm. Never raises.
    """
    try:
        cls = getattr(function, "__self__", function)
        if cls not in _matches:
            _matches[cls] = _recognise(cls)
        return _matches[cls]
    except Exception:  # code of somebody else, called with numbers that it may not expect
        return None


_matches: weakref.WeakKeyDictionary[Any, Match | None] = weakref.WeakKeyDictionary()


# --- a Function without autograd ------------------------------------------------------------------------------------


class _Context:
    """Keeps what a forward saves for its backward."""

    saved_tensors: tuple[Any, ...] = ()

    def __init__(self, inputs: int) -> None:
        self.needs_input_grad = (True,) * inputs

    def save_for_backward(self, *tensors: object) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: object) -> None:
        pass

    mark_dirty = mark_non_differentiable

    def set_materialize_grads(self, value: bool) -> None:
        pass


def _make_compute(cls: Any) -> Compute | None:
    """The forward and the backward as a single function of numbers. None where the class may do more than compute."""
    base = torch.autograd.Function
    has_setup = cls.setup_context is not base.setup_context
    parts = [(cls.forward, not has_setup), *([(cls.setup_context, True)] if has_setup else [])]
    are_pure = all(is_pure_forward(part, has_ctx) for part, has_ctx in parts) and is_pure(cls.backward)
    if cls.vjp is not base.vjp or not are_pure:
        return None

    def compute(inputs: Sequence[Any], grad: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        ctx = _Context(len(inputs))
        if has_setup:
            y = cls.forward(*inputs)
            cls.setup_context(ctx, tuple(inputs), y)
        else:
            y = cls.forward(ctx, *inputs)
        gradients = cls.backward(ctx, grad)
        return y, gradients if isinstance(gradients, tuple) else (gradients,)

    return compute


@contextlib.contextmanager
def _outside_of_everything() -> Iterator[None]:
    with torch.no_grad(), without_torch_function(), without_dispatch_modes(), outside_of_transforms():
        yield


# --- the class ------------------------------------------------------------------------------------------------------

# By the number of inputs: ops, the names of the inputs behind x, and numbers to try for them.
_BEHIND_X: dict[int, tuple[tuple[str, tuple[str, ...], tuple[tuple[float, ...], ...]], ...]] = {
    2: (
        ("lower_bound", ("bound",), ((-0.3,), (0.0,), (0.75,))),
        ("upper_bound", ("bound",), ((-0.3,), (0.0,), (0.75,))),
        ("scale_grad", ("scale",), ((0.75,), (0.25,))),
        ("reverse_grad", ("scale",), ((0.75,), (0.25,))),
        ("clip_grad", ("limit",), ((0.75,), (20.0,))),
    ),
    3: (("clamp", ("min", "max"), ((-0.3, 0.7), (-1.0, 1.0), (0.0, 1.0))),),
}


def _recognise(cls: Any) -> Match | None:
    if not isinstance(cls, type) or not issubclass(cls, torch.autograd.Function):
        return None
    compute = _make_compute(cls)
    if compute is None:
        return None
    has_ctx = cls.setup_context is torch.autograd.Function.setup_context
    inputs = list(inspect.signature(cls.forward).parameters.values())[has_ctx:]
    defaults = tuple(f"{value.name}={value.default!r}" for value in inputs if value.default is not value.empty)
    with _outside_of_everything():
        if len(inputs) == 2:
            dtypes = _compare_with_replace_grad(compute)
            if dtypes:
                return Match("replace_grad", _import_of("ReplaceGrad", cls), "ReplaceGrad", dtypes, (), defaults)
        if len(inputs) == 1:
            m = _measure(lambda x, grad: compute((x,), grad))
            for op, others, difference in forwards(m):
                match = None if difference else _match(cls, compute, op, (), (others,), m, defaults)
                if match is not None:
                    return match
        for name, names, numbers in _BEHIND_X.get(len(inputs), ()):
            for as_input in (float, lambda number: torch.tensor([number])):  # a bound may have to be a tensor
                with contextlib.suppress(Exception):
                    given = _WithInputs(compute, as_input)
                    match = _match(cls, given, OPS[name], names, numbers, defaults)
                    if match is not None:
                        return match
    return None
