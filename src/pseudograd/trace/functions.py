"""Custom Functions, a user's and ours: `apply` is no call that a mode sees, and what runs inside it makes no graph."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .. import engine

Seen = Callable[[Any], None]
_MISSING = object()


class _Inside(threading.local):
    depth = 0


_here = _Inside()


def is_inside() -> bool:
    """Does a Function run in this thread? Known while `watched` is entered."""
    return _here.depth > 0


@contextmanager
def watched(seen: Seen | None) -> Iterator[None]:
    """While it is entered, seen(result) is called after each Function, in every thread."""
    function: Any = torch.autograd.Function
    own, run = vars(function).get("apply", _MISSING), engine.run
    apply = function.apply if own is _MISSING else own

    def noting_apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return _noting(lambda: bound(cls)(*args, **kwargs), seen)

    def bound(cls: Any) -> Any:
        return super(function, cls).apply if own is _MISSING else apply.__get__(None, cls)

    @functools.wraps(run)
    def noting_run(*args: Any) -> Any:
        return _noting(lambda: run(*args), seen)

    function.apply = classmethod(noting_apply)
    engine.run = noting_run  # type: ignore[assignment]
    try:
        yield
    finally:
        if own is _MISSING:
            del function.apply
        else:
            function.apply = own
        engine.run = run


def _noting(call: Callable[[], Any], seen: Seen | None) -> Any:
    _here.depth += 1
    try:
        result = call()
    finally:
        _here.depth -= 1
    if seen is not None:
        seen(result)
    return result
