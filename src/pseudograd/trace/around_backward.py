"""One hook around each backward of torch, to which others subscribe: in Tensor.backward, autograd.grad and autograd.backward."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from ..torch_private import backward_owners

Subscriber = Callable[[Any, Any], Callable[[], Any]]

_lock = threading.Lock()
_subscribers: tuple[Subscriber, ...] = ()


def subscribe(around: Subscriber) -> None:
    """around(roots, grads) is called before each backward, in its thread, and what that returns when the backward ends. Twice is once."""
    global _subscribers
    with _lock:
        if around not in _subscribers:
            _subscribers = (*_subscribers, around)
        _install()


def unsubscribe(around: Subscriber) -> None:
    global _subscribers
    with _lock:
        _subscribers = tuple(other for other in _subscribers if other != around)  # a method is another object each time
        if not _subscribers:
            _uninstall()


class _Announced:
    """`_engine_run_backward` among its subscribers. A class, because functools.wraps copies the attributes of a function."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run = run
        functools.update_wrapper(self, run, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        endings: list[Callable[[], Any]] = []
        try:
            for around in _subscribers:
                endings.append(around(*args[:2]))
            return self.run(*args, **kwargs)
        finally:
            for end in reversed(endings):
                end()


def _install() -> None:
    for owner in backward_owners:
        if not isinstance(owner._engine_run_backward, _Announced):
            owner._engine_run_backward = _Announced(owner._engine_run_backward)


def _uninstall() -> None:
    """Torch's function again, unless somebody has put another in front of ours: that one stays, and ours behind it does nothing."""
    for owner in backward_owners:
        if isinstance(owner._engine_run_backward, _Announced):
            owner._engine_run_backward = owner._engine_run_backward.run
