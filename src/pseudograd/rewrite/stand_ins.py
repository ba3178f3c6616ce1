"""Run a primitive in the place of a call of torch, or say why torch's own function has to run."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import engine
from ..arguments import is_broadcastable
from ..rule import Call
from ..torch_table.private import in_forward_mode, is_functionalized, transforms_are_active
from ..torch_table.records import Inputs, only_backward_tells

_is_compiling = torch.compiler.is_compiling


def run_stand_in(call: Call, inputs: Inputs, in_place: bool) -> Tensor:
    """Run the primitive of the call. It gets a copy of x if it saves x and torch's own op does not: a program may change x in place
    afterwards. (In compiled code the engine makes such copies.)
    """
    if in_place:
        return engine.run_in_place(call, *inputs)
    x = inputs[0]
    if call.primitive.saves == "a copy" and not _is_compiling() and call.keeps(tuple([value is x for value in inputs])):
        x = x.clone()
    return engine.run(call, x, *inputs[1:])


def why_not(call: Call, inputs: Inputs, in_place: bool) -> str | None:
    """Why torch's own op has to run; None if ours can. A call that torch refuses is left to torch, which raises its own error."""
    x = inputs[0]
    if not _is_compiling() and transforms_are_active() and is_functionalized():
        return "torch.func.functionalize has no rule for a custom backward"
    if x.is_complex():
        return "complex numbers have no order"
    if x.layout is not torch.strided or x.is_nested or x.is_quantized:
        return "neither sparse, nested nor quantized tensors are rewritten"
    if call.rule.requires:
        by_name = call.primitive.name_inputs(inputs)
        for name in call.rule.requires:
            if by_name.get(name) is None:
                return f"rule {call.rule.name} needs both bounds"
    if call.primitive.either_is is not None and only_backward_tells() and in_forward_mode():
        return "compiled forward mode does not tell which of the two is the constant"
    if not call.is_linear and in_forward_mode():
        return f"rule {call.rule.name} reads the incoming gradient, and forward mode has none"
    return _why_not_in_place(inputs) if in_place else None


def _why_not_in_place(inputs: Inputs) -> str | None:
    x = inputs[0]
    if not x.is_floating_point():
        return "in place on integers"
    for bound in inputs[1:]:
        if isinstance(bound, torch.Tensor) and (bound.dtype != x.dtype or not is_broadcastable(bound.shape, x.shape)):
            return "a bound of another dtype or a larger shape, in place"
    return None
