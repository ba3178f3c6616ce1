"""Custom Functions, a user's and ours: `apply` is no call that a mode sees, and what runs inside it makes no graph."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

from .. import engine
from ..formula import Depth
from . import patches

Watcher = Callable[[object], None]

_inside = Depth()
_lock = threading.RLock()
_watchers: tuple[Watcher | None, ...] = ()
_engine = ExitStack()  # what watches ours


def is_inside() -> bool:
    """Does a Function run in this thread? Known while `watched` is entered."""
    return _inside.depth > 0


@contextmanager
def watched(watcher: Watcher | None) -> Iterator[None]:
    """While it is entered, watcher(result) is called after each Function, in every thread. Contexts may end in any order."""
    global _watchers
    with _lock:
        if not _watchers:
            _engine.enter_context(engine.watch(_ours_begins))
            patches.APPLY.apply(_Apply)
        _watchers = (*_watchers, watcher)
    try:
        yield
    finally:
        with _lock:
            rest = list(_watchers)
            rest.remove(watcher)
            _watchers = tuple(rest)
            if not _watchers:
                _engine.close()
                patches.APPLY.remove()


class _Apply:
    """`apply` of torch.autograd.Function, and what it hides: the one that Function inherits (None), or somebody's before ours."""

    def __init__(self, hidden: classmethod[object, ..., object] | None) -> None:
        self.hidden = hidden

    def __get__(self, instance: object, cls: type) -> Callable[..., object]:
        hidden = self.hidden
        above: Any = super(torch.autograd.Function, cls)  # type: ignore[misc]
        bound = above.apply if hidden is None else hidden.__get__(None, cls)
        return bound if cls.__module__ == engine.__name__ else partial(_noting, bound)


def _noting(call: Callable[..., object], *args: object, **kwargs: object) -> object:
    with _inside:
        result = call(*args, **kwargs)
    _tell(result)
    return result


def _ours_begins() -> Callable[[object], None]:
    _inside.__enter__()
    return _ours_ended


def _ours_ended(result: object) -> None:
    _inside.__exit__()
    _tell(result)


def _tell(result: object) -> None:
    for watcher in _watchers:
        if watcher is not None and result is not None:
            watcher(result)
