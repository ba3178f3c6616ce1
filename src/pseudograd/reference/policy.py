"""The clipped losses of reinforcement learning for one token: plain `if`s, in the order of the papers.

`fl` rounds to the dtype under test; half precision is computed in float32 and rounded once at the end.
"""

import math
from collections.abc import Callable
from typing import Any

from .elementwise import _exp, _wide

Number = float
Round = Callable[[float], float]
_SHARES = {"closed": 1.0, "half": 0.5, "open": 0.0}


def gradient(
    kind: str,
    rule: Any,
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
    """(to log_ratio, to advantage) of the loss of one token.

    kind: "linear" or "other" for a rule of clamp, which gets the gradient -A; "log_prob" for the gradient of -A * log_prob; "user" for a
    user's function, which says what the log ratio gets, while the ceiling and the value are the op's.
    """
    r = _wide(fl)
    ratio = r(_exp(log_ratio))
    lowest, highest = None if low is None else r(1 - low), None if high is None else r(1 + high)
    x = log_ratio if in_log else ratio
    below, _ = _side(x, lowest, in_log, r, -1)
    above, _ = _side(x, highest, in_log, r, 1)
    over, at_ceiling = _side(x, ceiling, in_log, r, 1)
    over, at_ceiling = over and advantage < 0, at_ceiling and advantage < 0
    is_below, is_above = below and not advantage > 0, above and not advantage < 0
    pessimistic = _picked(ratio, is_below, lowest, is_above, highest, over, ceiling)
    clipped = _picked(ratio, below, lowest, above, highest, over, ceiling)
    to_advantage = fl(-r(grad * (clipped if without_min else pessimistic)))
    slope = -advantage
    if kind == "user":
        least, most = 0.0 if lowest is None else lowest, math.inf if highest is None else highest
        slope = rule(grad, ratio, advantage, least, most, fl=fl, **parameters)
    elif kind != "log_prob":
        limits = (None if bound is None else _limit_in_space(bound, in_log, r) for bound in (lowest, highest))
        (slope, *_) = rule(x, -advantage, *limits, edge=edge, fl=r, **parameters)
    if at_ceiling:
        slope = r(_SHARES[edge] * slope)
    if over:
        slope = 0.0
    if kind == "user":
        return fl(slope), to_advantage
    if kind == "log_prob":
        return fl(r(grad * slope)), to_advantage
    if slope == 0 and (advantage != 0 or ratio == math.inf):
        return 0.0, to_advantage
    weight = ratio if not in_log else clipped if kind == "linear" else pessimistic
    return fl(r(r(grad * slope) * weight)), to_advantage


def _limit_in_space(bound: Number, in_log: Number, r: Round) -> Number:
    """The bound in the space of the clip."""
    return r(math.log(bound)) if in_log else r(bound)


def _side(x: Number, bound: Number | None, in_log: Number, r: Round, sign: int) -> tuple[bool, bool]:
    """(is x beyond the bound, is it on it)."""
    if bound is None:
        return False, False
    limit = _limit_in_space(bound, in_log, r)
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
