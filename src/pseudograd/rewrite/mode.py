"""The mode under which torch's own functions run with another backward rule. A context pushes a new one each time that it is entered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import MethodWrapperType
from typing import Any

import torch

from .. import engine
from ..formula import our_formulas
from ..listen.hooks import LOST_ARGUMENTS, find_lost_argument
from ..rule import PRIMITIVES, Call, Op, RuleObject, call_for, prepared
from ..torch_table.conventions import OWN
from ..torch_table.forms import SPELLINGS, is_pinned_inside
from ..torch_table.private import is_tracing, node_number, pop_mode, push_mode
from ..torch_table.records import EDGE, Arguments, Form, Function, Keywords, Spelling, has_rule
from ..user_function import UserFunction
from . import known_calls, pins, sites
from .edges import pinned_edge
from .entered_contexts import Entered
from .report import LEFT_BY_FUNCTION
from .stand_ins import run_stand_in, why_not

_is_compiling, _is_dynamo_compiling = torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling
_NORM_OF_A_TENSOR = torch.Tensor.norm


class Replacement:
    """The rule that one switch chose.

    rule: a name, a rule object, or a function of the site.
    op: the op of the switch; None for a pin.
    Compiled code reads the numbers of a rule from text, because Dynamo would make symbols of them.
    """

    def __init__(self, rule: Any, op: Op | None = None) -> None:
        self.rule = rule
        self.by_site = rule if isinstance(rule, sites.RuleBySite) else None
        self.op = op
        self.is_pin = op is None
        self.name: str = rule.name if isinstance(rule, RuleObject) else rule
        self.parameters: tuple[tuple[str, str | UserFunction], ...] = ()
        if isinstance(rule, RuleObject):
            self.parameters = tuple(
                (key, value if isinstance(value, UserFunction) else repr(float(value)))
                for key, value in rule.parameters
            )

    def call(self, form: Form, primitive: str, rule: Any = None) -> Call | None:
        """The call with `rule`, by default with that of the switch. None if the op of the switch has the rule, but this function lacks it.

        Raises the error of an unknown rule, which a function of the site may return.
        """
        if rule is None:
            if _is_compiling():
                numbers = [(key, float(value) if isinstance(value, str) else value) for key, value in self.parameters]
                rule = RuleObject(self.name, tuple(numbers))
            else:
                rule = self.rule
        stand_in = PRIMITIVES[primitive]
        if isinstance(rule, RuleObject) or rule not in stand_in.rules:
            with_rule = form.primitive_with(primitive, rule)
            if with_rule is None and self.op is not None and has_rule(self.op, rule):
                return None
            stand_in = with_rule or stand_in
        return call_for(stand_in, rule, stand_in.default_edge)


_ONLY_INSIDE = Replacement(OWN)  # for a function that has no rule itself, but runs pinned functions


class Rewrite(Entered):
    """The mode of one entry of a context."""

    replacements: dict[str, Replacement]
    lines: Sequence[str] = ()  # only the calls at these lines are changed; empty for all calls

    def __torch_function__(
        self, func: Function, types: object, args: Arguments = (), kwargs: Keywords | None = None
    ) -> object:
        if kwargs is None:
            kwargs = {}
        if not _is_dynamo_compiling():
            if type(func) is MethodWrapperType:  # an attribute is read: the most frequent call, and in no table
                return func(*args, **kwargs)
            calls_by_function = prepared.get(self)
            known = None if calls_by_function is None else calls_by_function.get(func)
            if known is not None and not is_tracing():
                result = known_calls.run_known(self, known, args, kwargs)
                if result is not None:
                    return result
        return self._run_unknown(func, args, kwargs)

    def _run_unknown(self, func: Function, args: Arguments, kwargs: Keywords) -> object:
        """Run a call that is not in the table of known calls."""
        log = None if _is_compiling() else self.log
        if not _is_dynamo_compiling():
            if func in LOST_ARGUMENTS:
                kwargs = find_lost_argument(func, kwargs)
            if our_formulas.depth:  # a call of the engine's own: neither rewritten nor reported
                result = func(*args, **kwargs)
                if log is not None:
                    log.nodes.mark_all_seen()
                return result
            if is_tracing():
                return self._leave_in_trace(func, args, kwargs)
        if self.conventions:
            if func is _NORM_OF_A_TENSOR:  # a function in Python, which Dynamo finds in no table
                func = torch.norm
            result = pins.run_pinned(self, func, args, kwargs)
            if result is not None:
                if log is not None:
                    log.nodes.mark_all_seen()
                return result
        spelling: Spelling | None = SPELLINGS.get(func)
        replacement = None if spelling is None else self._replacement(spelling)
        if spelling is None or replacement is None:
            return func(*args, **kwargs) if log is None else log.watch(self.replacements, func, args, kwargs)
        if spelling.form.hides:
            return self._write_out(spelling, func, args, kwargs)
        if spelling.form.each:
            return self._run_each(spelling, func, args, kwargs)
        result = self._rewrite(spelling, replacement, func, args, kwargs)
        if log is not None:
            log.nodes.seen_up_to = node_number()  # `mark_all_seen`, in less time
        return result

    def _replacement(self, spelling: Spelling) -> Replacement | None:
        form = spelling.form
        for switch in reversed(form.switches):
            if switch in self.replacements:
                return self.replacements[switch]
        # A pin reaches the inside of a function that is written out, and the items of a list whose method an edge pins.
        has_inside = form.write is not None or (form.each and EDGE in form.switches)
        is_pinned = self.conventions and has_inside and is_pinned_inside(form, self.conventions)
        return _ONLY_INSIDE if is_pinned else None

    def _run_each(self, spelling: Spelling, func: Function, args: Arguments, kwargs: Keywords) -> object:
        """Run a function of lists as calls of the method for one tensor; torch's own function if no derivative is recorded."""
        calls = spelling.read_each(args, kwargs)
        if calls is None or not engine.is_recording(*[value for values in calls for value in values]):
            return func(*args, **kwargs)
        method = getattr(torch.Tensor, spelling.form.each + ("_" if spelling.in_place else ""))
        results = [self.__torch_function__(method, (), values) for values in calls]
        return None if spelling.in_place else tuple(results)

    def _write_out(self, spelling: Spelling, func: Function, args: Arguments, kwargs: Keywords) -> object:
        """Run a function that hides others as it is written out; torch's own function if no derivative is recorded."""
        log = None if _is_compiling() else self.log
        values = spelling.values(args, kwargs)
        result, form = None, spelling.form
        if form.write is not None and values is not None and engine.is_recording(*values):
            result = form.write(self._run_inside, *values)
        if result is None:
            if _is_compiling() and engine.is_recording(*_flatten((*args, *kwargs.values()))):
                for name in form.hides:
                    self.note(name, form.switches, "", f"inside {spelling.name}, which torch runs as one call")
            return func(*args, **kwargs) if log is None else log.watch(self.replacements, func, args, kwargs)
        if log is not None:
            log.nodes.mark_all_seen()
        return result

    def _run_inside(self, function: Function, *values: object) -> object:
        """Run a function that was hidden. A function of the program is not in the table, but may call others that are."""
        if SPELLINGS.get(function) is not None or _is_compiling():
            return self.__torch_function__(function, (), values)
        push_mode(self)
        try:
            return function(*values)
        finally:
            pop_mode()

    def _rewrite(
        self, spelling: Spelling, replacement: Replacement, func: Function, args: Arguments, kwargs: Keywords
    ) -> object:
        read = spelling.read(args, kwargs)
        if read is None:
            return func(*args, **kwargs)
        name, inputs, in_place = read
        if not engine.is_recording(*inputs):
            return func(*args, **kwargs)
        if replacement.is_pin:
            pinned = pinned_edge(name, inputs)
            if pinned is None:
                return self._leave_to_torch(spelling, "", f"{name} has no pinned edge", func, args, kwargs)
            name = pinned
        rule = None
        if replacement.by_site is not None:
            rule = replacement.by_site.rule(spelling, name, inputs)
            if rule is None:
                return self._leave_to_torch(spelling, "", LEFT_BY_FUNCTION, func, args, kwargs)
        call = replacement.call(spelling.form, name, rule)
        if call is None:
            chosen = replacement.name if rule is None else rule
            lacking = chosen.name if isinstance(chosen, RuleObject) else chosen
            return self._leave_to_torch(spelling, lacking, f"{name} has no rule {lacking}", func, args, kwargs)
        if call.primitive.name != name:
            inputs = call.primitive.inputs_of(PRIMITIVES[name], inputs)
        text = call.rule.name if call.edge is None else f"{call.rule.name}/{call.edge}"
        why = why_not(call, inputs, in_place)
        if why is not None:
            return self._leave_to_torch(spelling, text, why, func, args, kwargs)
        self.note(spelling.name, spelling.form.switches, text, None)
        result = run_stand_in(call, inputs, in_place)
        if self.log is not None and replacement.by_site is None and not _is_compiling():
            known_calls.remember_call(self, func, args, kwargs, spelling.name, text, call, inputs, in_place)
        return result

    def _leave_to_torch(
        self, spelling: Spelling, rule: str, why: str, func: Function, args: Arguments, kwargs: Keywords
    ) -> object:
        self.note(spelling.name, spelling.form.switches, rule, why)
        return func(*args, **kwargs)

    def _leave_in_trace(self, func: Function, args: Arguments, kwargs: Keywords) -> object:
        """Let torch.jit.trace record torch's own function: the trace would drop the rule, and torch's check of the trace would fail."""
        spelling = SPELLINGS.get(func)
        if spelling is not None and self._replacement(spelling) is not None:
            self.note(spelling.name, spelling.form.switches, "", "torch.jit.trace keeps the values and drops the rule")
        return func(*args, **kwargs)

    def note(self, op: str, switches: tuple[str, ...], rule: str, why: str | None) -> None:
        """Note a call for the report. switches: those that act on the function. why: why torch ran it; None if it was rewritten."""
        if _is_compiling():
            sites.note_compiled(op, switches, rule, why)
        elif self.log is not None:
            self.log.count(op, rule, why)


def _flatten(values: Iterable[object]) -> list[object]:
    """The values, with the items of a list in its place: a recurrent network gets its weights in a list."""
    items: list[object] = []
    for value in values:
        items.extend(value if isinstance(value, (list, tuple)) else [value])
    return items
