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
        contexts: list[tuple[Any, Any]] = []
        self._entered.append(contexts)
        own.depth += 1
        aside.depth += 1
        try:
            _enter(without_torch_function(), contexts)
            if torch.is_grad_enabled():
                _enter(torch.no_grad(), contexts)
            if dispatch_modes():
                _enter(without_dispatch_modes(), contexts)
            if transforms_are_active():
                _enter(outside_of_transforms(), contexts)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *exception: Any) -> None:
        contexts = self._entered.pop()
        own.depth -= 1
        aside.depth -= 1
        for _, one in reversed(contexts):
            one.__exit__(None, None, None)


def _enter(context: Any, contexts: list[tuple[Any, Any]]) -> None:
    contexts.append((context.__enter__(), context))  # noted as soon as it is entered


quietly = _Quietly()
