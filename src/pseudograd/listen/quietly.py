"""Contexts for what a diagnosis computes for itself: no diagnosis counts it, and no mode or transform of the program sees it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from torch import is_grad_enabled

from ..formula import Depth
from ..torch_table.private import (
    dispatch_modes,
    outside_of_transforms,
    set_grad_enabled,
    transforms_are_active,
    without_dispatch_modes,
    without_torch_function,
)
from .harmless import note

Hook = TypeVar("Hook", bound=Callable[..., None])

unheard = Depth()  # above 0 while a diagnosis computes for itself in this thread: then hooks count nothing


class quietly:  # noqa: N801  (a context)
    """Around computations of ours on tensors of the program. It may be entered inside another.

    The program's own function modes, dispatch modes (a counter of FLOPs, selective checkpoints, fake tensors) and transforms of torch.func
    are off inside: if they saw our computations, they would count or change them.
    """

    __slots__ = ("_contexts", "_has_grad", "_without_functions")

    def __enter__(self) -> None:
        unheard.depth += 1
        self._has_grad = False
        self._contexts: list[AbstractContextManager[object]] | None = None
        self._without_functions = without_functions = without_torch_function()
        without_functions.__enter__()
        try:
            if is_grad_enabled():
                set_grad_enabled(False)
                self._has_grad = True
            if dispatch_modes():
                self._enter(without_dispatch_modes())
            if transforms_are_active():
                self._enter(outside_of_transforms())
        except BaseException:
            self.__exit__()
            raise

    def _enter(self, context: AbstractContextManager[object]) -> None:
        context.__enter__()
        self._contexts = [*(self._contexts or ()), context]

    def __exit__(self, *exception: object) -> None:
        unheard.depth -= 1
        while self._contexts:
            self._contexts.pop().__exit__(None, None, None)
        if self._has_grad:
            set_grad_enabled(True)
        self._without_functions.__exit__(None, None, None)


def quiet(what: str) -> Callable[[Hook], Hook]:
    """Decorator for a hook of a diagnosis: it runs inside `quietly`.

    It does not run while its diagnosis is off, or while any diagnosis computes for itself in this thread. An error is noted and not raised.
    what: names the hook in the text of an error. The hook's first argument has `is_on`, and `noted` for the errors.
    """

    def wrap(function: Hook) -> Hook:
        @functools.wraps(function)
        def call(owner: Any, *args: object) -> None:
            if owner.is_on and not unheard.depth:
                try:
                    with quietly():
                        function(owner, *args)
                except Exception as error:
                    note(what, error, owner)

        return call  # type: ignore[return-value]

    return wrap
