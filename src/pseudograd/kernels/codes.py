"""One or two bits per element instead of x and its bounds: for the rules of the clamp family that only ask where x stands.

A code is one or two planes of bits. A plane takes ceil(n / 64) * 8 bytes; bit i % 8 of its byte i // 8 is about element i, counted in
the order of x's memory, and 0 behind the last. `plan_of` says for each rule and edge which places of x are in which plane, and what x
gets there. It is the one description of this, for the plain formulas below and for every kernel.

    FACTORS   first plane: factor * grad             second: other * grad
    SIDES     first plane: 0 where grad > 0          second: 0 where grad < 0    both: other * grad
    SIGNS     first plane: -1                        second: 1                   both: other * grad

A factor of 0 gives 0 for every grad; in no plane x gets grad. A plane for no place is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from ..arguments import flushes_subnormals, rounded_to
from ..record import Record
from ..rule import Call, Gradients, Wants
from . import register
from .residuals import Inputs, Kept, Residual

FACTORS, SIDES, SIGNS = range(3)
BELOW, ABOVE, AT_MIN, AT_MAX = 1, 2, 4, 8
RULES = tuple(("clamp", name) for name in ("zero", "leaky", "inward", "sign"))
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

least = 4096  # elements: what fewer could save is nothing, and a code costs a tensor more
MOST_DIMENSIONS = 15  # of a tensor that a kernel sees: their order is one number, four bits for each


class Plan(Record):
    """How a code is made, and what it means. `packed`: all but the factors in one number, as native/operators.c reads it."""

    kind: int
    first: int
    second: int
    factor: float = 0.0
    other: float = 0.0

    @property
    def planes(self) -> int:
        return bool(self.first) + bool(self.second)

    @property
    def packed(self) -> int:
        return self.first | self.second << 4 | self.kind << 8


def plan_of(call: Call, has_min: bool, has_max: bool) -> Plan | None:
    """None where the rule asks how far x is outside, or for more than four places."""
    below, above, at_min, at_max = BELOW * has_min, ABOVE * has_max, AT_MIN * has_min, AT_MAX * has_max
    outside, at, share = below | above, at_min | at_max, 0.5 if call.edge == "half" else 0.0
    if call.rule.name == "identity":
        return Plan(FACTORS, 0, 0)
    if call.rule.name in ("zero", "leaky"):
        slope = call.parameters.get("slope", 0.0)
        if call.edge == "closed":
            return Plan(FACTORS, outside, 0, slope)
        if call.edge == "projected":
            return Plan(SIDES, *_swapped(call, outside | at_min, outside | at_max), other=slope)
        return Plan(FACTORS, outside | at, 0, slope) if slope == share else Plan(FACTORS, outside, at, slope, share)
    if call.rule.name not in ("inward", "sign") or (call.rule.name == "sign" and call.edge == "projected"):
        return None
    kind = SIDES if call.rule.name == "inward" else SIGNS
    if call.edge == "closed":
        return Plan(kind, *_swapped(call, below, above))
    if call.edge == "projected":
        return Plan(kind, *_swapped(call, below | at_min, above | at_max))
    return Plan(kind, *_swapped(call, below | at, above | at), other=share)


def _swapped(call: Call, first: int, second: int) -> tuple[int, int]:
    """Under ascent the two sides change places."""
    return (second, first) if call.maximize else (first, second)


@lru_cache(maxsize=4096)
def plan_for(call: Call, low: float | None, high: float | None, dtype: torch.dtype, flushes: bool) -> Plan | None:
    """The plan between two numbers, its factors rounded to `dtype`; None where one is NaN or they are crossed, as rewritten calls may be.

    `flushes` is there to be remembered by: whether a subnormal number is 0.
    """
    if dtype not in DTYPES:
        return None
    if low is not None and high is not None:
        low, high = rounded_to(low, dtype), rounded_to(high, dtype)
        if not low < high and not (low == high and call.edge != "projected"):  # there x is at both bounds
            return None
    elif low != low or high != high:
        return None
    return _rounded(plan_of(call, low is not None, high is not None), dtype)


@lru_cache(maxsize=4096)
def plan_between(call: Call, has_min: bool, has_max: bool, dtype: torch.dtype, flushes: bool) -> Plan | None:
    """The same between tensors, of which some may be crossed or equal: there x is at both, and only a rule that asks which declines."""
    if dtype not in DTYPES or call.edge == "projected":
        return None
    return _rounded(plan_of(call, has_min, has_max), dtype)


def _rounded(plan: Plan | None, dtype: torch.dtype) -> Plan | None:
    return plan and plan.replaced(factor=rounded_to(plan.factor, dtype), other=rounded_to(plan.other, dtype))


def order_of(x: Tensor) -> int | None:
    """The dimensions of x from the outermost to the innermost of its memory, as native/operators.c counts them; None if x is not dense,
    or has more of them than that can count.
    """
    if x.dim() > MOST_DIMENSIONS:
        return None
    if x.is_contiguous():
        return 0
    sizes, strides = x.shape, x.stride()
    at = list(range(x.dim()))
    places = [d for d in at if sizes[d] != 1]
    for place, d in zip(places, sorted(places, key=lambda d: -strides[d]), strict=True):
        at[place] = d
    expected = 1
    for d in reversed(at):
        if sizes[d] != 1 and strides[d] != expected:
            return None
        expected *= sizes[d]
    return sum(d << 4 * place for place, d in enumerate(at))


def _in_memory_order(x: Tensor, order: int) -> Tensor:
    return x.permute([order >> 4 * place & 15 for place in range(x.dim())]) if order else x


def _in_own_order(x: Tensor, order: int) -> Tensor:
    return x.permute(sorted(range(x.dim()), key=lambda place: order >> 4 * place & 15)) if order else x


def _plane(bits: Tensor) -> Tensor:
    flat = torch.nn.functional.pad(bits.reshape(-1).to(torch.uint8), (0, -bits.numel() % 64)).reshape(-1, 8)
    return torch.sum(flat << torch.arange(8, dtype=torch.uint8, device=bits.device), dim=1, dtype=torch.uint8)


def _bits(plane: Tensor, shape: tuple[int, ...]) -> Tensor:
    bits = (plane.unsqueeze(1) >> torch.arange(8, dtype=torch.uint8, device=plane.device)) & 1
    return bits.reshape(-1)[: torch.Size(shape).numel()].reshape(shape).bool()


devices: set[str] = set()
devices_between_tensors: set[str] = set()


def serve(device: str, between_tensors: bool = False) -> None:
    """From now on, tensors of this device keep a code: there are kernels for it, which make it as fast as to keep x."""
    devices.add(device)
    if between_tensors:
        devices_between_tensors.add(device)


def plan_of_inputs(call: Call, inputs: Inputs) -> Plan | None:
    """Between numbers, one of which may be None, or between two tensors."""
    x, low, high = inputs
    if isinstance(low, Tensor):
        return plan_between(call, True, True, x.dtype, flushes_subnormals())
    return plan_for(call, low, high, x.dtype, flushes_subnormals())


def _serves(call: Call, inputs: Inputs, wants: Wants) -> bool:
    x, low, high = inputs
    if type(x) not in _PLAIN or x.device.type not in devices or not pays_for(x):
        return False
    if (isinstance(low, Tensor) or isinstance(high, Tensor)) and not _are_constant_bounds(x, low, high, wants):
        return False
    return plan_of_inputs(call, inputs) is not None


_PLAIN = (Tensor, torch.nn.Parameter)


def _are_constant_bounds(x: Tensor, low: Any, high: Any, wants: Wants) -> bool:
    """Two tensors that get no gradient and that broadcast to x as they are. Not one alone: there torch's clamp takes the sign of a zero
    from x or from the bound as the element's place in memory has it, which no kernel of ours can follow.
    """
    dtype, device, shape = x.dtype, x.device, x.shape
    if wants[1] or wants[2] or device.type not in devices_between_tensors:
        return False
    for bound in (low, high):
        if type(bound) not in _PLAIN or bound.dtype is not dtype or bound.device != device:
            return False
        own = bound.shape
        if own != shape and (
            len(own) > len(shape) or any(size not in (1, of_x) for size, of_x in zip(own[::-1], shape[::-1]))  # noqa: B905
        ):
            return False
    return True


# torch has named tensors before 2.13.
has_names: Callable[[Tensor], bool] = getattr(Tensor, "has_names", lambda _: False)


def pays_for(x: Tensor) -> bool:
    """Would it cost more to keep x itself?"""
    elements = x.numel()
    if type(elements) is not int or elements < least:  # no int under torch.jit.trace
        return False
    if x.layout is not torch.strided or x.is_nested:
        return False
    return order_of(x) is not None and not has_names(x) and not _is_kept_anyway(x)


_keeps_its_result: dict[type, bool] = {}


def _is_kept_anyway(x: Tensor) -> bool:
    """By the op that made it, as sigmoid, exp and softmax do: then to keep x costs nothing."""
    node = type(x.grad_fn)
    if issubclass(node, BackwardCFunction):  # of a Function in Python, whose class may be one of many
        return False
    if node not in _keeps_its_result:
        _keeps_its_result[node] = hasattr(node, "_saved_result")
    return _keeps_its_result[node]


def _encode(call: Call, inputs: Inputs, wants: Wants) -> tuple[Tensor, Kept]:
    x, low, high = inputs
    plan, order = plan_of_inputs(call, inputs), order_of(x)
    assert plan is not None
    assert order is not None
    y = call.primitive.forward(x, low, high)
    places = {BELOW: x < y, ABOVE: x > y}
    for bound, place in ((low, AT_MIN), (high, AT_MAX)):
        if bound is not None:
            places[place] = (x == y) & (x == (bound if isinstance(bound, Tensor) else rounded_to(bound, x.dtype)))
    planes = [
        _plane(_in_memory_order(torch.stack([are for place, are in places.items() if place & plane]).any(dim=0), order))
        for plane in (plan.first, plan.second)
        if plane
    ]
    return y, [torch.cat(planes), order, plan]


def size_of(elements: int, plan: Plan) -> int:
    """The bytes of a code."""
    return -(-elements // 64) * 8 * plan.planes


def are_bytes(code: Tensor) -> bool:
    """One after the other in memory, as a kernel reads them. A hook of saved tensors may have handed the code back in other strides, or
    in another dtype; then the plain formula reads it.
    """
    return code.dtype is torch.uint8 and code.is_contiguous()


def _pull(grad: Tensor, kept: Kept, wants: Wants, call: Call) -> Gradients:
    code, order, plan = kept
    code = code.to(torch.uint8).reshape(-1)
    there = _in_memory_order(grad, order)
    halves = iter(code.chunk(plan.planes))
    first, second = (
        _bits(next(halves), there.shape) if plane else torch.zeros((), dtype=torch.bool, device=grad.device)
        for plane in (plan.first, plan.second)
    )
    return _in_own_order(_pulled(there, first, second, plan), order), None, None


def _pulled(grad: Tensor, first: Tensor, second: Tensor, plan: Plan) -> Tensor:
    other = plan.other * grad if plan.other else 0.0
    if plan.kind == FACTORS:
        return torch.where(second, other, torch.where(first, plan.factor * grad if plan.factor else 0.0, grad))
    if plan.kind == SIDES:
        found = torch.where((first & (grad > 0)) | (second & (grad < 0)), 0.0, grad)
    else:
        found = torch.where(second, 1.0, torch.where(first, -1.0, grad))
    return torch.where(first & second, other, found)


def _nbytes(call: Call, inputs: Inputs, wants: Wants) -> int:
    plan = plan_of_inputs(call, inputs)
    assert plan is not None
    return size_of(inputs[0].numel(), plan)


CODE = Residual("code", _serves, _encode, _pull, _nbytes)
register(CODE, RULES)
