"""The residual of bits: a call saves a code of a few bits for each element, in place of x and its bounds. Each code stands for a slope.

A call saves, in this order: the planes, one after the other in a uint8 tensor; the order of x's memory; a `Code`, which says by what to
multiply grad. A plane has one bit of every element's code; the first plane has the lowest bit. Bit i % 8 of byte i // 8 belongs to element
i, counted in the order of x's memory. A plane takes ceil(n / 64) * 8 bytes; the bits behind the last element have no meaning.

Three kinds of rules have codes: those with `sides` (a slope on each side of a range), with `find_range` (a slope in every region, for the
bounds too), and with `steps` (a few slopes of x alone). The formulas here are plain ATen, and every kernel gives the same numbers. The file
is long because the three kinds share its codes, its memory and its formulas.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.nn import functional

from ..arguments import flushes_subnormals, rounded_to
from ..geometry import (
    ALL,
    NOTHING,
    REGIONS,
    Constant,
    Pieces,
    Reversal,
    Side,
    Slope,
    Steps,
    edge_reads_grad,
    where_slope,
)
from ..rule import BOUNDED, Call, Gradients, Wants, remember
from ..torch_table.private import saves
from .residuals import Inputs, Residual, Saved
from .table import PLAIN, are_plain, can_have_names, register

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
X_ALONE = (True, False, False)
X, MIN, MAX = range(3)  # the fields of a Split
Bound = float | None
MOST_DIMENSIONS = 15  # of a tensor that a kernel takes: the order of dimensions is one number, with four bits for each

least_elements = 4096  # of x for which bits are kept: with fewer, the tensor of bits costs more than it saves
devices: set[str] = set()  # types of devices with a kernel that makes codes as fast as autograd saves x


@contextmanager
def save_bits_from(elements: int) -> Iterator[None]:
    """Inside, tensors with at least so many elements are saved as bits. For tests, whose tensors are small."""
    global least_elements
    before, least_elements = least_elements, elements
    try:
        yield
    finally:
        least_elements = before


# --- codes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)  # compared by identity: memories are keyed by it
class Code:
    """What each code of a call means.

    regions: for each plane, a mask of 16 bits: the regions of `Pieces` whose code has the bit of this plane. Empty for the code of `Steps`.
    slopes: for each of x, min and max, the slope of every code; None if nobody asked for the gradient.
    by_sides: is the code made from the sides of a range? Then x counts as inside if x or a bound is NaN.
    """

    planes: int  # how many
    regions: tuple[int, ...]
    slopes: tuple[tuple[Side, ...] | None, ...]
    by_sides: bool = False


def _indices(*names: str) -> tuple[int, ...]:
    """The positions of these regions in `Pieces`, after the position of "inside", whose code is 0."""
    return REGIONS.index("inside"), *[REGIONS.index(name) for name in names if name != "inside"]


_ALL_REGIONS = _indices(*REGIONS)
_BETWEEN_NUMBERS = _indices("below", "at_min", "at_max", "above", "nan")
_AT_A_NUMBER = _indices("below_point", "at_point", "above_point", "nan")[1:]  # nothing is inside equal bounds
_NEVER_AT_A_POINT = _indices(*[name for name in REGIONS if name != "at_point"])
_WITH_MIN_ALONE, _WITH_MAX_ALONE = _indices("below", "at_min"), _indices("above", "at_max")


def regions_of_numbers(low: float, high: float) -> tuple[int, ...]:
    """The regions in which x can be if its bounds are two numbers that are not crossed."""
    return _BETWEEN_NUMBERS if low < high else _AT_A_NUMBER


_EXACT_FACTORS = frozenset((0.0, 1.0))  # every dtype has them
_MOST_CODES = 4  # of a code by sides: kernels read at most two planes
ONE_FACTOR, FACTOR_BY_SIGN, CONSTANT = range(
    3
)  # the kinds of a side: a factor for every grad, a factor for each sign of grad, a constant


def kind_of(side: Side) -> int:
    if isinstance(side, Constant):
        return CONSTANT
    return ONE_FACTOR if side.positive == side.negative else FACTOR_BY_SIGN


def make_code(
    pieces: Pieces, wants: Wants, regions: tuple[int, ...], by_sides: bool, dtype: torch.dtype
) -> Code | None:
    """A `Code` with a code for each distinct `Split` of the wanted gradients in these regions. None if by_sides needs too many codes.

    wants: are the gradients of x, min and max wanted? If by_sides, only the gradient of x can be.
    dtype: the dtype to which the factors are rounded.
    """
    wants_x, wants_min, wants_max = wants
    splits: list[tuple[Side, float, float]] = [
        (
            (x if isinstance(x, tuple) else Slope(x, x)) if wants_x else NOTHING,
            low if wants_min else 0.0,
            high if wants_max else 0.0,
        )
        for x, low, high in pieces
    ]
    distinct = list(dict.fromkeys([splits[region] for region in regions]))  # in the order of their codes
    if by_sides:
        if len(distinct) > _MOST_CODES or any(Reversal in map(type, x) for x, _, _ in distinct):
            return None
        # The last code has a bit in both planes, which costs kernels least for a side with one factor.
        distinct[1:] = sorted(distinct[1:], key=lambda split: kind_of(split[0]), reverse=True)
    planes = max(0 if by_sides else 1, (len(distinct) - 1).bit_length())
    region_masks = [0] * planes
    for region in regions:
        code = distinct.index(splits[region])
        for plane in range(planes):
            region_masks[plane] |= (code >> plane & 1) << region
    distinct += [(NOTHING, 0.0, 0.0)] * (2**planes - len(distinct))
    of_x, of_min, of_max = zip(*distinct, strict=True)
    if not all(map(_EXACT_FACTORS.issuperset, of_x)):
        of_x = tuple([_rounded(x, dtype) for x in of_x])
    slopes = (
        of_x if wants_x else None,
        tuple(map(Slope, of_min, of_min)) if wants_min else None,
        tuple(map(Slope, of_max, of_max)) if wants_max else None,
    )
    return Code(planes, tuple(region_masks), slopes, by_sides)


def _rounded(side: Side, dtype: torch.dtype) -> Side:
    """The side with its factors rounded to this dtype, in which the formula multiplies."""
    return type(side)(*[rounded_to(factor, dtype) for factor in side])  # type: ignore[arg-type]  # none is a Reversal


def dtype_of_factors(call: Call, dtype: torch.dtype) -> torch.dtype:
    """A user's formula gets half precision as float32, and its factors are rounded to no less."""
    return torch.float32 if call.rule.is_from_user and dtype.itemsize == 2 else dtype


def round_side(side: Side, call: Call, dtype: torch.dtype) -> Side:
    return _rounded(side, dtype_of_factors(call, dtype))


_memory: dict[object, Any] = {}
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def remembered(make: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorator: a function with a memory for its results, which depend on how subnormals are rounded and on the positional arguments:
    keyword arguments are no part of the key.
    """

    @functools.wraps(make)
    def look_up(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        # Without the types, the bounds 0.0 and 1.0 would have the same key as False and True.
        key = make, args, tuple(map(type, args)), flushes_subnormals()
        return _memory[key] if key in _memory else remember(_memory, key, make(*args, **kwargs))

    return look_up


def find_code(call: Call, inputs: Inputs, wants: Wants) -> Code | None:
    """The code that saves the region of each x, for the wanted gradients. These calls have no code, and get None:

    - Number bounds are NaN, crossed or beyond the dtype, as the bounds of a rewritten call may be.
    - A bound is a number and the other one a tensor: torch has to compute y.
    - Bounds are tensors, which may be equal or crossed somewhere, and the rule asks at which bound x is.
    """
    between, dtype = call.find_range(inputs), inputs[0].dtype
    if between is None or dtype not in DTYPES:
        return None
    low, high, pieces = between
    if not (isinstance(low, Tensor) or isinstance(high, Tensor)):
        return code_of_numbers(call, low, high, dtype)
    for bound in (low, high):
        if not (bound is None or (isinstance(bound, Tensor) and bound.dtype is dtype)):
            return None
    return code_of_tensors(call, pieces, (low is not None, high is not None), wants, dtype)


@remembered
def code_of_numbers(call: Call, low: Bound, high: Bound, dtype: torch.dtype) -> Code | None:
    if dtype not in DTYPES or not (fits(low, dtype) and fits(high, dtype)):
        return None
    has_bounds, by_sides = (low is not None, high is not None), call.rule.find_range is None
    between = call.find_range((None, low, high))
    low = -math.inf if low is None else rounded_to(low, dtype)
    high = math.inf if high is None else rounded_to(high, dtype)
    if between is None or not low <= high:
        return None
    if not by_sides:
        return make_code(between[2], X_ALONE, regions_of_numbers(low, high), by_sides=False, dtype=dtype)
    if low == high and (edge_reads_grad(call.edge) or not all(has_bounds)):
        return None
    return code_of_sides(call, *has_bounds, dtype)


@remembered
def code_of_tensors(
    call: Call, pieces: Pieces, has_bounds: tuple[bool, bool], wants: Wants, dtype: torch.dtype
) -> Code | None:
    """has_bounds: is there a min, and is there a max? wants: for each input of the call."""
    if call.rule.find_range is None:
        asks_which_bound = edge_reads_grad(call.edge)
        return None if asks_which_bound else code_of_sides(call, *has_bounds, dtype)
    wanted = {column for column, want in zip(columns_of(wants, has_bounds[0]), wants, strict=True) if want}
    wants = X in wanted, MIN in wanted, MAX in wanted
    return make_code(pieces, wants, _ALL_REGIONS, by_sides=False, dtype=dtype)


def columns_of(inputs: Inputs | Wants, has_min: bool) -> tuple[int, ...]:
    """For each input of the call, the field of a `Split` that says what the input gets. fmin and fmax have x and one bound."""
    return (X, MIN, MAX) if len(inputs) == len(BOUNDED) else (X, MIN if has_min else MAX)


@lru_cache(maxsize=256)
def code_of_slopes(slopes: tuple[float, ...]) -> Code:
    """The code of `Steps`."""
    return Code((len(slopes) - 1).bit_length(), (), (tuple([Slope(slope, slope) for slope in slopes]), None, None))


def steps_of(call: Call, inputs: Inputs) -> Steps:
    """The steps of a call that the residual serves."""
    assert call.rule.steps is not None
    steps = call.rule.steps(*inputs[1:], **call.parameters)
    assert steps is not None
    return steps


# --- memory -----------------------------------------------------------------------------------------------------------


def order_of(x: Tensor) -> int | None:
    """The dimensions of x from the outermost to the innermost in memory: one number with four bits for each, as in native/operators.c.

    0 if the dimensions lie in memory as they are numbered. None if x is not dense, or has too many dimensions.
    """
    if x.dim() > MOST_DIMENSIONS:
        return None
    if x.is_contiguous():
        return 0
    sizes, strides = x.shape, x.stride()
    order = list(range(x.dim()))
    moving = [dim for dim in order if sizes[dim] != 1]
    for position, dim in zip(moving, sorted(moving, key=lambda dim: -strides[dim]), strict=True):
        order[position] = dim
    expected = 1
    for dim in reversed(order):
        if sizes[dim] != 1 and strides[dim] != expected:
            return None
        expected *= sizes[dim]
    return sum(dim << 4 * position for position, dim in enumerate(order))


def in_memory_order(x: Tensor, order: int) -> Tensor:
    return x.permute([order >> 4 * position & 15 for position in range(x.dim())]) if order else x


def in_own_order(x: Tensor, order: int) -> Tensor:
    return x.permute(sorted(range(x.dim()), key=lambda dim: order >> 4 * dim & 15)) if order else x


def bytes_of_a_plane(elements: int) -> int:
    return -(-elements // 64) * 8


# The factor that gathers eight bools: in the product with them, the highest byte has them as its bits, the first as the lowest.
(_GATHER,) = struct.unpack("q", bytes.fromhex("8040201008040201"))


def pack(mask: Tensor) -> Tensor:
    """A mask of one dimension as a plane. No step works in place, because a checkpoint may keep the result of any step."""
    words = functional.pad(mask, (0, -len(mask) % 64)).view(torch.int64)
    return words.mul(_GATHER).bitwise_right_shift(56).bitwise_and(255).to(torch.uint8)


def unpack(plane: Tensor, shape: torch.Size) -> Tensor:
    """A plane as a mask."""
    bits = (plane.unsqueeze(1) >> torch.arange(8, dtype=torch.uint8, device=plane.device)) & 1
    return bits.reshape(-1)[: shape.numel()].reshape(shape).bool()


def are_bytes(code: Tensor) -> bool:
    """Can a kernel read the code? If a hook of saved tensors changed its strides or its dtype, only the plain formula can."""
    return code.dtype is torch.uint8 and code.is_contiguous()


# --- which calls it serves --------------------------------------------------------------------------------------------


def suits(call: Call) -> bool:
    """Could the call keep bits with some inputs?"""
    if call.rule.steps is not None:
        return True
    if call.primitive.through is not None:
        return False
    if call.rule.find_range is not None:
        return True
    bounds = ((True, True), (True, False), (False, True)) if call.is_about_range and "x" in call.keeps(X_ALONE) else ()
    return any(code_of_sides(call, *has_bounds) is not None for has_bounds in bounds)


@remembered
def code_of_sides(call: Call, has_min: bool, has_max: bool, dtype: torch.dtype = torch.float64) -> Code | None:
    """The code of a call about a range; None if the rule asks how far x is outside, or needs more than four codes."""
    pieces = call.pieces
    assert pieces is not None
    if not (has_min and has_max):
        regions = _WITH_MAX_ALONE if has_max else _WITH_MIN_ALONE
    else:  # a call with an edge that reads grad has no code if its bounds are equal
        regions = _NEVER_AT_A_POINT if edge_reads_grad(call.edge) else _ALL_REGIONS
    return make_code(pieces, X_ALONE, regions, by_sides=True, dtype=dtype_of_factors(call, dtype))


def _serves(call: Call, inputs: Inputs, wants: Wants) -> bool:
    if call.rule.steps is not None:
        return _serves_steps(call, inputs)
    x, *bounds = inputs
    if type(x) not in PLAIN or x.device.type not in devices or not pays_for(x):
        return False
    tensors = [bound for bound in bounds if isinstance(bound, Tensor)]
    if call.rule.find_range is None and tensors and (wants[1] or wants[2] or len(tensors) < len(bounds)):
        # With a single tensor bound, torch takes the sign of a zero from x or from the bound, by the position of the element.
        return False
    return all(broadcasts(bound, x) for bound in tensors) and find_code(call, inputs, wants) is not None


def _serves_steps(call: Call, inputs: Inputs) -> bool:
    x = inputs[0]
    if torch.jit.is_tracing():  # type: ignore[attr-defined]  # sizes are tensors there, and reading them leaves a warning in the trace
        return False
    if x.numel() < least_elements or x.dtype not in DTYPES or not are_plain((x,)) or not _has_kernels(x):
        return False
    assert call.rule.steps is not None
    return order_of(x) is not None and call.rule.steps(*inputs[1:], **call.parameters) is not None


def _has_kernels(x: Tensor) -> bool:
    """Does it cost no more to pack the steps of x than it saves? On the CPU plain ATen is fast enough."""
    return x.is_cpu or x.device.type in devices


_LARGEST_FLOAT = torch.finfo(torch.float64).max


def broadcasts(bound: object, x: Tensor, dtype: torch.dtype | None = None) -> bool:
    """Is the bound a tensor that kernels can read beside x without a copy? dtype: the dtype it must have, by default that of x."""
    if not isinstance(bound, Tensor) or type(bound) not in PLAIN:
        return False
    if bound.dtype is not (dtype or x.dtype) or bound.device != x.device:
        return False
    shape, x_shape = bound.shape, x.shape
    if bound.layout is not torch.strided or len(shape) > len(x_shape):
        return False
    return shape == x_shape or all(size in (1, x_size) for size, x_size in zip(shape[::-1], x_shape[::-1]))  # noqa: B905


def fits(bound: object, dtype: torch.dtype) -> bool:
    """Is the bound None, or a number that torch takes for this dtype? A rewritten call may have bounds for which torch raises an error."""
    if bound is None:
        return True
    if not isinstance(bound, (float, int)) or abs(bound) > _LARGEST_FLOAT:
        return isinstance(bound, float) and abs(bound) == math.inf
    return abs(rounded_to(bound, dtype)) != math.inf


def pays_for(x: Tensor) -> bool:
    """Does it cost less to keep bits than to keep x itself?"""
    elements = x.numel()
    if type(elements) is not int or elements < least_elements:  # under torch.jit.trace it is a tensor
        return False
    if x.layout is not torch.strided or x.is_nested or (can_have_names and x.has_names()):  # type: ignore[attr-defined]
        return False
    return order_of(x) is not None and not _is_kept_anyway(x)


def pays_between(tensors: tuple[Tensor, ...]) -> bool:
    """Does it cost less to keep bits than to keep x and its bounds, and can kernels read the bounds without a copy?"""
    x = tensors[0]
    return x.device.type in devices and pays_for(x) and all(broadcasts(bound, x) for bound in tensors[1:])


_keeps_its_result: dict[type, bool] = {}


def _is_kept_anyway(x: Tensor) -> bool:
    """Does the op that made x keep it, as sigmoid, exp and softmax keep their result? Then to keep x costs nothing."""
    node = type(x.grad_fn)
    if issubclass(node, BackwardCFunction):  # of a Function in Python: there may be many such classes
        return False
    if node not in _keeps_its_result:
        _keeps_its_result[node] = saves(node, "result")
    return _keeps_its_result[node]


# --- the residual in plain ATen ---------------------------------------------------------------------------------------


def _masks(x: Tensor, *bounds: Bound | Tensor) -> list[Tensor]:
    """A mask for each region, in the order of `Pieces`. A bound that is absent is None."""
    pairs = zip(bounds, (-math.inf, math.inf), strict=True)
    ends = [infinity if bound is None else bound for bound, infinity in pairs]
    low, high = (end if isinstance(end, Tensor) else torch.full_like(x, rounded_to(end, x.dtype)) for end in ends)
    below, at_min, at_max, above, is_number = x < low, x == low, x == high, x > high, x == x
    apart, point, crossed = low < high, low == high, low > high
    has_nan_bound = ~(apart | point | crossed)
    return [
        # The mask of "inside", `is_number`, may be too large, because its code 0 has a bit in no plane.
        *(apart & mask for mask in (below, at_min, is_number, at_max, above)),
        *(point & mask for mask in (below, at_min, above)),
        *(crossed & mask for mask in (x < high, at_max, above)),
        *(has_nan_bound & mask for mask in (below, above, ~(below | above))),
        (apart | point) & ~is_number,
        crossed & ~is_number,
    ]


CHUNK = 2**20  # elements, a multiple of 64


def pack_steps(x: Tensor, steps: Steps) -> Tensor:
    """The planes of x, chunk by chunk, without temporaries of the size of x."""
    elements, plane_size = x.numel(), bytes_of_a_plane(x.numel())
    planes = torch.empty(code_of_slopes(steps.slopes).planes * plane_size, dtype=torch.uint8, device=x.device)
    for start in range(0, elements, CHUNK):
        for plane, mask in enumerate(steps.planes(x.as_strided((elements,), (1,))[start : start + CHUNK])):
            first_byte = plane * plane_size + start // 8
            planes[first_byte : first_byte + bytes_of_a_plane(len(mask))] = pack(mask)
    return planes


def _encode(call: Call, inputs: Inputs, wants: Wants) -> tuple[Tensor, Saved]:
    x, order = inputs[0], order_of(inputs[0])
    assert order is not None
    y = call.primitive.forward(*inputs)
    if call.rule.steps is not None:
        steps = steps_of(call, inputs)
        return y, [pack_steps(x, steps), order, code_of_slopes(steps.slopes)]
    code, between = find_code(call, inputs, wants), call.find_range(inputs)
    assert code is not None
    assert between is not None
    masks = [mask.expand(x.shape) for mask in _masks(x, *between[:2])]
    planes, nowhere = [x.new_empty(0, dtype=torch.uint8)], torch.zeros_like(x, dtype=torch.bool)
    for regions in code.regions:
        mask = torch.stack([nowhere, *(mask for region, mask in enumerate(masks) if regions >> region & 1)]).any(dim=0)
        planes.append(pack(in_memory_order(mask, order).reshape(-1)))
    return y, [torch.cat(planes), order, code]


def _pull(grad: Tensor, saved: Saved, wants: Wants, call: Call) -> Gradients:
    planes, order, code = saved
    ordered_grad = in_memory_order(grad, order)
    parts = planes.to(torch.uint8).reshape(-1).chunk(code.planes) if code.planes else ()
    bits = [unpack(part, ordered_grad.shape) for part in parts]
    gradients: list[Tensor | None] = [None] * len(wants)
    for position, column in enumerate(columns_of(wants, code.slopes[MIN] is not None)[: len(wants)]):
        slopes = code.slopes[column]
        if wants[position] and slopes is not None:
            gradients[position] = in_own_order(_times_slopes(ordered_grad, bits, slopes), order)
    return tuple(gradients)


def _times_slopes(grad: Tensor, bits: list[Tensor], slopes: tuple[Side, ...]) -> Tensor:
    result = grad
    for code, side in enumerate(slopes):
        if side != ALL:
            matches = [bit if code >> plane & 1 else ~bit for plane, bit in enumerate(bits)]
            mask = torch.stack(matches).all(0) if bits else torch.ones_like(grad, dtype=torch.bool)
            result = where_slope(mask, side, grad, result)
    return result


def _nbytes(call: Call, inputs: Inputs, wants: Wants) -> int:
    code = find_code(call, inputs, wants) if call.rule.steps is None else code_of_slopes(steps_of(call, inputs).slopes)
    assert code is not None
    return bytes_of_a_plane(inputs[0].numel()) * code.planes


BITS: Residual = Residual("bits", _serves, _encode, _pull, _nbytes, suits, priority=20)
register(BITS)
