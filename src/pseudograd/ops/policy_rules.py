"""The rules of policy_loss: which gradient the log ratio of a token gets, as rows; the same for a user's function, and for two rules, one
for each sign of the advantage.

Notation: as in `policy`. A *weight* is what -grad * A is multiplied by.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..arguments import rounded
from ..geometry import SHARES
from ..reference import policy as reference
from ..rule import Gradients, Pull, Rule
from . import bound_rules
from .shared_rules import row_of, widened

INPUTS = ("log_ratio", "advantage", "low", "high", "ceiling", "in_log", "without_min")
Bound = float | None
ToToken = Callable[..., Tensor]  # (grad, log_ratio, advantage, bounds, edge, **parameters) -> what the log ratio gets


class Bounds(NamedTuple):
    """How far a ratio may go, and whether the clip acts on its logarithm."""

    low: Bound
    high: Bound
    ceiling: Bound
    in_log: int


# --- the clip ---------------------------------------------------------------------------------------------------------


class _Clip:
    """Where a ratio stands between its bounds, in the space of the clip. Comparisons only."""

    def __init__(self, log_ratio: Tensor, advantage: Tensor, bounds: Bounds) -> None:
        low, high, ceiling, in_log = bounds
        in_space: Callable[[float], float] = math.log if in_log else float
        self.lowest = None if low is None else 1 - low
        self.highest = None if high is None else 1 + high
        self.ceiling = ceiling
        self.x = log_ratio if in_log else torch.exp(log_ratio)
        self.min, self.max, top = (
            None if b is None else rounded(in_space(b), self.x) for b in (self.lowest, self.highest, ceiling)
        )
        nowhere = torch.zeros_like(self.x, dtype=torch.bool)
        self.below = nowhere if self.min is None else self.x < self.min
        self.above = nowhere if self.max is None else self.x > self.max
        self.over = nowhere if top is None else (self.x > top) & (advantage < 0)
        self.at_ceiling = nowhere if top is None else (self.x == top) & (advantage < 0)

    @property
    def clipped(self) -> Tensor:
        """x, clipped: in the space of the clip."""
        return _replaced(self.x, self.below, self.min, self.above, self.max)

    def ratio_of_value(self, log_ratio: Tensor, advantage: Tensor, without_min: object) -> Tensor:
        """What -A is multiplied by: c(r), or what PPO's min picks: c(r) where the clip is blocked, else r."""
        below, above = (
            (self.below, self.above) if without_min else (self.below & ~(advantage > 0), self.above & ~(advantage < 0))
        )
        over = self.over & ~above
        ratio = _replaced(_exp(log_ratio, below | above | over), below, self.lowest, above, self.highest)
        return ratio if self.ceiling is None else torch.where(over, self.ceiling, ratio)

    def capped(self, found: Tensor, edge: str) -> Tensor:
        """What is left of a gradient under the ceiling: nothing above it, at it the share of the edge."""
        if self.ceiling is None:
            return found
        return torch.where(self.over, 0.0, torch.where(self.at_ceiling, SHARES[edge] * found, found))


def _replaced(x: Tensor, below: Tensor, lowest: Any, above: Tensor, highest: Any) -> Tensor:
    x = x if lowest is None else torch.where(below, lowest, x)
    return x if highest is None else torch.where(above, highest, x)


def _exp(log_ratio: Tensor, unused: Tensor) -> Tensor:
    """exp, but where nobody uses it: an infinity there would meet a zero in a second derivative."""
    return torch.exp(torch.where(unused, 0.0, log_ratio))


def _together(log_ratio: Tensor, advantage: Tensor) -> tuple[Tensor, Tensor]:
    """In one dtype, no half precision, and of one shape."""
    log_ratio, advantage = widened(log_ratio), widened(advantage)
    dtype = torch.promote_types(log_ratio.dtype, advantage.dtype)
    log_ratio, advantage = torch.broadcast_tensors(log_ratio.to(dtype), advantage.to(dtype))  # type: ignore[no-untyped-call]
    return log_ratio, advantage


def forward(
    log_ratio: Tensor, advantage: Tensor, low: Bound, high: Bound, ceiling: Bound, in_log: int, without_min: int
) -> Tensor:
    log_ratio, advantage = _together(log_ratio, advantage)
    clip = _Clip(log_ratio, advantage, Bounds(low, high, ceiling, in_log))
    return -(clip.ratio_of_value(log_ratio, advantage, without_min) * advantage)


# --- what a token gets ------------------------------------------------------------------------------------------------


def _pull_of(to_token: ToToken) -> Pull:
    """A rule's pull from what it gives to the log ratio. The advantage gets the derivative of the value, whatever the rule."""

    def pull(
        grad: Tensor,
        log_ratio: Tensor,
        advantage: Tensor,
        low: Bound,
        high: Bound,
        ceiling: Bound,
        in_log: int,
        without_min: int,
        /,
        *,
        y: None,
        wants: tuple[bool, ...],
        edge: str,
        **parameters: object,
    ) -> Gradients:
        dtypes = log_ratio.dtype, advantage.dtype
        log_ratio, advantage = _together(log_ratio, advantage)
        grad, bounds = grad.to(log_ratio.dtype), Bounds(low, high, ceiling, in_log)
        to_log_ratio = to_advantage = None
        wants_log_ratio, wants_advantage, *_ = wants
        if wants_log_ratio:
            found = to_token(grad, log_ratio, advantage, bounds, edge, **parameters)
            to_log_ratio = _within(dtypes[0], found, grad)
        if wants_advantage:
            ratio = _Clip(log_ratio, advantage, bounds).ratio_of_value(log_ratio, advantage, without_min)
            to_advantage = _within(dtypes[1], -(grad * ratio), grad)
        return to_log_ratio, to_advantage, None, None, None, None, None

    return pull


def _within(dtype: torch.dtype, found: Tensor, grad: Tensor) -> Tensor:
    """At most the largest number of a half precision, which r exceeds soon; what an infinite grad made infinite stays so."""
    if dtype in (torch.float32, torch.float64):
        return found
    most = torch.finfo(dtype).max
    limited = torch.where(found > most, most, torch.where(found < -most, -most, found))
    return torch.where(grad.abs() < torch.inf, limited, found)


def _is_at_rest(found: Tensor, log_ratio: Tensor, advantage: Tensor) -> Tensor:
    """Where a token gets nothing, whatever its ratio. At A = 0 A has a derivative yet, unless r is infinite."""
    return (found == 0) & ((advantage != 0) | (torch.exp(log_ratio) == torch.inf))


def _lifted(row: Rule, weight_of: Callable[[_Clip, Tensor, Tensor], Tensor]) -> ToToken:
    """From a rule of clamp: what that rule makes of the gradient -A, times a weight."""

    def to_token(
        grad: Tensor, log_ratio: Tensor, advantage: Tensor, bounds: Bounds, edge: str, **parameters: float
    ) -> Tensor:
        clip = _Clip(log_ratio, advantage, bounds)
        x_alone = (True, False, False)
        found = row.pull(
            -advantage, clip.x, clip.min, clip.max, y=clip.clipped, wants=x_alone, edge=edge, **parameters
        )[0]
        assert found is not None
        found = clip.capped(found, edge)
        stops = _is_at_rest(found, log_ratio, advantage)
        # An infinity that nobody hears would meet a zero in a second derivative.
        heard = torch.where(stops, 0.0, log_ratio)
        weight = weight_of(clip, heard, advantage) if bounds.in_log else torch.exp(heard)
        return torch.where(stops, 0.0, grad) * found * weight

    return to_token


def _clipped_ratio(clip: _Clip, log_ratio: Tensor, advantage: Tensor) -> Tensor:
    return clip.ratio_of_value(log_ratio, advantage, True)


def _ratio_of_min(clip: _Clip, log_ratio: Tensor, advantage: Tensor) -> Tensor:
    return clip.ratio_of_value(log_ratio, advantage, False)


def _reinforce(
    grad: Tensor, log_ratio: Tensor, advantage: Tensor, bounds: Bounds, edge: str, **parameters: float
) -> Tensor:
    """The gradient of -A * log_prob, under the ceiling."""
    return grad * _Clip(log_ratio, advantage, bounds).capped(-advantage, edge)


def _of_user(function: Callable[..., Tensor]) -> ToToken:
    """From a user's function(grad, ratio, advantage, min, max, **given). It is asked twice: where it gives nothing, its ratio is 1 then."""

    def to_token(
        grad: Tensor, log_ratio: Tensor, advantage: Tensor, bounds: Bounds, edge: str, given: dict[str, float]
    ) -> Tensor:
        clip = _Clip(log_ratio, advantage, bounds)
        least = 0.0 if clip.lowest is None else rounded(clip.lowest, log_ratio)
        most = math.inf if clip.highest is None else rounded(clip.highest, log_ratio)
        first = function(grad, torch.exp(log_ratio), advantage, least, most, **given)
        stops = (clip.over | _is_at_rest(first, log_ratio, advantage)) & (grad != 0)
        heard = torch.exp(torch.where(stops, 0.0, log_ratio))
        found = function(torch.where(stops, 0.0, grad), heard, advantage, least, most, **given)
        return clip.capped(torch.where(stops, 0.0, found), edge)

    return to_token


_LOG_RATIO_ALONE = (True, *(False,) * (len(INPUTS) - 1))


def _by_sign(positive: Rule, negative: Rule) -> ToToken:
    """One rule where A > 0, the other elsewhere; neither meets an infinity where the other one is asked."""

    def to_token(
        grad: Tensor, log_ratio: Tensor, advantage: Tensor, bounds: Bounds, edge: str, **parameters: Any
    ) -> Tensor:
        parameters = parameters.get("given", parameters)

        def asked(rule: Rule, side: str, there: Tensor) -> Tensor:
            own = {key: parameters[_of_side(side, key)] for key in rule.parameters}
            found = rule.pull(
                torch.where(there, grad, 0.0),
                torch.where(there, log_ratio, 0.0),
                torch.where(there, advantage, 1.0),
                *bounds,
                0,
                y=None,
                wants=_LOG_RATIO_ALONE,
                edge=edge,
                **({"given": own} if rule.is_users else own),
            )[0]
            assert found is not None
            return found

        is_positive = advantage > 0
        of_positive = asked(positive, "positive", is_positive)
        return torch.where(is_positive, of_positive, asked(negative, "negative", ~is_positive))

    return to_token


def _of_side(side: str, key: str) -> str:
    return f"{side}_{key}"


# --- the rows ---------------------------------------------------------------------------------------------------------


def adapted(
    function: Callable[..., Tensor], is_linear: bool, reference_of_one: Callable[..., float], /, **row: Any
) -> Rule:
    """A row from a user's function(grad, ratio, advantage, min, max, **given): what the log ratio of every token gets."""
    return row_of(
        pull=_pull_of(_of_user(function)),
        reference=partial(reference.of_users, reference_of_one),
        is_linear=is_linear,
        keeps=INPUTS,
        ignores_edge=True,
        is_users=True,
        **row,
    )


def joined(positive: Rule, negative: Rule) -> Rule:
    """The row of two rules, one for each sign of the advantage."""
    both = {"positive": positive, "negative": negative}
    return row_of(
        name_of_joined(positive.name, negative.name),
        _pull_of(_by_sign(positive, negative)),
        partial(reference.by_sign, positive.reference, negative.reference, (positive.is_users, negative.is_users)),
        is_linear=positive.is_linear and negative.is_linear,
        formula=f"{positive.formula} where A > 0; {negative.formula} where not",
        source=f"{positive.source}; {negative.source}",
        keeps=INPUTS,
        parameters={_of_side(side, key): value for side, row in both.items() for key, value in row.parameters.items()},
        ignores_edge=positive.ignores_edge and negative.ignores_edge,
        is_users=positive.is_users or negative.is_users,
        ulps=max(positive.ulps, negative.ulps),
    )


def name_of_joined(positive: str, negative: str) -> str:
    return f"{positive} where A > 0, {negative} elsewhere"


def _rule(name: str, formula: str, **rest: Any) -> Rule:
    of_clamp = bound_rules.RULES[name]
    return row_of(
        name,
        _pull_of(_lifted(of_clamp, _clipped_ratio if of_clamp.is_linear else _ratio_of_min)),
        partial(reference.gradient, name),
        formula=formula,
        source=rest.pop("source", of_clamp.source),
        keeps=INPUTS,
        parameters=of_clamp.parameters,
        sides=of_clamp.sides,
        ignores_edge=of_clamp.ignores_edge,
        translates=of_clamp.translates,
        ulps=4,  # of exp
        **rest,
    )


RULES = {
    row.name: row
    for row in (
        _rule(
            "inward",
            "-grad * A * w, or 0 where the clip is blocked",
            source="PPO (Schulman et al., 2017)",
            also_called="PPO, GRPO, DAPO, GSPO, GMPO",
        ),
        _rule(
            "zero",
            "0 where r is outside the bounds, else -grad * A * w",
            source="the derivative of -A c(r)",
            also_called="the clip without PPO's min",
        ),
        _rule(
            "identity",
            "-grad * A * w",
            source="truncated importance sampling (Ionides, 2008); CISPO (MiniMax, 2025)",
            also_called="CISPO, truncated importance sampling",
        ),
        _rule("leaky", "-slope * grad * A * w where r is outside the bounds, else -grad * A * w"),
        _rule(
            "leaky_inward",
            "-low * grad * A * w where the clip is blocked below, -high * grad * A * w where the clip is blocked above, "
            "else -grad * A * w",
            also_called="GPPO, CE-GPPO",
        ),
        row_of(
            "reinforce",
            _pull_of(_reinforce),
            partial(reference.gradient, "reinforce"),
            formula="-grad * A",
            source="REINFORCE (Williams, 1992); GPG (Chu et al., 2025)",
            also_called="policy gradient, GPG: the gradient of -A * log_prob, without the ratio",
            keeps=INPUTS,
            ignores_edge=True,
            translates=("policy_gradient", "gpg", "score"),
            ulps=4,  # of exp: an advantage gets the ratio
        ),
    )
}
NEED_NO_BOUND = ("identity", "reinforce")
