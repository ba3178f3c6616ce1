"""The kernels: one forward, one backward each. Imported by the first call that could run them, because triton takes a second to import.

A program takes a block of elements, whose places are whole bytes of each plane of a code. What is copied from an input is copied as it
is stored; what is compared or multiplied is float32 for the half precisions, and rounded once, as torch does it. bfloat16 is converted
by its bits: so every processor rounds alike, and Triton's interpreter too.

Numbers come as the bits of a float64, because triton makes a float32 of every float. No block size is tuned: that would run a kernel many
times, which a CUDA graph cannot record.
"""

# mypy: ignore-errors
# (what triton.jit compiles is no Python for a type checker)

import triton
import triton.language as tl

from .. import range_bits

# triton.jit reads only globals of this type
ALIKE: tl.constexpr = tl.constexpr(range_bits.ALIKE)
NUMBER: tl.constexpr = tl.constexpr(range_bits.NUMBER)
_NUMBERS = ["up_of_first", "down_of_first", "up_of_second", "down_of_second", "up_of_both", "down_of_both"]
BELOW: tl.constexpr = tl.constexpr(range_bits.BELOW)
ABOVE: tl.constexpr = tl.constexpr(range_bits.ABOVE)
AT_MIN: tl.constexpr = tl.constexpr(range_bits.AT_MIN)
AT_MAX: tl.constexpr = tl.constexpr(range_bits.AT_MAX)


# Else triton would compile anew for the bits that 16 divides.
@triton.jit(do_not_specialize=["low", "high"])
def encode(
    x,
    y,
    code,
    n,
    low: tl.int64,
    high: tl.int64,
    first: tl.constexpr,
    second: tl.constexpr,
    takes_min: tl.constexpr,
    takes_max: tl.constexpr,
    block: tl.constexpr,
):
    """y, and the planes of these places. takes_min, takes_max: y is the bound where x is equal to it, which is about the sign of 0."""
    byte, bit, at = _elements(block)
    is_element = at < n
    stored = tl.load(x + at, mask=is_element, other=0.0)
    lanes = _lanes(stored)
    low, high = _number(low, lanes.dtype), _number(high, lanes.dtype)
    below = lanes <= low if takes_min else lanes < low
    raised = tl.where(below, low, lanes)
    above = raised >= high if takes_max else raised > high
    clamped = tl.where(above, _rounded(high, stored.dtype), tl.where(below, _rounded(low, stored.dtype), stored))
    tl.store(y + at, clamped, mask=is_element)
    length = _plane_bytes(n)
    if first:
        _store_plane(code, _are_at(lanes, low, high, first) & is_element, byte, bit, length)
    if second:
        into = code
        if first:
            into = code + length
        _store_plane(into, _are_at(lanes, low, high, second) & is_element, byte, bit, length)


@triton.jit(
    do_not_specialize=["up_of_first", "down_of_first", "up_of_second", "down_of_second", "up_of_both", "down_of_both"]
)
def pull_code(
    grad,
    code,
    out,
    n,
    up_of_first: tl.int64,
    down_of_first: tl.int64,
    up_of_second: tl.int64,
    down_of_second: tl.int64,
    up_of_both: tl.int64,
    down_of_both: tl.int64,
    has_first: tl.constexpr,
    has_second: tl.constexpr,
    has_both: tl.constexpr,
    form_of_first: tl.constexpr,
    form_of_second: tl.constexpr,
    form_of_both: tl.constexpr,
    block: tl.constexpr,
):
    """The gradient from the planes of a code."""
    byte, bit, at = _elements(block)
    is_element = at < n
    stored = tl.load(grad + at, mask=is_element, other=0.0)
    length = _plane_bytes(n)
    in_first, in_second = tl.zeros(at.shape, tl.int1), tl.zeros(at.shape, tl.int1)
    if has_first:
        in_first = _load_plane(code, byte, bit, length)
    if has_second:
        of_second = code
        if has_first:
            of_second = code + length
        in_second = _load_plane(of_second, byte, bit, length)
    found = stored
    if has_first:
        found = _with_share(found, stored, in_first, up_of_first, down_of_first, form_of_first)
    if has_second:
        found = _with_share(found, stored, in_second, up_of_second, down_of_second, form_of_second)
    if has_both:
        found = _with_share(
            tl.where(in_first & in_second, stored, found),
            stored,
            in_first & in_second,
            up_of_both,
            down_of_both,
            form_of_both,
        )
    tl.store(out + at, found, mask=is_element)


@triton.jit(
    do_not_specialize=[
        "low",
        "high",
        "up_of_first",
        "down_of_first",
        "up_of_second",
        "down_of_second",
        "up_of_both",
        "down_of_both",
    ]
)
def pull_x(
    grad,
    x,
    out,
    n,
    low: tl.int64,
    high: tl.int64,
    up_of_first: tl.int64,
    down_of_first: tl.int64,
    up_of_second: tl.int64,
    down_of_second: tl.int64,
    up_of_both: tl.int64,
    down_of_both: tl.int64,
    first: tl.constexpr,
    second: tl.constexpr,
    form_of_first: tl.constexpr,
    form_of_second: tl.constexpr,
    form_of_both: tl.constexpr,
    block: tl.constexpr,
):
    """The gradient from x and its bounds."""
    _byte, _bit, at = _elements(block)
    is_element = at < n
    stored = tl.load(grad + at, mask=is_element, other=0.0)
    lanes = _lanes(tl.load(x + at, mask=is_element, other=0.0))
    low, high = _number(low, lanes.dtype), _number(high, lanes.dtype)
    in_first, in_second = _are_at(lanes, low, high, first), _are_at(lanes, low, high, second)
    found = stored
    if first:
        found = _with_share(found, stored, in_first, up_of_first, down_of_first, form_of_first)
    if second:
        found = _with_share(found, stored, in_second, up_of_second, down_of_second, form_of_second)
    if first & second:
        found = _with_share(
            tl.where(in_first & in_second, stored, found),
            stored,
            in_first & in_second,
            up_of_both,
            down_of_both,
            form_of_both,
        )
    tl.store(out + at, found, mask=is_element)


@triton.jit
def _elements(block: tl.constexpr):
    """The bytes of this program in a plane, the bits of each, and the elements they are about. int64: a tensor may have more than 2^31."""
    byte = tl.program_id(0).to(tl.int64) * (block // 8) + tl.arange(0, block // 8)
    bit = tl.arange(0, 8)
    return byte, bit, byte[:, None] * 8 + bit[None, :]


@triton.jit
def _plane_bytes(n):
    return (n.to(tl.int64) + 63) // 64 * 8


@triton.jit
def _store_plane(plane, are, byte, bit, length):
    made = tl.sum(are.to(tl.int32) << bit[None, :], axis=1)
    tl.store(plane + byte, made.to(tl.uint8), mask=byte < length)


@triton.jit
def _load_plane(plane, byte, bit, length):
    bits = tl.load(plane + byte, mask=byte < length, other=0).to(tl.int32)
    return ((bits[:, None] >> bit[None, :]) & 1) != 0


@triton.jit
def _number(bits, dtype: tl.constexpr):
    return bits.to(tl.int64).to(tl.float64, bitcast=True).to(dtype)


@triton.jit
def _lanes(stored):
    """The same numbers, to compute with."""
    if stored.dtype == tl.bfloat16:
        lanes = (stored.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    elif stored.dtype == tl.float16:
        lanes = stored.to(tl.float32)
    else:
        lanes = stored
    return lanes


@triton.jit
def _rounded(lanes, dtype: tl.constexpr):
    """To nearest, and to even between two."""
    if dtype == tl.bfloat16:
        bits = lanes.to(tl.uint32, bitcast=True)
        bits = tl.where(lanes == lanes, bits + 0x7FFF + ((bits >> 16) & 1), 0x7FC00000)
        made = (bits >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        made = lanes.to(dtype)
    return made


@triton.jit
def _are_at(x, low, high, places: tl.constexpr):
    are = tl.zeros(x.shape, tl.int1)
    if BELOW & places:
        are = are | (x < low)
    if ABOVE & places:
        are = are | (x > high)
    if AT_MIN & places:
        are = are | (x == low)
    if AT_MAX & places:
        are = are | (x == high)
    return are


@triton.jit
def _scaled(grad, factor, is_zero: tl.constexpr):
    """0 for a factor of 0, also where grad is infinite or NaN."""
    if is_zero:
        made = tl.zeros_like(grad)
    else:
        lanes = _lanes(grad)
        made = _rounded(lanes * _number(factor, lanes.dtype), grad.dtype)
    return made


@triton.jit
def _with_share(found, grad, there, up, down, form: tl.constexpr):
    """What is found, and there the share of grad; triton/__init__.py says what a form is."""
    if form & 3 == NUMBER:
        lanes = _lanes(grad)
        number = tl.zeros_like(lanes) + _number(up, lanes.dtype)
        found = tl.where(there, _rounded(number, grad.dtype), found)
    elif form & 3 == ALIKE:
        found = tl.where(there, _scaled(grad, up, form & 4), found)
    else:
        lanes = _lanes(grad)
        if not form & 8:
            found = tl.where(there & (lanes > 0), _scaled(grad, up, form & 4), found)
        if not form & 32:
            found = tl.where(there & (lanes < 0), _scaled(grad, down, form & 16), found)
    return found
