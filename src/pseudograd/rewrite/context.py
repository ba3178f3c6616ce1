"""What the user holds, from override or pin_edge: a context, and a decorator.

Each entry pushes a `Rewrite`, a mode of torch, onto the stack of the thread. A context that is entered in a generator behaves as
torch.no_grad does there: it is on until it exits, also for the caller of the generator.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from torch.compiler import is_compiling

from ..rule import prepared
from ..torch_table import forms as torch_forms
from ..torch_table.conventions import OF_AN_EDGE, OF_AN_ERA, OWN
from . import backward, compiled, entered_contexts  # noqa: F401  (compiled tells Dynamo)
from .conventions import Pinning, acting
from .mode import Replacement, Rewrite
from .report import Log, Report

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class _Entry(NamedTuple):
    """mode: None where nothing was to be done. left: the families that are left to torch, as the pin asks for what it does."""

    thread: int
    mode: Rewrite | None
    left: frozenset[str] = entered_contexts.NO_FAMILY


class Rewriting:
    """While it is entered, in this thread, torch's functions get the chosen rules. `is_torchs_own`: they are what torch does.

    Such a context acts only inside another one that would change what it names; alone it does nothing at all.
    """

    def __init__(
        self,
        label: str,
        replacements: dict[str, Replacement],
        is_torchs_own: bool = False,
        kinks: dict[str, str] | None = None,
    ) -> None:
        self._label = label
        self._replacements = replacements
        self._kinks = kinks or {}
        self._is_torchs_own = is_torchs_own
        self._logs: dict[int, Log] = {}
        self._entries: list[_Entry] = []

    def __repr__(self) -> str:
        return self._label

    @property
    def replacements(self) -> dict[str, Replacement]:
        """By the switch of `torch_forms` that each acts on."""
        return self._replacements

    @property
    def kinks(self) -> dict[str, str]:
        """By the family of `torch_conventions`, the convention that is pinned."""
        return self._kinks

    def __enter__(self) -> Rewriting:
        if is_compiling():
            mode = self._mode(self._replacements, self._kinks, None)
            mode.__enter__()
            self._entries.append(_Entry(0, mode))
            return self
        thread = threading.get_ident()
        is_idle = self._is_torchs_own and not self._decides_anything()
        kinks = self._kinks if entered_contexts.modes() else acting(self._kinks)
        own = {name for name, text in self._kinks.items() if text == OWN or name not in kinks}
        left = frozenset(own | OF_AN_ERA if is_idle else own)
        if left:
            entered_contexts.leave_to_torch(left)
        if is_idle and not kinks:
            self._entries.append(_Entry(thread, None, left))
            return self
        log = self._logs.setdefault(thread, Log())
        log.nodes.start_afresh()
        mode = self._mode({} if is_idle else self._replacements, kinks, log)
        self._entries.append(_Entry(thread, mode, left))
        backward.enter(mode)
        mode.__enter__()
        return self

    def _mode(self, replacements: dict[str, Replacement], kinks: dict[str, str], log: Log | None) -> Rewrite:
        return Pinning(replacements, kinks, log) if kinks else Rewrite(replacements, log)

    def _decides_anything(self) -> bool:
        """A pin to an era has an edge alone, which is about the clamps, fmin and fmax."""
        return any(
            torch_forms.overlap(self._replacements, outer.replacements) or not OF_AN_EDGE.isdisjoint(outer.kinks)
            for outer in entered_contexts.modes()
        )

    def __exit__(self, *exception: object) -> None:
        if is_compiling():
            self._entries.pop().mode.__exit__(*exception)  # type: ignore[union-attr]
            return
        _, mode, left = self._last_entry()
        entered_contexts.no_longer_leave_to_torch(left)
        if mode is None:
            return
        entered_contexts.take_off_the_stack(mode)
        prepared.pop(mode, None)
        backward.leave(mode)

    def _last_entry(self) -> _Entry:
        """The entry that this exit ends: the last one of this thread; of any, where a generator is closed by another thread."""
        here = threading.get_ident()
        entry = next((entry for entry in reversed(self._entries) if entry.thread == here), self._entries[-1])
        self._entries.remove(entry)
        return entry

    def __call__(self, function: Decorated) -> Decorated:
        """As a decorator. A generator runs inside the context and is suspended outside it."""
        if inspect.isgeneratorfunction(function):
            return functools.wraps(function)(_stepping(self, function))  # type: ignore[return-value]
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
        """What was rewritten so far, and what was seen and could not be."""
        return Report.of(self._label, list(self._logs.values()), self._is_torchs_own)


def _stepping(context: Rewriting, function: Callable[..., Any]) -> Callable[..., object]:
    """A generator function each step of which runs inside the context; send, throw and close reach the generator."""

    def wrapped(*args: object, **kwargs: object) -> object:
        generator = function(*args, **kwargs)
        step = generator.send
        given: tuple[object, ...] = (None,)
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
