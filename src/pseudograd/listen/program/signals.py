"""Ctrl-C and SIGTERM: a command that is stopped cleans up behind itself, and what must not be torn in two is not."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


class Stopped(KeyboardInterrupt):
    """A signal asked the command to stop. The command line says its text, and that nothing is left half-written.

    known: the part of the answer that the command has so far. The command line prints it first.
    """

    known = ""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {_NAMES[signal.Signals(number)]}")
        self.status = 128 + number


@contextmanager
def stoppable() -> Iterator[None]:
    """Both signals raise Stopped here; by itself SIGTERM would end the process where it stands."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    with _handled_by(stop):
        yield


@contextmanager
def hold_signals() -> Iterator[None]:
    """A signal that arrives here waits for the end of the block."""
    came: list[int] = []
    try:
        with _handled_by(lambda number, frame: came.append(number)):
            yield
    finally:
        for number in came:
            signal.raise_signal(number)


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Only the main thread may say who handles signals. One that is ignored (nohup), or that Python does not handle, stays so."""
    in_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in _NAMES} if in_main else {}
    changed = {number: old for number, old in before.items() if old not in (None, signal.SIG_IGN)}
    try:
        for number in changed:
            signal.signal(number, handler)
        yield
    finally:
        for number, old in changed.items():
            signal.signal(number, old)
