"""Rounding to whole numbers: round, floor, ceil, trunc. Their true gradient is 0 everywhere, so nothing that is rounded ever learns.

`round` has two more rules, which read the distance of x from the rounded x, in steps of 10^-decimals. Their papers define them only for
rounding to the nearest number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .. import engine
from ..arguments import check_integer, check_tensor, rounded
from ..geometry import Steps
from ..reference import elementwise as reference
from ..rule import Gradients, Op, Picture, Pull, Rule, RuleLike, Wants, register
from .samples import around, matrix
from .shared_rules import ADAPTER, pull_identity, pull_zero, row_of, widened

__all__ = ["ceil", "floor", "round", "trunc"]

# --- the rules --------------------------------------------------------------------------------------------------------


def _rounding_error(x: Tensor, decimals: int) -> Tensor:
    """x minus the rounded x, in steps of 10^-decimals: from -1/2 to 1/2; NaN where x is infinite."""
    x, factor = widened(x), 10.0 ** min(abs(decimals), 308)  # a larger power is infinite in every dtype
    position = x / factor if decimals < 0 else x * factor if decimals else x
    return position - torch.round(position)


def _is_near(x: Tensor, decimals: int, within: float) -> Tensor:
    error = _rounding_error(x, decimals)
    return error.abs() <= rounded(within, error)


def _pull_trust(grad: Tensor, x: Tensor, decimals: int, *, wants: Wants, within: float) -> Gradients:
    return torch.where(_is_near(x, decimals, within), grad, 0.0), None


def _pull_fourier(grad: Tensor, x: Tensor, decimals: int, *, wants: Wants, amplitude: float) -> Gradients:
    error = _rounding_error(x, decimals)
    is_known = error == error
    cosine = torch.cos(torch.where(is_known, error, 0.0) * 3.141592653589793)
    wave = cosine * (amplitude * 4.442882938158366)  # pi times the square root of 2
    slope = torch.where(is_known, (1 - wave) / (1 + wave), 0.0)
    return torch.where(is_known, widened(grad), 0.0) * slope, None


RULES_OF_ROUND: dict[str, Rule] = {}


def _rule(name: str, pull: Pull, keeps: tuple[str, ...] = (), **row: Any) -> None:
    RULES_OF_ROUND[name] = row_of(name, pull, partial(reference.rounding, name), keeps=keeps, **row)


_rule(
    "identity",
    pull_identity,
    formula="grad",
    source="straight-through estimator (Bengio, Léonard & Courville, 2013)",
    also_called="straight-through, round_ste",
    translates="ste straight_through round_ste",
)
_rule("zero", pull_zero, formula="0", source="the true gradient; torch.round", translates="true native none")
RULES = dict(RULES_OF_ROUND)  # those of floor, ceil and trunc
_rule(
    "trust",
    _pull_trust,
    ("x", "decimals"),
    colour="#661100",
    formula="grad where |x - y| <= within * step, else 0",
    source="the trust estimator of QuEST (Panferov et al., 2025)",
    also_called="trust mask",
    translates="trust_mask quest",
    parameters={"within": 0.25},
    steps=lambda decimals, within: Steps((0.0, 1.0), lambda x: [_is_near(x, decimals, within)]),
    jumps=lambda within, **_: tuple(n + side * within for n in range(-2, 3) for side in (-1, 1)),
)
_rule(
    "fourier",
    _pull_fourier,
    ("x", "decimals"),
    colour="#999933",
    formula="grad * (1 - e) / (1 + e) with e = amplitude * sqrt(2) * pi * cos(pi * (x - y) / step)",
    source="StableQAT (Chen et al., 2026), of the first order",
    also_called="rotated damped Fourier surrogate, sine soft quantization",
    translates="rdfs sine_soft_q stableqat",
    parameters={"amplitude": 0.21},
    ulps=8,
    cancels=True,
    is_long=True,
)


@engine.unscriptable
def round(x: Tensor, *, decimals: int = 0, rule: RuleLike = "identity") -> Tensor:
    """Round `x` to the nearest whole number, halves to the even one; the gradient passes as if nothing had been rounded.

    Forward:  y = torch.round(x, decimals=decimals), bit for bit.
    Backward: grad_x = grad with "identity", a pseudo-gradient; 0 with "zero", the true one. Two pseudo-gradients depend on how far x is
        from y, in steps of 10^-decimals: "trust" passes grad where that is at most `within`, "fourier" multiplies it with a slope that
        is small at the values of y and 1 between two of them. Both give 0 where x is NaN or infinite. "identity" and "zero" save nothing,
        "trust" one bit an element where x is dense and has 4096 elements or more, else x, "fourier" x. Linear in grad.

    Args:
        x: any shape, floating point; an integer x gets no gradient.
        decimals: digits after the point that stay; negative for tens, hundreds...
        rule: "identity", "zero", "trust" or rules.trust(within=0.25), "fourier" or rules.fourier(amplitude=0.21).
    Returns: shape, dtype and device of x.
    Raises: TypeError if x is no real tensor or decimals no integer; ValueError for an unknown rule.
    Example:
        >>> x = torch.tensor([0.5, 1.5, 2.6], requires_grad=True)
        >>> y = round(x); y.sum().backward(); y.tolist(), x.grad
        ([0.0, 2.0, 3.0], tensor([1., 1., 1.]))
    Source: straight-through estimator (Bengio, Léonard & Courville, 2013); each rule names its own.
    """
    if type(decimals) is not int:
        check_integer("round", "decimals", decimals)
    return engine.run_op(ROUND, check_tensor, x, rule, None, decimals)


@engine.unscriptable
def floor(x: Tensor, *, rule: RuleLike = "identity") -> Tensor:
    """The largest whole number that is not above `x`; the gradient passes.

    Forward:  y = torch.floor(x), bit for bit.
    Backward: as `round`. Saves nothing. Linear in grad.

    Args:
        x: any shape, floating point; an integer x gets no gradient.
        rule: "identity" or "zero".
    Returns: shape, dtype and device of x.
    Raises: as `round`.
    Example:
        >>> x = torch.tensor([-0.5, 1.5], requires_grad=True)
        >>> y = floor(x); y.sum().backward(); y.tolist(), x.grad
        ([-1.0, 1.0], tensor([1., 1.]))
    Source: as `round`.
    """
    return engine.run_op(FLOOR, check_tensor, x, rule)


@engine.unscriptable
def ceil(x: Tensor, *, rule: RuleLike = "identity") -> Tensor:
    """The smallest whole number that is not below `x`; the gradient passes.

    Forward:  y = torch.ceil(x), bit for bit.
    Backward: as `round`. Saves nothing. Linear in grad.

    Args:
        x: any shape, floating point; an integer x gets no gradient.
        rule: "identity" or "zero".
    Returns: shape, dtype and device of x.
    Raises: as `round`.
    Example:
        >>> x = torch.tensor([-0.5, 1.5], requires_grad=True)
        >>> y = ceil(x); y.sum().backward(); y.tolist(), x.grad
        ([-0.0, 2.0], tensor([1., 1.]))
    Source: as `round`.
    """
    return engine.run_op(CEIL, check_tensor, x, rule)


@engine.unscriptable
def trunc(x: Tensor, *, rule: RuleLike = "identity") -> Tensor:
    """The whole part of `x`, towards zero; the gradient passes.

    Forward:  y = torch.trunc(x), bit for bit.
    Backward: as `round`. Saves nothing. Linear in grad.

    Args:
        x: any shape, floating point; an integer x gets no gradient.
        rule: "identity" or "zero".
    Returns: shape, dtype and device of x.
    Raises: as `round`.
    Example:
        >>> x = torch.tensor([-1.5, 1.5], requires_grad=True)
        >>> y = trunc(x); y.sum().backward(); y.tolist(), x.grad
        ([-1.0, 1.0], tensor([1., 1.]))
    Source: as `round`.
    """
    return engine.run_op(TRUNC, check_tensor, x, rule)


def _op(
    forward: Callable[..., Tensor],
    public: Callable[..., Tensor],
    jumps: tuple[float, ...],
    rules: dict[str, Rule] = RULES,
    others: tuple[int, ...] = (),
) -> Op:
    op = Op(
        name=public.__name__,
        rule_set="rounding",
        forward=forward,
        inputs=("x", "decimals")[: 1 + len(others)],
        rules=rules,
        default_rule="identity",
        adapter=ADAPTER,
        public=public if not others else lambda x, decimals, **how: public(x, decimals=decimals, **how),
        samples=(around("numbers", -1.5, 0.5, 1.0, 2.5, others=others), matrix(3, (3, 4), others)),
        picture=Picture(others, jumps=jumps, low=-2.25, high=2.25),
    )
    return register(op)


def _round_to_nearest(x: Tensor, decimals: int) -> Tensor:
    return torch.round(x, decimals=decimals) if decimals else torch.round(x)


ROUND = _op(_round_to_nearest, round, (-1.5, -0.5, 0.5, 1.5), RULES_OF_ROUND, (0,))
FLOOR = _op(torch.floor, floor, (-2.0, -1.0, 0.0, 1.0, 2.0))
CEIL = _op(torch.ceil, ceil, (-2.0, -1.0, 0.0, 1.0, 2.0))
TRUNC = _op(torch.trunc, trunc, (-2.0, -1.0, 1.0, 2.0))
