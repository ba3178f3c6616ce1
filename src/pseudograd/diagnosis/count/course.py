"""How a number went over the steps of a program, in bounded memory."""

from __future__ import annotations

from typing import Any

_KEPT = 32  # values; when there are twice as many, every second one is dropped


class Course:
    """Values by step, the first and the last among them. A value may be a 0-d tensor of a device, which is read at the end."""

    def __init__(self) -> None:
        self._all: list[tuple[int, Any]] = []
        self._every = 1
        self._count = 0
        self._last: tuple[int, Any] | None = None

    @property
    def is_wanted(self) -> bool:
        """Will the next value be kept?"""
        return self._count % self._every == 0

    def add(self, step: int, value: object) -> None:
        if self.is_wanted:
            self._all.append((step, value))
            if len(self._all) > 2 * _KEPT:
                self._all = self._all[::2]
                self._every *= 2
        self._count += 1
        self._last = step, value

    @property
    def kept(self) -> list[tuple[int, Any]]:
        """Each value with its step."""
        some = list(self._all)
        if self._last is not None and some and some[-1][0] != self._last[0]:
            some.append(self._last)
        return some

    @property
    def values(self) -> tuple[tuple[int, float], ...]:
        return tuple((step, float(value)) for step, value in self.kept)
