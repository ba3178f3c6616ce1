"""A limit on the time of a run, in any thread and on any system."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator

_REPEAT = 1.0  # seconds until the error is raised once more in a run that goes on all the same


class TimeIsUp(BaseException):
    """Raised inside the run at its next line of Python. It is no Exception, so that a run which goes on after errors ends, too."""


@contextlib.contextmanager
def limit_time(seconds: float | None) -> Iterator[None]:
    """Raise TimeIsUp in the body after so many seconds; None: never. A call into C ends first."""
    if seconds is None:
        yield
        return
    limit = _Limit(threading.get_ident(), seconds)
    try:
        limit.start()  # inside the try: the error may come before the next line
        yield
    finally:
        _end(limit)


def _end(limit: _Limit) -> None:
    """Raise an error of the last moment once no other can follow it."""
    late: TimeIsUp | None = None
    while not limit.has_ended:
        try:
            limit.end()
        except TimeIsUp as error:
            late = error
    if late is not None:
        raise late


class _Limit(threading.Thread):
    def __init__(self, thread: int, seconds: float) -> None:
        super().__init__(name="pseudograd time limit", daemon=True)
        self._thread, self._wait = thread, seconds
        self._lock, self._ended = threading.Lock(), threading.Event()
        self.has_ended = False

    def run(self) -> None:
        while not self._ended.wait(self._wait):
            with self._lock:  # so that nothing is raised after `end`
                if not self._ended.is_set():
                    thread, error = ctypes.c_ulong(self._thread), ctypes.py_object(TimeIsUp)
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, error)
            self._wait = _REPEAT

    def end(self) -> None:
        """An error that was asked for and has not come yet comes here, where `set` is entered.

        Do not take it back instead: Python then expects an error for ever, which slows every call of the process, and Python 3.11 never
        enters a function that a debugger, a profiler or coverage watches.
        """
        with self._lock:
            self._ended.set()
        self.has_ended = True
