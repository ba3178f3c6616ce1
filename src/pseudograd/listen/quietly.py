"""What a diagnosis computes for itself: no diagnosis counts it, and no mode or transform of the program sees it."""

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

unheard = Depth()  # in computations of a diagnosis, in this thread


class quietly:  # noqa: N801  (a context)
    """Around computations of ours on tensors of the program. It may be entered inside another.

    Modes of functions, of dispatch (a counter of FLOPs, selective checkpoints, fake tensors) and transforms of torch.func belong to the
    program: what they saw of ours would change what they compute.
    """

    __slots__ = ("_contexts", "_has_grad", "_modes")

    def __enter__(self) -> None:
        unheard.depth += 1
        self._has_grad = False
        self._contexts: list[AbstractContextManager[object]] | None = None
        self._modes = modes = without_torch_function()
        modes.__enter__()
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
        self._modes.__exit__(None, None, None)


def quiet(what: str) -> Callable[[Hook], Hook]:
    """For a hook of something that `is_on` and has `noted`: it is harmless, computes quietly, and hears nothing of what is computed so."""

    def wrap(function: Hook) -> Hook:
        @functools.wraps(function)
        def call(heard: Any, *args: object) -> None:
            if heard.is_on and not unheard.depth:
                try:
                    with quietly():
                        function(heard, *args)
                except Exception as error:
                    note(what, error, heard)

        return call  # type: ignore[return-value]

    return wrap
