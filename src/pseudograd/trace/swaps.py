"""One hook around torch.utils.swap_tensors, by which a module changes what its parameters are: it refuses tensors with weak references."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

Subscriber = Callable[[Any, Any], Callable[[], None] | None]

_lock = threading.RLock()
_subscribers: tuple[Subscriber, ...] = ()


def subscribe(around: Subscriber) -> None:
    """around(one, other) is called before each swap, and what that returns after it. The subscriber sees to it that neither raises."""
    global _subscribers
    with _lock:
        _subscribers = (*_subscribers, around)
        if not isinstance(torch.utils.swap_tensors, _Announced):
            torch.utils.swap_tensors = _Announced(torch.utils.swap_tensors)


def unsubscribe(around: Subscriber) -> None:
    """With the last, torch's function is back, unless somebody has put another in front of ours: then ours does nothing."""
    global _subscribers
    with _lock:
        _subscribers = tuple(other for other in _subscribers if other != around)
        if not _subscribers and isinstance(torch.utils.swap_tensors, _Announced):
            torch.utils.swap_tensors = torch.utils.swap_tensors.swap


class _Announced:
    """`swap_tensors` among its subscribers."""

    def __init__(self, swap: Callable[..., object]) -> None:
        self.swap = swap
        functools.update_wrapper(self, swap, updated=())

    def __call__(self, t1: object, t2: object) -> object:
        endings = [around(t1, t2) for around in _subscribers]
        try:
            return self.swap(t1, t2)
        finally:
            for end in endings:
                if end is not None:
                    end()
