"""Calls with tensors behind x made ready: which operator takes what, where x has two bounds or one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ...rule import BOUNDED, Call, Wants
from ..residuals import Inputs
from ..table import CodedBetween, PreparedBetween

# As operators.c reads it beside a plan: y, too, is made with one bound, as clamps make it.
WITH_Y = 1 << 4
# As it says it beside an order: zeros of both signs meet, and torch alone knows which of them y is.
UNSURE = 1 << 60


class Between:
    """Of a call, and which of its inputs are there: the operators as functions of the tensors that are. It holds none of them.

    has_low, has_high: is there a min, a max? An operator is handed x in place of the one that is not.
    """

    def __init__(self, operators: Any, call: Call, inputs: Inputs, has_low: bool, has_high: bool) -> None:
        self.operators = operators
        self.call = call
        self.there = tuple(isinstance(value, Tensor) for value in inputs)
        self.has_low, self.has_high = has_low, has_high
        self.dtype = inputs[0].dtype

    def given(self, values: Any) -> list[Any]:
        """One value for each input, of one for each tensor."""
        each = iter(values)
        return [next(each) if is_there else None for is_there in self.there]

    @property
    def value(self) -> Callable[..., Tensor]:
        """torch's own."""
        forward = self.call.primitive.forward
        if all(self.there):
            return forward
        return (lambda x, low: forward(x, low, None)) if self.has_low else (lambda x, high: forward(x, None, high))

    @property
    def pull(self) -> Callable[..., Tensor]:
        """(grad, *tensors, column)"""
        pull = self.operators.pull_bounds
        if self.has_low and self.has_high:
            return pull  # type: ignore[no-any-return]
        if self.has_low:
            return lambda grad, x, low, column: pull(grad, x, low, x, column)
        return lambda grad, x, high, column: pull(grad, x, x, high, column)

    def encode(self, settings: Tensor) -> Callable[..., tuple[Tensor, Tensor, int]]:
        encode, value = self.operators.encode_between, self.value

        def both(x: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, int]:
            y, code, order = encode(x, low, high, settings)
            return (value(x, low, high), code, order ^ UNSURE) if order & UNSURE else (y, code, order)

        def one(x: Tensor, bound: Tensor) -> tuple[Tensor, Tensor, int]:
            y, code, order = encode(x, bound, x, settings) if self.has_low else encode(x, x, bound, settings)
            if order & UNSURE or not self.has_y:
                return value(x, bound), code, order & ~UNSURE
            return y, code, order

        return both if self.has_low and self.has_high else one

    @property
    def has_y(self) -> int:
        """What the settings of `encode` say: WITH_Y, but for fmin and fmax, which see a NaN otherwise."""
        return WITH_Y if self.call.primitive.inputs == BOUNDED else 0

    def prepared(self, columns: tuple[object, ...], coded: Callable[[Wants], CodedBetween | None]) -> PreparedBetween:
        return PreparedBetween(self.value, self.pull, columns, self.given, self.call, coded)
