"""The clipped losses of reinforcement learning for one token: plain `if`s, in the order of the papers.

`fl` rounds to the dtype under test; half precision is computed in float32 and rounded once at the end.
"""

import math
from typing import Any

from .bounds import Number, Round
from .elementwise import _exp, _wide

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
    """(the gradient of log_ratio, the gradient of advantage) for one token.

    kind: "linear" or "other" for a rule of clamp, which gets the gradient -A; "log_prob" for the gradient of -A * log_prob; "user" for a
    user's function, which gives the gradient of log_ratio. The op itself applies the ceiling and computes the value.
    """
    r = _wide(fl)
    ratio = r(_exp(log_ratio))
    # A bound that is absent is NaN: nothing is beyond it.
    lowest, highest = math.nan if low is None else r(1 - low), math.nan if high is None else r(1 + high)
    most = math.nan if ceiling is None else ceiling
    limits = [r(math.log(bound)) if in_log else r(bound) for bound in (lowest, highest, most)]
    x = log_ratio if in_log else ratio
    below, above, over = x < limits[0], x > limits[1], x > limits[2] and advantage < 0
    at_ceiling = x == limits[2] and advantage < 0
    is_below, is_above = below and not advantage > 0, above and not advantage < 0
    pessimistic = _choose(ratio, (is_above, highest), (over, most), (is_below, lowest))
    clipped = _choose(ratio, (above, highest), (over, most), (below, lowest))
    to_advantage = fl(-r(grad * (clipped if without_min else pessimistic)))
    slope = -advantage
    if kind == "user":
        bounds = 0.0 if low is None else lowest, math.inf if high is None else highest
        slope = rule(grad, ratio, advantage, *bounds, fl=fl, **parameters)
    elif kind != "log_prob":
        ends = (None if math.isnan(limit) else limit for limit in limits[:2])
        (slope, *_) = rule(x, -advantage, *ends, edge=edge, fl=r, **parameters)
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
    weight = _choose(pessimistic, (not in_log, ratio), (kind == "linear", clipped))
    return fl(r(r(grad * slope) * weight)), to_advantage


def _choose(default: Number, *cases: tuple[object, Number]) -> Number:
    """The value of the first case whose condition is true; else the default."""
    return next((value for condition, value in cases if condition), default)
