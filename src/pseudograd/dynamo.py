"""Dynamo has to know some functions of ours, once somebody imports it: importing it ourselves would cost 0.7 s."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType

from .import_hook import WhenImported

_NAME = "torch._dynamo"
_awaiting: list[Callable[[ModuleType], object]] = []


def tell(dynamo: ModuleType) -> None:
    """Run all that awaits it, once."""
    acts, _awaiting[:] = list(_awaiting), []
    for act in acts:
        act(dynamo)


def when_dynamo_arrives(act: Callable[[ModuleType], object]) -> None:
    """Call act(torch._dynamo): now if it is there, else once it has been imported."""
    _awaiting.append(act)
    if _NAME in sys.modules:
        dynamo = importlib.import_module(_NAME)  # waits for another thread that is importing it
        if not getattr(dynamo.__spec__, "_initializing", False):  # else it is what imports us
            tell(dynamo)


def is_awaited() -> bool:
    """Does the hook wait for its import?"""
    return any(isinstance(finder, WhenImported) and finder.awaits == _NAME for finder in sys.meta_path)


if _NAME not in sys.modules:
    WhenImported(_NAME, tell).wait()
