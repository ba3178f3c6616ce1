"""The mode under which torch's own functions run with another backward rule: what one entry of a context puts on torch's stack."""

from __future__ import annotations

from types import MethodWrapperType
from typing import Any

import torch
from torch.autograd import forward_ad

from .. import engine
from ..rule import OPS, STAND_INS, Call, Function, RuleChoice, chosen
from . import sites, stand_ins  # noqa: F401  (stand_ins registers its rows)
from .entered import Entered
from .forms import FORMS, only_backward_tells
from .report import Log, shown_rule

_is_compiling = torch.compiler.is_compiling


class Choice:
    """The rule of one family: by name or object, or a function of the site; and the edge, where it is not the op's own.

    Under a compiler only strings are read: a number would become a symbol, and a memory must not be seen to change.
    """

    __slots__ = ("chooser", "edge", "name", "parameters", "rule")

    def __init__(self, rule: Any, edge: str | None = None) -> None:
        self.chooser = rule if isinstance(rule, sites.Chooser) else None
        self.rule = rule
        self.edge = edge
        self.name: str = rule.name if isinstance(rule, RuleChoice) else rule
        given = rule.parameters if isinstance(rule, RuleChoice) else ()
        self.parameters = tuple(
            (key, value if isinstance(value, Function) else repr(float(value))) for key, value in given
        )

    def call(self, stand_in: str, rule: Any) -> Call:
        """The call of `rule`, the one of a site; None: that of all."""
        if _is_compiling():
            if rule is None:
                rule = RuleChoice(
                    self.name, tuple((key, float(v) if isinstance(v, str) else v) for key, v in self.parameters)
                )
            return _call(stand_in, rule, self.edge)
        return _call(stand_in, self.rule if rule is None else rule, self.edge)


def _call(stand_in: str, rule: Any, edge: str | None) -> Call:
    op = STAND_INS[stand_in] if stand_in in STAND_INS else OPS[stand_in]
    return chosen(op, rule, op.default_edge if edge is None else edge)


class Rewrite(Entered):
    """One entry of a context. `choices` maps a family of `forms` to what is chosen for it."""

    def __init__(self, choices: dict[str, Choice], log: Log | None) -> None:
        super().__init__()
        self.choices = choices
        self.log = log

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        form = FORMS.get(func)
        if kwargs is None:
            kwargs = {}
        if form is None and (
            _is_compiling() or type(func) is MethodWrapperType
        ):  # attributes are most of what torch asks
            return func(*args, **kwargs)
        if not torch.compiler.is_dynamo_compiling() and engine.own.depth:
            return self._left_alone(func, args, kwargs)
        if form is None or form.family not in self.choices:
            if _is_compiling() or self.log is None:
                return func(*args, **kwargs)
            return self.log.watched(self, func, args, kwargs)
        result = self._rewritten(form, func, args, kwargs)
        if self.log is not None and not _is_compiling():
            self.log.forget_nodes()
        return result

    def _left_alone(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What the engine computes for itself: none of it is to be rewritten or missed."""
        result = func(*args, **kwargs)
        if self.log is not None:
            self.log.forget_nodes()
        return result

    def _rewritten(self, form: Any, func: Any, args: Any, kwargs: Any) -> Any:
        read = form.read(args, kwargs)
        if read is None:
            return func(*args, **kwargs)
        name, inputs, in_place = read
        if not engine.is_recording(*inputs):
            return func(*args, **kwargs)
        choice = self.choices[form.family]
        name, inputs = stand_in(name, inputs, form.family, choice)
        rule = None
        if choice.chooser is not None:
            rule = choice.chooser.choose(form, name, inputs)
            if rule is None:
                return func(*args, **kwargs)
        call = choice.call(name, rule)
        why = why_not(call, inputs, in_place)
        if not _is_compiling():
            if self.log is not None:
                self.log.count(form, call, why)
        else:
            sites.note_compiled(form.name, form.family, shown_rule(call), why)
        if why is not None:
            return func(*args, **kwargs)
        return run(call, inputs, in_place)


def stand_in(name: str, inputs: tuple[Any, ...], family: str, choice: Choice) -> tuple[str, tuple[Any, ...]]:
    """The row that stands in. Pinned edges have one for numbers and one for tensors, as torch has."""
    if choice.edge is None:
        return name, inputs
    for value in inputs[1:]:
        if value is not None and not isinstance(value, torch.Tensor):
            return f"{name}, numbers", inputs
    return f"{name}, tensors", inputs


def run(call: Call, inputs: tuple[Any, ...], in_place: bool) -> Any:
    """Run what stands in. torch's in-place ops save a copy of the old x; a program may change x where torch saves nothing of it.

    Leaf errors and version counters of an in-place call are those of copy_, which are torch's. Compiled code needs no copy: there nothing
    is changed in place.
    """
    x = inputs[0]
    copied = in_place or (call.rule.copies and not _is_compiling())
    kept = x.clone() if copied and call.keeps((True,) * len(inputs)) else x
    y = engine.run(call, kept, *inputs[1:])
    return x.copy_(y) if in_place else y


def why_not(call: Call, inputs: tuple[Any, ...], in_place: bool) -> str | None:
    """Why torch's own op has to do; None where ours can. Torch raises its own errors, and we raise none of ours."""
    x = inputs[0]
    if _is_functionalized():
        return "torch.func.functionalize has no rule for a custom backward"
    if x.is_complex():
        return "complex numbers have no order"
    if x.layout is not torch.strided or x.is_nested or x.is_quantized:
        return "neither sparse, nested nor quantized tensors are rewritten"
    for name, value in zip(call.op.inputs, inputs):  # noqa: B905  Dynamo on torch 2.8
        if name in call.rule.requires and value is None:
            return f"rule {call.rule.name} needs both bounds"
    if call.rule.requires and len(inputs) < 3:
        return f"rule {call.rule.name} needs both bounds"
    if call.op.name.endswith(", of two") and only_backward_tells() and forward_ad._current_level >= 0:
        return "compiled forward mode does not tell which of the two is the constant"
    if not call.is_linear and forward_ad._current_level >= 0:
        return f"rule {call.rule.name} reads the incoming gradient, and forward mode has none"
    return _why_not_in_place(inputs) if in_place else None


def _is_functionalized() -> bool:
    if _is_compiling() or not torch._C._are_functorch_transforms_active():
        return False
    levels = torch._C._functorch.get_interpreter_stack() or ()
    return any(level.key() == torch._C._functorch.TransformType.Functionalize for level in levels)


def _why_not_in_place(inputs: tuple[Any, ...]) -> str | None:
    x = inputs[0]
    if not x.is_floating_point():
        return "in place on integers"
    for bound in inputs[1:]:
        if isinstance(bound, torch.Tensor) and (bound.dtype != x.dtype or not _fits(bound, x)):
            return "a bound of another dtype or a larger shape, in place"
    return None


def _fits(bound: torch.Tensor, x: torch.Tensor) -> bool:
    if bound.dim() > x.dim():
        return False
    for back in range(1, bound.dim() + 1):  # noqa: SIM110  Dynamo on torch 2.8
        if bound.shape[-back] != x.shape[-back] and bound.shape[-back] != 1:
            return False
    return True
