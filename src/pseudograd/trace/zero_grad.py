"""One hook around Optimizer.zero_grad, for which torch has none of its own."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

Subscriber = Callable[[Any, bool], Callable[[], None] | None]

_lock = threading.RLock()
_subscribers: tuple[Subscriber, ...] = ()
_installed: tuple[Callable[..., None], Callable[..., None]] | None = None  # ours, and what it stands in front of


def subscribe(around: Subscriber) -> None:
    """around(optimizer, set_to_none) is called before each, and what that returns after it. The subscriber sees to it that neither
    raises.
    """
    global _subscribers, _installed
    with _lock:
        _subscribers = (*_subscribers, around)
        if not _is_in_place():
            here = Optimizer.zero_grad
            _installed = _announced(here), here
            Optimizer.zero_grad = _installed[0]  # type: ignore[method-assign]


def unsubscribe(around: Subscriber) -> None:
    """With the last, torch's function is back, unless somebody has put another in front of ours: then ours does nothing."""
    global _subscribers, _installed
    with _lock:
        _subscribers = tuple(other for other in _subscribers if other != around)
        if not _subscribers:
            if _installed is not None and _is_in_place():
                Optimizer.zero_grad = _installed[1]  # type: ignore[method-assign]
            _installed = None


def _is_in_place() -> bool:
    return _installed is not None and Optimizer.zero_grad is _installed[0]


def _announced(clear: Callable[..., None]) -> Callable[..., None]:
    """`zero_grad` among its subscribers."""

    @functools.wraps(clear)
    def zero_grad(self: Optimizer, set_to_none: bool = True) -> None:
        endings = [around(self, set_to_none) for around in _subscribers]
        try:
            return clear(self, set_to_none)
        finally:
            for end in endings:
                if end is not None:
                    end()

    return zero_grad
