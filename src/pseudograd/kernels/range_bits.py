"""One or two bits per element instead of x and its bounds: for rules of a range that only ask where x stands (`Rule.sides`).

A code is one or two planes of bits. A plane takes ceil(n / 64) * 8 bytes; bit i % 8 of its byte i // 8 is about element i, counted in
the order of x's memory, and 0 behind the last. `plan_of` makes of what the row and the edge say which places of x are in which plane,
and what x gets there: one share where it is in the first plane alone, one for the second alone, one for both. In no plane x gets grad. A
plane for no place is left out. It is the one description of this, for the plain formulas below and for every kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from ..arguments import flushes_subnormals, rounded_to
from ..geometry import ALL, Share, Side, Turned, edge_reads_grad, with_share
from ..record import Record
from ..rule import BOUNDED, Call, Gradients, Wants
from ..torch_table.private import saves
from .residuals import Inputs, Kept, Residual
from .table import has_names, register

BELOW, ABOVE, AT_MIN, AT_MAX = 1, 2, 4, 8
ALIKE, BY_SIGN, NUMBER = range(3)  # kinds of a share: one factor for every grad, one for each sign, no factor
FROM_SHARES = 0  # the kind of a plan that a code can be made of; `native` has others
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
X_ALONE = (True, False, False)

least = 4096  # elements: what fewer could save is nothing, and a code costs a tensor more
MOST_DIMENSIONS = 15  # of a tensor that a kernel sees: their order is one number, four bits for each


class Plan(Record):
    """How a code is made, and what it means: shares of the first plane, of the second, of both.

    `packed` and `numbers`: the same in one number and six, as native/operators.c reads it.
    """

    kind: int
    first: int
    second: int = 0
    shares: tuple[Side, ...] = ()

    @property
    def planes(self) -> int:
        return bool(self.first) + bool(self.second)

    @property
    def packed(self) -> int:
        kinds = sum(kind_of(share) << 13 + 2 * place for place, share in enumerate(self.shares))
        return self.first | self.second << 4 | self.kind << 8 | kinds

    @property
    def numbers(self) -> tuple[float, ...]:
        found = [number for share in self.shares for number in numbers_of(share)]
        return (*found, *[0.0] * (6 - len(found)))


def kind_of(share: Side) -> int:
    if not isinstance(share, Share):
        return NUMBER
    return ALIKE if share.positive == share.negative else BY_SIGN


def numbers_of(share: Side) -> tuple[float, float]:
    return share if isinstance(share, Share) else (share, 0.0)  # type: ignore[return-value]  # none is turned


def is_about_a_range(call: Call) -> bool:
    """Of x between a min and a max, whose row says what passes where?"""
    return call.primitive.inputs == BOUNDED and call.places is not None


def suits(call: Call) -> bool:
    """Would it keep x, to know where x stands between some bounds?"""
    if not (is_about_a_range(call) and "x" in call.keeps(X_ALONE)):
        return False
    return any(plan_of(call, *there) is not None for there in ((True, True), (True, False), (False, True)))


def plan_of(call: Call, has_min: bool, has_max: bool) -> Plan | None:
    """None where the rule asks how far x is outside, or tells more than four cases apart."""
    if call.places is None:
        return None
    here: dict[Side, int] = {}
    for side, place, is_there in zip(call.places, (BELOW, ABOVE, AT_MIN, AT_MAX), (has_min, has_max) * 2, strict=True):
        if is_there and side != ALL:
            here[side] = here.get(side, 0) | place
    shares = sorted(here, key=kind_of, reverse=True)  # what is alike for every grad costs least where planes meet
    if len(shares) > 3 or any(isinstance(factor, Turned) for share in shares for factor in numbers_of(share)):
        return None
    of_each = [here[share] for share in shares] + [0] * (3 - len(shares))
    return Plan(FROM_SHARES, of_each[0] | of_each[2], of_each[1] | of_each[2], tuple(shares))


def passes(call: Call) -> bool:
    """Does x get all of grad wherever it stands?"""
    return call.places is not None and set(call.places) == {ALL}


@lru_cache(maxsize=4096)
def plan_for(call: Call, low: float | None, high: float | None, dtype: torch.dtype, flushes: bool) -> Plan | None:
    """The plan between two numbers, its factors rounded to `dtype`; None where one is NaN or they are crossed, as rewritten calls may be.

    `flushes` is there to be remembered by: whether a subnormal number is 0.
    """
    if dtype not in DTYPES:
        return None
    if low is not None and high is not None:
        low, high = rounded_to(low, dtype), rounded_to(high, dtype)
        if not low < high and (low != high or edge_reads_grad(call.edge)):  # there x is at both bounds
            return None
    elif low != low or high != high:
        return None
    return _rounded(plan_of(call, low is not None, high is not None), dtype_of_factors(call, dtype))


@lru_cache(maxsize=4096)
def plan_between(call: Call, has_min: bool, has_max: bool, dtype: torch.dtype, flushes: bool) -> Plan | None:
    """The same between tensors, of which some may be crossed or equal: there x is at both, and only a rule that asks which declines."""
    if dtype not in DTYPES or edge_reads_grad(call.edge):
        return None
    return _rounded(plan_of(call, has_min, has_max), dtype_of_factors(call, dtype))


def dtype_of_factors(call: Call, dtype: torch.dtype) -> torch.dtype:
    """A user's formula gets half precision as float32, and its factors are rounded to no less."""
    return torch.float32 if call.rule.is_users and dtype.itemsize == 2 else dtype


def _rounded(plan: Plan | None, dtype: torch.dtype) -> Plan | None:
    return plan and plan.replaced(shares=tuple(share_in(dtype, share) for share in plan.shares))


def share_in(dtype: torch.dtype, share: Side) -> Side:
    if isinstance(share, Share):
        return Share(*(rounded_to(factor, dtype) for factor in numbers_of(share)))
    return rounded_to(share, dtype)


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


def in_memory_order(x: Tensor, order: int) -> Tensor:
    return x.permute([order >> 4 * place & 15 for place in range(x.dim())]) if order else x


def in_own_order(x: Tensor, order: int) -> Tensor:
    return x.permute(sorted(range(x.dim()), key=lambda place: order >> 4 * place & 15)) if order else x


def plane(bits: Tensor) -> Tensor:
    """Bools as a plane of bits."""
    flat = torch.nn.functional.pad(bits.reshape(-1).to(torch.uint8), (0, -bits.numel() % 64)).reshape(-1, 8)
    return torch.sum(flat << torch.arange(8, dtype=torch.uint8, device=bits.device), dim=1, dtype=torch.uint8)


def bits_in(plane: Tensor, shape: tuple[int, ...]) -> Tensor:
    """And back."""
    bits = (plane.unsqueeze(1) >> torch.arange(8, dtype=torch.uint8, device=plane.device)) & 1
    return bits.reshape(-1)[: torch.Size(shape).numel()].reshape(shape).bool()


@contextmanager
def kept_from(elements: int) -> Iterator[None]:
    """With codes, and few bits, for tensors of at least so many elements: for tests, whose tensors are small."""
    global least
    before, least = least, elements
    try:
        yield
    finally:
        least = before


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
    if type(x) not in PLAIN or x.device.type not in devices or not pays_for(x):
        return False
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        # Not one alone: there torch's clamp takes the sign of a zero from x or from the bound as the element's place in memory has it.
        if wants[1] or wants[2] or not (broadcasts(low, x) and broadcasts(high, x)):
            return False
    elif not (fits(low, x.dtype) and fits(high, x.dtype)):
        return False
    return plan_of_inputs(call, inputs) is not None


PLAIN = (Tensor, torch.nn.Parameter)
_MOST = torch.finfo(torch.float64).max


def broadcasts(bound: Any, x: Tensor) -> bool:
    """Is it a tensor that the kernels of this device read beside x, as it is?"""
    if type(bound) not in PLAIN or bound.dtype is not x.dtype or bound.device != x.device:
        return False
    own, shape = bound.shape, x.shape
    if bound.layout is not torch.strided or x.device.type not in devices_between_tensors or len(own) > len(shape):
        return False
    return own == shape or all(size in (1, of_x) for size, of_x in zip(own[::-1], shape[::-1]))  # noqa: B905


def fits(bound: object, dtype: torch.dtype) -> bool:
    """Is it no bound, or a number that torch takes for this dtype? Rewritten calls may have others, at which torch raises."""
    if bound is None:
        return True
    if not isinstance(bound, (float, int)) or abs(bound) > _MOST:
        return isinstance(bound, float) and abs(bound) == math.inf
    return abs(rounded_to(bound, dtype)) != math.inf


# torch has named tensors before 2.13.


def pays_for(x: Tensor) -> bool:
    """Would it cost more to keep x itself?"""
    elements = x.numel()
    if type(elements) is not int or elements < least:  # no int under torch.jit.trace
        return False
    if x.layout is not torch.strided or x.is_nested:
        return False
    return order_of(x) is not None and not has_names(x) and not _is_kept_anyway(x)


def keeps_between(tensors: tuple[Tensor, ...]) -> bool:
    """Of x on CPU and bounds: would a code of them cost less than they do, and do the kernels read them as they are?"""
    x = tensors[0]
    return "cpu" in devices_between_tensors and pays_for(x) and all(broadcasts(bound, x) for bound in tensors[1:])


_keeps_its_result: dict[type, bool] = {}


def _is_kept_anyway(x: Tensor) -> bool:
    """By the op that made it, as sigmoid, exp and softmax do: then to keep x costs nothing."""
    node = type(x.grad_fn)
    if issubclass(node, BackwardCFunction):  # of a Function in Python, whose class may be one of many
        return False
    if node not in _keeps_its_result:
        _keeps_its_result[node] = saves(node, "result")
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
        plane(in_memory_order(torch.stack([are for place, are in places.items() if place & its]).any(dim=0), order))
        for its in (plan.first, plan.second)
        if its
    ]
    return y, [torch.cat([*planes, x.new_empty(0, dtype=torch.uint8)]), order, plan]


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
    there = in_memory_order(grad, order)
    halves = code.to(torch.uint8).reshape(-1).chunk(plan.planes) if plan.planes else ()
    planes = [bits_in(half, there.shape) for half in halves]
    found = there
    for are, share in zip(planes, plan.shares):  # noqa: B905  there may be a third share, of both
        found = with_share(found, there, are, share)
    if len(plan.shares) == 3:
        both, share = planes[0] & planes[1], plan.shares[2]
        found = with_share(torch.where(both, there, found) if kind_of(share) == BY_SIGN else found, there, both, share)
    return in_own_order(found, order), None, None


def _nbytes(call: Call, inputs: Inputs, wants: Wants) -> int:
    plan = plan_of_inputs(call, inputs)
    assert plan is not None
    return size_of(inputs[0].numel(), plan)


CODE = Residual("code", _serves, _encode, _pull, _nbytes, suits, priority=20)
register(CODE)
