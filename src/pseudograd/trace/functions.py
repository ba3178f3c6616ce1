"""Custom Functions, a user's and ours: `apply` is no call that a mode sees, and what runs inside it makes no graph."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .. import engine
from ..formula import Depth

Seen = Callable[[Any], None]

_inside = Depth()
_lock = threading.RLock()
_watchers: tuple[Seen | None, ...] = ()


def is_inside() -> bool:
    """Does a Function run in this thread? Known while `watched` is entered."""
    return _inside.depth > 0


@contextmanager
def watched(seen: Seen | None) -> Iterator[None]:
    """While it is entered, seen(result) is called after each Function, in every thread. Contexts may end in any order."""
    global _watchers
    with _lock:
        if not _watchers:
            _install()
        _watchers = (*_watchers, seen)
    try:
        yield
    finally:
        with _lock:
            found = list(_watchers)
            found.remove(seen)
            _watchers = tuple(found)
            if not _watchers:
                _uninstall()


class _Apply:
    """`apply` of torch.autograd.Function, and what it hides: the one that Function inherits, or somebody's before ours."""

    def __init__(self, hidden: Any) -> None:
        self.hidden = hidden

    def __get__(self, instance: Any, cls: Any) -> Any:
        hidden = self.hidden
        above: Any = super(torch.autograd.Function, cls)  # type: ignore[misc]
        bound = above.apply if hidden is None else hidden.__get__(None, cls)
        return functools.partial(_noting, bound)


class _Run:
    """`engine.run` or another of its doors, and what it hides."""

    def __init__(self, hidden: Any) -> None:
        self.hidden = hidden

    def __call__(self, *args: Any) -> Any:
        return _noting(self.hidden, *args)


_DOORS = ("run", "run_prepared")


def _install() -> None:
    function: Any = torch.autograd.Function
    if not isinstance(vars(function).get("apply"), _Apply):
        function.apply = _Apply(vars(function).get("apply"))
    for door in _DOORS:
        if not isinstance(getattr(engine, door), _Run):
            setattr(engine, door, _Run(getattr(engine, door)))


def _uninstall() -> None:
    """What was hidden again, unless somebody has put another in front of ours: that one stays, and ours behind it does nothing."""
    function: Any = torch.autograd.Function
    ours = vars(function).get("apply")
    if isinstance(ours, _Apply):
        if ours.hidden is None:
            del function.apply
        else:
            function.apply = ours.hidden
    for door in _DOORS:
        found = getattr(engine, door)
        if isinstance(found, _Run):
            setattr(engine, door, found.hidden)


def _noting(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _inside:
        result = call(*args, **kwargs)
    for seen in _watchers:
        if seen is not None and result is not None:
            seen(result)
    return result
