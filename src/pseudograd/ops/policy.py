"""policy_loss: the clipped losses of reinforcement learning, as a rule of the clamp family for the probability ratio.

Notation: r = exp(log_ratio), A the advantage, lo = 1 - low, hi = 1 + high, c(r) = clamp(r, lo, hi). A clip is *blocked* at a token if a
descent step would move its ratio further out: A > 0 and r > hi, or A < 0 and r < lo. That is where PPO's min picks the clipped branch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from .. import engine
from ..arguments import as_number, check_broadcast, check_device, is_finite, is_number, surely
from ..errors import must, unknown_name
from ..geometry import SHARES
from ..rule import (
    Call,
    Edge,
    Gradients,
    Op,
    Picture,
    Primitive,
    Pull,
    Rule,
    RuleLike,
    RuleObject,
    Sample,
    call_for,
    register,
)
from .policy_rules import INPUTS, NEED_NO_BOUND, RULES, adapted, forward, joined, name_of_joined
from .shared_rules import widened

__all__ = ["policy_loss"]

SPACES, VALUES, LEVELS = ("ratio", "log"), ("objective", "clipped"), ("token", "sequence", "geometric")
EDGES = tuple(SHARES)
DEFAULT = 0.2  # of low and high, in every project
SIGNS = ("positive", "negative")
_OP = "policy_loss"
PolicyRule = RuleLike | Mapping[str, RuleLike]  # one for all tokens, or one for each sign of the advantage


@engine.unscriptable
def policy_loss(
    log_ratio: Tensor,
    advantage: Tensor,
    *,
    low: float | None = DEFAULT,
    high: float | None = DEFAULT,
    rule: RuleLike | Mapping[str, RuleLike] = "inward",
    space: str = "ratio",
    ceiling: float | None = None,
    value: str = "objective",
    edge: str = "closed",
    level: str = "token",
    mask: Tensor | None = None,
) -> Tensor:
    """The clipped policy loss of each token: PPO's by default, and its relatives by other rules.

    Forward:  y = -min(r * A, c(r) * A), or -A * c(r) with value="clipped"; r = exp(log_ratio), c clips it to [1 - low, 1 + high].
    Backward: to log_ratio grad * s * -A * w. s is the slope that the clamp's `rule` gives for the gradient -A: with "inward" 0 where the
        clip is blocked (A > 0 and r > 1 + high, or A < 0 and r < 1 - low), else 1, which is PPO's own gradient; with the other rules a
        pseudo-gradient. w is the weight of the token: r with space="ratio". With space="log" the clip acts on log_ratio, and w is the
        clipped ratio c(r) for "zero", "identity" and "leaky"; "inward" and "leaky_inward" see the sign of A, and for them w is c(r) where
        the clip is blocked and r elsewhere. "reinforce" has s = w = 1, the gradient of -A * log_prob. To advantage the derivative of y; a
        training loop whose advantages do not require grad pays nothing for it. What exceeds half precision becomes its largest number,
        unless grad is infinite or level="sequence". Saves log_ratio and advantage. Linear in grad.

    Args:
        log_ratio: log_prob - old_log_prob, floating point, any shape; with a level other than "token" the last dimension is the sequence.
        advantage: a shape that broadcasts with log_ratio, floating point.
        low: 1 - low is the lower bound of the ratio; in (0, 1), or None for no bound.
        high: 1 + high is the upper bound; above 0, or None.
        rule: a name or a rule object: inward, zero, identity, leaky, leaky_inward, reinforce, or one of your own; `pseudograd rules
            policy_loss` draws them. {"positive": ..., "negative": ...} has one for A > 0 and one for the rest.
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
    call, of_sequences = _calls(rule, edge)
    low, high, ceiling = _checked_bounds(low, high, ceiling)
    _check_a_bound(low, high, rule)
    if mask is not None:  # what does not count may be infinite or NaN
        log_ratio = torch.where(mask, log_ratio, 0.0)
    bounds = low, high, ceiling, SPACES.index(space), VALUES.index(value)
    if level == "sequence":
        y = engine.run(of_sequences(), log_ratio, advantage, *bounds, mask)
    elif level == "geometric":
        mean = _log_of_geometric_mean(call, log_ratio, advantage, mask, bounds)
        y = engine.run(call_for(POLICY_LOSS, "identity", "closed"), mean, advantage, None, None, None, 0, 0)
    else:
        y = engine.run(call, log_ratio, advantage, *bounds)
    return y if mask is None else torch.where(mask, y, 0.0)


# --- which rule -------------------------------------------------------------------------------------------------------


def _calls(rule: PolicyRule, edge: Edge) -> tuple[Call, Callable[[], Call]]:
    """The call for tokens, and how to get the one for sequences."""
    if not isinstance(rule, Mapping):
        return call_for(POLICY_LOSS, rule, edge), lambda: call_for(_OF_SEQUENCES, rule, edge)
    if len(rule) != len(SIGNS) or any(sign not in rule for sign in SIGNS):
        remedy = "The first is for A > 0, the second for the rest"
        raise ValueError(must(_OP, "rule", "have the keys 'positive' and 'negative'", list(rule), remedy))
    for sign in SIGNS:
        call_for(POLICY_LOSS, rule[sign], edge)  # for its errors
    both = _joined(*(rule[sign] for sign in SIGNS))
    return call_for(_BY_SIGN, both, edge), lambda: call_for(_OF_SEQUENCES_BY_SIGN, both, edge)


def _joined(positive: RuleLike, negative: RuleLike) -> RuleObject:
    """Two rules as one of the table of `_BY_SIGN`, with the parameters of both."""
    objects = [one if isinstance(one, RuleObject) else RuleObject(one) for one in (positive, negative)]
    given = [
        (f"{sign}_{key}", value)
        for sign, one in zip(SIGNS, objects)  # noqa: B905  Dynamo on torch 2.8
        for key, value in one.parameters
    ]
    return RuleObject(name_of_joined(objects[0].name, objects[1].name), tuple(given))


def name_of(rule: PolicyRule) -> str:
    """As it is written in reports and on pages."""
    return name_of_joined(*(str(rule[sign]) for sign in SIGNS)) if isinstance(rule, Mapping) else str(rule)


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
    low: float | None, high: float | None, ceiling: float | None
) -> tuple[float | None, float | None, float | None]:
    low, high, ceiling = (_number(name, given) for name, given in (("low", low), ("high", high), ("ceiling", ceiling)))
    if low is not None and not surely_between(low, 0, 1):
        raise ValueError(must(_OP, "low", "be between 0 and 1", low, "The lower bound is 1 - low; None for no bound"))
    if high is not None and surely(high <= 0):
        raise ValueError(must(_OP, "high", "be above 0", high, "The upper bound is 1 + high; None for no bound"))
    least = 1 + (high or 0)
    if ceiling is not None and surely(ceiling <= least):
        raise ValueError(must(_OP, "ceiling", f"be above 1 + high = {least:g}", ceiling, "It bounds the ratio itself"))
    return low, high, ceiling


def _check_a_bound(low: float | None, high: float | None, rule: PolicyRule) -> None:
    """A rule for what is outside the bounds needs one; a user's own may do without."""
    if low is not None or high is not None:
        return
    for one in rule.values() if isinstance(rule, Mapping) else (rule,):
        name = one.name if isinstance(one, RuleObject) else one
        if not (name in NEED_NO_BOUND or POLICY_LOSS.rules[name].is_users):
            remedy = "Give one of low and high, or use rule='identity'"
            raise ValueError(
                must(_OP, "rule", "be 'identity' or 'reinforce' where low and high are None", name, remedy)
            )


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
    return forward(_of_sequence(log_ratio, mask), advantage, *bounds)


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


def _trial() -> tuple[object, ...]:
    """What a user's function is tried on before it becomes a rule."""
    return torch.ones(5), torch.linspace(0.25, 2, 5), torch.tensor([1.0, -1.0, 2.0, -2.0, 0.5]), 0.8, 1.2


JOINED = {name_of_joined(p.name, n.name): joined(p, n) for p in RULES.values() for n in RULES.values()}


def _join(row: Rule) -> None:
    """A rule that is added can stand beside each of the others."""
    for other in RULES.values():
        for positive, negative in ((row, other), (other, row)):
            JOINED[name_of_joined(positive.name, negative.name)] = joined(positive, negative)


POLICY_LOSS = register(
    Op(
        name=_OP,
        rule_set="policy",
        forward=forward,
        inputs=INPUTS,
        rules=RULES,
        edges=EDGES,
        default_rule="inward",
        default_edge="closed",
        adapt=adapted,
        joins=_join,
        formula_takes=("grad", "ratio", "advantage", "min", "max"),
        trial=_trial,
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
        formula_of="log_ratio",
        picture=Picture(
            of=lambda x: (x, torch.ones_like(x), 0.2, 0.28, None, 0, 0),
            edges=(math.log(0.8), math.log(1.28)),
            low=-1.0,
            high=1.0,
        ),
    )
)


def _of(what: str, rules: Mapping[str, Rule], of_sequences: bool) -> Primitive:
    """What the engine runs besides: the loss of tokens or of sequences, with one rule or with one for each sign."""
    return register(
        Primitive(
            name=f"{_OP} {what}",
            inputs=(*INPUTS, "mask") if of_sequences else INPUTS,
            forward=_forward_of_sequences if of_sequences else forward,
            rules=rules,
            rule_set=POLICY_LOSS.rule_set,
            edges=EDGES,
            default_edge=POLICY_LOSS.default_edge,
            through=_of_the_mean if of_sequences else None,
            saves="as torch" if of_sequences else "rule",
        )
    )


_OF_SEQUENCES = _of("of sequences", RULES, True)
_BY_SIGN = _of("by sign", JOINED, False)
_OF_SEQUENCES_BY_SIGN = _of("of sequences by sign", JOINED, True)
