"""Kernels in C for tensors on CPU: a call and its backward cost about what copying the tensor twice costs.

The library beside this file is optional. It is built with the package where there is a C compiler, and calls torch's stable C symbols,
so that one build serves every Python and every torch from 2.10 on. PSEUDOGRAD_NATIVE=0 in the environment leaves it out.
"""

from __future__ import annotations

import importlib
import math
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...arguments import rounded_to
from ...geometry import ALL, NOTHING, Curve, Formula, Pieces, Reversal, Shape, Slope, edge_reads_grad, pieces_of_sides
from ...rule import BOUNDED, Call, Gradients, RangePieces, Wants
from ...torch_table.private import outside_of_transforms, raw, without_dispatch_modes, without_torch_function
from .. import bits
from ..bits import BITS, DTYPES, MAX, MIN, MOST_DIMENSIONS, X_ALONE, Bound, Code, X
from ..residuals import INPUTS, Inputs, Saved
from ..table import Coded, Kernel, Prepared, PreparedBetween, account, forward_of_x, register

LIBRARY = Path(__file__).with_name("_native.so")
_VERSION = 8  # of the operators and the layout of their settings; rules.h has the same number
_NEWEST = "are_finite"  # the operator that was added last: a library without it is older
_OLDEST = (2, 10)
_LEVELS = ("NEON" if platform.machine() == "aarch64" else "SSE2", "AVX2", "AVX-512")
# The *settings* of an operator are numbers in a tensor. The third one is the *plan*: planes | kind << 8 | flags. Flags: the operator also
# computes y; there is no min; there is no max.
_WITH_Y, _NO_MIN, _NO_MAX = 1 << 4, 1 << 12, 1 << 13
# A flag of the order that `encode_between` returns: x and a bound are zeros of different signs, so torch has to compute y.
_UNSURE = 1 << 60
# The kinds of rules.h. Kind 0: a slope for each side of a range. TURNED: a `Reversal`. STANDING: a slope for each code of `Pieces`.
# OF_MIN and OF_MAX: the gradient of a tensor of bounds.
_TURNED, _STANDING, _OF_MIN, _OF_MAX = 1, 5, 6, 7
_KIND_OF_CURVE: dict[Shape, int] = {"tent": 2, "witch": 3, "cusp": 4}
_KIND_BY_EXPONENTIAL: dict[Shape, int] = {"bump": 8, "normal": 9}  # torch computes their exponential, for a formula
_WIDE = {dtype: torch.promote_types(dtype, torch.float32) for dtype in DTYPES}  # in what C computes a formula
# The kinds of results of a `Formula`, as in rules.h: y, then the gradients of x, a and b. 0 if C does not compute a result.
_FORMULAS = {
    "loss": (1, 2, 3),
    "grid": (4, 5, 6, 7),
    "jump": (9, 10, 12),
    "jump and back": (9, 11, 12),
    "surrogate": (0, 13),
    "room": (0, 14, 15, 16),
}
_EXPONENT = 8  # the kind of a result: the exponent of the slope, of which torch computes the exponential
_WITH_SLOPE = (11, 12, 13)  # the results of a formula that read this exponential
_NUMBERS = 7  # the most numbers of a formula, without the largest gradient
LEAST_NORMAL = 2.0**-126  # of float32: a smaller number is subnormal, and the processor may be set to round it to 0


class Operators:
    """The operators of operators.c by name. Each is looked up when it is first used, which takes a tenth of a millisecond."""

    def __getattr__(self, name: str) -> Any:
        operator = raw(getattr(torch.ops.pseudograd_native, name).default)
        setattr(self, name, operator)
        return operator


def _load() -> tuple[str, str, Any]:
    """(state, why, the operators or None). It never raises: without the library the formulas compute."""
    if os.environ.get("PSEUDOGRAD_NATIVE", "") == "0":
        return "not active", "turned off by PSEUDOGRAD_NATIVE=0", None
    if tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) < _OLDEST:
        return "not active", f"torch {torch.__version__} is older than 2.10, the first with stable C symbols", None
    if not LIBRARY.exists():
        why = "not part of this build: install a wheel for this platform, or from source with gcc or clang"
        return "not active", why, None
    try:
        torch.ops.load_library(LIBRARY)
    except OSError as error:
        return "not active", f"the library does not load: {error}", None
    operators = Operators()
    # This is the first operator that runs: the others may have changed.
    version = int(operators.version()) if hasattr(torch.ops.pseudograd_native, _NEWEST) else 0
    if version != _VERSION:
        is_built = f"the library was built from other sources: its version is {version}, this package needs {_VERSION}"
        return "not active", f"{is_built}. Install pseudograd again, or run python setup.py build_ext --inplace", None
    return "active", _LEVELS[operators.choose(len(_LEVELS) - 1)], operators


_state, _why, operators = _load()


def status() -> dict[str, str]:
    return {"state": _state, "why": _why}


account("native", status)


# --- settings: a rule between two numbers as the operators read it ----------------------------------------------------


def tensor_of(*numbers: float) -> Tensor:
    """Numbers for an operator: torch passes a tensor faster than a list. It is made outside of all modes, because later calls reuse it."""
    with without_torch_function(), without_dispatch_modes(), outside_of_transforms():
        return torch.tensor(numbers, dtype=torch.float64, device="cpu")


constants = lru_cache(maxsize=256)(tensor_of)


def settings_of(
    code: Code,
    column: int = X,
    low: float | None = None,
    high: float | None = None,
    dtype: torch.dtype = torch.float64,
    flags: int = 0,
) -> Tensor:
    """The settings with which an operator computes the gradient of X, MIN or MAX. The bounds are rounded to the dtype."""
    if low is high is None:
        return _settings(code, flags)[column]
    low, high = _rounded_bounds(low, high, dtype)
    return _settings(code, flags, low, high, math.copysign(1.0, low), math.copysign(1.0, high))[column]


def _rounded_bounds(low: float | None, high: float | None, dtype: torch.dtype) -> tuple[float, float]:
    low = -math.inf if low is None else math.copysign(rounded_to(low, dtype), low)
    high = math.inf if high is None else math.copysign(rounded_to(high, dtype), high)
    return low, high


@lru_cache(maxsize=4096)
def _settings(code: Code, flags: int, low: float = -math.inf, high: float = math.inf, *signs: float) -> list[Any]:
    """The settings for x, min and max. signs: those of the bounds, for the cache alone, which takes 0.0 and -0.0 for the same key."""
    if code.by_sides:
        return [tensor_of(*_numbers_of_sides(code, flags, low, high))]
    plan = code.planes | _STANDING << 8 | flags
    regions_of_planes = float(sum(regions << 16 * plane for plane, regions in enumerate(code.regions)))
    settings: list[Any] = [None, None, None]
    for column, slopes in enumerate(code.slopes):
        if slopes is not None:
            factors = next(zip(*slopes, strict=True))  # those for grad > 0: the others are equal
            settings[column] = tensor_of(low, high, plan, regions_of_planes, *factors, *[0.0] * (8 - len(factors)))
    if code.slopes[X] is None:  # `encode_between` takes the settings of x, and reads no slope
        settings[X] = settings[MAX if code.slopes[MIN] is None else MIN]
    return settings


def _numbers_of_sides(code: Code, flags: int, low: float, high: float) -> list[float]:
    """The settings of a code by sides: the bounds, the plan, and two numbers for each side."""
    plan, numbers = flags, [0.0] * 6
    for plane, regions in enumerate(code.regions):
        for bit, region in enumerate((0, 4, 1, 3)):  # the order of rules.h: below, above, at_min and at_max
            plan |= (regions >> region & 1) << 4 * plane + bit
    for position, side in enumerate(code.slopes[X][1:]):  # type: ignore[index]  # of x alone
        if side is not NOTHING:
            plan |= bits.kind_of(side) << 14 + 2 * position
            numbers[2 * position : 2 * position + len(side)] = side  # none is a Reversal
    return [low, high, plan, *numbers]


def _flags(has_min: bool, has_max: bool) -> int:
    return (0 if has_min else _NO_MIN) | (0 if has_max else _NO_MAX)


def _settings_of_inputs(call: Call, between: RangePieces, dtype: torch.dtype) -> Sequence[Tensor] | None:
    """For each input of a call between tensors, the settings with which `pull_bounds` computes its gradient. None if a bound is a number,
    or if the rule has no code.
    """
    low, high, pieces = between
    for bound in (low, high):
        if not (bound is None or (isinstance(bound, Tensor) and bound.dtype is dtype)):
            return None
    return _make_settings_of_inputs(call, pieces, (low is not None, high is not None), dtype)


@bits.remembered
def _make_settings_of_inputs(
    call: Call, pieces: Pieces, has_bounds: tuple[bool, bool], dtype: torch.dtype
) -> Sequence[Tensor] | None:
    """A rule with `find_range` has one code for all inputs. A rule with `sides` has a code for x alone, and C has loops for the bounds."""
    flags = _flags(*has_bounds)
    if call.rule.find_range is not None:
        columns = bits.columns_of(call.primitive.inputs, has_bounds[0])
        code = bits.code_of_tensors(call, pieces, has_bounds, (True,) * len(columns), dtype)
        return None if code is None else [settings_of(code, column, flags=flags) for column in columns]
    of_x = bits.code_of_sides(call, *has_bounds, dtype)
    if of_x is None or edge_reads_grad(call.edge):
        return None
    plan, numbers = has_bounds[0] | flags, (pieces.at_min.min, *[0.0] * 5)  # what a bound gets where x is at it
    of_min = tensor_of(-math.inf, math.inf, plan | _OF_MIN << 8, *numbers)
    of_max = tensor_of(-math.inf, math.inf, plan | _OF_MAX << 8, *numbers)
    return [settings_of(of_x, flags=flags), of_min, of_max]


# --- with a code ------------------------------------------------------------------------------------------------------


def _encode(library: Operators, call: Call, inputs: Inputs, wants: Wants) -> tuple[Tensor, Saved] | None:
    if call.rule.steps is not None:
        return _encode_steps(library, call, inputs)
    x, code, between = inputs[0], bits.find_code(call, inputs, wants), call.find_range(inputs)
    assert code is not None, "the residual has asked"
    assert between is not None
    low, high, _ = between
    if not (isinstance(low, Tensor) or isinstance(high, Tensor)):
        y, planes, order = library.encode(x, settings_of(code, X, low, high, x.dtype))
        return y, [planes, order, code]
    tensors = tuple(value for value in inputs if isinstance(value, Tensor))
    y, planes, order = _encoder(library, call, low is not None, high is not None, code)(*tensors)
    return y, [planes, order, code]


def _encoder(
    library: Operators, call: Call, has_min: bool, has_max: bool, code: Code
) -> Callable[..., tuple[Tensor, Tensor, int]]:
    """A function that encodes a call between tensors: of x and those bounds that are not None."""
    encode, forward = library.encode_between, _forward_of(call, has_min, has_max)
    makes_y = call.primitive.inputs == BOUNDED  # not for fmin and fmax, which treat NaN in another way
    flags = 0 if code.by_sides else _flags(has_min, has_max) | (_WITH_Y if makes_y else 0)
    settings = settings_of(code, flags=flags)

    def encode_two(x: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, int]:
        y, planes, order = encode(x, low, high, settings)
        return (forward(x, low, high), planes, order ^ _UNSURE) if order & _UNSURE else (y, planes, order)

    def encode_one(x: Tensor, bound: Tensor) -> tuple[Tensor, Tensor, int]:
        y, planes, order = encode(x, bound, x, settings) if has_min else encode(x, x, bound, settings)
        return (y, planes, order) if makes_y and not order & _UNSURE else (forward(x, bound), planes, order & ~_UNSURE)

    return encode_two if has_min and has_max else encode_one


def _forward_of(call: Call, has_min: bool, has_max: bool) -> Callable[..., Tensor]:
    """The forward of torch, as a function of x and those bounds that are not None."""
    forward = call.primitive.forward
    if call.primitive.inputs != BOUNDED or (has_min and has_max):
        return forward
    return (lambda x, low: forward(x, low, None)) if has_min else (lambda x, high: forward(x, None, high))


def _encode_in_place(library: Operators, call: Call, inputs: Inputs, wants: Wants) -> Saved | None:
    between = call.find_range(inputs)
    if between is None or isinstance(between[0], Tensor) or isinstance(between[1], Tensor):
        return None
    code, x = bits.find_code(call, inputs, wants), inputs[0]
    assert code is not None
    planes, order = library.encode_(x, settings_of(code, X, *between[:2], x.dtype))
    return [planes, order, code]


def _encode_steps(library: Operators, call: Call, inputs: Inputs) -> tuple[Tensor, Saved] | None:
    x, steps = inputs[0], bits.steps_of(call, inputs)
    if not steps.thresholds and steps.interval is None:
        return None
    planes = library.steps(x, constants(*(steps.thresholds or map(float, steps.interval or ()))))
    return call.primitive.forward(*inputs), [planes, bits.order_of(x), bits.code_of_slopes(steps.slopes)]


def _pull_bits(library: Operators, grad: Tensor, saved: Saved, wants: Wants, call: Call) -> Gradients | None:
    planes, order, code = saved
    if grad.dtype not in DTYPES or not bits.are_bytes(planes):
        return None
    gradients: list[Tensor | None] = [None] * len(wants)
    for position, column in enumerate(bits.columns_of(wants, code.slopes[MIN] is not None)[: len(wants)]):
        if wants[position]:
            gradients[position] = library.pull_code(grad, planes, settings_of(code, column), order)
    return tuple(gradients)


# --- from x itself ----------------------------------------------------------------------------------------------------


def _pull_inputs(library: Operators, grad: Tensor, saved: Saved, wants: Wants, call: Call) -> Gradients | None:
    x, *others = saved
    if x is None:  # nothing is saved, because x gets grad as it is
        return grad, *[None] * len(others)
    # A hook of saved tensors may have changed the dtype of x.
    if x.dtype not in DTYPES or grad.dtype is not x.dtype or grad.dim() > MOST_DIMENSIONS:
        return None
    if not any(isinstance(other, Tensor) for other in others):
        settings = _settings_of_x(call, others, x.dtype)
        return None if settings is None else (library.pull_x(grad, x, settings), *[None] * len(others))
    between = call.find_range(tuple(saved))
    settings_of_inputs = None if between is None else _settings_of_inputs(call, between, x.dtype)
    if between is None or settings_of_inputs is None:
        return None
    low, high, _ = between
    tensors = x, x if low is None else low, x if high is None else high
    each = zip(settings_of_inputs, wants, strict=True)
    return tuple([library.pull_bounds(grad, *tensors, settings) if want else None for settings, want in each])


def _settings_of_x(call: Call, others: Sequence[Any], dtype: torch.dtype) -> Tensor | None:
    """The settings with which `pull_x` computes grad_x of a call with numbers behind x; None if it cannot."""
    if dtype not in DTYPES:
        return None
    rule = call.rule
    if call.primitive.find_grid is not None:
        grid = call.primitive.find_grid(*others)
        return None if grid is None else _settings_on_grid(call, grid, dtype)
    if rule.regions is not None:
        return _settings_of_regions(call, dtype)
    if rule.curve is not None:
        return constants(*_numbers_of_curve(rule.curve(**call.parameters), dtype))
    if call.primitive.inputs != BOUNDED:
        return None
    low, high = others
    code = bits.code_of_numbers(call, low, high, dtype)
    return settings_of(code, X, low, high, dtype) if code else _settings_of_reversal(call, low, high, dtype)


def _settings_of_reversal(call: Call, low: Bound, high: Bound, dtype: torch.dtype) -> Tensor | None:
    """The bounds, the plan, width * (max - min), and max - min. Each step is rounded as in the formula."""
    width = _width_of(call)
    if width is None or low is None or high is None:
        return None
    low, high = (math.copysign(rounded_to(bound, dtype), bound) for bound in (low, high))
    span = rounded_to(high - low, dtype)
    scale = rounded_to(rounded_to(width, dtype) * span, dtype)
    plan = (0x12 if call.maximize else 0x21) | _TURNED << 8  # in 0x21 the first plane is below and the second above
    return tensor_of(low, high, plan, scale, span, *[0.0] * 4) if 0 < scale < math.inf else None


def _width_of(call: Call) -> float | None:
    """The width of a rule that turns outward gradients around (`Reversal`); None for other rules."""
    pieces = call.pieces
    if pieces is None or not isinstance(pieces.below.x, Slope):
        return None
    for factor in pieces.below.x:
        if isinstance(factor, Reversal):
            sides = Slope(factor, 1.0), Slope(1.0, factor)
            return factor.width if pieces == pieces_of_sides(sides, "closed", call.maximize) else None
    return None


def passes(call: Call) -> bool:
    """Does x get all of grad in every region?"""
    pieces = call.pieces
    return pieces is not None and {split.x for split in pieces} <= {1.0, ALL}


def _numbers_of_curve(curve: Curve, dtype: torch.dtype) -> list[float]:
    farthest = math.sqrt(torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32).max) / 8
    kind = {**_KIND_OF_CURVE, **_KIND_BY_EXPONENTIAL}.get(curve.shape, 0)
    return [0.0, farthest, kind << 8, curve.scale, curve.height, *[0.0] * 4]


@bits.remembered
def _settings_of_regions(call: Call, dtype: torch.dtype) -> Tensor:
    regions = call.rule.regions
    assert regions is not None, "the caller has asked"
    low, high, pieces = regions(**call.parameters)
    code = bits.make_code(pieces, X_ALONE, bits.regions_of_numbers(low, high), by_sides=False, dtype=dtype)
    assert code is not None
    return settings_of(code, X, low, high, dtype)


# --- by a formula -----------------------------------------------------------------------------------------------------


@bits.remembered
def _settings_of_formula(
    call: Call, formula: Formula, kind: int, has_tensors: tuple[bool, bool], dtype: torch.dtype
) -> Tensor | None:
    """The settings for a result of the formula; None if C cannot compute it. has_tensors: are a and b tensors that it reads?"""
    low, high = formula.low, formula.high
    if formula.curve is not None:
        numbers = _numbers_of_curve(formula.curve, dtype)
        formula = formula._replace(numbers=tuple([rounded_to(number, dtype) for number in formula.numbers]))
    elif formula.name == "room":
        if call.maximize:
            return None
        low, high = _rounded_bounds(low, high, dtype)
        if not (any(has_tensors) or 0 < rounded_to(high - low, dtype) < math.inf):
            return None
        numbers = [low, high, *[0.0] * 7]
    else:
        wide = _WIDE[dtype]
        code = None if call.pieces is None else bits.code_of_sides(call, low is not None, high is not None, wide)
        if code is None:
            return None
        numbers = _numbers_of_sides(code, 0, *_rounded_bounds(low, high, wide))
    numbers[2] = int(numbers[2]) | _flags(*has_tensors)
    largest = 0.0 if dtype is _WIDE[dtype] else torch.finfo(dtype).max
    return tensor_of(*numbers, kind, *formula.numbers, *[0.0] * (_NUMBERS - len(formula.numbers)), largest)


def _find_formula(call: Call, inputs: Sequence[Any]) -> Formula | None:
    x, *others = inputs
    assert call.rule.find_formula is not None, "the kernel serves no other"
    if x is None or x.dtype not in DTYPES or x.dim() > MOST_DIMENSIONS:
        return None
    return call.rule.find_formula(*others, **call.parameters)


def _compute_formula(
    library: Operators,
    call: Call,
    formula: Formula,
    inputs: Sequence[Any],
    kinds: Sequence[int | None],
    grad: Tensor | None = None,
) -> list[Tensor | None] | None:
    """The results of these kinds, and None for None. Returns None if C cannot compute one of them. grad: none for y."""
    if 0 in kinds:
        return None
    x, *others = inputs
    tensors = [value if isinstance(value, Tensor) else None for value in (*others, None)[:2]]
    a, b = (value if value is None or value.dtype in _WIDE.values() else value.float() for value in tensors)
    if not all(value is None or bits.broadcasts(value, x, _WIDE[x.dtype]) for value in (a, b)):
        return None
    has_a, has_b = a is not None, b is not None or formula.b_of_x is not None
    has_exponential = formula.curve is not None and formula.curve.shape in _KIND_BY_EXPONENTIAL
    kinds_with_b = {kind for kind in kinds if kind and (kind in _WITH_SLOPE if has_exponential else has_b)}
    settings = [
        kind and _settings_of_formula(call, formula, kind, (has_a, kind in kinds_with_b), x.dtype) for kind in kinds
    ]
    if any(kind and entry is None for kind, entry in zip(kinds, settings, strict=True)):
        return None
    x = x if formula.of_x is None else formula.of_x(x)
    if grad is not None and (grad.dtype is not x.dtype or grad.shape != x.shape):
        return None
    a = x if a is None else a  # the operator needs a tensor here, and does not read it
    b = b if formula.b_of_x is None else formula.b_of_x(x)
    if b is None and kinds_with_b:
        b = library.formula(x, x, a, x, _settings_of_formula(call, formula, _EXPONENT, (has_a, False), x.dtype)).exp_()
    arguments = x if grad is None else grad, x, a, x if b is None else b
    return [None if entry is None else library.formula(*arguments, entry) for entry in settings]


def _pull_formula(library: Operators, grad: Tensor, saved: Saved, wants: Wants, call: Call) -> Gradients | None:
    """If x is of half precision, tensors behind x get gradients in float32, because these are summed before they are rounded."""
    formula = _find_formula(call, saved)
    if formula is None:
        return None
    kinds = (*_FORMULAS[formula.name][1:], *[0] * len(wants))
    wanted = [kind if want else None for kind, want in zip(kinds, wants, strict=False)]
    gradients = _compute_formula(library, call, formula, saved, wanted, grad)
    return None if gradients is None else tuple(gradients)


def _value_of_formula(library: Operators, call: Call, inputs: Inputs) -> Tensor | None:
    formula = _find_formula(call, inputs)
    (y,) = (formula and _compute_formula(library, call, formula, inputs, _FORMULAS[formula.name][:1])) or [None]
    return y


# --- on a grid --------------------------------------------------------------------------------------------------------
# The op rounds x to a position on a grid, and clamps the position. So grad passes between the least and the greatest x whose position is
# inside the range.


@bits.remembered
def _range_on_grid(grid: tuple[float, ...], dtype: torch.dtype) -> tuple[float, float] | None:
    """The least and the greatest x whose position is inside, by a search near the exact ends; None if the search does not find them."""
    inverse, zero, low, high, _ = grid
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    ends: list[float] = []
    with without_torch_function(), without_dispatch_modes(), outside_of_transforms():
        for end, half in ((low, -0.5), (high, 0.5)):
            middle = torch.tensor([(end - zero + half) / inverse], dtype=dtype, device="cpu").view(integers)
            x = (middle + torch.arange(-64, 65, dtype=integers, device="cpu")).view(dtype).sort().values
            position = torch.round(x.to(torch.float64 if dtype is torch.float64 else torch.float32) * inverse) + zero
            is_inside = position >= low if half < 0 else position <= high
            if not x.isfinite().all() or is_inside.all() or not is_inside.any():
                return None
            ends.append(x[is_inside][0 if half < 0 else -1].item())
    return ends[0], ends[1]


def _settings_on_grid(call: Call, grid: tuple[float, ...], dtype: torch.dtype) -> Tensor | None:
    """None if the rule needs more than the side of the range on which x is, or does not pass all of grad at a bound."""
    pieces = call.pieces
    if pieces is None or not pieces.at_min.x == pieces.at_max.x == ALL:
        return None
    code = bits.code_of_sides(call, True, True, torch.float32 if dtype.itemsize == 2 else dtype)
    between = None if code is None else _range_on_grid(grid, dtype)
    return None if code is None or between is None else settings_of(code, X, *between, dtype)


def _find_grid(call: Call, others: Inputs, dtype: torch.dtype) -> tuple[float, ...] | None:
    return call.primitive.find_grid(*others) if call.primitive.find_grid is not None and dtype in DTYPES else None


def _quantize(library: Operators, call: Call, inputs: Inputs) -> Tensor | None:
    x, *others = inputs
    grid = _find_grid(call, tuple(others), x.dtype)
    y: Tensor | None = None if grid is None else library.quantize(x, constants(*grid))
    return y if y is not None and y.shape == x.shape else None


def _clamp_between_tensors(library: Operators, call: Call, inputs: Inputs) -> Tensor | None:
    """Faster than torch.clamp, whose loop is slow between tensors with one number per channel."""
    x, low, high = inputs
    if not (isinstance(low, Tensor) and isinstance(high, Tensor)):
        return None
    y: Tensor = library.clamp_between(x, low, high)
    return y if y.shape == x.shape else None


# --- prepared calls ---------------------------------------------------------------------------------------------------


def _prepare(library: Operators, call: Call, others: Inputs, dtype: torch.dtype) -> Prepared | None:
    """Prepare a call with numbers behind x. C computes y of a clamp and of a quantiser; torch computes y of other ops."""
    settings, grid = _settings_of_x(call, others, dtype), _find_grid(call, others, dtype)
    if settings is not None and _has_subnormal((*others, *settings.tolist()), call):
        settings = None
    if grid is not None:
        numbers, quantize = constants(*grid), library.quantize
        quantized = Prepared(lambda x, settings: quantize(x, numbers), call, others, passes_grad=_saves_nothing(call))
        return quantized if settings is None else quantized.replaced(settings=settings, backward=library.pull_x)
    if settings is None:
        return None
    if call.primitive.inputs != BOUNDED:
        return Prepared(forward_of_x(call, others), call, others, settings, library.pull_x, takes_any_layout=True)
    low, high = others
    code, encode = bits.code_of_numbers(call, low, high, dtype), library.encode
    coded = None if code is None else Coded(lambda x: encode(x, settings), library.pull_code, (settings,), code, BITS)
    kernels = library.clamp, call, others, settings, library.pull_x, coded, library.encode_
    return Prepared(*kernels, pays=bits.pays_for, passes_grad=_saves_nothing(call))


def _saves_nothing(call: Call) -> bool:
    """Does x get all of grad, so that a call of x alone saves nothing?"""
    return passes(call) and not call.keeps((True, *[False] * (len(call.primitive.inputs) - 1)))


def _prepare_steps(library: Operators, call: Call, others: Inputs, dtype: torch.dtype) -> Prepared | None:
    """Prepare a call of a rule with `steps`. torch computes y. With few elements the call saves x, and its backward makes the code."""
    if call.rule.steps is None or dtype not in DTYPES:
        return None
    steps = call.rule.steps(*others, **call.parameters)
    numbers = steps and (steps.thresholds or tuple(map(float, steps.interval or ())))
    if not steps or not numbers or _has_subnormal((*numbers, *steps.slopes), call):
        return None
    forward, ends, code = call.primitive.forward, constants(*numbers), bits.code_of_slopes(steps.slopes)
    make_code, pull_code, order_of, slopes = library.steps, library.pull_code, bits.order_of, settings_of(code)

    def encode(x: Tensor) -> tuple[Tensor, Tensor, int | None]:
        return forward(x, *others), make_code(x, ends), order_of(x)

    def pull(grad: Tensor, x: Tensor, settings: Tensor | None) -> Tensor:
        order = order_of(x)
        if order is None:
            raise NotImplementedError
        return pull_code(grad, make_code(x, ends), settings, order)

    coded = Coded(encode, pull_code, (slopes,), code, BITS)
    pays = lambda x: order_of(x) is not None  # noqa: E731
    value = forward_of_x(call, others)
    return Prepared(value, call, others, slopes, pull, coded, pays=pays, takes_any_layout=True)


def _has_subnormal(numbers: Sequence[float | None], call: Call) -> bool:
    """Is a number of the call, or a factor of its rule, subnormal? Kernels may read it as 0."""
    factors: set[float | Reversal | None] = {*numbers}
    for split in call.pieces or ():
        if isinstance(split.x, tuple):
            factors.update(split.x)
    for factor in factors:
        number = factor.width if isinstance(factor, Reversal) else factor
        if number and abs(number) < LEAST_NORMAL:
            return True
    return False


def _prepare_between(library: Operators, call: Call, inputs: Inputs) -> PreparedBetween | None:
    between, dtype = call.find_range(inputs), inputs[0].dtype
    if between is None or dtype not in DTYPES or (between[0] is None and between[1] is None):
        return None
    settings_of_inputs = _settings_of_inputs(call, between, dtype)
    if settings_of_inputs is None or _has_subnormal((), call):
        return None
    has_min, has_max, pieces = between[0] is not None, between[1] is not None, between[2]
    are_tensors = [isinstance(value, Tensor) for value in inputs]
    all_columns = bits.columns_of(inputs, has_min)
    columns = [column for column, is_tensor in zip(all_columns, are_tensors, strict=True) if is_tensor]
    pull = library.pull_bounds

    def inputs_of(values: Any) -> list[Any]:
        each = iter(values)
        return [next(each) if is_tensor else None for is_tensor in are_tensors]

    def pull_min(grad: Tensor, x: Tensor, low: Tensor, settings: Tensor) -> Tensor:
        return pull(grad, x, low, x, settings)

    def pull_max(grad: Tensor, x: Tensor, high: Tensor, settings: Tensor) -> Tensor:
        return pull(grad, x, x, high, settings)

    def coded(wants: Wants) -> Coded | None:
        if call.rule.find_range is None and wants != X_ALONE:  # with one bound `wants` is shorter than X_ALONE
            return None
        wanted = tuple([bool(want) for want in inputs_of(wants)])
        code = bits.code_of_tensors(call, pieces, (has_min, has_max), wanted, dtype)
        assert code is not None
        settings = tuple(
            [settings_of(code, column) if want else None for column, want in zip(columns, wants, strict=True)]
        )
        return Coded(_encoder(library, call, has_min, has_max, code), library.pull_code, settings, code, BITS)

    pull_one = pull_min if has_min else pull_max
    return PreparedBetween(
        _forward_of(call, has_min, has_max),
        pull if has_min and has_max else pull_one,
        tuple([settings for settings, is_tensor in zip(settings_of_inputs, are_tensors, strict=True) if is_tensor]),
        inputs_of,
        call,
        coded,
    )


def _serves_range(call: Call) -> bool:
    return call.is_about_range and (passes(call) or bits.suits(call) or _width_of(call) is not None)


def _serves_x_alone(call: Call) -> bool:
    curve = call.rule.curve
    if call.primitive.through is not None:
        return False
    return call.rule.regions is not None or (curve is not None and curve(**call.parameters).shape in _KIND_OF_CURVE)


def kernels_of(library: Operators, name: str, device: str) -> Iterator[Kernel]:
    """The kernels that run these operators on a device."""
    kernel = partial(Kernel, name, device=device, priority=30)
    of_x = partial(kernel, INPUTS, backward=partial(_pull_inputs, library), prepare=partial(_prepare, library))
    of_range = partial(of_x, prepare_between=partial(_prepare_between, library))
    yield kernel(
        BITS, bits.suits, partial(_pull_bits, library), partial(_encode, library), partial(_encode_in_place, library)
    )
    yield of_range(_serves_range, value=partial(_clamp_between_tensors, library) if device == "cpu" else None)
    yield of_range(lambda call: call.rule.find_range is not None)
    yield of_x(_serves_x_alone)
    decline = lambda *_: None  # noqa: E731  the formula computes a call with `steps` that is not prepared
    yield kernel(INPUTS, lambda call: call.rule.steps is not None, decline, prepare=partial(_prepare_steps, library))
    serves_formula = lambda call: call.rule.find_formula is not None and call.primitive.through is None  # noqa: E731
    yield kernel(INPUTS, serves_formula, partial(_pull_formula, library), value=partial(_value_of_formula, library))
    yield of_x(lambda call: call.primitive.find_grid is not None, value=partial(_quantize, library))


if operators is not None:
    bits.devices.add("cpu")
    register(*kernels_of(operators, "native", "cpu"))
if torch.version.cuda is not None:
    importlib.import_module(f"{__name__}.on_cuda")
else:
    is_rocm = torch.version.hip is not None
    reason = "this torch is built for ROCm: the plain formulas compute there" if is_rocm else "this torch has no CUDA"
    account("cuda", lambda: {"state": "not active", "why": reason})
