"""Rounding, steps, abs, gradient transforms and fake quantisation for one number: plain `if`s.

Each function returns the gradients of the inputs that may be tensors. `fl` rounds to the dtype under test. Steps and quantisers compute
half precision in float32 (by `_wide`) and round once at the end.
"""

import math
import struct
from collections.abc import Callable

from . import bounds
from .bounds import Number, Round


def _single(value: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _wide(fl: Round) -> Round:
    """Rounds to float32 if `fl` rounds to a half precision; else `fl` itself."""
    return _single if fl(1 + 2.0**-20) == 1 else fl


def _largest(fl: Round) -> float:
    """The largest number of the wide dtype."""
    return (2 - 2.0**-23) * 2.0**127 if _wide(fl)(1 + 2.0**-40) == 1 else math.ldexp(2 - 2.0**-52, 1023)


def _exp(value: Number) -> Number:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def rounding(
    rule: str, x: Number, grad: Number, *decimals: Number, fl: Round, within: float = 0.25, amplitude: float = 0.21
) -> tuple[Number, ...]:
    """The rules "trust" and "fourier" read the distance of x from the nearest multiple of 10^-decimals."""
    if rule in ("identity", "zero"):
        return (grad if rule == "identity" else 0.0,)
    r, steps = _wide(fl), 10.0 ** decimals[0]
    position = r(x * steps) if steps >= 1 else r(x / (1 / steps))
    if math.isnan(position) or math.isinf(position):
        return (0.0,)
    error = abs(r(position - round(position)))
    if rule == "trust":
        return (grad if error <= r(within) else 0.0,)
    assert rule == "fourier"
    wave = r(math.cos(r(error * r(math.pi))) * r(amplitude * math.sqrt(2) * math.pi))
    return (fl(r(grad * r(r(1 - wave) / r(1 + wave)))),)


def absolute(x: Number, grad: Number, *, edge: int, fl: Round) -> tuple[Number, ...]:
    if x < 0:
        return (-grad,)
    if x == 0:
        return ({0: 0.0, 1: grad, -1: -grad}[edge],)
    return (grad,)


def scaled(x: Number, grad: Number, scale: Number, *, fl: Round) -> tuple[Number, ...]:
    return (0.0 if scale == 0 else fl(fl(scale) * grad),)


def reversed_(x: Number, grad: Number, scale: Number, *, fl: Round) -> tuple[Number, ...]:
    return (0.0 if scale == 0 else -fl(fl(scale) * grad),)


def clipped(x: Number, grad: Number, limit: Number, *, fl: Round) -> tuple[Number, ...]:
    limit = fl(limit)
    return (limit if grad > limit else -limit if grad < -limit else grad,)


def replaced(x_forward: Number, grad: Number, x_backward: Number, **_: object) -> tuple[Number, ...]:
    """replace_grad: grad goes to x_backward."""
    return 0.0, grad


def step(
    rule: str, x: Number, grad: Number, at_zero: Number, *, fl: Round, scale: float = 1.0, height: float = 1.0
) -> tuple[Number, ...]:
    """grad times the slope of the surrogate; 0 where the slope is 0, whatever grad is."""
    if rule == "zero":
        return (0.0,)
    if rule == "identity":
        return (grad,)
    slope = _slope(rule, x, scale, height, fl)
    return (0.0 if slope == 0 else fl(_wide(fl)(grad * slope)),)


def _slope(rule: str, x: Number, scale: float, height: float, fl: Round) -> Number:
    r = _wide(fl)
    if rule == "window":
        return r(height) if abs(x) <= r(scale) else 0.0
    if math.isnan(x) or math.isinf(x):
        return 0.0
    u = abs(r(x / r(scale)))
    if not u < math.sqrt(_largest(fl)) / 8:
        return 0.0
    if rule == "triangle":
        return r(r(1 - u) * r(height)) if u < 1 else 0.0
    if rule == "fast_sigmoid":
        root = r(1 / r(1 + u))
        return r(r(root * root) * r(height))
    peak = r(height / scale)
    if rule == "arctan":
        turn = r(u * r(math.pi))
        return r(r(1 / r(1 + r(turn * turn))) * peak)
    if rule == "sigmoid":
        e = r(math.exp(-u))
        root = r(1 / r(1 + e))
        return r(r(e * r(root * root)) * peak)
    assert rule == "gaussian"
    peak = r(height / (scale * math.sqrt(2 * math.pi)))
    return r(r(math.exp(r(r(u * u) * -0.5))) * peak)


def fake_quantize(
    gradient_of_clamp: Callable[..., tuple[float, ...]],
    x: Number,
    grad: Number,
    scale: Number,
    zero_point: Number,
    quant_min: Number,
    quant_max: Number,
    *,
    edge: str,
    maximize: bool = False,
    fl: Round,
    **parameters: float,
) -> tuple[Number, ...]:
    """(grad_x, grad_scale, grad_zero_point). gradient_of_clamp: the reference of the rule of clamp that is applied on the integer grid."""
    r = _wide(fl)
    position = r(x * r(1 / scale))
    code = r(_nearest_even(position) + _nearest_even(zero_point))
    to_code = gradient_of_clamp(code, grad, quant_min, quant_max, edge=edge, maximize=maximize, fl=r, **parameters)[0]
    clamped = bounds.forward(code, quant_min, quant_max)
    to_scale = r(grad * r(clamped - _nearest_even(zero_point)))
    if not (to_code == 0 and math.isinf(position)):
        to_scale = r(to_scale - r(to_code * position))
    to_zero_point = 0.0 if to_code == grad and math.isinf(grad) else r(r(to_code - grad) * scale)
    return fl(to_code), fl(to_scale), fl(to_zero_point)


def _nearest_even(value: Number) -> Number:
    return value if math.isnan(value) or math.isinf(value) else float(round(value))
