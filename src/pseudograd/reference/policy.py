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
    of_clamp: Callable[..., tuple[Number, ...]] | None,
    is_linear: bool,
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

    of_clamp: the reference of the rule of clamp, which gets the gradient -A; None for the gradient of -A * log_prob. is_linear: that rule.
    """
    r = _wide(fl)
    ratio = r(_exp(log_ratio))
    lowest, highest = None if low is None else r(1 - low), None if high is None else r(1 + high)
    x = log_ratio if in_log else ratio
    below, _ = _side(x, lowest, in_log, r, -1)
    above, _ = _side(x, highest, in_log, r, 1)
    over, at_ceiling = _side(x, ceiling, in_log, r, 1)
    over, at_ceiling = over and advantage < 0, at_ceiling and advantage < 0
    pessimistic = _picked(
        ratio, below and not advantage > 0, lowest, above and not advantage < 0, highest, over, ceiling
    )
    clipped = _picked(ratio, below, lowest, above, highest, over, ceiling)
    of_value = clipped if without_min else pessimistic
    to_advantage = fl(-r(grad * of_value))
    slope = -advantage
    if of_clamp is not None:
        least, most = (None if bound is None else _limit_in_space(bound, in_log, r) for bound in (lowest, highest))
        slope = of_clamp(x, -advantage, least, most, edge=edge, fl=r, **parameters)[0]
    if at_ceiling:
        slope = r(_SHARES[edge] * slope)
    if over:
        slope = 0.0
    if of_clamp is None:
        return fl(r(grad * slope)), to_advantage, 0.0, 0.0, 0.0, 0.0, 0.0
    if slope == 0 and (advantage != 0 or ratio == math.inf):
        return 0.0, to_advantage, 0.0, 0.0, 0.0, 0.0, 0.0
    weight = ratio
    if in_log:
        weight = clipped if is_linear else pessimistic
    return fl(r(r(grad * slope) * weight)), to_advantage, 0.0, 0.0, 0.0, 0.0, 0.0


def users_gradient(
    of_one: Callable[..., Number],
    log_ratio: Number,
    grad: Number,
    advantage: Number,
    low: Number | None,
    high: Number | None,
    ceiling: Number | None,
    in_log: Number,
    without_min: Number,
    *,
    edge: str,
    fl: Round,
    settings: dict[str, float],
) -> tuple[Number, ...]:
    """The same of a user's rule, whose function says what the log ratio gets; the ceiling and the value are the op's."""
    _, to_advantage, *none = gradient(
        None, True, log_ratio, grad, advantage, low, high, ceiling, in_log, without_min, edge=edge, fl=fl
    )
    r = _wide(fl)
    least, most = 0.0 if low is None else r(1 - low), math.inf if high is None else r(1 + high)
    ratio = r(_exp(log_ratio))
    slope = of_one(grad, ratio, advantage, least, most, fl=fl, settings=settings)
    over, at_ceiling = _side(log_ratio if in_log else ratio, ceiling, in_log, r, 1)
    if advantage < 0 and (over or at_ceiling):
        slope = r(_SHARES[edge] * slope) if at_ceiling else 0.0
    return fl(slope), to_advantage, *none


def _exp(value: Number) -> Number:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


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
