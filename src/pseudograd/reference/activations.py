"""gelu, silu, leaky_relu, hardsigmoid and jumprelu for one number: plain `if`s. The steps of "fewbit" are written out for x above 0.

`fl` rounds to the dtype under test. torch computes half precision in float32 and rounds once at the end.
"""

import math
from collections.abc import Callable

from .bounds import Number, Round
from .elementwise import _exp, _slope, _wide

# By the number of bits: the ends of the intervals above 0, and the slope in each. The slope at -x is 1 minus the slope at x.
_GELU = {
    2: ((0.5, math.inf), (0.6875, 1.046875)),
    3: ((225 / 1024, 241 / 512, 25 / 32, math.inf), (75 / 128, 195 / 256, 239 / 256, 35 / 32)),
}
_SILU = {
    2: ((43 / 64, math.inf), (21 / 32, 31 / 32)),
    3: ((159 / 512, 169 / 256, 143 / 128, math.inf), (37 / 64, 187 / 256, 113 / 128, 133 / 128)),
}


def gelu(rule: str, x: Number, grad: Number, is_tanh: Number, *, fl: Round, bits: int = 2) -> tuple[Number, ...]:
    if rule == "fewbit":
        return (fl(grad * _step(_GELU[bits], x)),)
    r = _wide(fl)
    slope = _tanh_slope(x, r) if is_tanh else _erf_slope(x, r)
    return (fl(r(grad * slope)),)


def silu(rule: str, x: Number, grad: Number, *, fl: Round, bits: int = 2) -> tuple[Number, ...]:
    if rule == "fewbit":
        return (fl(grad * _step(_SILU[bits], x)),)
    r = _wide(fl)
    s = r(1 / r(1 + r(_exp(-x))))
    return (fl(r(r(grad * s) * r(1 + r(x * r(1 - s))))),)


def leaky_relu(rule: str, x: Number, grad: Number, negative_slope: Number, *, fl: Round) -> tuple[Number, ...]:
    return (grad if x > 0 else fl(grad * _wide(fl)(negative_slope)),)


def hardsigmoid(rule: str, x: Number, grad: Number, *, fl: Round) -> tuple[Number, ...]:
    return (fl(grad * _wide(fl)(1 / 6)) if -3 < x < 3 else 0.0,)


# By the rule of jumprelu: the scale and height with which the slope of `sign` has the area 1.
_DENSITIES: dict[str, Callable[[float], tuple[float, float]]] = {
    "window": lambda bandwidth: (bandwidth / 2, 1 / bandwidth),
    "triangle": lambda bandwidth: (bandwidth, 1 / bandwidth),
    "fast_sigmoid": lambda bandwidth: (bandwidth, 1 / (2 * bandwidth)),
}


def jumprelu(
    rule: str | Callable[..., Number],
    x: Number,
    grad: Number,
    threshold: Number,
    bandwidth: Number,
    window_to_x: Number,
    *,
    fl: Round,
    **how: object,
) -> tuple[Number, ...]:
    """(grad_x, grad_threshold). rule: a name, or a user's function, which gives the gradient of the threshold from one x."""
    passed = 0.0 if x <= threshold else grad
    r, share = _wide(fl), 0.0
    if not isinstance(rule, str):
        if math.isfinite(x) and math.isfinite(threshold):
            share = -rule(grad, x, threshold, bandwidth, fl=fl, **how)
    elif rule != "zero":
        scale, height = _DENSITIES.get(rule, lambda bandwidth: (bandwidth, 1.0))(bandwidth)
        slope = _slope(rule, r(x - threshold), scale, height, fl)
        jump = r(threshold * slope)
        share = 0.0 if slope == 0 or (jump == 0 and math.isinf(grad)) else r(grad * jump)
    is_shared = window_to_x and rule != "zero"
    return fl(r(passed + share)) if is_shared else passed, fl(-share) if share else 0.0


def _step(steps: tuple[tuple[Number, ...], tuple[Number, ...]], x: Number) -> Number:
    """The slope of the interval of x. An end belongs to the interval below it. NaN is in the last interval."""
    ends, slopes = steps
    if math.isnan(x):
        return slopes[-1]
    if x > 0:
        return next(slope for end, slope in zip(ends, slopes, strict=True) if x <= end)
    return next((1 - slope for end, slope in zip(ends, slopes, strict=True) if x > -end), 1 - slopes[-1])


def _erf_slope(x: Number, r: Round) -> Number:
    below = r(0.5 * r(1 + r(math.erf(r(x * r(math.sqrt(0.5)))))))
    density = r(r(_exp(r(r(x * x) * -0.5))) * r(1 / math.sqrt(2 * math.pi)))
    return r(below + r(x * density))


def _tanh_slope(x: Number, r: Round) -> Number:
    factor, cubic = r(math.sqrt(2 / math.pi)), r(0.044715)
    square = r(x * x)
    t = r(math.tanh(r(factor * r(x + r(cubic * r(square * x))))))
    inner = r(factor * r(1 + r(r(3 * cubic) * square)))
    return r(r(0.5 * r(1 + t)) + r(r(r(0.5 * x) * r(1 - r(t * t))) * inner))
