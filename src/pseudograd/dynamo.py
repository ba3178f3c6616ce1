"""Callbacks for the first import of torch._dynamo, which has to know some of our functions. To import it ourselves would cost 0.7 s."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType

from .import_hook import WhenImported

_NAME = "torch._dynamo"
_callbacks: list[Callable[[ModuleType], object]] = []


def run_callbacks(dynamo: ModuleType) -> None:
    """Run each callback that has not run yet."""
    callbacks, _callbacks[:] = list(_callbacks), []
    for callback in callbacks:
        callback(dynamo)


def when_dynamo_arrives(callback: Callable[[ModuleType], object]) -> None:
    """Call callback(torch._dynamo): now if it is imported, else after its import."""
    _callbacks.append(callback)
    if _NAME in sys.modules:
        dynamo = importlib.import_module(_NAME)  # waits for another thread that is importing it
        is_importing_us = getattr(dynamo.__spec__, "_initializing", False)
        if not is_importing_us:
            run_callbacks(dynamo)


def is_awaited() -> bool:
    """Does our import hook still wait for torch._dynamo?"""
    return any(isinstance(finder, WhenImported) and finder.awaits == _NAME for finder in sys.meta_path)


if _NAME not in sys.modules:
    WhenImported(_NAME, run_callbacks).wait()
