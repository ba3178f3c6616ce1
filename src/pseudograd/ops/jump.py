"""jumprelu: what is above a threshold stays as it is, and the threshold learns through a window around it.

The true gradient to the threshold is 0 wherever it exists: y jumps there by the threshold. A window replaces the jump by a density of
width `bandwidth`; the densities are the slopes of `steps.SLOPES`, with the scale and height that make their area 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .. import engine
from ..arguments import (
    as_number,
    check_broadcast,
    check_device,
    check_finite_number,
    check_tensor,
    is_number,
    rounded,
    surely,
)
from ..errors import must
from ..reference import activations as reference
from ..rule import Gradients, Op, Picture, Rule, RuleLike, Sample, call_for, register
from .samples import values
from .shared_rules import nothing_of, row_of, widened
from .steps import SLOPES

__all__ = ["jumprelu"]


@engine.unscriptable
def jumprelu(
    x: Tensor,
    threshold: float | Tensor,
    *,
    bandwidth: float,
    window_to_x: bool = False,
    rule: RuleLike = "window",
) -> Tensor:
    """`x` where it is above `threshold`, else 0; the threshold learns from what lies within a window around it.

    Forward:  y = torch.where(x <= threshold, 0, x), which for a number is torch.nn.functional.threshold(x, threshold, 0); a NaN stays.
    Backward: grad_x = grad where x > threshold, else 0, the true gradient. A tensor threshold gets
        -grad * threshold * K(u) / bandwidth with u = (x - threshold) / bandwidth, summed to its shape: a pseudo-gradient. K is a density:
        "window" 1 where |u| <= 1/2, "triangle" max(0, 1 - |u|), and so on; with "zero" it gets nothing, which is true. With window_to_x
        x gets what the threshold loses besides: a pseudo-gradient too. x that is NaN or infinite moves no threshold. Saves x and the
        threshold. Linear in grad.

    Args:
        x: any shape, floating point.
        threshold: in the unit of x; a number, or a tensor that broadcasts to x, one per feature say, which learns. It may be wider than
            x: a float32 threshold moves by steps that are lost in bfloat16.
        bandwidth: width of the window in the unit of x; a number above 0. Too narrow, no x lies within, and no threshold learns;
            `diagnose` counts them.
        window_to_x: does x get the window's part, too?
        rule: "window", "triangle", "arctan", "sigmoid", "fast_sigmoid", "gaussian" or "zero".
    Returns: shape, dtype and device of x.
    Raises: TypeError if x or a tensor threshold is not floating point, or another argument is no number or no bool; ValueError if
        bandwidth is not finite and above 0, a number threshold is not finite, a shape or device does not fit, or the rule is unknown.
    Example:
        >>> x = torch.tensor([[0.25, 1.25], [1.0, 3.0]], requires_grad=True)
        >>> threshold = torch.tensor([0.5, 1.0], requires_grad=True)
        >>> y = jumprelu(x, threshold, bandwidth=1.0); y.sum().backward(); y.tolist(), x.grad.tolist(), threshold.grad
        ([[0.0, 1.25], [1.0, 3.0]], [[0.0, 1.0], [1.0, 1.0]], tensor([-1., -1.]))
    Source: JumpReLU sparse autoencoders (Rajamanoharan et al., 2024), for "window"; window_to_x as in Anthropic's (January 2025).
    """
    call = call_for(JUMPRELU, rule)
    _check_floating("x", x)
    if isinstance(threshold, Tensor):
        _check_floating("threshold", threshold)
        check_device("jumprelu", "threshold", threshold, x.device, "x")
        check_broadcast("jumprelu", "threshold", threshold, x.shape, "x", grows=False)
    elif is_number(as_number(threshold)) and not isinstance(threshold, bool):
        threshold = check_finite_number("jumprelu", "threshold", threshold)
    else:
        raise TypeError(must("jumprelu", "threshold", "be a number or a tensor", threshold))
    bandwidth = check_finite_number("jumprelu", "bandwidth", bandwidth)
    if surely(bandwidth <= 0):
        raise ValueError(must("jumprelu", "bandwidth", "be above 0", bandwidth))
    if not isinstance(window_to_x, bool):
        raise TypeError(must("jumprelu", "window_to_x", "be True or False", window_to_x))
    return engine.run(call, x, threshold, bandwidth, window_to_x)


def _check_floating(argument: str, value: Any) -> None:
    check_tensor("jumprelu", argument, value)
    if not value.is_floating_point():
        raise TypeError(must("jumprelu", argument, "be floating point", value.dtype, "Call .float() first"))


def _is_below(x: Tensor, threshold: Tensor | float) -> Tensor:
    """Or at it; not where one of the two is NaN."""
    return x <= rounded(threshold, x)


def _forward(x: Tensor, threshold: Tensor | float, bandwidth: float, window_to_x: bool) -> Tensor:
    return torch.where(_is_below(x, threshold), 0.0, x)


def _pull_of(name: str) -> Callable[..., Gradients]:
    def pull(
        grad: Tensor,
        x: Tensor,
        threshold: Tensor | float,
        bandwidth: float,
        window_to_x: bool,
        *,
        y: None,
        wants: tuple[bool, ...],
    ) -> Gradients:
        """Without a window for "zero"."""
        wants_x, wants_threshold, *_ = wants
        share = None
        if name in SLOPES and (wants_threshold or window_to_x):
            share = _share(grad, x, threshold, bandwidth)
        grad_x = grad_threshold = None
        if wants_x:
            grad_x = torch.where(_is_below(x, threshold), 0.0, grad)
            grad_x = grad_x if share is None or not window_to_x else grad_x + share
        if wants_threshold:
            grad_threshold = nothing_of(grad) if share is None else -share
        return grad_x, grad_threshold, None, None

    def _share(grad: Tensor, x: Tensor, threshold: Tensor | float, bandwidth: float) -> Tensor:
        """grad times how far y jumps, spread over the window; 0 outside it, and no infinity times 0."""
        high = widened(threshold) if isinstance(threshold, Tensor) else rounded(threshold, x)
        scale, height = SLOPES[name].unit(bandwidth)
        slope = SLOPES[name].of(widened(x) - high, scale, height)
        if isinstance(high, Tensor):  # an infinite threshold switches its feature off
            high = torch.where(slope == 0, slope, high)
        jump = high * slope
        is_none = (slope == 0) | ((jump == 0) & (grad.abs() == torch.inf))
        return torch.where(is_none, 0.0, widened(grad)) * jump

    return pull


# --- a user's own -----------------------------------------------------------------------------------------------------


def _adapted(
    function: Callable[..., Tensor], is_linear: bool, reference_of_one: Callable[..., float], /, **row: Any
) -> Rule:
    """A row from a user's function(grad, x, threshold, bandwidth, **settings): what the threshold gets of each x."""

    def pull(
        grad: Tensor,
        x: Tensor,
        threshold: Tensor | float,
        bandwidth: float,
        window_to_x: bool,
        *,
        y: None,
        wants: tuple[bool, ...],
        settings: dict[str, float],
    ) -> Gradients:
        wants_x, wants_threshold, *_ = wants
        gradient = grad_x = None
        if wants_threshold or window_to_x:
            gradient = _gradient_of_finite(function, widened(grad), x, threshold, bandwidth, settings)
        if wants_x:
            grad_x = torch.where(_is_below(x, threshold), 0.0, grad)
            grad_x = grad_x - gradient if gradient is not None and window_to_x else grad_x
        return grad_x, gradient if wants_threshold else None, None, None

    return row_of(
        pull=pull,
        reference=partial(reference.jumprelu_of_users, reference_of_one),
        is_linear=is_linear,
        keeps=_INPUTS,
        is_users=True,
        **row,
    )


def _gradient_of_finite(
    function: Callable[..., Tensor],
    grad: Tensor,
    x: Tensor,
    threshold: Tensor | float,
    bandwidth: float,
    settings: dict[str, float],
) -> Tensor:
    """What the function gives; 0 where x or its threshold is not finite, of which the function sees nothing."""
    x = widened(x)
    high = widened(threshold) if isinstance(threshold, Tensor) else torch.full_like(x, rounded(threshold, x))
    usable = (x.abs() < torch.inf) & (high.abs() < torch.inf)
    gradient = function(
        torch.where(usable, grad, 0.0),
        torch.where(usable, x, 0.0),
        torch.where(usable, high, 0.0),
        bandwidth,
        **settings,
    )
    return torch.where(usable, gradient, 0.0)


def _trial() -> tuple[object, ...]:
    """What it is tried on before it becomes a rule."""
    return torch.ones(5), torch.linspace(-0.5, 1.5, 5), torch.full((5,), 0.5), 0.75


_INPUTS = ("x", "threshold", "bandwidth", "window_to_x")


def _row(name: str, formula: str, **rest: Any) -> Rule:
    return row_of(name, _pull_of(name), partial(reference.jumprelu, name), formula=formula, keeps=_INPUTS, **rest)


_OF_STEPS = "the surrogate of a step with this name, as a density"
RULES = {
    row.name: row
    for row in (
        _row(
            "window",
            "-grad * threshold / bandwidth where |u| <= 1 / 2, else 0",
            source="JumpReLU sparse autoencoders (Rajamanoharan et al., 2024)",
            also_called="rectangle kernel: SAELens, dictionary_learning, Gemma Scope",
            translates=("rectangle", "rectangular", "rect", "boxcar"),
        ),
        _row(
            "triangle",
            "-grad * threshold / bandwidth * max(0, 1 - |u|)",
            source=_OF_STEPS,
            translates=("triangular",),
        ),
        _row("arctan", "-grad * threshold / bandwidth / (1 + (pi * u)^2)", source=_OF_STEPS, translates=("atan",)),
        _row(
            "sigmoid",
            "-grad * threshold / bandwidth * e / (1 + e)^2 with e = exp(-|u|)",
            source=_OF_STEPS,
            translates=("logistic",),
            ulps=8,
        ),
        _row(
            "fast_sigmoid",
            "-grad * threshold / (2 * bandwidth) / (1 + |u|)^2",
            source=_OF_STEPS,
            translates=("superspike", "softsign"),
        ),
        _row(
            "gaussian",
            "-grad * threshold / (bandwidth * sqrt(2 * pi)) * exp(-u^2 / 2)",
            source=_OF_STEPS,
            translates=("normal",),
            ulps=8,
        ),
        _row("zero", "0", source="the true gradient", translates=("true", "native", "none", "detach")),
    )
}


def _samples() -> Iterator[Sample]:
    """Around the threshold, both edges of every window and 0; a threshold for each feature; x with the window's part, too."""
    yield Sample("a threshold for all", lambda dtype: (_x(dtype), torch.tensor(0.75, dtype=dtype), 0.5, False))
    yield Sample("numbers", lambda dtype: (_x(dtype), 0.75, 0.5, True))

    def features(dtype: torch.dtype, window_to_x: bool, *thresholds: float) -> tuple[object, ...]:
        x = torch.linspace(-2.0, 2.0, 27, dtype=torch.float64).reshape(9, 3)
        return x.to(dtype), torch.tensor(thresholds, dtype=dtype), 0.75, window_to_x

    yield Sample("a threshold each", lambda dtype: features(dtype, False, 0.5, -0.25, 0.0))
    yield Sample("to x, too", lambda dtype: features(dtype, True, 0.5, 1.0, 0.25))


def _x(dtype: torch.dtype) -> Tensor:
    return values(dtype, 0.75, 0.5, 1.0)


JUMPRELU = register(
    Op(
        name="jumprelu",
        rule_set="jumprelu",
        forward=_forward,
        plain_torch=lambda x, threshold, *_: x.masked_fill(x <= threshold, 0.0),
        inputs=_INPUTS,
        rules=RULES,
        default_rule="window",
        adapt=_adapted,
        formula_takes=("grad", "x", "threshold", "bandwidth"),
        trial=_trial,
        formula_of="threshold",
        public=lambda x, threshold, bandwidth, window_to_x, **how: jumprelu(
            x, threshold, bandwidth=bandwidth, window_to_x=bool(window_to_x), **how
        ),
        samples=_samples,
        picture=Picture((1.0, 0.5, True), jumps=(0.75, 1.0, 1.25), low=-0.5, high=2.5),
    )
)
