"""Hooks around functions of torch that have none of their own, to which others subscribe: each backward, swaps of tensors, zero_grad."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any

from . import patches

Ending = Callable[[Any], object]  # gets the result of the call
Subscriber = Callable[..., Ending | None]


class Around:
    """A hook around the functions that `patches` name. read(arguments of a call): those that a subscriber gets."""

    def __init__(self, replaced: Iterable[patches.Patch], read: Callable[..., tuple[object, ...]]) -> None:
        self._patches, self._receive = tuple(replaced), read
        self._lock = threading.RLock()
        self.subscribers: tuple[Subscriber, ...] = ()

    def subscribe(self, subscriber: Subscriber) -> None:
        """subscriber(*arguments) is called before each call, in its thread. The function that it returns is called after the call, with the
        result, with () for None, or with None where the call raised. To subscribe twice is to subscribe once. A subscriber must not raise.
        """
        with self._lock:
            if subscriber not in self.subscribers:
                self.subscribers = (*self.subscribers, subscriber)
            patches.apply_all(dict.fromkeys(self._patches, self._announced))

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """With the last subscriber, torch has its own function again."""
        with self._lock:  # a method is another object each time
            remaining = list(self.subscribers)
            if subscriber in remaining:
                remaining.remove(subscriber)
            self.subscribers = tuple(remaining)
            if not remaining:
                patches.remove_all(self._patches)

    def _announced(self, function: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(function, updated=())
        def call(*args: object, **kwargs: object) -> object:
            arguments, subscribers = self._receive(*args, **kwargs), self.subscribers
            outcome: object = None
            if len(subscribers) == 1:  # the usual case, written out for small backwards
                end = subscribers[0](*arguments)
                try:
                    result = function(*args, **kwargs)
                    outcome = () if result is None else result
                    return result
                finally:
                    if end is not None:
                        end(outcome)
            endings: list[Ending | None] = []
            try:
                for subscriber in subscribers:
                    endings.append(subscriber(*arguments))
                result = function(*args, **kwargs)
                outcome = () if result is None else result
                return result
            finally:
                _end(endings, outcome)

        return call


def _end(endings: list[Ending | None], result: object) -> None:
    """The last first. Each is called, whatever another of them raises."""
    while endings:
        end = endings.pop()
        try:
            if end is not None:
                end(result)
        finally:
            _end(endings, result)


def _backward_arguments(
    roots: object, grads: object = None, *switches: object, inputs: object = None, **others: object
) -> tuple[object, ...]:
    """Of `_engine_run_backward`, as torch itself calls it: two switches stand before the inputs."""
    return roots, grads, switches[2] if len(switches) > 2 else inputs


# subscriber(roots, their gradients, inputs whose gradients are asked for)
backwards = Around(patches.BACKWARD, _backward_arguments)
# subscriber(tensor, other tensor): by a swap a module changes what its parameters are
swaps = Around([patches.SWAP_TENSORS], lambda t1, t2: (t1, t2))
# subscriber(optimizer, set_to_none)
clearings = Around([patches.ZERO_GRAD], lambda self, set_to_none=True: (self, set_to_none))
