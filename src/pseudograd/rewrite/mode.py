"""The mode under which torch's own functions run with another backward rule: what one entry of a context puts on torch's stack."""

from __future__ import annotations

from types import MethodWrapperType
from typing import Any

import torch

from .. import engine
from ..formula import own
from ..rule import PRIMITIVES, Call, Op, RuleObject, call_for, prepared
from ..torch_table import composites as torch_composites  # noqa: F401  (for its rows)
from ..torch_table.forms import SPELLINGS, Form, Spelling, has_rule, only_backward_tells
from ..torch_table.private import in_forward_mode, is_functionalized, pop_mode, push_mode, transforms_are_active
from ..user_function import UserFunction
from . import at_once, sites
from .entered_contexts import Entered
from .primitives import PINNED
from .report import Log, shown_rule

_is_compiling, _is_dynamo_compiling = torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling


class Replacement:
    """What one switch asks for: a rule by name or object, or a function of the site. `op`: whose rules it takes; None for a pin, which has
    a rule of `edges`, for pinned primitives.

    Under a compiler only strings are read: a number would become a symbol, and a memory must not be seen to change.
    """

    __slots__ = ("by_site", "is_pin", "name", "op", "parameters", "rule")

    def __init__(self, rule: Any, op: Op | None = None) -> None:
        self.by_site = rule if isinstance(rule, sites.RuleBySite) else None
        self.rule = rule
        self.op = op
        self.is_pin = op is None
        self.name: str = rule.name if isinstance(rule, RuleObject) else rule
        given = rule.parameters if isinstance(rule, RuleObject) else ()
        self.parameters = tuple(
            (key, value if isinstance(value, UserFunction) else repr(float(value))) for key, value in given
        )

    def call(self, form: Form, primitive: str, rule: Any = None) -> Call | None:
        """The call of `rule`, the one of a site, else that of all; None where this function lacks a rule that others of the switch have.

        Raises what an unknown rule of a site's function raises.
        """
        if rule is None:
            rule = self._rule_in_a_graph() if _is_compiling() else self.rule
        stands_in = form.primitive_with(primitive, rule)
        if stands_in is None:
            if self.op is not None and has_rule(self.op, rule):
                return None
            stands_in = PRIMITIVES[primitive]
        return call_for(stands_in, rule, stands_in.default_edge)

    def _rule_in_a_graph(self) -> RuleObject:
        given = tuple((key, float(v) if isinstance(v, str) else v) for key, v in self.parameters)
        return RuleObject(self.name, given)


class Rewrite(Entered):
    """One entry of a context. `replacements` maps a switch of `torch_forms` to what is asked for; `kinks` are those of `conventions`."""

    kinks: dict[str, str] = {}  # noqa: RUF012  read alone

    def __init__(self, replacements: dict[str, Replacement], log: Log | None) -> None:
        super().__init__()
        self.replacements = replacements
        self.log = log
        self.taken_off: Any = None  # `backward.enter` says by what

    def __torch_function__(self, func: object, types: object, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs is None:
            kwargs = {}
        # Attributes are most of what torch asks, and of no table.
        if type(func) is not MethodWrapperType and not _is_dynamo_compiling():
            memory = prepared.get(self)
            known = None if memory is None else memory.get(func)
            if known is not None:
                result = at_once.result_of(self, known, args, kwargs)
                if result is not None:
                    return result
        return self._anew(func, args, kwargs)

    def _anew(self, func: Any, args: Any, kwargs: Any) -> object:
        """A call that was not seen before, or has to be read each time."""
        spelling: Spelling | None = SPELLINGS.get(func)
        if spelling is None and (type(func) is MethodWrapperType or _is_compiling()):
            return func(*args, **kwargs)
        if not _is_dynamo_compiling():
            if own.depth:
                return self._left_alone(func, args, kwargs)
            if spelling is None and self.log is not None:
                return self.log.watched(self, func, args, kwargs)
        replacement = None if spelling is None else self._replacement(spelling)
        if spelling is None or replacement is None:
            if _is_compiling() or self.log is None:
                return func(*args, **kwargs)
            return self.log.watched(self, func, args, kwargs)
        if spelling.form.hides:
            return self._written_out(spelling, func, args, kwargs)
        if spelling.form.each:
            return self._each(spelling, func, args, kwargs)
        result = self._rewritten(spelling, replacement, func, args, kwargs)
        if self.log is not None and not _is_compiling():
            self.log.nodes.forget()
        return result

    def _replacement(self, spelling: Spelling) -> Replacement | None:
        for switch in reversed(spelling.form.switches):
            if switch in self.replacements:
                return self.replacements[switch]
        return None

    def _each(self, spelling: Spelling, func: Any, args: Any, kwargs: Any) -> object:
        """A function of lists, as calls of the method that does the same to one; torch's own where no derivative is recorded."""
        given = spelling.read_each(args, kwargs)
        if given is None or not engine.is_recording(*[value for values in given for value in values]):
            return func(*args, **kwargs)
        method = getattr(torch.Tensor, spelling.form.each + ("_" if spelling.in_place else ""))
        results = [self.__torch_function__(method, (), values) for values in given]
        return None if spelling.in_place else tuple(results)

    def _written_out(self, spelling: Spelling, func: Any, args: Any, kwargs: Any) -> object:
        """A function that hides others, in torch's own functions; torch's own where no derivative is recorded."""
        log = None if _is_compiling() else self.log
        values = spelling.values(args, kwargs)
        result = None
        if spelling.form.write is not None and values is not None and engine.is_recording(*_flat(values)):
            result = spelling.form.write(self._inside, *values)
        if isinstance(result, str):
            return self._left_to_torch(spelling, "", result, func, args, kwargs)
        if result is None:
            if _is_compiling() and engine.is_recording(*_flat((*args, *kwargs.values()))):
                why = f"inside {spelling.name}, which torch runs as one call"
                for name in spelling.form.hides:
                    sites.note_compiled(name, spelling.form.switches, "", why)
            return func(*args, **kwargs) if log is None else log.watched(self, func, args, kwargs)
        if log is not None:
            log.nodes.forget()
        return result

    def _inside(self, function: Any, *values: object) -> object:
        """What is not of the table runs under this mode: a function of the program may call what is."""
        if SPELLINGS.get(function) is not None or _is_compiling():
            return self.__torch_function__(function, (), values)
        push_mode(self)
        try:
            return function(*values)
        finally:
            pop_mode()

    def _left_alone(self, func: Any, args: Any, kwargs: Any) -> object:
        """What the engine computes for itself: none of it is to be rewritten or missed."""
        result = func(*args, **kwargs)
        if self.log is not None:
            self.log.nodes.forget()
        return result

    def _rewritten(self, spelling: Spelling, replacement: Replacement, func: Any, args: Any, kwargs: Any) -> object:
        read = spelling.read(args, kwargs)
        if read is None:
            return func(*args, **kwargs)
        name, inputs, in_place = read
        if not engine.is_recording(*inputs):
            return func(*args, **kwargs)
        if replacement.is_pin:
            pinned_name = pinned(name, inputs)
            if pinned_name is None:
                return self._left_to_torch(spelling, "", f"{name} has no pinned edge", func, args, kwargs)
            name = pinned_name
        rule = None
        if replacement.by_site is not None:
            rule = replacement.by_site.rule(spelling, name, inputs)
            if rule is None:
                return func(*args, **kwargs)
        call = replacement.call(spelling.form, name, rule)
        if call is None:
            lacking = replacement.name if rule is None else rule.name if isinstance(rule, RuleObject) else rule
            return self._left_to_torch(spelling, lacking, f"{name} has no rule {lacking}", func, args, kwargs)
        if call.primitive.name != name:
            inputs = call.primitive.inputs_of(PRIMITIVES[name], inputs)
        why = why_not(call, inputs, in_place)
        if why is not None:
            return self._left_to_torch(spelling, shown_rule(call), why, func, args, kwargs)
        self._note(spelling, shown_rule(call), None)
        result = run_stand_in(call, inputs, in_place)
        if not (in_place or _is_compiling() or self.log is None or rule is not None):
            at_once.remember_call(self, func, args, kwargs, spelling.name, shown_rule(call), call, inputs)
        return result

    def _left_to_torch(self, spelling: Spelling, rule: str, why: str, func: Any, args: Any, kwargs: Any) -> object:
        self._note(spelling, rule, why)
        return func(*args, **kwargs)

    def _note(self, spelling: Spelling, rule: str, why: str | None) -> None:
        if _is_compiling():
            sites.note_compiled(spelling.name, spelling.form.switches, rule, why)
        elif self.log is not None:
            self.log.count(spelling.name, rule, why)


def _flat(values: Any) -> list[object]:
    """With the items of lists: a recurrent network gets its weights in one."""
    found: list[object] = []
    for value in values:
        if isinstance(value, (list, tuple)):
            found.extend(value)
        else:
            found.append(value)
    return found


def pinned(name: str, inputs: tuple[object, ...]) -> str | None:
    """The primitive with the pinned edge: torch has one of number bounds and one of tensors. None where nobody has measured any."""
    found = PINNED.get(name)
    if found is None:
        return None
    for value in inputs[1:]:
        if value is not None and not isinstance(value, torch.Tensor):
            return found.of_numbers
    return found.of_tensors


def run_stand_in(call: Call, inputs: tuple[Any, ...], in_place: bool) -> Any:
    """Run what stands in. Where torch saves nothing of x a program may change it; in compiled code nothing is changed in place."""
    if in_place:
        return engine.run_in_place(call, *inputs)
    x = inputs[0]
    if call.primitive.saves == "a copy" and not _is_compiling() and call.keeps(tuple(value is x for value in inputs)):
        x = x.clone()
    return engine.run(call, x, *inputs[1:])


def why_not(call: Call, inputs: tuple[Any, ...], in_place: bool) -> str | None:
    """Why torch's own op has to do; None where ours can. Torch raises its own errors, and we raise none of ours."""
    x = inputs[0]
    if _is_functionalized():
        return "torch.func.functionalize has no rule for a custom backward"
    if x.is_complex():
        return "complex numbers have no order"
    if x.layout is not torch.strided or x.is_nested or x.is_quantized:
        return "neither sparse, nested nor quantized tensors are rewritten"
    if call.rule.requires:
        given = call.primitive.by_name(inputs)
        for name in call.rule.requires:
            if given.get(name) is None:
                return f"rule {call.rule.name} needs both bounds"
    if call.primitive.either_is is not None and only_backward_tells() and in_forward_mode():
        return "compiled forward mode does not tell which of the two is the constant"
    if not call.is_linear and in_forward_mode():
        return f"rule {call.rule.name} reads the incoming gradient, and forward mode has none"
    return _why_not_in_place(inputs) if in_place else None


def _is_functionalized() -> bool:
    return not _is_compiling() and transforms_are_active() and is_functionalized()


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
