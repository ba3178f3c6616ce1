"""policy_loss: the clipped losses of reinforcement learning, as a rule of the clamp family for the probability ratio.

Notation: r = exp(log_ratio), A the advantage, lo = 1 - low, hi = 1 + high, c(r) = clamp(r, lo, hi). A clip is *blocked* at a token if a
descent step would move its ratio further out: A > 0 and r > hi, or A < 0 and r < lo. That is where PPO's min picks the clipped branch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .. import engine
from ..arguments import as_number, check_broadcast, check_device, is_finite, is_number, rounded, surely
from ..errors import must, unknown_name
from ..geometry import SHARES
from ..reference import policy as reference
from ..rule import (
    Call,
    Gradients,
    Op,
    Picture,
    Primitive,
    Pull,
    Rule,
    RuleLike,
    Sample,
    call_for,
    register,
)
from . import bound_rules
from .shared_rules import row_of, widened

SPACES, VALUES, LEVELS = ("ratio", "log"), ("objective", "clipped"), ("token", "sequence", "geometric")
EDGES = tuple(SHARES)
DEFAULT = 0.2  # of low and high, in every project
_OP = "policy_loss"


@engine.unscriptable
def policy_loss(
    log_ratio: Tensor,
    advantage: Tensor,
    *,
    low: float | None = DEFAULT,
    high: float | None = DEFAULT,
    rule: RuleLike = "inward",
    space: str = "ratio",
    ceiling: float | None = None,
    value: str = "objective",
    edge: str = "closed",
    level: str = "token",
    mask: Tensor | None = None,
) -> Tensor:
    """The clipped policy loss of each token: PPO's by default, and its relatives by other rules.

    Forward:  y = -min(r * A, c(r) * A), or -A * c(r) with value="clipped"; r = exp(log_ratio), c clips it to [1 - low, 1 + high].
    Backward: to log_ratio grad * s * -A * w. s is the slope that the clamp's `rule` gives for the gradient -A: with "inward" 0 where
        the clip is blocked (A > 0 and r > 1 + high, or A < 0 and r < 1 - low), else 1, which is PPO's own gradient; with the other
        rules a pseudo-gradient. w is the weight of the token: r with space="ratio". With space="log" the clip acts on log_ratio, and
        w is the clipped ratio c(r) for "zero", "identity" and "leaky"; "inward" and "leaky_inward" see the sign of A, and for them w
        is c(r) where the clip is blocked and r elsewhere. To advantage the derivative of y; a training loop whose advantages do not
        require grad pays nothing for it. What exceeds half precision becomes its largest number, unless grad is infinite or
        level="sequence". Saves log_ratio and advantage. Linear in grad.

    Args:
        log_ratio: log_prob - old_log_prob, floating point, any shape; with a level other than "token" the last dimension is the sequence.
        advantage: a shape that broadcasts with log_ratio, floating point.
        low: 1 - low is the lower bound of the ratio; in (0, 1), or None for no bound.
        high: 1 + high is the upper bound; above 0, or None.
        rule: a name or a rule object: inward, zero, identity, leaky, leaky_inward; `pseudograd rules policy_loss` draws them.
        space: "ratio" or "log": whether the clip acts on r or on log_ratio.
        ceiling: for A < 0 the ratio counts as at most this, and gets no gradient above: the dual clip. Above 1 + high, or None.
        value: "objective", what papers and logs show, or "clipped", what remains of it where no min is taken. The gradient to
            log_ratio is the same.
        edge: what passes exactly at a bound: "closed" all (torch <= 2.13 computes PPO's usual form so), "half" half of it (torch >=
            2.14), "open" nothing.
        level: "token"; "sequence": every token has the mean log_ratio of its sequence, and gets the gradient of it (GSPO's token
            form); "geometric": each token is clipped, then every token has the loss of their geometric mean (GMPO). For both the
            mean of the result over a sequence is the sequence's loss.
        mask: bool, broadcasts to log_ratio: the tokens that count. The others get loss 0 and no gradient. None: all.
    Returns: the shape that log_ratio and advantage broadcast to; float32 for half precision, else their dtype. Not reduced.
    Raises: TypeError if a tensor is an integer or a bound no number; ValueError if a bound is out of range, shapes do not fit, a name
        is unknown, or both bounds are None with a rule that needs one.
    Example:
        >>> log_ratio = torch.tensor([0.5, 0.5, 0.0, -0.5, -0.5], requires_grad=True)
        >>> y = policy_loss(log_ratio, torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0])); y.sum().backward(); log_ratio.grad
        tensor([ 0.0000,  1.6487, -1.0000, -0.6065,  0.0000])
    Source: PPO (Schulman et al., 2017); `pseudograd.policy.presets` names its relatives, docs/policy_clips.md compares them.
    """
    _check_tensors(log_ratio, advantage, mask)
    for name, allowed, given in (("space", SPACES, space), ("value", VALUES, value), ("level", LEVELS, level)):
        if given not in allowed:
            raise unknown_name(_OP, name, allowed, given)
    call = call_for(POLICY_LOSS, rule, edge)
    low, high, ceiling = _checked_bounds(low, high, ceiling, call.rule.name)
    if mask is not None:  # what does not count may be infinite or NaN
        log_ratio = torch.where(mask, log_ratio, 0.0)
    bounds = low, high, ceiling, SPACES.index(space), VALUES.index(value)
    if level == "sequence":
        y = engine.run(call_for(_OF_SEQUENCES, rule, edge), log_ratio, advantage, *bounds, mask)
    elif level == "geometric":
        mean = _log_of_geometric_mean(call, log_ratio, advantage, mask, bounds)
        y = engine.run(call_for(POLICY_LOSS, "identity", "closed"), mean, advantage, None, None, None, 0, 0)
    else:
        y = engine.run(call, log_ratio, advantage, *bounds)
    return y if mask is None else torch.where(mask, y, 0.0)


# --- what is checked --------------------------------------------------------------------------------------------------


def _check_tensors(log_ratio: Tensor, advantage: Tensor, mask: Tensor | None) -> None:
    for name, given in (("log_ratio", log_ratio), ("advantage", advantage)):
        if not isinstance(given, Tensor):
            raise TypeError(must(_OP, name, "be a tensor", given, "Wrap it in torch.tensor(...)"))
        if not given.is_floating_point():
            raise TypeError(must(_OP, name, "be floating point", given.dtype, f"Call {name}.float() first"))
    check_broadcast(_OP, "advantage", advantage, log_ratio.shape, "log_ratio")
    check_device(_OP, "advantage", advantage, log_ratio.device, "log_ratio")
    if mask is None:
        return
    if not isinstance(mask, Tensor) or mask.dtype is not torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else mask
        raise TypeError(must(_OP, "mask", "be a bool tensor", got, "Call mask.bool() first"))
    check_broadcast(_OP, "mask", mask, log_ratio.shape, "log_ratio", grows=False)


def _checked_bounds(
    low: float | None, high: float | None, ceiling: float | None, rule: str
) -> tuple[float | None, float | None, float | None]:
    low, high, ceiling = (_number(name, given) for name, given in (("low", low), ("high", high), ("ceiling", ceiling)))
    if low is not None and not surely_between(low, 0, 1):
        raise ValueError(must(_OP, "low", "be between 0 and 1", low, "The lower bound is 1 - low; None for no bound"))
    if high is not None and surely(high <= 0):
        raise ValueError(must(_OP, "high", "be above 0", high, "The upper bound is 1 + high; None for no bound"))
    least = 1 + (high or 0)
    if ceiling is not None and surely(ceiling <= least):
        raise ValueError(must(_OP, "ceiling", f"be above 1 + high = {least:g}", ceiling, "It bounds the ratio itself"))
    if low is None and high is None and rule != "identity":
        remedy = "Give one of low and high, or use rule='identity'"
        raise ValueError(must(_OP, "rule", "be 'identity' where low and high are None", rule, remedy))
    return low, high, ceiling


def surely_between(number: float, least: float, most: float) -> bool:
    return not (surely(number <= least) or surely(number >= most))


def _number(name: str, given: Any) -> float | None:
    if given is None:
        return None
    given = as_number(given)
    if isinstance(given, bool) or not is_number(given):
        raise TypeError(must(_OP, name, "be a number or None", given))
    if not is_finite(given):
        raise ValueError(must(_OP, name, "be finite", given, "Use None for no bound"))
    return float(given)


# --- the clip ---------------------------------------------------------------------------------------------------------

Bound = float | None


class _Clip:
    """Where a ratio stands between its bounds, in the space of the clip. Comparisons only."""

    def __init__(
        self, log_ratio: Tensor, advantage: Tensor, low: Bound, high: Bound, ceiling: Bound, in_log: int
    ) -> None:
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


def _forward(
    log_ratio: Tensor, advantage: Tensor, low: Bound, high: Bound, ceiling: Bound, in_log: int, without_min: int
) -> Tensor:
    log_ratio, advantage = _together(log_ratio, advantage)
    clip = _Clip(log_ratio, advantage, low, high, ceiling, in_log)
    return -(clip.ratio_of_value(log_ratio, advantage, without_min) * advantage)


def _lifted(row: Rule) -> Pull:
    """The gradient of a policy loss from a rule of clamp: what that rule makes of the gradient -A."""

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
        **parameters: float,
    ) -> Gradients:
        dtypes = log_ratio.dtype, advantage.dtype
        log_ratio, advantage = _together(log_ratio, advantage)
        grad = grad.to(log_ratio.dtype)
        clip = _Clip(log_ratio, advantage, low, high, ceiling, in_log)
        to_log_ratio = to_advantage = None
        wants_log_ratio, wants_advantage, *_ = wants
        if wants_log_ratio:
            x_alone = (True, False, False)
            found = row.pull(
                -advantage, clip.x, clip.min, clip.max, y=clip.clipped, wants=x_alone, edge=edge, **parameters
            )[0]
            assert found is not None
            if ceiling is not None:
                at_ceiling = torch.where(clip.at_ceiling, SHARES[edge] * found, found)
                found = torch.where(clip.over, 0.0, at_ceiling)
            stops = (found == 0) & ((advantage != 0) | (log_ratio == torch.inf))  # at A = 0 A has a derivative yet
            # An infinity that nobody hears would meet a zero in a second derivative.
            heard = torch.where(stops, 0.0, log_ratio)
            weight = clip.ratio_of_value(heard, advantage, row.is_linear) if in_log else torch.exp(heard)
            to_log_ratio = torch.where(stops, 0.0, grad) * found * weight
            to_log_ratio = _within(dtypes[0], to_log_ratio, grad)
        if wants_advantage:
            to_advantage = _within(dtypes[1], -(grad * clip.ratio_of_value(log_ratio, advantage, without_min)), grad)
        return to_log_ratio, to_advantage, None, None, None, None, None

    return pull


def _within(dtype: torch.dtype, found: Tensor, grad: Tensor) -> Tensor:
    """At most the largest number of a half precision, which r exceeds soon; what an infinite grad made infinite stays so."""
    if dtype in (torch.float32, torch.float64):
        return found
    most = torch.finfo(dtype).max
    limited = torch.where(found > most, most, torch.where(found < -most, -most, found))
    return torch.where(grad.abs() < torch.inf, limited, found)


def _rule(name: str, formula: str, **rest: Any) -> Rule:
    of_clamp = bound_rules.RULES[name]
    return row_of(
        name,
        _lifted(of_clamp),
        partial(reference.gradient, name),
        formula=formula,
        source=rest.pop("source", of_clamp.source),
        keeps=("log_ratio", "advantage", "low", "high", "ceiling", "in_log", "without_min"),
        parameters=of_clamp.parameters,
        sides=of_clamp.sides,
        ignores_edge=of_clamp.ignores_edge,
        translates=of_clamp.translates,
        ulps=4,  # of exp
        **rest,
    )


# --- one loss for a sequence ------------------------------------------------------------------------------------------


def mean_over_tokens(log_ratio: Tensor, mask: Tensor | None) -> Tensor:
    """Over the tokens of each sequence that count; 0 where none does."""
    wide = widened(log_ratio)
    if mask is None:
        return wide.mean(-1, keepdim=True)
    counted = mask.expand_as(wide).sum(-1, keepdim=True)
    return torch.where(mask, wide, 0.0).sum(-1, keepdim=True) / torch.where(counted > 0, counted, 1)


def _of_sequence(log_ratio: Tensor, mask: Tensor | None) -> Tensor:
    """What each token has of its sequence."""
    return mean_over_tokens(log_ratio, mask).expand_as(log_ratio)


def _forward_of_sequences(log_ratio: Tensor, advantage: Tensor, *bounds_and_mask: Any) -> Tensor:
    *bounds, mask = bounds_and_mask
    return _forward(_of_sequence(log_ratio, mask), advantage, *bounds)


def _of_the_mean(pull: Pull) -> Pull:
    """A token gets what its sequence's ratio gets at its place (GSPO's token form). Its second derivative goes through the mean."""

    def pulled(grad: Tensor, log_ratio: Tensor, advantage: Tensor, *bounds_and_mask: Any, **how: Any) -> Gradients:
        *bounds, mask = bounds_and_mask
        how["wants"] = how["wants"][:-1]
        return *pull(grad, _of_sequence(log_ratio, mask), advantage, *bounds, **how), None

    return pulled


def _log_of_geometric_mean(
    call: Call, log_ratio: Tensor, advantage: Tensor, mask: Tensor | None, bounds: tuple[object, ...]
) -> Tensor:
    """Of the ratios of a sequence, each with the rule's own gradient: from the loss of a token of which A is 1 or -1.

    A ratio that is 0 by underflow gets none: 0 and the infinite slope of its logarithm would make NaN.
    """
    unit = torch.where(advantage.detach() < 0, -1.0, 1.0).to(advantage.dtype)
    ratio = engine.run(call, log_ratio, unit, *bounds) * -unit
    is_some = ratio > 0
    own = torch.where(is_some, torch.log(torch.where(is_some, ratio, 1.0)), -torch.inf)
    return mean_over_tokens(own, mask).expand_as(own)


# --- the row ----------------------------------------------------------------------------------------------------------


def _samples() -> Iterator[Sample]:
    def tokens(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Ratios on both sides of each bound and at 1, with advantages of both signs and 0."""
        ratios = torch.tensor([0.125, 0.45, 0.55, 0.7, 1.0, 1.2, 1.3, 1.9, 2.1, 2.9, 3.1, 5.0], dtype=torch.float64)
        return ratios.log().to(dtype).unsqueeze(1), torch.tensor([1.5, -1.5, 0.0], dtype=dtype)

    def build(*numbers: float | None) -> Callable[[torch.dtype], tuple[object, ...]]:
        return lambda dtype: (*tokens(dtype), *numbers)

    yield Sample("PPO's", build(0.25, 0.25, None, 0, 0))
    yield Sample("in log space", build(0.5, 1.0, None, 1, 1))
    yield Sample("no lower bound, clipped", build(None, 1.0, None, 0, 1))
    yield Sample("no upper bound, a ceiling", build(0.5, None, 3.0, 0, 0))
    yield Sample("a ceiling in log space", build(0.5, 1.0, 4.0, 1, 0))


POLICY_LOSS = register(
    Op(
        name=_OP,
        rule_set="policy",
        forward=_forward,
        inputs=("log_ratio", "advantage", "low", "high", "ceiling", "in_log", "without_min"),
        rules={
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
            )
        },
        edges=EDGES,
        default_rule="inward",
        default_edge="closed",
        public=lambda log_ratio, advantage, low, high, ceiling, in_log, without_min, **how: policy_loss(
            log_ratio,
            advantage,
            low=low,
            high=high,
            ceiling=ceiling,
            space=SPACES[int(in_log)],
            value=VALUES[int(without_min)],
            **how,
        ),
        samples=_samples,
        gradient_to="log_ratio",
        picture=Picture(
            of=lambda x: (x, torch.ones_like(x), 0.2, 0.28, None, 0, 0),
            edges=(math.log(0.8), math.log(1.28)),
            low=-1.0,
            high=1.0,
        ),
    )
)
_OF_SEQUENCES = register(
    Primitive(
        name=f"{_OP} of sequences",
        inputs=(*POLICY_LOSS.inputs, "mask"),
        forward=_forward_of_sequences,
        rules=POLICY_LOSS.rules,
        rule_set=POLICY_LOSS.rule_set,
        edges=POLICY_LOSS.edges,
        default_edge=POLICY_LOSS.default_edge,
        through=_of_the_mean,
        saves="as torch",
    )
)
