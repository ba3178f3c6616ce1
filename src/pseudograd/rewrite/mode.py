"""The mode under which torch's own functions run with another backward rule, and what one context of it holds.

A `Rewriting` is what the user holds, from override or pin_edge. Each entry pushes a `Rewrite`, a mode of torch, onto the stack of the
thread. Inside any backward that stack is empty, and a checkpoint would be recomputed with torch's rules; `backward.py` puts it back.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from types import FrameType, MethodWrapperType
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from .. import engine
from ..rule import OPS, STAND_INS, Call, RuleChoice, chosen
from . import backward, sites
from .forms import FORMS
from .report import Log, Report, shown_rule

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
        self.parameters = tuple((key, repr(float(value))) for key, value in given)

    def call(self, stand_in: str, rule: Any) -> Call:
        """The call of `rule`, the one of a site; None: that of all."""
        if _is_compiling():
            if rule is None:
                rule = RuleChoice(self.name, tuple((key, float(text)) for key, text in self.parameters))
            return _call(stand_in, rule, self.edge)
        return _call(stand_in, self.rule if rule is None else rule, self.edge)


def _call(stand_in: str, rule: Any, edge: str | None) -> Call:
    op = STAND_INS[stand_in] if stand_in in STAND_INS else OPS[stand_in]
    return chosen(op, rule, op.default_edge if edge is None else edge)


class Rewrite(TorchFunctionMode):
    """One entry of a context. `choices` maps a family of `forms` to what is chosen for it."""

    def __init__(self, choices: dict[str, Choice], log: Log | None, generator: FrameType | None) -> None:
        super().__init__()
        self.choices = choices
        self.log = log
        self.generator = generator

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        form = FORMS.get(func)
        if kwargs is None:
            kwargs = {}
        if form is None and (
            _is_compiling() or type(func) is MethodWrapperType
        ):  # attributes are most of what torch asks
            return func(*args, **kwargs)
        if not _is_compiling() and (engine.own.depth or (self.generator and not _is_running(self.generator))):
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
        """What the engine computes for itself, or the caller of a suspended generator: none of it is to be rewritten or missed."""
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
            if not _is_compiling():
                backward.note_checkpoint(self)
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
        return run_in_place(call, inputs) if in_place else engine.run(call, *inputs)


def stand_in(name: str, inputs: tuple[Any, ...], family: str, choice: Choice) -> tuple[str, tuple[Any, ...]]:
    """The row that stands in. Pinned edges have one for numbers and one for tensors, as torch has."""
    if choice.edge is None:
        return name, inputs
    for value in inputs[1:]:
        if value is not None and not isinstance(value, torch.Tensor):
            return f"{name}, numbers", inputs
    return f"{name}, tensors", inputs


def run_in_place(call: Call, inputs: tuple[Any, ...]) -> Any:
    """torch's in-place ops save a copy of the old x too. Leaf errors and version counters are those of copy_, which are torch's."""
    x = inputs[0]
    kept = x.clone() if call.keeps((True,) * len(inputs)) else x
    return x.copy_(engine.run(call, kept, *inputs[1:]))


def why_not(call: Call, inputs: tuple[Any, ...], in_place: bool) -> str | None:
    """Why torch's own op has to do; None where ours can. Torch raises its own errors, and we raise none of ours."""
    x = inputs[0]
    if x.is_complex():
        return "complex numbers have no order"
    if x.layout is not torch.strided or x.is_nested or x.is_quantized:
        return "neither sparse, nested nor quantized tensors are rewritten"
    for name, value in zip(call.op.inputs, inputs):  # noqa: B905  Dynamo on torch 2.8
        if name in call.rule.requires and value is None:
            return f"rule {call.rule.name} needs both bounds"
    if call.rule.requires and len(inputs) < 3:
        return f"rule {call.rule.name} needs both bounds"
    if not call.is_linear and forward_ad._current_level >= 0:
        return f"rule {call.rule.name} reads the incoming gradient, and forward mode has none"
    return _why_not_in_place(inputs) if in_place else None


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


def _is_running(frame: FrameType) -> bool:
    """Is this generator's frame on the stack? A suspended one has handed its context to its caller, who did not ask for it."""
    found: FrameType | None = sys._getframe(2)
    while found is not None:
        if found is frame:
            return True
        found = found.f_back
    return False


_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Rewriting:
    """A context, and a decorator: while it is entered, in this thread, torch's functions get the chosen rules."""

    def __init__(self, label: str, choices: dict[str, Choice]) -> None:
        self._label = label
        self._choices = choices
        self._logs: dict[int, Log] = {}
        self._entries: list[tuple[int, Rewrite]] = []

    def __repr__(self) -> str:
        return self._label

    def __enter__(self) -> Rewriting:
        if _is_compiling():
            mode = Rewrite(self._choices, None, None)
            mode.__enter__()
            self._entries.append((0, mode))
            return self
        caller = sys._getframe(1)
        generator = caller if caller.f_code.co_flags & _GENERATORS else None
        thread = threading.get_ident()
        log = self._logs.setdefault(thread, Log())
        log.unseen = []
        log.forget_nodes()
        mode = Rewrite(self._choices, log, generator)
        self._entries.append((thread, mode))
        backward.enter(mode)
        mode.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        if _is_compiling():
            self._entries.pop()[1].__exit__(*exception)
            return
        mode = self._last_entry(threading.get_ident(), sys._getframe(1))
        _remove(mode)
        backward.leave(mode)

    def _last_entry(self, thread: int, caller: FrameType) -> Rewrite:
        """The entry that this exit ends: the generator's own, else the last one of this thread."""
        own = [entry for entry in self._entries if entry[0] == thread]
        of_caller = [entry for entry in own if entry[1].generator is caller]
        entry = (of_caller or own)[-1]
        self._entries.remove(entry)
        return entry[1]

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """As a decorator. A generator runs inside the context and is suspended outside it."""
        if inspect.isgeneratorfunction(function):
            return functools.wraps(function)(_stepping(self, function))
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{self._label}: function must not be async, got {function.__qualname__}. "
                "Enter the context around the torch code inside it."
            )

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return inside

    def report(self) -> Report:
        """What was rewritten so far, and what was seen and could not be."""
        return Report.of(self._label, list(self._logs.values()), not self._choices)


def _remove(mode: Rewrite) -> None:
    """Take this mode from the stack wherever it is: contexts of suspended generators do not end in order."""
    above = []
    stack = torch.overrides._get_current_function_mode_stack()
    if not any(entry is mode for entry in stack):
        return
    while (top := torch.overrides._pop_mode()) is not mode:
        above.append(top)
    for entry in reversed(above):
        torch.overrides._push_mode(entry)


def _stepping(context: Rewriting, function: Callable[..., Any]) -> Callable[..., Any]:
    """A generator function each step of which runs inside the context; send, throw and close reach the generator."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        generator = function(*args, **kwargs)
        step: Any = generator.send
        given: tuple[Any, ...] = (None,)
        while True:
            try:
                with context:
                    value = step(*given)
            except StopIteration as stop:
                return stop.value
            try:
                step, given = generator.send, ((yield value),)
            except GeneratorExit:
                with context:
                    generator.close()
                raise
            except BaseException as error:
                step, given = generator.throw, (error,)

    return wrapped
