"""Ctrl-C and SIGTERM: a stopped command cleans up, and a block that must not be interrupted runs to its end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], object]
_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


class Stopped(KeyboardInterrupt):
    """A signal asked the command to stop. The command line prints the text of this exception.

    known: the part of the answer that the command has so far. The command line prints it first.
    """

    known = ""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {_NAMES[signal.Signals(number)]}")
        self.status = 128 + number


@contextmanager
def stoppable() -> Iterator[None]:
    """Both signals raise Stopped inside this block. Otherwise SIGTERM would end the process without cleaning up."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    with handle_signals(dict.fromkeys(_NAMES, stop)):
        yield


@contextmanager
def hold_signals() -> Iterator[None]:
    """A signal that arrives inside this block is raised again at its end."""
    waiting: list[int] = []
    try:
        with handle_signals(dict.fromkeys(_NAMES, lambda number, frame: waiting.append(number))):
            yield
    finally:
        for number in waiting:
            signal.raise_signal(number)


@contextmanager
def handle_signals(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Handle these signals inside this block, in the main thread; but not those that are ignored (nohup) or handled outside of Python."""
    in_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in handlers} if in_main else {}
    changed = {number: old for number, old in before.items() if old not in (None, signal.SIG_IGN)}
    try:
        for number in changed:
            signal.signal(number, handlers[number])
        yield
    finally:
        for number, old in changed.items():
            signal.signal(number, old)
