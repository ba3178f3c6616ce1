"""Rule objects: `rules.leaky(0.01)`, `rules.elastic(width=0.5)`, and every other rule of the table by its name.

A rule without parameters can be given by its name alone; `rules.inward()` is the same as "inward".
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.compiler import is_compiling

from .errors import must
from .rule import OPS, RuleObject, rule_named
from .user_function import UserFunction, function_of


def leaky(slope: float = 0.1, *, low: float | None = None, high: float | None = None) -> RuleObject:
    """Outside: slope * grad. `slope` has no unit; finite and above 0. With `low` or `high`: `leaky_inward`, a leak of each side's own."""
    if low is None and high is None:
        return rule_named("leaky", slope=slope)
    return leaky_inward(slope if low is None else low, slope if high is None else high)


def leaky_inward(low: float = 0.1, high: float = 0.1) -> RuleObject:
    """Outside: grad where it leads back, else low * grad below and high * grad above. Both without a unit, finite and above 0."""
    return rule_named("leaky_inward", low=low, high=high)


def elastic(width: float = 1.0) -> RuleObject:
    """Outside: grad where it leads back, else -grad * min(1, distance / (width * (max - min))).

    `width` is in units of the range max - min; finite and above 0.
    """
    return rule_named("elastic", width=width)


def window(scale: float = 1.0, height: float = 1.0) -> RuleObject:
    """A step's slope: `height` where |x| <= scale, else 0. `scale` in the unit of x; both finite and above 0, here and below."""
    return rule_named("window", scale=scale, height=height)


def triangle(scale: float = 1.0, height: float = 1.0) -> RuleObject:
    """A step's slope: height * max(0, 1 - |x| / scale)."""
    return rule_named("triangle", scale=scale, height=height)


def arctan(scale: float = 1.0, height: float = 1.0) -> RuleObject:
    """A step's slope: height / scale / (1 + (pi * x / scale)^2); scale = 2 / alpha of the SNN libraries."""
    return rule_named("arctan", scale=scale, height=height)


def sigmoid(scale: float = 1.0, height: float = 1.0) -> RuleObject:
    """A step's slope: the derivative of height * sigmoid(x / scale); scale = 1 / slope of the SNN libraries."""
    return rule_named("sigmoid", scale=scale, height=height)


def fast_sigmoid(scale: float = 1.0, height: float = 1.0) -> RuleObject:
    """A step's slope: height / (1 + |x| / scale)^2; scale = 1 / slope of the SNN libraries."""
    return rule_named("fast_sigmoid", scale=scale, height=height)


def gaussian(scale: float = 1.0, height: float = 1.0) -> RuleObject:
    """A step's slope: height times the normal density of standard deviation `scale`."""
    return rule_named("gaussian", scale=scale, height=height)


def custom(slope: Callable[[Tensor], Tensor]) -> RuleObject:
    """A step's slope: `slope(x)`, element-wise and made of torch functions, so that it can be differentiated and compiled.

    A function is remembered for as long as a rule or a compiled graph holds it. For torch.compile over torch.func make the rule of a
    bound method outside the compiled function: Dynamo cannot name one that it meets there.
    """
    if is_compiling():
        return RuleObject("custom", (("slope", UserFunction(slope)),))
    if not callable(slope):
        raise TypeError(must("custom", "slope", "be a function of x", slope))
    x = torch.linspace(-1, 1, 5)
    found = slope(x)
    if not isinstance(found, Tensor) or found.shape != x.shape:
        raise ValueError(must("custom", "slope", "return one number for each element of x", found))
    return RuleObject("custom", (("slope", function_of(slope)),))


def __getattr__(name: str) -> Callable[..., RuleObject]:
    if name.startswith("_") or not any(name in op.rules for op in OPS.values()):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__dir__())}")

    def make(*values: float, **parameters: float) -> RuleObject:
        return rule_named(name, *values, **parameters)

    return make


def __dir__() -> list[str]:
    return sorted({name for op in OPS.values() for name in op.rules})
