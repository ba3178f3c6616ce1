"""Of which steps everything is kept, and of which the losses alone."""

from __future__ import annotations

from typing import NamedTuple

_FIRST, _EVERY = 6, 25
MOST = 20_000  # digests of one step; a step that has more is kept up to there


class Schedule(NamedTuple):
    """All of steps 1 to `first`, and of every `every`-th; or of a window alone, behind which the program ends. 0: of none."""

    first: int = _FIRST
    every: int = _EVERY
    window: tuple[int, int] | None = None

    def has(self, step: int) -> bool:
        if self.window is not None:
            return self.window[0] <= step <= self.window[1]
        return step <= self.first or (self.every > 0 and step % self.every == 0)

    def is_over(self, step: int) -> bool:
        """Is there nothing left to see from this step on?"""
        return self.window is not None and step > self.window[1]


LOSSES_ALONE = Schedule(0, 0)
