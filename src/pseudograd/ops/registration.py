"""A user's own backward rule, as a row of the table like any other."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from ..errors import must, unknown_name
from ..geometry import Constant, Sides, read_sides, slope_times
from ..rule import OPS, Adapter, Op, add_rule, check_parameter

__all__ = ["register_rule"]

Formula = TypeVar("Formula", bound=Callable[..., Tensor])


def register_rule(
    op: str,
    *,
    formula: str,
    source: str,
    is_linear: bool,
    reference: Callable[..., float] | None = None,
    sides: Callable[..., object] | None = None,
) -> Callable[[Formula], Formula]:
    """Decorator: make a function a backward rule of `op` and of its family, under the name of the function.

    Forward:  as it is; a rule has no say in it.
    Backward: for the clamp family and fake_quantize the function gives what x gets outside: f(grad, x, y, min, max) -> grad_x, where y
        is x clamped; inside, x gets grad; edge, maximize and the gradient of tensor bounds work as with every rule. For rounding and
        steps it gives all of grad_x: f(grad, x) -> grad_x. For policy_loss it gives all that log_ratio gets:
        f(grad, ratio, advantage, min, max), with min and max the bounds of the ratio, 0 and inf where there is none; the ceiling and
        the gradient of the advantage are the op's. For jumprelu it gives what the threshold gets of each x, before the sum:
        f(grad, x, threshold, bandwidth). Made of comparisons, torch.where and arithmetic, it gets every transform,
        error text and plot; pseudograd.testing.check_rule runs the contract tests on it. Half precision arrives as float32. Saves x,
        or with `sides` one or two bits of each element, as the rules of the library do (docs/memory.md).

    Args:
        op: "clamp" (with lower_bound, upper_bound, relu, relu6, hardtanh), "fake_quantize", "round" (with floor, ceil, trunc),
            "sign" (with heaviside), "policy_loss" or "jumprelu".
        formula: one line for tables and error texts.
        source: where the rule comes from.
        is_linear: does f(a + b) = f(a) + f(b) hold for two grads a and b? If so the rule gets forward mode.
        reference: the rule once more, for one number each and with the same arguments, for check_rule. None: f itself, and check_rule
            then shows everything but that f computes what you meant.
        sides: for the clamp family, where f asks no more than on which side of the range x is: a function of the rule's parameters that
            returns what x gets below it and above it. Each a pair, the factor of grad where grad > 0 and where grad < 0; or a number,
            which x gets whatever grad is. It is checked against f, and then bits are kept and kernels compute it. None: x is kept.
    Returns: a decorator that returns the function unchanged. Its keyword-only arguments with a default above 0 are the parameters of
        the rule: pseudograd.rules.<name>(parameter=value). The same function of the same module, defined again as in a notebook cell
        that runs twice, replaces itself everywhere; a backward still to come keeps the rule of its forward.
    Raises: ValueError if the op is unknown or takes no rule, if the name is taken, or if a parameter, `sides` or what the function
        returns is wrong.
    Example:
        >>> from pseudograd import clamp
        >>> @register_rule("clamp", formula="grad * exp(-|x - y| / width)", source="exponential window", is_linear=True)
        ... def fading(grad, x, y, min, max, *, width=1.0):
        ...     return grad * torch.exp(-(x - y).abs() / width)
        >>> x = torch.tensor([0.0, 2.0, 3.0], requires_grad=True)
        >>> clamp(x, -1, 1, rule="fading").sum().backward(); x.grad
        tensor([1.0000, 0.3679, 0.1353])
    Source: new in pseudograd; TensorFlow 1 had RegisterGradient.
    """
    takers = {name: row.adapter for name, row in OPS.items() if row.adapter is not None}
    if op not in takers:
        raise unknown_name("register_rule", "op", takers, op)
    for argument, text in (("formula", formula), ("source", source)):
        if not isinstance(text, str) or not text.strip():
            raise ValueError(must("register_rule", argument, "be a line of text", text))

    def register(function: Formula) -> Formula:
        family = [row for row in OPS.values() if row.rule_set == OPS[op].rule_set]
        author = f"{function.__module__}.{function.__qualname__}" if inspect.isfunction(function) else ""
        name, parameters = _name_of(function, family, author), _parameters_of(function, takers[op])
        row = takers[op].make_rule(
            function,
            is_linear,
            _reference_from(reference) if reference else _itself(function),
            name=name,
            formula=formula,
            source=source,
            parameters=parameters,
            ulps=64,
            author=author,
            sides=None if sides is None else _checked_sides(sides, function, parameters, OPS[op]),
        )
        for member in family:
            add_rule(member, row)
        return function

    return register


def _name_of(function: Callable[..., Tensor], family: list[Op], author: str) -> str:
    """The name, new for the family; or that of the same function, whose notebook cell or module has run again."""
    if not callable(function):
        raise TypeError(must("register_rule", "what it decorates", "be a function", function))
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise ValueError(must("register_rule", "the function", "have a name that can be a rule's", name))
    if any(name in op.rules and not (author and op.rules[name].author == author) for op in family):
        raise ValueError(must("register_rule", "the name", f"be new for {family[0].name}", name, "Choose another name"))
    return name


def _parameters_of(function: Callable[..., Tensor], adapter: Adapter) -> dict[str, float]:
    """The keyword-only arguments with their defaults; and one call, so that a wrong function fails here and not in a backward."""
    signature, name = inspect.signature(function), function.__name__
    parameters = {p.name: p.default for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY}
    for key, default in parameters.items():
        check_parameter(name, key, default, "a number above 0")
    inputs = adapter.trial()
    try:
        gradient = function(*inputs)
    except TypeError as error:
        takes = f"take ({', '.join(adapter.takes)})"
        raise ValueError(must("register_rule", name, takes, str(signature), str(error))) from error
    if not isinstance(gradient, Tensor) or gradient.shape != inputs[0].shape:
        raise ValueError(must("register_rule", name, "return one gradient for each element of x", gradient))
    return parameters


_GRADS = torch.tensor([1.5, -1.5, 0.1, -0.1, math.inf, -math.inf, 0.0, math.nan], dtype=torch.float64)


def _checked_sides(
    sides: Callable[..., object], function: Callable[..., Tensor], parameters: dict[str, float], op: Op
) -> Callable[..., Sides]:
    """The sides as a row has them; or our error if the function computes something else on a side of the range."""
    if not op.has_outside:
        remedy = "They are those of a range"
        raise ValueError(must("register_rule", "sides", f"be left out for {op.name}", sides, remedy))

    def user_sides(**parameters: float) -> Sides:
        return read_sides(sides(**parameters))

    try:
        of_defaults = user_sides(**parameters)
    except (TypeError, ValueError) as error:
        remedy = "Such as lambda: ((0.0, 1.0), (1.0, 0.0)): the factors of grad > 0 and of grad < 0, below and above"
        raise ValueError(must("register_rule", "sides", "return two sides", str(error), remedy)) from error
    for name, x, side in zip(("below", "above"), (-2.0, 2.0), of_defaults, strict=True):
        for dtype in (torch.float32, torch.float64):
            grad = _GRADS.to(dtype)
            computed = function(grad, torch.full_like(grad, x), torch.full_like(grad, x / 2), -1.0, 1.0)
            finite = [torch.nan_to_num(value, 1e9, 2e9, -2e9) for value in (computed, slope_times(side, grad))]
            if not torch.equal(*finite):
                remedy = f"{function.__name__} gives {computed.tolist()} for grads of {grad.tolist()}"
                written = side.value if isinstance(side, Constant) else tuple(side)
                raise ValueError(must("register_rule", f"sides {name}", "be what the function gives", written, remedy))
    return user_sides


def _reference_from(reference: Callable[..., float]) -> Callable[..., float]:
    """A user's reference, which rounds nothing between its steps."""
    return lambda *values, fl, settings: reference(*values, **settings)


def _itself(function: Callable[..., Tensor]) -> Callable[..., float]:
    """The function on 0-d tensors of the precision that backward computes in: float32 for float32 and less, else float64."""

    def reference(*values: float | None, fl: Callable[[float], float], settings: dict[str, float]) -> float:
        dtype = torch.float64 if fl(0.1) == 0.1 else torch.float32
        return float(function(*(None if v is None else torch.tensor(v, dtype=dtype) for v in values), **settings))

    return reference
