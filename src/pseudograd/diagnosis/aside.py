"""What a diagnosis computes for itself: no diagnosis counts it, and no mode or transform of the program sees it."""

from __future__ import annotations

import threading
from typing import Any

import torch

from ..formula import Depth, own
from ..torch_private import (
    dispatch_modes,
    outside_of_transforms,
    transforms_are_active,
    without_dispatch_modes,
    without_torch_function,
)

aside = Depth()


def is_aside() -> bool:
    """Is this a computation of a diagnosis, in this thread?"""
    return aside.depth > 0


class _Quietly(threading.local):
    """A context for computations of ours on tensors of the program. It may be entered inside itself.

    Modes of functions, of dispatch (a counter of FLOPs, selective checkpoints, fake tensors) and transforms of torch.func belong to the
    program: what they saw of ours would change what they compute.
    """

    def __init__(self) -> None:
        self._entered: list[list[tuple[Any, Any]]] = []

    def __enter__(self) -> None:
        self._entered.append([])
        own.depth += 1
        aside.depth += 1
        try:
            self._enter(self._entered[-1])
        except BaseException:
            self.__exit__()
            raise

    def _enter(self, contexts: list[tuple[Any, Any]]) -> None:
        for is_needed, context in (
            (True, without_torch_function),
            (torch.is_grad_enabled(), torch.no_grad),
            (dispatch_modes() > 0, without_dispatch_modes),
            (transforms_are_active(), outside_of_transforms),
        ):
            if is_needed:
                one = context()
                contexts.append((one.__enter__(), one))  # noted as soon as it is entered

    def __exit__(self, *exception: Any) -> None:
        contexts = self._entered.pop()
        own.depth -= 1
        aside.depth -= 1
        for _, one in reversed(contexts):
            one.__exit__(None, None, None)


quietly = _Quietly()
