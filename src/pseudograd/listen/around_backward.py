"""One hook around each backward of torch, to which others subscribe: in Tensor.backward, autograd.grad and autograd.backward."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from ..torch_table.private import backward_owners

Subscriber = Callable[[Any, object, object], Callable[[object], object]]

_lock = threading.RLock()
_subscribers: tuple[Subscriber, ...] = ()


def subscribe(around: Subscriber) -> None:
    """around(roots, grads, inputs) is called before each backward, in its thread, and what that returns when the backward ends, with the
    gradients of the inputs: none where they were added to leaves, None where it raised. Twice is once. The subscriber sees to it that
    neither raises.
    """
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

    def __init__(self, run: Callable[..., object]) -> None:
        self.run = run
        functools.update_wrapper(self, run, updated=())

    def __call__(self, *args: object, **kwargs: object) -> object:
        result: object = None
        subscribers = _subscribers
        if len(subscribers) == 1 and len(args) > 4:  # the usual case, written out for small backwards
            end = subscribers[0](args[0], args[1], args[4])
            try:
                found = self.run(*args, **kwargs)
                result = () if kwargs.get("accumulate_grad", False) else found
                return found
            finally:
                end(result)
        endings: list[Callable[[object], object]] = []
        try:
            for around in _subscribers:
                endings.append(around(args[0], _given(args, kwargs, 1), _given(args, kwargs, 4)))
            found = self.run(*args, **kwargs)
            result = () if kwargs.get("accumulate_grad", False) else found
            return found
        finally:
            _end(endings, result)


def _end(endings: list[Callable[[object], object]], result: object) -> None:
    """The last first. Each is called, whatever another of them raises."""
    while endings:
        end = endings.pop()
        try:
            end(result)
        finally:
            _end(endings, result)


def _given(args: tuple[object, ...], kwargs: dict[str, object], at: int) -> object:
    """As torch itself calls it: roots, their gradients, two switches, and the inputs whose gradients are asked for."""
    return args[at] if len(args) > at else kwargs.get("inputs") if at == 4 else None


def _install() -> None:
    for owner in backward_owners:
        if not isinstance(owner._engine_run_backward, _Announced):
            owner._engine_run_backward = _Announced(owner._engine_run_backward)


def _uninstall() -> None:
    """Torch's function again, unless somebody has put another in front of ours: that one stays, and ours behind it does nothing."""
    for owner in backward_owners:
        if isinstance(owner._engine_run_backward, _Announced):
            owner._engine_run_backward = owner._engine_run_backward.run
