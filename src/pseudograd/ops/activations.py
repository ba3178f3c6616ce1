"""gelu, silu, leaky_relu and hardsigmoid, which keep less for their backward than torch does.

torch keeps x for each of them. leaky_relu and hardsigmoid need one bit of each element for the same gradient. With the rule "fewbit", gelu
and silu keep two or three bits and have another gradient: the step function nearest to their derivative replaces it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from .. import engine
from ..arguments import APPROXIMATE, check_finite_number, check_floating
from ..errors import unknown_name
from ..geometry import Interval, Steps
from ..reference import activations as reference
from ..rule import Gradients, Op, Picture, Pull, Rule, RuleLike, Sample, Wants, register
from ..torch_table.private import constant_result, in_forward_mode, transforms_are_active
from .fitted_slopes import FITTED, StepFunction
from .samples import around, matrix
from .shared_rules import row_of, steps_at, widened, zeros_of

__all__ = ["gelu", "hardsigmoid", "leaky_relu", "silu"]

_aten = torch.ops.aten


@engine.unscriptable
def gelu(x: Tensor, *, approximate: Literal["none", "tanh"] = "none", rule: RuleLike = "exact") -> Tensor:
    """x times the normal distribution function of `x`; the rule "fewbit" keeps 2 or 3 bits of each element instead of x.

    Forward:  y = torch.nn.functional.gelu(x, approximate=approximate), bit for bit.
    Backward: torch's own gradient with "exact". With "fewbit" grad_x = grad * s, where s is one of 4 or 8 slopes, by the interval that
        x lies in: a pseudo-gradient, the step function with the least squared error to the derivative for normal x. "exact" saves x;
        "fewbit" 0.25 bytes an element, 0.375 with rules.fewbit(bits=3), where x is dense and has 4096 elements or more, else x; compiled
        code saves x. Linear in grad.

    Args:
        x: any shape, floating point.
        approximate: "none" or "tanh", as in torch; "fewbit" has the same slopes for both.
        rule: "exact", "fewbit" for 2 bits, or rules.fewbit(bits=3).
    Returns: shape, dtype and device of x.
    Raises: TypeError if x is no floating point tensor; ValueError for an unknown approximate or rule, or other bits than 2 and 3.
    Example:
        >>> x = torch.tensor([-1.0, 0.25, 1.0], requires_grad=True)
        >>> gelu(x, rule="fewbit").sum().backward(); x.grad
        tensor([-0.0469,  0.6875,  1.0469])
    Source: torch.nn.functional.gelu; "fewbit" is few-bit backward (Novikov et al., 2023), with a normal weight.
    """
    if approximate not in APPROXIMATE:
        raise unknown_name("gelu", "approximate", APPROXIMATE, approximate)
    return engine.run_op(GELU, check_floating, x, rule, None, APPROXIMATE.index(approximate))


@engine.unscriptable
def silu(x: Tensor, *, rule: RuleLike = "exact") -> Tensor:
    """x times the sigmoid of `x`; the rule "fewbit" keeps 2 or 3 bits of each element instead of x.

    Forward:  y = torch.nn.functional.silu(x), bit for bit.
    Backward: as `gelu`, with slopes of its own: "fewbit" is a pseudo-gradient. Saves what `gelu` does. Linear in grad.

    Args:
        x: any shape, floating point.
        rule: as in `gelu`.
    Returns: shape, dtype and device of x.
    Raises: as `gelu`.
    Example:
        >>> x = torch.tensor([-1.0, 0.25, 1.0], requires_grad=True)
        >>> silu(x, rule="fewbit").sum().backward(); x.grad
        tensor([0.0312, 0.6562, 0.9688])
    Source: torch.nn.functional.silu, also called swish; "fewbit" as in `gelu`.
    """
    return engine.run_op(SILU, check_floating, x, rule)


@engine.unscriptable
def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """`x` above 0 and negative_slope * x below, with torch's own gradient. Keeps one bit of each element instead of x.

    Forward:  y = torch.nn.functional.leaky_relu(x, negative_slope), bit for bit.
    Backward: grad_x = grad where x > 0, else grad * negative_slope: torch's own gradient, also at 0 and where x is NaN. Saves 0.125 bytes
        an element where x is dense and has 4096 elements or more and the slope is not 0, else x; compiled code saves x. Linear in grad.

    Args:
        x: any shape, floating point.
        negative_slope: a finite number without a unit.
    Returns: shape, dtype and device of x.
    Raises: TypeError if x is no floating point tensor or negative_slope no number; ValueError if that is not finite.
    Example:
        >>> x = torch.tensor([-2.0, 0.0, 2.0], requires_grad=True)
        >>> leaky_relu(x, 0.25).sum().backward(); x.grad
        tensor([0.2500, 0.2500, 1.0000])
    Source: torch.nn.functional.leaky_relu; Maas, Hannun & Ng (2013).
    """
    slope = check_finite_number("leaky_relu", "negative_slope", negative_slope)
    return engine.run_op(LEAKY_RELU, check_floating, x, "exact", None, slope)


@engine.unscriptable
def hardsigmoid(x: Tensor) -> Tensor:
    """`x` / 6 + 1/2, clamped to 0 and 1, with torch's own gradient. Keeps one bit of each element instead of x.

    Forward:  y = torch.nn.functional.hardsigmoid(x), bit for bit.
    Backward: grad_x = grad / 6 where -3 < x < 3, else 0: torch's own gradient, also at -3 and 3 and where x is NaN (in
        float64 torch multiplies by the 1/6 of float32). Saves as `leaky_relu`. Linear in grad. Other rules:
        clamp(x, -3, 3, rule=...) / 6 + 0.5.

    Args:
        x: any shape, floating point.
    Returns: shape, dtype and device of x.
    Raises: TypeError if x is no floating point tensor.
    Example:
        >>> x = torch.tensor([-3.0, 0.0, 2.0], requires_grad=True)
        >>> hardsigmoid(x).sum().backward(); x.grad
        tensor([0.0000, 0.1667, 0.1667])
    Source: torch.nn.functional.hardsigmoid.
    """
    return engine.run_op(HARDSIGMOID, check_floating, x, "exact")


# --- torch's own gradients --------------------------------------------------------------------------------------------


def _pull_gelu(grad: Tensor, x: Tensor, is_tanh: float, *, wants: Wants) -> Gradients:
    return _aten.gelu_backward(grad, x, approximate=APPROXIMATE[int(is_tanh)]), None


def _pull_silu(grad: Tensor, x: Tensor, *, wants: Wants) -> Gradients:
    if not (torch.is_grad_enabled() or transforms_are_active() or in_forward_mode()):
        return (_aten.silu_backward(grad, x),)  # which torch cannot differentiate
    x = widened(x)
    s = torch.sigmoid(x)
    return (widened(grad) * s * (1 + x * (1 - s)),)


def _pull_leaky_relu(grad: Tensor, x: Tensor, negative_slope: float, *, wants: Wants) -> Gradients:
    return torch.where(x > 0, grad, grad * negative_slope), None


def _pull_hardsigmoid(grad: Tensor, x: Tensor, *, wants: Wants) -> Gradients:
    # Literals: Dynamo would make symbols of named numbers, as `_step_function` says.
    return (torch.where((x > -3) & (x < 3), grad * (1 / 6), zeros_of(grad)),)


def _steps_of_leaky_relu(negative_slope: float) -> Steps | None:
    """None for a slope of 0: torch's product of 0 and an infinite grad is NaN, and steps would make it 0."""
    if negative_slope == 0:
        return None
    return steps_at((negative_slope, 1.0), Interval(0.0, math.inf, has_low=False, has_high=True))


def _steps_of_hardsigmoid() -> Steps:
    return steps_at((0.0, 1 / 6), Interval(-3.0, 3.0, has_low=False, has_high=False))


def _exact_rule(name: str, pull: Pull, formula: str, **row: Any) -> Rule:
    row = {"keeps": ("x",), **row}
    row |= {"colour": "#AA3311", "also_called": "the true gradient", "translates": "true native none"}
    scalar_reference, source = partial(getattr(reference, name), "exact"), f"torch.nn.functional.{name}"
    return row_of("exact", pull, scalar_reference, formula=formula, source=source, **row)


# --- few-bit backward -------------------------------------------------------------------------------------------------


def _planes(thresholds: tuple[float, ...], x: Tensor) -> list[Tensor]:
    """The code of an element is the number of thresholds that x is above. This returns a mask for each bit of it, the lowest first."""
    count = len(thresholds) + 1
    above = [(x <= threshold).logical_not_() for threshold in thresholds]
    planes = []
    step = 1
    while step < count:  # bit p of k is 1 from each odd multiple of 2**p up to the next even one
        bit = above[step - 1]
        for multiple in range(2 * step, count, step):
            bit = bit ^ above[multiple - 1]
        planes.append(bit)
        step *= 2
    return planes


def _steps_of_fewbit(name: str, *others: float, bits: int) -> Steps:
    fitted = FITTED[name][bits]
    return Steps(fitted.slopes, partial(_planes, fitted.thresholds), fitted.thresholds)


@constant_result
def _step_function(name: str, bits: int) -> StepFunction:
    """The steps as constants of a graph. Dynamo would make symbols of floats from a table, which compiled autograd of 2.13 cannot hold."""
    return FITTED[name][bits]


def _pull_fewbit(name: str, grad: Tensor, x: Tensor, *others: float, wants: Wants, bits: int) -> Gradients:
    thresholds, slopes = _step_function(name, bits)
    slope = torch.full_like(x, slopes[-1])
    for threshold, level in zip(reversed(thresholds), reversed(slopes[:-1])):  # noqa: B905  Dynamo on torch 2.8
        slope = torch.where(x <= threshold, level, slope)
    return grad * slope, *[None] * len(others)


def _fewbit_rule(name: str) -> Rule:
    return row_of(
        "fewbit",
        partial(_pull_fewbit, name),
        partial(getattr(reference, name), "fewbit"),
        colour="#225588",
        formula="grad * s; s is the slope of the interval of x, and 2^bits intervals are fitted to the derivative",
        source="few-bit backward (Novikov et al., 2023), fitted for normal x",
        keeps=("x",),
        also_called="fewbit (package), quantized gradient of the activation",
        translates="few_bit quantized stepwise",
        parameters={"bits": 2},
        choices={"bits": (2, 3)},
        steps=partial(_steps_of_fewbit, name),
        jumps=lambda bits, **_: FITTED[name][int(bits)].thresholds,
    )


# --- the ops ----------------------------------------------------------------------------------------------------------


def _samples(*points: float, others: tuple[tuple[float, ...], ...] = ((),)) -> tuple[Sample, ...]:
    """Samples around these points, one for each choice of the inputs behind x; then a matrix."""
    names = ["".join(f", {value:g}" for value in behind) for behind in others]
    numbers = [around(f"numbers{name}", *points, others=behind) for name, behind in zip(names, others, strict=True)]
    return *numbers, matrix(4, (3, 5), others[0])


def _op(name: str, forward: Callable[..., Tensor], public: Callable[..., Tensor], *rules: Rule, **rest: Any) -> Op:
    by_name = {rule.name: rule for rule in rules}
    return register(
        Op(name=name, rule_set=name, forward=forward, rules=by_name, default_rule="exact", public=public, **rest)
    )


def _gelu_forward(x: Tensor, is_tanh: float) -> Tensor:
    return functional.gelu(x, approximate=APPROXIMATE[int(is_tanh)])


_GELU_FORMULA = "grad * (e + x * exp(-x^2 / 2) / sqrt(2 * pi)) with e = (1 + erf(x / sqrt(2))) / 2"
GELU = _op(
    "gelu",
    _gelu_forward,
    lambda x, is_tanh, **how: gelu(x, approximate="tanh" if is_tanh else "none", **how),
    _exact_rule("gelu", _pull_gelu, _GELU_FORMULA, keeps=("x", "is_tanh"), ulps=16, cancels=True),
    _fewbit_rule("gelu"),
    inputs=("x", "is_tanh"),
    samples=_samples(0.0, 0.5, 0.78125, others=((0,), (1,))),  # none near -0.75, where the derivative cancels
    picture=Picture((0,), low=-3.0, high=3.0),
)
SILU = _op(
    "silu",
    functional.silu,
    silu,
    _exact_rule("silu", _pull_silu, "grad * (e + x * e * (1 - e)) with e = 1 / (1 + exp(-x))", ulps=8, cancels=True),
    _fewbit_rule("silu"),
    inputs=("x",),
    samples=_samples(0.0, 0.671875, -0.671875, 1.1171875),
    picture=Picture(low=-5.0, high=5.0),
)
_LEAKY = "grad where x > 0, else slope * grad"
LEAKY_RELU = _op(
    "leaky_relu",
    functional.leaky_relu,
    leaky_relu,
    _exact_rule("leaky_relu", _pull_leaky_relu, _LEAKY, keeps=("x", "negative_slope"), steps=_steps_of_leaky_relu),
    inputs=("x", "negative_slope"),
    samples=_samples(0.0, 1.0, others=((2.0**-7,), (0.375,), (-2.0,))),
    picture=Picture((0.1,), (0.0,)),
)
HARDSIGMOID = _op(
    "hardsigmoid",
    functional.hardsigmoid,
    hardsigmoid,
    _exact_rule("hardsigmoid", _pull_hardsigmoid, "grad / 6 where |x| < 3, else 0", steps=_steps_of_hardsigmoid),
    inputs=("x",),
    samples=_samples(0.0, -3.0, 3.0),
    picture=Picture((), (-3.0, 3.0), low=-4.5, high=4.5),
)
