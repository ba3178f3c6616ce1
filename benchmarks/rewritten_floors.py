"""What nothing that rewrites a call in Python can be below: parts of what it has to do, and no more. For `rewritten_calls.py --floors`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

from pseudograd.kernels import native
from pseudograd.kernels.bits import MIN, code_of_tensors
from pseudograd.listen.around import backwards
from pseudograd.rule import OPS, call_for
from pseudograd.torch_table.private import pop_mode, push_mode, without_torch_function

EMPTY_FUNCTION, COPIES, MODE_IN_BACKWARD, OPERATORS = (
    "floor: an empty Function",
    "floor: and its gradients",
    "floor: and the mode back",
    "floor: and an operator",
)


_CALL = call_for(OPS["clamp"], "zero", "open")
_CODE = code_of_tensors(_CALL, _CALL.pieces, (True, True), (False, True, False), torch.float32)
SETTINGS = native.settings_of(_CODE, MIN, dtype=torch.float32)  # of one of its jobs


class Floor(TorchFunctionMode):
    """Hands a clamp to an autograd.Function of the same inputs that keeps them and calls torch's own forward.

    Its backward returns grad as it is; or, with `copies`, a copy of it for each input that wants a gradient, as gradients lie in memory of
    their own; or, with `operator`, what an operator in C makes of grad, x and the bounds, which knows beforehand what to do. With
    `in_backward` the mode is on torch's stack while a backward runs, and its Function out of the mode's sight: else what a program runs
    inside a backward would not be rewritten.
    """

    def __init__(self, copies: bool = False, in_backward: bool = False, operator: bool = False) -> None:
        super().__init__()
        self.copies, self.in_backward, self.operator = copies, in_backward, operator
        self.functions: dict[Any, Callable[..., Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in (torch.clamp, torch.clamp_min, torch.fmax):
            return func(*args, **(kwargs or {}))
        tensors = [one for one in args if isinstance(one, Tensor)]
        apply = self.functions.get((func, len(tensors)))
        if apply is None:
            apply = self.functions[func, len(tensors)] = self._function(func, args[len(tensors) :])
        return apply(*tensors)

    def _function(self, func: Any, numbers: tuple[float, ...]) -> Callable[..., Tensor]:
        copies, in_backward = self.copies, self.in_backward
        pull = native.operators.pull_bounds if self.operator else None

        def gradients(grad: Tensor, wants: tuple[bool, ...], saved: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
            if pull is not None:
                x, low, high = (*saved, saved[0], saved[0])[:3]
                return tuple([pull(grad, x, low, high, SETTINGS) if want else None for want in wants])
            return tuple([None if not want else grad.clone() if copies else grad for want in wants])

        class OfFloor(Function):
            @staticmethod
            def forward(ctx: Any, *tensors: Tensor) -> Any:
                ctx.save_for_backward(*tensors)
                return func(*tensors, *numbers)

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> Any:
                saved = ctx.saved_tensors
                if not in_backward:
                    return gradients(grad, ctx.needs_input_grad, saved)
                with without_torch_function():
                    return gradients(grad, ctx.needs_input_grad, saved)

        return super(Function, OfFloor).apply  # type: ignore[misc,no-any-return]  # of a class in C

    def __enter__(self) -> Any:
        if self.in_backward:
            backwards.subscribe(self._put_back)
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        if self.in_backward:
            backwards.unsubscribe(self._put_back)

    def _put_back(self, roots: Any, grads: Any, inputs: Any) -> Callable[[Any], None]:
        push_mode(self)
        return _take_off


def _take_off(result: Any) -> None:
    pop_mode()


FLOORS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    EMPTY_FUNCTION: Floor,
    COPIES: lambda: Floor(copies=True),
    MODE_IN_BACKWARD: lambda: Floor(copies=True, in_backward=True),
    OPERATORS: lambda: Floor(in_backward=True, operator=True),
}
