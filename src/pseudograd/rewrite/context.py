"""The contexts that override and pin_edge return, which are decorators, too.

Each entry pushes a `Rewrite`, a mode of torch, onto the stack of the thread. A context that is entered in a generator behaves as
torch.no_grad: it acts until it exits, also on the caller of the generator.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from torch.compiler import is_compiling

from ..listen.frames import calling_frame, is_same_line, point
from ..rule import prepared
from ..torch_table import forms as torch_forms
from ..torch_table.conventions import OWN
from ..torch_table.forms import EDGE_FAMILIES, ERA_FAMILIES
from ..torch_table.records import Arguments, Function, Keywords
from . import compiled, entered_contexts  # noqa: F401  (`compiled` prepares Dynamo)
from .mode import Replacement, Rewrite
from .pins import drop_torchs_own
from .report import Log, Report, make_report

Decorated = TypeVar("Decorated", bound=Callable[..., object])


class _RewriteAtLines(Rewrite):
    """Rewrites only the calls at its `lines`."""

    def __torch_function__(
        self, func: Function, types: object, args: Arguments = (), kwargs: Keywords | None = None
    ) -> object:
        frame = calling_frame()
        if frame is not None:
            for line in self.lines:
                if line.endswith(f":{frame.f_lineno}") and is_same_line(str(point(frame)), line):
                    return super().__torch_function__(func, types, args, kwargs)
        return func(*args, **(kwargs or {}))


class Rewriting:
    """While it is entered, torch's functions get the chosen rules in this thread.

    replacements: what replaces torch's rule, by switch: a keyword of `override`, or EDGE.
    conventions: the convention of each family that is pinned.
    is_torchs_own: are the rules those of the installed torch? Then the context matters only inside another one that changes the same
        functions, and is *idle* elsewhere.
    lines: change only the calls at these lines; empty for all calls. Compiled code must run eagerly then, because its lines are not known.
    """

    lines: Sequence[str] = ()

    def __init__(
        self,
        label: str,
        replacements: dict[str, Replacement],
        is_torchs_own: bool = False,
        conventions: dict[str, str] | None = None,
    ) -> None:
        self.replacements = replacements
        self.conventions = conventions or {}
        self._label = label
        self._is_torchs_own = is_torchs_own
        self._logs: dict[int, Log] = {}
        self._entries: list[entered_contexts.Entry] = []

    def __repr__(self) -> str:
        return self._label

    def __enter__(self) -> Rewriting:
        mode: Rewrite | None = None
        if is_compiling():
            mode = Rewrite(self.replacements, None, self.conventions)
            mode.__enter__()
            self._entries.append(entered_contexts.Entry(mode))
            return self
        thread = threading.get_ident()
        is_idle = self._is_torchs_own and not self._is_inside_a_change()
        conventions, left_to_torch = self.conventions, entered_contexts.NO_FAMILY
        if conventions:
            if not entered_contexts.modes():
                conventions = drop_torchs_own(conventions)
            left_to_torch = frozenset(
                [name for name, text in self.conventions.items() if text == OWN or name not in conventions]
            )
        if is_idle:
            left_to_torch |= ERA_FAMILIES
        if conventions or not is_idle:
            log = self._logs.get(thread)
            if log is None:
                log = self._logs[thread] = Log()
            else:
                log.nodes.start_afresh()
            mode = (_RewriteAtLines if self.lines else Rewrite)({} if is_idle else self.replacements, log, conventions)
            mode.lines = self.lines
        self._entries.append(entered_contexts.enter(mode, left_to_torch))
        return self

    def _is_inside_a_change(self) -> bool:
        """Does an outer context change functions that this pin pins, too?"""
        return any(
            torch_forms.overlap(self.replacements, outer.replacements)
            or not EDGE_FAMILIES.isdisjoint(outer.conventions)
            for outer in entered_contexts.modes()
        )

    def __exit__(self, *exception: object) -> None:
        if is_compiling():
            mode = self._entries.pop().mode
            if mode is not None:
                mode.__exit__(*exception)
            return
        for entry in reversed(self._entries):
            if entry in entered_contexts.this_thread.entries:
                break
        else:  # another thread may close a generator
            entry = self._entries[-1]
        self._entries.remove(entry)
        entered_contexts.leave(entry)
        prepared.pop(entry.mode, None)

    def __call__(self, function: Decorated) -> Decorated:
        """Decorate a function. A generator runs inside the context and is suspended outside it."""
        if inspect.isgeneratorfunction(function):
            return functools.wraps(function)(_step_inside(self, function))  # type: ignore[return-value]
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{self._label}: function must not be async, got {function.__qualname__}. "
                "Enter the context around the torch code inside it."
            )

        @functools.wraps(function)
        def inside(*args: object, **kwargs: object) -> object:
            with self:
                return function(*args, **kwargs)

        return inside  # type: ignore[return-value]

    def report(self) -> Report:
        """The calls that were rewritten so far, and the matching calls that could not be rewritten."""
        return make_report(self._label, list(self._logs.values()), self._is_torchs_own)


def _step_inside(
    context: Rewriting, function: Callable[..., Generator[object, object, object]]
) -> Callable[..., object]:
    """A generator function whose every step runs inside the context. send, throw and close reach the generator."""

    def wrapped(*args: object, **kwargs: object) -> object:
        generator = function(*args, **kwargs)
        step: Callable[..., object] = generator.send
        values: tuple[object, ...] = (None,)
        while True:
            try:
                with context:
                    value = step(*values)
            except StopIteration as stop:
                return stop.value
            try:
                step, values = generator.send, ((yield value),)
            except GeneratorExit:
                with context:
                    generator.close()
                raise
            except BaseException as error:
                step, values = generator.throw, (error,)

    return wrapped
