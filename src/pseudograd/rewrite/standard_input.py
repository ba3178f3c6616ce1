"""The standard input of a program that is run again and again: each run gets all of it."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import threading
from collections.abc import Iterator


class StandardInput:
    """Each run reads a file from where it stood at first, or gets a copy of what came through a pipe, or reads a terminal itself."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._content = b""
        self._reader: threading.Thread | None = None
        try:
            kind = os.fstat(descriptor).st_mode
        except OSError:  # closed
            kind = None
        self._is_closed = kind is None
        self._is_pipe = kind is not None and (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind))
        self._start = os.lseek(descriptor, 0, os.SEEK_CUR) if kind is not None and stat.S_ISREG(kind) else None

    @contextlib.contextmanager
    def open_for_run(self) -> Iterator[int | None]:
        """The argument stdin of subprocess for one run; None for that of this process."""
        if self._start is not None:
            os.lseek(self._descriptor, self._start, os.SEEK_SET)
        if not self._is_pipe:
            yield subprocess.DEVNULL if self._is_closed else None
            return
        if self._reader is None:
            self._reader = threading.Thread(target=self._read, daemon=True)
            self._reader.start()
        reading, writing = os.pipe()
        threading.Thread(target=self._feed, args=(self._reader, writing), daemon=True).start()
        try:
            yield reading
        finally:
            os.close(reading)

    def _read(self) -> None:
        with contextlib.suppress(OSError), os.fdopen(self._descriptor, "rb", closefd=False) as pipe:
            self._content = pipe.read()

    def _feed(self, reader: threading.Thread, descriptor: int) -> None:
        """Write the whole input for a run, after the pipe has ended. A run that reads nothing does not wait for it."""
        with contextlib.suppress(OSError), os.fdopen(descriptor, "wb") as pipe:
            reader.join()
            pipe.write(self._content)
