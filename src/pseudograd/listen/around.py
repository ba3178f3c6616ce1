"""One hook around a function of torch that has none of its own, to which others subscribe."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

Ending = Callable[[], None]
Subscriber = Callable[..., Ending | None]


class Around:
    """Of owner.name. announced(function): what stands in its place, with its arguments in order; it calls `begins` and `ends`."""

    def __init__(
        self, owner: object, name: str, announced: Callable[[Callable[..., Any]], Callable[..., object]]
    ) -> None:
        self._owner, self._name, self._announced = owner, name, announced
        self._lock = threading.RLock()
        self._installed: tuple[Any, Any] | None = None  # ours, and what it stands in front of
        self.subscribers: tuple[Subscriber, ...] = ()

    def subscribe(self, around: Subscriber) -> None:
        """around(*arguments) is called before each call, and what that returns after it. The subscriber sees to it that neither raises."""
        with self._lock:
            self.subscribers = (*self.subscribers, around)
            if not self.is_in_place:
                here = getattr(self._owner, self._name)
                ours = functools.wraps(here, updated=())(self._announced(here))
                self._installed = ours, here
                setattr(self._owner, self._name, ours)

    def unsubscribe(self, around: Subscriber) -> None:
        """With the last, torch's function is back, unless somebody has put another in front of ours: then ours does nothing."""
        with self._lock:
            self.subscribers = tuple(other for other in self.subscribers if other != around)
            if not self.subscribers and self._installed is not None:
                if self.is_in_place:
                    setattr(self._owner, self._name, self._installed[1])
                self._installed = None

    @property
    def is_in_place(self) -> bool:
        return self._installed is not None and getattr(self._owner, self._name) is self._installed[0]

    def begins(self, *arguments: object) -> list[Ending | None]:
        return [around(*arguments) for around in self.subscribers]


def ends(endings: list[Ending | None]) -> None:
    for end in endings:
        if end is not None:
            end()
