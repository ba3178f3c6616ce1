"""Hooks that a program registers on a tensor: what arrives there before one, and what is left behind it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...listen.harmless import harmless
from ...listen.quietly import unheard

NAME = "hook"


class Hook:
    """Two hooks of ours around one of the program's, which torch calls in the order in which they were registered."""

    def __init__(self, recorder: Any, tensor: Tensor) -> None:
        self._recorder = recorder
        self._before: Tensor | None = None
        self._tally: Any = None
        self._upstream = 0
        self._handles = [tensor.register_hook(self._arrives)]

    def close(self, tensor: Tensor, tally: object, upstream: int) -> list[Any]:
        """The program's own is there now, at the place of this tally. Returns the handles."""
        self._tally, self._upstream = tally, upstream
        self._handles.append(tensor.register_hook(self._leaves))
        return self._handles

    @property
    def noted(self) -> Any:
        return self._recorder.noted

    @harmless("the gradients at a hook")
    def _arrives(self, grad: Tensor) -> None:
        if self._recorder.is_on and not unheard.depth:
            self._before = grad

    @harmless("the gradients at a hook")
    def _leaves(self, grad: Tensor) -> None:
        before, self._before = self._before, None
        if before is not None and self._recorder.is_on and not unheard.depth:
            self._recorder.count_hook(self._tally, self._upstream, before, grad)
