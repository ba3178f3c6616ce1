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
    thread, lock, ended = ctypes.c_ulong(threading.get_ident()), threading.Lock(), threading.Event()

    def interrupt() -> None:
        wait = seconds
        while not ended.wait(wait):
            with lock:  # so that nothing is raised after the end
                if not ended.is_set():
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TimeIsUp))
            wait = _REPEAT

    try:
        # Inside the try: the error may come before the next line.
        threading.Thread(target=interrupt, name="pseudograd time limit", daemon=True).start()
        yield
    finally:
        _end(lock, ended)


def _end(lock: threading.Lock, ended: threading.Event) -> None:
    """Raise an error of the last moment once no other can follow it. An error that was asked for comes here, where `set` is entered.

    Do not take it back instead: Python then expects an error for ever, which slows every call of the process, and Python 3.11 never
    enters a function that a debugger, a profiler or coverage watches.
    """
    late: TimeIsUp | None = None
    has_ended = False
    while not has_ended:
        try:
            with lock:
                ended.set()
            has_ended = True
        except TimeIsUp as error:
            late = error
    if late is not None:
        raise late
