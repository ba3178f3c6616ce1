"""The clipped losses of reinforcement learning for one token: plain `if`s, in the order of the papers.

`fl` rounds to the dtype under test; half precision is computed in float32 and rounded once at the end.
"""

import math
from collections.abc import Callable

from .elementwise import _wide

Number = float
Round = Callable[[float], float]
_SHARES = {"closed": 1.0, "half": 0.5, "open": 0.0}


def gradient(
    rule: str,
    log_ratio: Number,
    grad: Number,
    advantage: Number,
    low: Number | None,
    high: Number | None,
    ceiling: Number | None,
    in_log: Number,
    without_min: Number,
    /,
    *,
    edge: str,
    fl: Round,
    **parameters: float,
) -> tuple[Number, ...]:
    """(to log_ratio, to advantage) of the loss of one token."""
    r = _wide(fl)
    ratio = r(_exp(log_ratio))
    lowest, highest = None if low is None else r(1 - low), None if high is None else r(1 + high)
    x = log_ratio if in_log else ratio
    below, at_low = _side(x, lowest, in_log, r, -1)
    above, at_high = _side(x, highest, in_log, r, 1)
    over, at_ceiling = _side(x, ceiling, in_log, r, 1)
    over, at_ceiling = over and advantage < 0, at_ceiling and advantage < 0
    pessimistic = _picked(
        ratio, below and not advantage > 0, lowest, above and not advantage < 0, highest, over, ceiling
    )
    clipped = _picked(ratio, below, lowest, above, highest, over, ceiling)
    of_value = clipped if without_min else pessimistic
    to_advantage = fl(-r(grad * of_value))
    blocked = (below and advantage < 0) or (above and advantage > 0)
    slope = _slope(rule, below, above, blocked, parameters)
    if rule != "identity" and (at_low or at_high):
        slope = _SHARES[edge]
    found = r(r(slope) * -advantage) if slope else 0.0
    if at_ceiling:
        found = r(_SHARES[edge] * found)
    if over:
        found = 0.0
    if found == 0 and (advantage != 0 or log_ratio == math.inf):
        return 0.0, to_advantage, 0.0, 0.0, 0.0, 0.0, 0.0
    weight = ratio
    if in_log:
        weight = clipped if rule in ("zero", "identity", "leaky") else pessimistic
    return fl(r(r(grad * found) * weight)), to_advantage, 0.0, 0.0, 0.0, 0.0, 0.0


def _exp(value: Number) -> Number:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def _side(x: Number, bound: Number | None, in_log: Number, r: Round, sign: int) -> tuple[bool, bool]:
    """(is x beyond the bound, is it on it)."""
    if bound is None:
        return False, False
    limit = r(math.log(bound)) if in_log else r(bound)
    return sign * x > sign * limit, x == limit


def _picked(
    ratio: Number,
    below: bool,
    lowest: Number | None,
    above: bool,
    highest: Number | None,
    over: bool,
    ceiling: Number | None,
) -> Number:
    if above:
        assert highest is not None
        return highest
    if over:
        assert ceiling is not None
        return ceiling
    if below:
        assert lowest is not None
        return lowest
    return ratio


def _slope(rule: str, below: bool, above: bool, blocked: bool, parameters: dict[str, float]) -> Number:
    if not (below or above) or rule == "identity":
        return 1.0
    if rule == "zero":
        return 0.0
    if rule == "leaky":
        return parameters["slope"]
    if not blocked:
        return 1.0
    return 0.0 if rule == "inward" else parameters["low" if below else "high"]
