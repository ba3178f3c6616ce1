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

    Forward:  that of the op; a rule does not change it.
    Backward: by the function f. What it takes and returns depends on the op.
        - the clamp family, fake_quantize: f(grad, x, y, min, max) -> grad_x outside the range, where y is x clamped. Inside, x gets
          grad. edge, maximize and the gradient of tensor bounds work as with every rule.
        - round, sign and their families: f(grad, x) -> grad_x everywhere.
        - policy_loss: f(grad, ratio, advantage, min, max) -> the gradient of log_ratio. min and max are the bounds of the ratio, 0 and inf
          where there is none. The op itself applies `ceiling` and computes the gradient of the advantage.
        - jumprelu: f(grad, x, threshold, bandwidth) -> for each x, its part of the gradient of the threshold. The op sums the parts.
        If f consists of comparisons, torch.where and arithmetic, the rule works under every transform. Error texts and plots show it.
        pseudograd.testing.check_rule runs the contract tests on it. Half precision arrives as float32. Saves x, or with `sides` one or
        two bits of each element, as the rules of the library do (docs/memory.md).

    Args:
        op: "clamp" (with lower_bound, upper_bound, relu, relu6, hardtanh), "fake_quantize", "round" (with floor, ceil, trunc),
            "sign" (with heaviside), "policy_loss" or "jumprelu".
        formula: one line for tables and error texts.
        source: where the rule comes from.
        is_linear: does f(a + b) = f(a) + f(b) hold for two grads a and b? If so the rule gets forward mode.
        reference: f written a second time, with the same arguments, for numbers instead of tensors. check_rule compares f with it.
            None: check_rule compares f with itself, so it cannot show that f computes what you meant.
        sides: for the clamp family, if f depends on x only by the side of the range on which x lies. A function of the rule's parameters
            that returns two entries: what x gets below the range, and what x gets above. An entry is a pair, the factors for grad > 0
            and for grad < 0; or a number, which x gets whatever grad is. f is checked against both entries. Then backward saves bits
            instead of x, and kernels compute the rule. None: x is saved.
    Returns: a decorator that returns the function unchanged. The keyword-only arguments of f, with defaults above 0, are the parameters
        of the rule: pseudograd.rules.<name>(parameter=value). If f is defined again in the same module, as by a notebook cell that runs
        twice, the new f replaces the old one everywhere; a backward still to come keeps the rule of its forward.
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
    adapters = {name: row.adapter for name, row in OPS.items() if row.adapter is not None}
    if op not in adapters:
        raise unknown_name("register_rule", "op", adapters, op)
    for argument, text in (("formula", formula), ("source", source)):
        if not isinstance(text, str) or not text.strip():
            raise ValueError(must("register_rule", argument, "be a line of text", text))

    def register(function: Formula) -> Formula:
        family = [row for row in OPS.values() if row.rule_set == OPS[op].rule_set]
        author = f"{function.__module__}.{function.__qualname__}" if inspect.isfunction(function) else ""
        name, parameters = _name_of(function, family, author), _parameters_of(function, adapters[op])
        row = adapters[op].make_rule(
            function,
            is_linear,
            _reference_from(reference) if reference else _reference_by_tensors(function),
            name=name,
            formula=formula,
            source=source,
            parameters=parameters,
            ulps=64,
            author=author,
            sides=None if sides is None else _check_sides(sides, function, parameters, OPS[op]),
        )
        for member in family:
            add_rule(member, row)
        return function

    return register


def _name_of(function: Callable[..., Tensor], family: list[Op], author: str) -> str:
    """The name of the rule. Another rule of the family may have this name only if it is an earlier definition of the same function."""
    if not callable(function):
        raise TypeError(must("register_rule", "what it decorates", "be a function", function))
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise ValueError(must("register_rule", "the function", "have a name that can be a rule's", name))
    if any(name in op.rules and not (author and op.rules[name].author == author) for op in family):
        raise ValueError(must("register_rule", "the name", f"be new for {family[0].name}", name, "Choose another name"))
    return name


def _parameters_of(function: Callable[..., Tensor], adapter: Adapter) -> dict[str, float]:
    """The keyword-only arguments with their defaults. One call of the function checks that it works before any backward needs it."""
    signature, name = inspect.signature(function), function.__name__
    parameters = {p.name: p.default for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY}
    for key, default in parameters.items():
        check_parameter(name, key, default, "a number above 0")
    inputs = adapter.trial()
    try:
        gradient = function(*inputs)
    except TypeError as error:
        requirement = f"take ({', '.join(adapter.arguments)})"
        raise ValueError(must("register_rule", name, requirement, str(signature), str(error))) from error
    if not isinstance(gradient, Tensor) or gradient.shape != inputs[0].shape:
        raise ValueError(must("register_rule", name, "return one gradient for each element of x", gradient))
    return parameters


_GRADS = torch.tensor([1.5, -1.5, 0.1, -0.1, math.inf, -math.inf, 0.0, math.nan], dtype=torch.float64)


def _check_sides(
    sides: Callable[..., object], function: Callable[..., Tensor], parameters: dict[str, float], op: Op
) -> Callable[..., Sides]:
    """The function `sides` in the form that a row needs. Raises an error if its sides are not what the user's function gives."""
    if not op.has_outside:
        remedy = "They are those of a range"
        raise ValueError(must("register_rule", "sides", f"be left out for {op.name}", sides, remedy))

    def user_sides(**parameters: float) -> Sides:
        return read_sides(sides(**parameters))

    try:
        default_sides = user_sides(**parameters)
    except (TypeError, ValueError) as error:
        remedy = "Such as lambda: ((0.0, 1.0), (1.0, 0.0)): the factors of grad > 0 and of grad < 0, below and above"
        raise ValueError(must("register_rule", "sides", "return two sides", str(error), remedy)) from error
    for name, x, side in zip(("below", "above"), (-2.0, 2.0), default_sides, strict=True):
        for dtype in (torch.float32, torch.float64):
            grad = _GRADS.to(dtype)
            y = x / 2  # x clamped to the range -1 to 1
            computed = function(grad, torch.full_like(grad, x), torch.full_like(grad, y), -1.0, 1.0)
            # For torch.equal NaN differs from NaN, so NaN and the infinities each become a number of their own.
            finite = [torch.nan_to_num(value, 1e9, 2e9, -2e9) for value in (computed, slope_times(side, grad))]
            if not torch.equal(*finite):
                remedy = f"{function.__name__} gives {computed.tolist()} for grads of {grad.tolist()}"
                written = side.value if isinstance(side, Constant) else tuple(side)
                raise ValueError(must("register_rule", f"sides {name}", "be what the function gives", written, remedy))
    return user_sides


def _reference_from(reference: Callable[..., float]) -> Callable[..., float]:
    """A user's reference in the form of ours, without `fl`, which rounds a number to the dtype under test."""
    return lambda *values, fl, settings: reference(*values, **settings)


def _reference_by_tensors(function: Callable[..., Tensor]) -> Callable[..., float]:
    """The function as its own reference, on 0-d tensors of the dtype that backward computes in: float64 for float64, else float32."""

    def reference(*values: float | None, fl: Callable[[float], float], settings: dict[str, float]) -> float:
        dtype = torch.float64 if fl(0.1) == 0.1 else torch.float32  # only float64 keeps 0.1 as it is
        return float(function(*(None if v is None else torch.tensor(v, dtype=dtype) for v in values), **settings))

    return reference
