"""The clipped losses of reinforcement learning for one token: plain `if`s, in the order of the papers.

`fl` rounds to the dtype under test; half precision is computed in float32 and rounded once at the end.
"""

import math
from collections.abc import Callable
from typing import Any

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
    if rule not in ("identity", "reinforce") and (at_low or at_high):
        slope = _SHARES[edge]
    found = r(r(slope) * -advantage) if slope else 0.0
    if at_ceiling:
        found = r(_SHARES[edge] * found)
    if over:
        found = 0.0
    if rule == "reinforce":
        return fl(r(grad * found)), to_advantage, 0.0, 0.0, 0.0, 0.0, 0.0
    if found == 0 and (advantage != 0 or ratio == math.inf):
        return 0.0, to_advantage, 0.0, 0.0, 0.0, 0.0, 0.0
    weight = ratio
    if in_log:
        weight = clipped if rule in ("zero", "identity", "leaky") else pessimistic
    return fl(r(r(grad * found) * weight)), to_advantage, 0.0, 0.0, 0.0, 0.0, 0.0


def of_users(
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
    given: dict[str, float],
) -> tuple[Number, ...]:
    """The same of a user's rule, whose function says what the log ratio gets; the ceiling and the value are the op's."""
    _, to_advantage, *none = gradient(
        "reinforce", log_ratio, grad, advantage, low, high, ceiling, in_log, without_min, edge=edge, fl=fl
    )
    r = _wide(fl)
    least, most = 0.0 if low is None else r(1 - low), math.inf if high is None else r(1 + high)
    ratio = r(_exp(log_ratio))
    found = of_one(grad, ratio, advantage, least, most, fl=fl, given=given)
    over, at_ceiling = _side(log_ratio if in_log else ratio, ceiling, in_log, r, 1)
    if advantage < 0 and (over or at_ceiling):
        found = r(_SHARES[edge] * found) if at_ceiling else 0.0
    return fl(found), to_advantage, *none


def by_sign(
    of_positive: Callable[..., tuple[Number, ...]],
    of_negative: Callable[..., tuple[Number, ...]],
    are_users: tuple[bool, bool],
    log_ratio: Number,
    grad: Number,
    advantage: Number,
    *others: Number | None,
    edge: str,
    fl: Round,
    **parameters: Any,
) -> tuple[Number, ...]:
    """The one where A > 0, the other elsewhere; the parameters of each by its side."""
    of_one, side, is_users = (
        (of_positive, "positive_", are_users[0]) if advantage > 0 else (of_negative, "negative_", are_users[1])
    )
    given = parameters.get("given", parameters)
    own = {key.removeprefix(side): value for key, value in given.items() if key.startswith(side)}
    return of_one(log_ratio, grad, advantage, *others, edge=edge, fl=fl, **({"given": own} if is_users else own))


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
    if not (below or above) or rule in ("identity", "reinforce"):
        return 1.0
    if rule == "zero":
        return 0.0
    if rule == "leaky":
        return parameters["slope"]
    if not blocked:
        return 1.0
    return 0.0 if rule == "inward" else parameters["low" if below else "high"]
