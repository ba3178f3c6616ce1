"""Rule objects: `rules.leaky(0.01)`, and every other rule of the table by its name.

A rule without parameters needs no object: its name does the same. The parameters of a rule are those in its row, all finite and above 0;
scripts/list_ops.py writes them out in rules.pyi, for type checkers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import Tensor
from torch.compiler import is_compiling

from .errors import must
from .rule import OPS, RuleObject, rule_named
from .user_function import UserFunction, function_of


def leaky(slope: float = 0.1, *, low: float | None = None, high: float | None = None) -> RuleObject:
    """Outside: slope * grad. `slope` has no unit; finite and above 0. With `low` or `high`, each side has its own slope, and only
    a grad that leads away from the range is multiplied."""
    if low is None and high is None:
        return rule_named("leaky", slope=slope)
    return rule_named("leaky_inward", low=slope if low is None else low, high=slope if high is None else high)


def custom(slope: Callable[[Tensor], Tensor]) -> RuleObject:
    """A step's slope: `slope(x)`, element-wise and made of torch functions, so that it can be differentiated and compiled.

    A function is remembered for as long as a rule or a compiled graph holds it. For torch.compile over torch.func make the rule of a
    bound method outside the compiled function: Dynamo cannot name a method that it meets there.
    """
    if is_compiling():
        return RuleObject("custom", (("slope", UserFunction(slope)),))
    if not callable(slope):
        raise TypeError(must("custom", "slope", "be a function of x", slope))
    x = torch.linspace(-1, 1, 5)
    slopes = slope(x)
    if not isinstance(slopes, Tensor) or slopes.shape != x.shape:
        raise ValueError(must("custom", "slope", "return one number for each element of x", slopes))
    return RuleObject("custom", (("slope", function_of(slope)),))


def _maker(name: str) -> Callable[..., RuleObject]:
    """The function that makes objects of a rule. Its signature and its docstring come from the row with the most parameters."""
    row = max((op.rules[name] for op in OPS.values() if name in op.rules), key=lambda row: len(row.parameters))

    def make(*values: float, **parameters: float) -> RuleObject:
        if not is_compiling():  # a number that Dynamo finds in a table may become an input of the graph
            parameters = {**dict([*row.parameters.items()][len(values) :]), **parameters}
        return rule_named(name, *values, **parameters)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"grad_x = {row.formula}. Source: {row.source}."
    make.__signature__ = inspect.Signature(
        [
            inspect.Parameter(key, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=value, annotation="float")
            for key, value in row.parameters.items()
        ],
        return_annotation="RuleObject",
    )
    return make


def __getattr__(name: str) -> Callable[..., RuleObject]:
    """A rule that was registered after this module was imported."""
    if name.startswith("_") or name not in __dir__():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__dir__())}")
    return _maker(name)


def __dir__() -> list[str]:
    return sorted({name for op in OPS.values() for name in op.rules})


globals().update({name: _maker(name) for name in __dir__() if name not in globals()})
