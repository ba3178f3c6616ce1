"""Hooks that a program registers on a tensor: what arrives there before the program's hook, and what is left behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ...listen.harmless import Errors, harmless
from ...listen.quietly import unheard

NAME = "hook"
Count = Callable[[Tensor, Tensor], None]  # of what arrives and what leaves


class Hooks:
    """All of one diagnosis."""

    def __init__(self, noted: Errors, is_on: Callable[[], bool]) -> None:
        self.noted, self.is_on = noted, is_on
        self.handles: list[Any] = []  # of leaves; those of other tensors go with their graph

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()


class Pair:
    """Two hooks of ours around one of the program's, which torch calls in the order in which they were registered."""

    def __init__(self, hooks: Hooks, tensor: Tensor) -> None:
        self.noted = hooks.noted
        self._hooks = hooks
        self._before: Tensor | None = None
        self._count: Count | None = None
        self._handles = [tensor.register_hook(self._arrives)]

    def close(self, tensor: Tensor, count: Count) -> None:
        """The program's own is there now."""
        self._count = count
        self._handles.append(tensor.register_hook(self._leaves))
        if tensor.is_leaf:
            self._hooks.handles += self._handles

    def _hears(self) -> bool:
        return self._hooks.is_on() and not unheard.depth

    @harmless("the gradients at a hook")
    def _arrives(self, grad: Tensor) -> None:
        if self._hears():
            self._before = grad

    @harmless("the gradients at a hook")
    def _leaves(self, grad: Tensor) -> None:
        before, self._before = self._before, None
        if before is not None and self._count is not None and self._hears():
            self._count(before, grad)
