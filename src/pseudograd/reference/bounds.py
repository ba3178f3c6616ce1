"""The clamp family for one number: plain `if`s, in the order in which a person would explain the rule.

`fl` rounds to the dtype under test after every arithmetic step, so that the comparison with torch can be exact.
"""

import math
from collections.abc import Callable

Number = float
Round = Callable[[float], float]
# A name, or a user's reference(grad, x, y, low, high, *, fl, settings), which gives the gradient of x outside.
Rule = str | Callable[..., float]


def forward(x: Number, low: Number | None, high: Number | None) -> Number:
    """min(max(x, low), high), in that order, with NaN passed on."""
    if math.isnan(x):
        return x
    y = x
    if low is not None and y < low:
        y = low
    if high is not None and y > high:
        y = high
    return y


def _blocks(grad: Number, below: bool, above: bool) -> bool:
    """Does a descent step move x further away from the range?"""
    return (below and grad > 0) or (above and grad < 0)


def _usable_range(low: Number, high: Number, fl: Round) -> Number | None:
    """max - min if that is positive and finite, else None."""
    width = fl(high - low)
    return width if 0 < width < math.inf else None


def _outside(
    rule: Rule, x: Number, grad: Number, low: Number | None, high: Number | None, y: Number, fl: Round, /, **p: float
) -> Number:
    above, below = x > y, x < y
    if not isinstance(rule, str):
        return fl(rule(grad, x, y, low, high, fl=fl, **p))
    if rule == "zero":
        return 0.0
    if rule == "identity":
        return grad
    if rule == "sign":
        return 1.0 if above else -1.0
    if rule == "leaky":
        return fl(fl(p["slope"]) * grad)
    if rule == "inward":
        return 0.0 if _blocks(grad, below, above) else grad
    if rule == "leaky_inward":
        if not _blocks(grad, below, above):
            return grad
        return fl(fl(p["low"] if below else p["high"]) * grad)
    assert rule == "elastic"
    if not _blocks(grad, below, above):
        return grad
    assert low is not None
    assert high is not None
    width = _usable_range(low, high, fl)
    if width is None:
        return 0.0
    distance = fl(x - high) if above else fl(low - x)
    scale = fl(fl(p["width"]) * width)
    if scale == math.inf:
        return 0.0
    share = fl(distance / scale) if scale > 0 else math.inf
    if share == 0:
        return 0.0
    return fl(-grad * share) if share < 1 else -grad


def _inverting(x: Number, grad: Number, low: Number, high: Number, y: Number, fl: Round) -> Number:
    width = _usable_range(low, high, fl)
    if math.isnan(x):
        return grad
    if width is None:
        return 0.0 if _blocks(grad, x < y, x > y) else grad
    room = fl((fl(high - x) if grad < 0 else fl(x - low)) / width)
    if (room == 0 and math.isinf(grad)) or (grad == 0 and math.isinf(room)):
        return 0.0
    return fl(grad * room)


def _edge_gradients(edge: str, grad: Number, at_low: bool, at_high: bool, fl: Round) -> tuple[Number, Number]:
    """(the gradient of x, the gradient of the bound) where x is at the edge."""
    if edge == "closed":
        return grad, 0.0
    if edge == "open":
        return 0.0, grad
    if edge == "half":
        return fl(0.5 * grad), fl(0.5 * grad)
    assert edge == "inward"
    return (0.0, grad) if _blocks(grad, at_low, at_high) else (grad, 0.0)


def gradient(
    rule: Rule,
    x: Number,
    grad: Number,
    low: Number | None,
    high: Number | None,
    /,
    *,
    edge: str = "closed",
    maximize: bool = False,
    fl: Round,
    **parameters: float,
) -> tuple[Number, Number, Number]:
    """(grad_x, grad_min, grad_max) of y = clamp(x, min, max)."""
    if maximize:  # for a rule that is linear in grad, the two signs cancel
        down = gradient(rule, x, -grad, low, high, edge=edge, maximize=False, fl=fl, **parameters)
        return -down[0], -down[1], -down[2]
    y = forward(x, low, high)
    crossed = low is not None and high is not None and low > high
    at_low = low is not None and x == y == low
    at_high = high is not None and x == y == high
    grad_low = grad_high = 0.0
    if x < y and not crossed:
        grad_low = grad
    elif x > y or x < y:
        grad_high = grad
    if rule == "inverting":
        assert low is not None
        assert high is not None
        return _inverting(x, grad, low, high, y, fl), grad_low, grad_high
    if rule != "identity" and (at_low or at_high):
        grad_x, grad_bound = _edge_gradients(edge, grad, at_low, at_high, fl)
        return (grad_x, grad_bound, 0.0) if at_low else (grad_x, 0.0, grad_bound)
    if x > y or x < y:
        return _outside(rule, x, grad, low, high, y, fl, **parameters), grad_low, grad_high
    return grad, grad_low, grad_high
