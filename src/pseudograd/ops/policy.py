"""policy_loss: the clipped losses of reinforcement learning. Each rule is a rule of clamp, applied to the probability ratio.

Notation: r = exp(log_ratio), A the advantage, lo = 1 - low, hi = 1 + high, c(r) = clamp(r, lo, hi). A clip is *blocked* at a token if a
descent step would move its ratio further out: A > 0 and r > hi, or A < 0 and r < lo. That is where PPO's min picks the clipped branch.
A *weight* is the number by which -grad * A is multiplied.

The file has more than 300 lines because the checks, the formulas and the rows of one function belong together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.compiler import is_compiling

from .. import engine
from ..arguments import as_number, check_broadcast, check_device, check_floating, is_finite, is_number, is_true, rounded
from ..errors import must, unknown_name
from ..geometry import SHARES, Formula
from ..reference import policy as reference
from ..rule import Adapter, Gradients, Op, Picture, Rule, RuleLike, RuleObject, Sample, Wants, call_for, register
from ..torch_table.private import in_forward_mode, is_tracing, transforms_are_active
from . import bound_rules
from .bound_rules import DEFAULT_RULE, IDENTITY_RULE, LEAKY_INWARD_RULE, LEAKY_RULE, TRUE_RULE
from .replace import replace_grad
from .shared_rules import UserFormula, row_of, widened

__all__ = ["policy_loss"]

SPACES, VALUES, LEVELS = ("ratio", "log"), ("objective", "clipped"), ("token", "sequence", "geometric")
EDGES = tuple(SHARES)
DEFAULT_BOUND = 0.2  # low and high, in every project
SIGNS = ("positive", "negative")
INPUTS = ("log_ratio", "advantage", "low", "high", "ceiling", "in_log", "without_min")
_OP = "policy_loss"
PolicyRule = RuleLike | Mapping[str, RuleLike]  # a rule for all tokens, or a rule for each sign of the advantage
Bound = float | None


@engine.unscriptable
def policy_loss(
    log_ratio: Tensor,
    advantage: Tensor,
    *,
    low: float | None = DEFAULT_BOUND,
    high: float | None = DEFAULT_BOUND,
    rule: RuleLike | Mapping[str, RuleLike] = DEFAULT_RULE,
    space: Literal["ratio", "log"] = "ratio",
    ceiling: float | None = None,
    value: Literal["objective", "clipped"] = "objective",
    edge: Literal["closed", "open", "half"] = "closed",
    level: Literal["token", "sequence", "geometric"] = "token",
    mask: Tensor | None = None,
) -> Tensor:
    """The clipped policy loss of each token: by default that of PPO. Other rules give the losses of other papers.

    Forward:  y = -min(r * A, c(r) * A), or -A * c(r) with value="clipped"; r = exp(log_ratio), c clips it to [1 - low, 1 + high].
    Backward: log_ratio gets grad * s * -A * w. s is the slope that the clamp's `rule` gives for the gradient -A. With the default rule
        s is 0 where the clip is blocked (A > 0 and r > 1 + high, or A < 0 and r < 1 - low), else 1: PPO's own gradient. The other rules
        give pseudo-gradients. w is the weight of the token: r with space="ratio". With space="log" the clip acts on log_ratio, and w is
        the clipped ratio c(r); rules that ask for the sign of A have w = c(r) only where the clip is blocked, and w = r elsewhere.
        "reinforce" has s = w = 1, the gradient of -A * log_prob. The advantage gets the derivative of y; an advantage that does not
        require grad costs nothing. A gradient beyond half precision becomes its largest number, unless grad is infinite or
        level="sequence". Saves log_ratio and advantage. Linear in grad.

    Args:
        log_ratio: log_prob - old_log_prob, floating point, any shape; with a level other than "token" the last dimension is the sequence.
        advantage: a shape that broadcasts with log_ratio, floating point.
        low: 1 - low is the lower bound of the ratio; in (0, 1), or None for no bound.
        high: 1 + high is the upper bound; above 0, or None.
        rule: a name or a rule object; `pseudograd rules policy_loss` draws them. It may be a rule of your own.
            {"positive": ..., "negative": ...} has one rule for A > 0 and one for the rest.
        space: "ratio" or "log": whether the clip acts on r or on log_ratio.
        ceiling: the dual clip: for A < 0, a ratio above the ceiling counts as the ceiling and gets no gradient. Above 1 + high, or None.
        value: "objective", the value that papers and logs show, or "clipped", the value without PPO's min. The gradient to log_ratio is
            the same.
        edge: the share of the gradient that passes exactly at a bound. "closed": all, as torch <= 2.13 does in PPO's usual form.
            "half": half of it, as torch >= 2.14. "open": nothing.
        level: "token"; "sequence": every token has the mean log_ratio of its sequence, and gets the gradient of it (GSPO's token
            form); "geometric": each token is clipped, then every token has the loss of their geometric mean (GMPO). With these two, the
            mean of the result over a sequence is the sequence's loss.
        mask: bool, broadcasts to log_ratio: the tokens that count. The others have loss 0 and get no gradient. None: all tokens count.
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
    rules, low, high, ceiling = _check_choices(rule, edge, (low, high, ceiling), (space, value, level))
    if mask is not None:  # tokens that do not count may be infinite or NaN
        log_ratio = torch.where(mask, log_ratio, 0.0)
    bounds = low, high, ceiling, SPACES.index(space), VALUES.index(value)
    if level == "sequence":
        log_ratio = replace_grad(mean_over_tokens(log_ratio, mask).expand_as(log_ratio), log_ratio)
        y = _run(rules, edge, log_ratio, advantage, *bounds)
    elif level == "geometric":
        # The loss of a token with advantage 1 or -1 gives its clipped ratio, with the gradient of the rule.
        unit = torch.where(advantage.detach() < 0, -1.0, 1.0).to(advantage.dtype)
        ratio = _run(rules, edge, log_ratio, unit, *bounds) * -unit
        # A ratio that is 0 by underflow gets no gradient: 0 and the infinite slope of its logarithm would make NaN.
        is_positive = ratio > 0
        logarithm = torch.where(is_positive, torch.log(torch.where(is_positive, ratio, 1.0)), -torch.inf)
        mean = mean_over_tokens(logarithm, mask).expand_as(logarithm)
        y = _run((IDENTITY_RULE,), "closed", mean, advantage, None, None, None, *bounds[3:])
    else:
        y = _run(rules, edge, log_ratio, advantage, *bounds)
    return y if mask is None else torch.where(mask, y, 0.0)


def _run(rules: tuple[RuleLike, ...], edge: str, log_ratio: Tensor, advantage: Tensor, *numbers: Bound) -> Tensor:
    """The loss by one rule; or by two rules, the first for the tokens with A > 0 and the second for the others.

    Each of two rules gets all tokens, with ratio 1 and advantage 0 for the tokens of the other rule.
    """
    if len(rules) == 1:
        return engine.run(call_for(POLICY_LOSS, rules[0], edge), log_ratio, advantage, *numbers)
    is_positive, losses = advantage > 0, []
    for rule, has_rule in zip(rules, (is_positive, ~is_positive)):  # noqa: B905  Dynamo on torch 2.8
        tokens = [torch.where(has_rule, tensor, 0.0) for tensor in (log_ratio, advantage)]
        losses.append(engine.run(call_for(POLICY_LOSS, rule, edge), *tokens, *numbers))
    return torch.where(is_positive, losses[0], losses[1])


# --- checks -----------------------------------------------------------------------------------------------------------


def _rules_by_sign(rule: PolicyRule, edge: str) -> tuple[RuleLike, ...]:
    """The rule, or the rules of both signs; raises the errors of unknown names."""
    if isinstance(rule, Mapping) and (len(rule) != len(SIGNS) or any(sign not in rule for sign in SIGNS)):
        remedy = "The first is for A > 0, the second for the rest"
        raise ValueError(must(_OP, "rule", "have the keys 'positive' and 'negative'", list(rule), remedy))
    rules = tuple([rule[sign] for sign in SIGNS]) if isinstance(rule, Mapping) else (rule,)
    for each in rules:
        call_for(POLICY_LOSS, each, edge)
    return rules


def _check_choices(
    rule: PolicyRule, edge: str, bounds: tuple[Bound, Bound, Bound], choices: tuple[str, ...]
) -> tuple[tuple[RuleLike, ...], Bound, Bound, Bound]:
    """Check these arguments; those that have passed are not checked again. Returns the rules, and the bounds as numbers."""
    call, types = None, {*map(type, bounds)}
    if types <= {float, type(None)} and not isinstance(rule, Mapping) and not is_compiling():
        call = call_for(POLICY_LOSS, rule, edge)
        if {*map(type, choices)} == {str} and (bounds, choices) in call.admitted:
            return (rule,), *bounds
    for name, allowed, choice in zip(("space", "value", "level"), (SPACES, VALUES, LEVELS), choices):  # noqa: B905  Dynamo on torch 2.8
        if choice not in allowed:
            raise unknown_name(_OP, name, allowed, choice)
    rules = _rules_by_sign(rule, edge)
    low, high, ceiling = _check_bounds(*bounds)
    _check_a_bound(low, high, rules)
    if call is not None and len(call.admitted) < 1000:
        call.admitted.add((bounds, choices))
    return rules, low, high, ceiling


def name_of_rule(rule: PolicyRule) -> str:
    """The rule as reports and pages write it."""
    if isinstance(rule, Mapping):
        return f"{rule['positive']} where A > 0, {rule['negative']} elsewhere"
    return str(rule)


def _check_tensors(log_ratio: Tensor, advantage: Tensor, mask: Tensor | None) -> None:
    for name, tensor in (("log_ratio", log_ratio), ("advantage", advantage)):
        check_floating(_OP, name, tensor, f"Call {name}.float() first")
    check_broadcast(_OP, "advantage", advantage, log_ratio.shape, "log_ratio")
    check_device(_OP, "advantage", advantage, log_ratio.device, "log_ratio")
    if mask is None:
        return
    if not isinstance(mask, Tensor) or mask.dtype is not torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else mask
        raise TypeError(must(_OP, "mask", "be a bool tensor", got, "Call mask.bool() first"))
    check_broadcast(_OP, "mask", mask, log_ratio.shape, "log_ratio", grows=False)


def _check_bounds(low: Bound, high: Bound, ceiling: Bound) -> tuple[Bound, Bound, Bound]:
    low, high, ceiling = (
        _check_number(name, bound) for name, bound in (("low", low), ("high", high), ("ceiling", ceiling))
    )
    if low is not None and (is_true(low <= 0) or is_true(low >= 1)):
        raise ValueError(must(_OP, "low", "be between 0 and 1", low, "The lower bound is 1 - low; None for no bound"))
    if high is not None and is_true(high <= 0):
        raise ValueError(must(_OP, "high", "be above 0", high, "The upper bound is 1 + high; None for no bound"))
    least = 1 + (high or 0)
    if ceiling is not None and is_true(ceiling <= least):
        raise ValueError(must(_OP, "ceiling", f"be above 1 + high = {least:g}", ceiling, "It bounds the ratio itself"))
    return low, high, ceiling


def _check_number(name: str, bound: object) -> Bound:
    if bound is None:
        return None
    bound = as_number(bound)
    if isinstance(bound, bool) or not is_number(bound):
        raise TypeError(must(_OP, name, "be a number or None", bound))
    if not is_finite(bound):
        raise ValueError(must(_OP, name, "be finite", bound, "Use None for no bound"))
    return float(bound)


def _check_a_bound(low: Bound, high: Bound, rules: tuple[RuleLike, ...]) -> None:
    """Raise an error if both bounds are None and a rule needs one. A user's rule may do without a bound."""
    if low is not None or high is not None:
        return
    for rule in rules:
        name = rule.name if isinstance(rule, RuleObject) else rule
        if not (POLICY_LOSS.rules[name].is_from_user or name in NEED_NO_BOUND):
            names = " or ".join(map(repr, NEED_NO_BOUND))
            remedy = f"Give one of low and high, or use rule={NEED_NO_BOUND[0]!r}"
            raise ValueError(must(_OP, "rule", f"be {names} where low and high are None", name, remedy))


# --- the clip ---------------------------------------------------------------------------------------------------------


class Clip:
    """The ratios of all tokens, and the masks that compare them with the bounds in the space of the clip.

    log_ratio, advantage: tensors of one shape and one dtype, which is no half precision.
    lowest, highest, ceiling: the bounds of the ratio.
    x, min, max, top: the ratio, its two bounds and the ceiling, in the space of the clip.
    in_log: is this the space "log"?
    without_min: is `value` "clipped", so that PPO's min is left out?
    """

    def __init__(
        self,
        log_ratio: Tensor,
        advantage: Tensor,
        low: Bound,
        high: Bound,
        ceiling: Bound,
        in_log: int,
        without_min: int,
    ) -> None:
        log_ratio, advantage = widened(log_ratio), widened(advantage)
        if log_ratio.dtype != advantage.dtype:
            dtype = torch.promote_types(log_ratio.dtype, advantage.dtype)
            log_ratio, advantage = log_ratio.to(dtype), advantage.to(dtype)
        if is_compiling() or is_tracing() or log_ratio.shape != advantage.shape:  # sizes are tensors in a trace
            log_ratio, advantage = torch.broadcast_tensors(log_ratio, advantage)
        self.log_ratio, self.advantage = log_ratio, advantage
        self.lowest = None if low is None else 1 - low
        self.highest = None if high is None else 1 + high
        self.in_log, self.without_min, self.ceiling = in_log, without_min, ceiling
        self.x = self.log_ratio if in_log else torch.exp(self.log_ratio)
        self.min, self.max, self.top = (
            None if bound is None else rounded(math.log(bound) if in_log else float(bound), self.x)
            for bound in (self.lowest, self.highest, ceiling)
        )

    def _no_token(self) -> Tensor:
        return torch.zeros_like(self.x, dtype=torch.bool)

    @property
    def below(self) -> Tensor:
        return self._no_token() if self.min is None else self.x < self.min

    @property
    def above(self) -> Tensor:
        return self._no_token() if self.max is None else self.x > self.max

    @property
    def is_over(self) -> Tensor:
        """Is the ratio above the ceiling, which is for A < 0?"""
        return self._no_token() if self.top is None else (self.x > self.top) & (self.advantage < 0)

    @property
    def is_at_ceiling(self) -> Tensor:
        return self._no_token() if self.top is None else (self.x == self.top) & (self.advantage < 0)

    @property
    def clipped(self) -> Tensor:
        """x between min and max."""
        return _replace(self.x, self.below, self.min, self.above, self.max)

    def ratio_without_derivative(self) -> Tensor:
        """`ratio_of_value` in fewer steps, for a forward that nobody differentiates. Where A = 0 it may be any finite number."""
        if self.in_log or self.top is not None or self.min is self.max is None:
            return self.ratio_of_value(self.log_ratio, self.without_min)
        if self.without_min:
            return self.clipped
        lowest = self.x if self.min is None else torch.where(self.below, self.min, self.x)
        highest = self.x if self.max is None else torch.where(self.above, self.max, self.x)
        return torch.where(self.advantage < 0, lowest, highest)

    def ratio_of_value(self, log_ratio: Tensor, without_min: int) -> Tensor:
        """The ratio by which the value multiplies -A. Without PPO's min it is c(r); with the min c(r) where the clip is blocked, else r."""
        below, above = self.below, self.above
        if not without_min:
            below, above = below & ~(self.advantage > 0), above & ~(self.advantage < 0)
        over, ceiling = (None, 0.0) if self.ceiling is None else (self.is_over & ~above, self.ceiling)
        # Where the result is replaced, exp gets 0: a second derivative would multiply an infinity by zero.
        is_replaced = below | above if over is None else below | above | over
        ratio = _replace(torch.exp(torch.where(is_replaced, 0.0, log_ratio)), below, self.lowest, above, self.highest)
        return ratio if over is None else torch.where(over, ceiling, ratio)

    def apply_ceiling(self, gradient: Tensor, edge: str) -> Tensor:
        """The gradient; 0 above the ceiling, and the share of the edge at it."""
        if self.ceiling is None:
            return gradient
        return torch.where(self.is_over, 0.0, torch.where(self.is_at_ceiling, SHARES[edge] * gradient, gradient))

    def second_is_zero(self, gradient: Tensor) -> Tensor:
        """A mask: the gradient and all its derivatives are 0. Where A = 0 and r is finite, the derivative by A is not 0."""
        ratio = torch.exp(self.log_ratio) if self.in_log else self.x
        return (gradient == 0) & ((self.advantage != 0) | (ratio == torch.inf))


def _replace(
    x: Tensor, below: Tensor, lowest: float | Tensor | None, above: Tensor, highest: float | Tensor | None
) -> Tensor:
    x = x if lowest is None else torch.where(below, lowest, x)
    return x if highest is None else torch.where(above, highest, x)


def _forward(log_ratio: Tensor, advantage: Tensor, *numbers: Any) -> Tensor:
    clip = Clip(log_ratio, advantage, *numbers)
    return -(clip.ratio_without_derivative() * clip.advantage)


# --- the gradient of a token ------------------------------------------------------------------------------------------


def _pull_by(
    formula: Callable[..., Tensor],
    grad: Tensor,
    log_ratio: Tensor,
    advantage: Tensor,
    *numbers: Any,
    wants: Wants,
    edge: str,
    **parameters: object,
) -> Gradients:
    """The log ratio gets formula(grad, clip, edge, **parameters), and the advantage gets the derivative of the value."""
    clip = Clip(log_ratio, advantage, *numbers)
    grad = grad.to(clip.log_ratio.dtype)
    to_log_ratio = to_advantage = None
    if wants[0]:
        to_log_ratio = _limit(log_ratio.dtype, formula(grad, clip, edge, **parameters), grad)
    if wants[1]:
        ratio = clip.ratio_of_value(clip.log_ratio, clip.without_min)
        to_advantage = _limit(advantage.dtype, -(grad * ratio), grad)
    return to_log_ratio, to_advantage, None, None, None, None, None


def _limit(dtype: torch.dtype, gradient: Tensor, grad: Tensor) -> Tensor:
    """The gradient, at most as large as the largest number of a half precision, which r soon exceeds. An infinite grad stays infinite."""
    if dtype in (torch.float32, torch.float64):
        return gradient
    most = torch.finfo(dtype).max
    limited = torch.where(gradient > most, most, torch.where(gradient < -most, -most, gradient))
    return torch.where(grad.abs() < torch.inf, limited, gradient)


def _clamp_gradient(row: Rule, grad: Tensor, clip: Clip, edge: str, **parameters: float) -> Tensor:
    """grad * (the gradient that a rule of clamp gives x for the gradient -A) * weight."""
    x_alone = (True, False, False)
    y = clip.clipped
    slope = row.pull(-clip.advantage, clip.x, clip.min, clip.max, y=y, wants=x_alone, edge=edge, **parameters)[0]
    assert slope is not None
    slope = clip.apply_ceiling(slope, edge)
    second_is_zero = clip.second_is_zero(slope)
    if not clip.in_log and not (torch.is_grad_enabled() or transforms_are_active() or in_forward_mode()):
        return torch.where(second_is_zero, 0.0, grad * slope * clip.x)
    # Where the gradient is 0 the ratio counts as 1: a second derivative would multiply an infinite ratio by zero.
    log_ratio = torch.where(second_is_zero, 0.0, clip.log_ratio)
    weight = clip.ratio_of_value(log_ratio, without_min=row.is_linear) if clip.in_log else torch.exp(log_ratio)
    return torch.where(second_is_zero, 0.0, grad) * slope * weight


def _log_prob_gradient(grad: Tensor, clip: Clip, edge: str) -> Tensor:
    """The gradient of -A * log_prob, under the ceiling."""
    return grad * clip.apply_ceiling(-clip.advantage, edge)


def _user_gradient(function: UserFormula, grad: Tensor, clip: Clip, edge: str, settings: Mapping[str, float]) -> Tensor:
    """The gradient by a user's function. It is called twice: where the first call gives 0, the second call gets the ratio 1, because a
    second derivative would multiply an infinite ratio by zero.
    """
    least = 0.0 if clip.lowest is None else rounded(clip.lowest, clip.log_ratio)
    most = math.inf if clip.highest is None else rounded(clip.highest, clip.log_ratio)
    first = function(grad, torch.exp(clip.log_ratio), clip.advantage, least, most, **settings)
    second_is_zero = (clip.is_over | clip.second_is_zero(first)) & (grad != 0)
    ratio = torch.exp(torch.where(second_is_zero, 0.0, clip.log_ratio))
    second = function(
        torch.where(second_is_zero, torch.zeros_like(grad), grad), ratio, clip.advantage, least, most, **settings
    )
    return clip.apply_ceiling(torch.where(second_is_zero, 0.0, second), edge)


# --- a loss for a whole sequence --------------------------------------------------------------------------------------


def mean_over_tokens(log_ratio: Tensor, mask: Tensor | None) -> Tensor:
    """The mean over those tokens of each sequence that count; 0 if no token counts."""
    wide = widened(log_ratio)
    if mask is None:
        return wide.mean(-1, keepdim=True)
    counts = mask.expand_as(wide).sum(-1, keepdim=True)
    return torch.where(mask, wide, 0.0).sum(-1, keepdim=True) / torch.where(counts > 0, counts, 1)


# --- the rows ---------------------------------------------------------------------------------------------------------

RULES: dict[str, Rule] = {}


def _ratio(log_ratio: Tensor) -> Tensor:
    return torch.exp(widened(log_ratio))


def _find_formula(
    is_linear: bool,
    advantage: Tensor,
    low: Bound,
    high: Bound,
    ceiling: Bound,
    in_log: int,
    without_min: int,
    /,
    edge: str,
    **_: object,
) -> Formula | None:
    """The formula of the C code, its numbers as rules.h names them. None for an advantage that `_limit` would have to limit."""
    if advantage.requires_grad and advantage.dtype.itemsize == 2:
        return None
    ratios = None if low is None else 1 - low, None if high is None else 1 + high, ceiling
    least, most, top = [math.log(ratio) if in_log and ratio is not None else ratio for ratio in ratios]
    numbers_of_ceiling = (0.0, 0.0, 0.0) if ceiling is None or top is None else (top, ceiling, SHARES[edge])
    numbers = float(without_min), ratios[0] or 0.0, ratios[1] or 0.0, *numbers_of_ceiling, float(is_linear)
    if in_log:
        return Formula("loss", least, most, numbers, of_x=widened, b_of_x=torch.exp)
    return Formula("loss", least, most, numbers, of_x=_ratio)


def _rule(name: str, formula: str, also_called: str = "", **row: Any) -> None:
    """The row of the rule of clamp with this name, with its own formula text."""
    rule = bound_rules.RULES[name]
    fields = ("source", "parameters", "sides", "ignores_edge", "translates")
    row = {**{field: getattr(rule, field) for field in fields}, **row}
    row |= {"formula": formula, "also_called": also_called, "keeps": INPUTS, "ulps": 4}
    row["find_formula"] = partial(_find_formula, rule.is_linear)
    pull = partial(_pull_by, partial(_clamp_gradient, rule))
    scalar_reference = partial(reference.gradient, "linear" if rule.is_linear else "other", rule.reference)
    RULES[name] = row_of(name, pull, scalar_reference, **row)


def _adapt(function: UserFormula, is_linear: bool, scalar_formula: Callable[..., float], /, **row: Any) -> Rule:
    """The row of a user's function(grad, ratio, advantage, min, max, **settings), which gives the gradient of each token's log ratio."""
    pull = partial(_pull_by, partial(_user_gradient, function))
    scalar_reference = partial(reference.gradient, "user", scalar_formula)
    row = {"is_linear": is_linear, "keeps": INPUTS, "ignores_edge": True, "is_from_user": True, **row}
    return row_of(pull=pull, reference=scalar_reference, **row)


_rule(
    DEFAULT_RULE,
    "-grad * A * w, or 0 where the clip is blocked",
    "PPO, GRPO, DAPO, GSPO, GMPO",
    source="PPO (Schulman et al., 2017)",
)
_rule(
    TRUE_RULE,
    "0 where r is outside the bounds, else -grad * A * w",
    "the clip without PPO's min",
    source="the derivative of -A c(r)",
)
_rule(
    IDENTITY_RULE,
    "-grad * A * w",
    "CISPO, truncated importance sampling",
    source="truncated importance sampling (Ionides, 2008); CISPO (MiniMax, 2025)",
)
_rule(LEAKY_RULE, "-slope * grad * A * w where r is outside the bounds, else -grad * A * w")
_rule(
    LEAKY_INWARD_RULE,
    "-low * grad * A * w where the clip is blocked below, -high * grad * A * w where the clip is blocked above, else -grad * A * w",
    "GPPO, CE-GPPO",
)
RULES["reinforce"] = row_of(
    "reinforce",
    partial(_pull_by, _log_prob_gradient),
    partial(reference.gradient, "log_prob", None),
    formula="-grad * A",
    source="REINFORCE (Williams, 1992); GPG (Chu et al., 2025)",
    also_called="policy gradient, GPG: the gradient of -A * log_prob, without the ratio",
    keeps=INPUTS,
    ignores_edge=True,
    translates="policy_gradient gpg score",
    ulps=4,  # of exp: an advantage gets the ratio
)
NEED_NO_BOUND = tuple(name for name, row in RULES.items() if row.ignores_edge)


def _sample(name: str, *numbers: float | None) -> Sample:
    """Ratios on both sides of each bound and at 1, with advantages of both signs and 0."""

    def build(dtype: torch.dtype) -> tuple[object, ...]:
        ratios = (0.125, 0.45, 0.55, 0.7, 1.0, 1.2, 1.3, 1.9, 2.1, 2.9, 3.1, 5.0)
        log_ratio = torch.tensor([ratios], dtype=torch.float64).mT.log().to(dtype)
        return log_ratio, torch.tensor([1.5, -1.5, 0.0], dtype=dtype), *numbers

    return Sample(name, build)


def _trial() -> tuple[object, ...]:
    """Arguments for the one call that checks a user's function before it becomes a rule."""
    return torch.ones(5), torch.linspace(0.25, 2, 5), torch.tensor([1.0, -1.0, 2.0, -2.0, 0.5]), 0.8, 1.2


def _call_public(log_ratio: Tensor, advantage: Tensor, *numbers: Any, **choices: Any) -> Tensor:
    low, high, ceiling, in_log, without_min = numbers
    choices |= {"space": SPACES[int(in_log)], "value": VALUES[int(without_min)]}
    return policy_loss(log_ratio, advantage, low=low, high=high, ceiling=ceiling, **choices)


POLICY_LOSS = register(
    Op(
        name=_OP,
        rule_set="policy",
        forward=_forward,
        inputs=INPUTS,
        rules=RULES,
        edges=EDGES,
        default_rule=DEFAULT_RULE,
        default_edge="closed",
        adapter=Adapter(_adapt, ("grad", "ratio", "advantage", "min", "max"), _trial),
        public=_call_public,
        samples=(
            _sample("PPO's", 0.25, 0.25, None, 0, 0),
            _sample("in log space", 0.5, 1.0, None, 1, 1),
            _sample("no lower bound, clipped", None, 1.0, None, 0, 1),
            _sample("no upper bound, a ceiling", 0.5, None, 3.0, 0, 0),
            _sample("a ceiling in log space", 0.5, 1.0, 4.0, 1, 0),
        ),
        gradient_to="log_ratio",
        formula_of="log_ratio",
        picture=Picture(
            bounds=(math.log(0.8), math.log(1.28)),
            low=-1.0,
            high=1.0,
            inputs_of=lambda x: (x, torch.ones_like(x), 0.2, 0.28, None, 0, 0),
        ),
    )
)
