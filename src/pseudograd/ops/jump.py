"""jumprelu: values above a threshold stay as they are, the others become 0. The threshold learns from the values near it.

At x = threshold, y jumps from 0 to the threshold. Elsewhere y does not depend on the threshold, so its true gradient is 0. A rule replaces
the jump by a density of width `bandwidth`. The densities are the slopes of `steps.SLOPES`, with a scale and height that give the area 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    check_floating,
    is_number,
    is_true,
    rounded,
)
from ..errors import must
from ..geometry import Formula
from ..reference import activations as reference
from ..rule import Adapter, Gradients, Op, Picture, Rule, RuleLike, Sample, Wants, call_for, register
from .samples import around
from .shared_rules import UserFormula, row_of, widened, zeros_of
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
    """`x` where it is above `threshold`, else 0. The threshold learns from the x that lie in a window around it.

    Forward:  y = torch.where(x <= threshold, 0, x), which for a number is torch.nn.functional.threshold(x, threshold, 0); a NaN stays.
    Backward: grad_x = grad where x > threshold, else 0, the true gradient. A tensor threshold gets
        -grad * threshold * K(u) / bandwidth with u = (x - threshold) / bandwidth, summed to its shape: a pseudo-gradient. K is a density:
        for "window" 1 where |u| <= 1/2, for "triangle" max(0, 1 - |u|), and so on. With "zero" the threshold gets 0, the true gradient.
        With window_to_x, what an entry of x adds to the threshold's gradient is subtracted from grad_x of this entry: a
        pseudo-gradient, too.
        A NaN or infinite x adds nothing to the threshold's gradient. Saves x and the threshold. Linear in grad.

    Args:
        x: any shape, floating point.
        threshold: in the unit of x; a number, or a tensor that broadcasts to x (for example one threshold per feature). A tensor learns.
            Its dtype may be wider than that of x: bfloat16 loses the small steps of a float32 threshold.
        bandwidth: width of the window in the unit of x; a number above 0. If it is too narrow, no x lies in the window of a threshold, and
            the threshold does not learn; `diagnose` counts such thresholds.
        window_to_x: subtract from grad_x of each entry what the entry adds to the threshold's gradient?
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
    check_floating("jumprelu", "x", x)
    if isinstance(threshold, Tensor):
        check_floating("jumprelu", "threshold", threshold)
        check_device("jumprelu", "threshold", threshold, x.device, "x")
        check_broadcast("jumprelu", "threshold", threshold, x.shape, "x", grows=False)
    elif is_number(as_number(threshold)) and not isinstance(threshold, bool):
        threshold = check_finite_number("jumprelu", "threshold", threshold)
    else:
        raise TypeError(must("jumprelu", "threshold", "be a number or a tensor", threshold))
    bandwidth = check_finite_number("jumprelu", "bandwidth", bandwidth)
    if is_true(bandwidth <= 0):
        raise ValueError(must("jumprelu", "bandwidth", "be above 0", bandwidth))
    if not isinstance(window_to_x, bool):
        raise TypeError(must("jumprelu", "window_to_x", "be True or False", window_to_x))
    return engine.run(call, x, threshold, bandwidth, window_to_x)


Threshold = Tensor | float


def _is_below(x: Tensor, threshold: Threshold) -> Tensor:
    """Is x below its threshold or equal to it? False if x or the threshold is NaN."""
    return x <= rounded(threshold, x)


def _forward(x: Tensor, threshold: Threshold, bandwidth: float, window_to_x: bool) -> Tensor:
    return torch.where(_is_below(x, threshold), 0.0, x)


def _pull_from(
    gradient_of_threshold: Callable[..., Tensor] | None,
    grad: Tensor,
    x: Tensor,
    threshold: Threshold,
    bandwidth: float,
    window_to_x: bool,
    *,
    wants: Wants,
    **settings: Any,
) -> Gradients:
    """gradient_of_threshold computes the gradient that the threshold gets from each x. None for a rule that gives the threshold 0."""
    wants_x, wants_threshold, *_ = wants
    to_threshold = grad_x = None
    if gradient_of_threshold is not None and (wants_threshold or window_to_x):
        to_threshold = gradient_of_threshold(grad, x, threshold, bandwidth, **settings)
    if wants_x:
        grad_x = torch.where(_is_below(x, threshold), 0.0, grad)
        grad_x = grad_x - to_threshold if to_threshold is not None and window_to_x else grad_x
    if wants_threshold and to_threshold is None:
        to_threshold = zeros_of(grad)
    return grad_x, to_threshold if wants_threshold else None, None, None


def _window_gradient(name: str, grad: Tensor, x: Tensor, threshold: Threshold, bandwidth: float) -> Tensor:
    """-grad * threshold * density; 0 where one of the factors is 0, even if another one is infinite."""
    level = widened(threshold) if isinstance(threshold, Tensor) else rounded(threshold, x)
    scale, height = SLOPES[name].unit_area(bandwidth)
    density = SLOPES[name].slope(widened(x) - level, scale, height)
    if isinstance(level, Tensor):  # an infinite threshold far from x gives 0, and not 0 * inf
        level = torch.where(density == 0, density, level)
    jump = level * density
    is_zero = (density == 0) | ((jump == 0) & (grad.abs() == torch.inf))
    return -(torch.where(is_zero, 0.0, widened(grad)) * jump)


def _user_gradient(
    function: UserFormula,
    grad: Tensor,
    x: Tensor,
    threshold: Threshold,
    bandwidth: float,
    settings: Mapping[str, float],
) -> Tensor:
    """The gradient by a user's function; 0 where x or its threshold is not finite. The function gets zeros at these elements."""
    x = widened(x)
    level = widened(threshold) if isinstance(threshold, Tensor) else torch.full_like(x, rounded(threshold, x))  # type: ignore[arg-type]
    usable = (x.abs() < torch.inf) & (level.abs() < torch.inf)
    finite = [torch.where(usable, value, 0.0) for value in (widened(grad), x, level)]
    return torch.where(usable, function(*finite, bandwidth, **settings), 0.0)


def _adapt(function: UserFormula, is_linear: bool, scalar_formula: Callable[..., float], /, **row: Any) -> Rule:
    """The row of a user's function(grad, x, threshold, bandwidth, **settings), which gives the gradient of the threshold for each x."""
    pull = partial(_pull_from, partial(_user_gradient, function))
    scalar_reference = partial(reference.jumprelu, scalar_formula)
    return row_of(pull=pull, reference=scalar_reference, is_linear=is_linear, keeps=_INPUTS, is_from_user=True, **row)


def _trial() -> tuple[object, ...]:
    """Arguments for the one call that checks a user's function before it becomes a rule."""
    return torch.ones(5), torch.linspace(-0.5, 1.5, 5), torch.full((5,), 0.5), 0.75


# --- the rows ---------------------------------------------------------------------------------------------------------

_INPUTS = ("x", "threshold", "bandwidth", "window_to_x")
_SOURCE_OF_SLOPES = "as the rule of sign, with area 1"
RULES: dict[str, Rule] = {}


def _find_formula(name: str, threshold: Threshold, bandwidth: float, window_to_x: bool) -> Formula:
    """The formula that C computes. A tensor threshold is an input of the call, and no part of the formula."""
    numbers = () if isinstance(threshold, Tensor) else (threshold,)
    curve = SLOPES[name].curve(*SLOPES[name].unit_area(bandwidth))
    return Formula("jump and back" if window_to_x else "jump", numbers=numbers, curve=curve)


def _rule(name: str, formula: str, translates: str, source: str = _SOURCE_OF_SLOPES, **row: Any) -> None:
    pull = partial(_pull_from, partial(_window_gradient, name) if name in SLOPES else None)
    scalar_reference = partial(reference.jumprelu, name)
    find_formula = partial(_find_formula, name) if name in SLOPES else None
    row = {"formula": formula, "source": source, "translates": translates, "keeps": _INPUTS, **row}
    RULES[name] = row_of(name, pull, scalar_reference, find_formula=find_formula, **row)


_rule(
    "window",
    "-grad * threshold / bandwidth where |u| <= 1 / 2, else 0",
    "rectangle rectangular rect boxcar",
    "JumpReLU sparse autoencoders (Rajamanoharan et al., 2024)",
    also_called="rectangle kernel: SAELens, dictionary_learning, Gemma Scope",
)
_rule("triangle", "-grad * threshold / bandwidth * max(0, 1 - |u|)", "triangular")
_rule("arctan", "-grad * threshold / bandwidth / (1 + (pi * u)^2)", "atan")
_rule("sigmoid", "-grad * threshold / bandwidth * e / (1 + e)^2 with e = exp(-|u|)", "logistic", ulps=8)
_rule("fast_sigmoid", "-grad * threshold / (2 * bandwidth) / (1 + |u|)^2", "superspike softsign")
_rule("gaussian", "-grad * threshold / (bandwidth * sqrt(2 * pi)) * exp(-u^2 / 2)", "normal", ulps=8)
_rule("zero", "0", "true native none detach", "the true gradient")


def _sample_of_features(name: str, window_to_x: bool, *thresholds: float) -> Sample:
    """A sample with a threshold for each feature."""

    def build(dtype: torch.dtype) -> tuple[object, ...]:
        x = torch.linspace(-2.0, 2.0, 27, dtype=torch.float64).reshape(9, 3)
        return x.to(dtype), torch.tensor(thresholds, dtype=dtype), 0.75, window_to_x

    return Sample(name, build)


def _build_shared(dtype: torch.dtype) -> tuple[object, ...]:
    """One threshold for all x, with x near the threshold and near both ends of its window."""
    x, *_ = _NUMBERS.build(dtype)
    return x, torch.tensor(0.75, dtype=dtype), 0.5, False


_NUMBERS = around("numbers", 0.75, 0.5, 1.0, others=(0.75, 0.5, True))
JUMPRELU = register(
    Op(
        name="jumprelu",
        rule_set="jumprelu",
        forward=_forward,
        plain_torch=lambda x, threshold, *_: x.masked_fill(x <= threshold, 0.0),
        inputs=_INPUTS,
        rules=RULES,
        default_rule="window",
        adapter=Adapter(_adapt, ("grad", "x", "threshold", "bandwidth"), _trial),
        formula_of="threshold",
        public=lambda x, threshold, bandwidth, window_to_x, **how: jumprelu(
            x, threshold, bandwidth=bandwidth, window_to_x=bool(window_to_x), **how
        ),
        samples=(
            Sample("a threshold for all", _build_shared),
            _NUMBERS,
            _sample_of_features("a threshold each", False, 0.5, -0.25, 0.0),
            _sample_of_features("to x, too", True, 0.5, 1.0, 0.25),
        ),
        picture=Picture((1.0, 0.5, True), jumps=(0.75, 1.0, 1.25), low=-0.5, high=2.5),
    )
)
