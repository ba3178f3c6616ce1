"""A limit on the time of a run, in whatever thread and on whatever system it is."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator

_AGAIN = 1.0  # seconds: until it is asked once more, of a run that went on all the same


class TimeIsUp(BaseException):
    """Raised inside the run at its next line of Python. No Exception: a run that goes on after errors ends, too."""


@contextlib.contextmanager
def at_most(seconds: float | None) -> Iterator[None]:
    """Raises TimeIsUp in what is inside after so many seconds; None: never. What runs in C ends first."""
    if seconds is None:
        yield
        return
    limit = _Limit(threading.get_ident(), seconds)
    try:
        limit.start()  # inside: it may come before the next line
        yield
    finally:
        _end(limit)


def _end(limit: _Limit) -> None:
    """Whatever comes in the last moment is raised once it can come no more."""
    late: TimeIsUp | None = None
    while not limit.has_ended:
        try:
            limit.end()
        except TimeIsUp as error:
            late = error
    if late is not None:
        raise late


class _Limit(threading.Thread):
    def __init__(self, of: int, seconds: float) -> None:
        super().__init__(name="pseudograd time limit", daemon=True)
        self._of, self._seconds = of, seconds
        self._lock, self._ended = threading.Lock(), threading.Event()
        self.has_ended = False

    def run(self) -> None:
        wait = self._seconds
        while not self._ended.wait(wait):
            with self._lock:  # so that nothing is raised after `end`
                if not self._ended.is_set():
                    _raise_in(self._of, TimeIsUp)
            wait = _AGAIN

    def end(self) -> None:
        """What was asked for and has not come yet comes here, where `set` is entered.

        It must not be taken back instead: python then believes for ever that something is to be raised, which slows every call of the
        process, and 3.11 never gets into a function that a debugger, a profiler or coverage watches.
        """
        with self._lock:
            self._ended.set()
        self.has_ended = True


def _raise_in(thread: int, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))
