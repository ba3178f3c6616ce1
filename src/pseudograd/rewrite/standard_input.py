"""The standard input of a program that is run again and again: each run gets the whole of it."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import threading
from collections.abc import Iterator


class StandardInput:
    """A file is wound back before each run; what comes through a pipe is kept as it comes; a terminal each run asks for itself."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._chunks: list[bytes] = []
        self._has_ended = False
        self._reader: threading.Thread | None = None
        self._changed = threading.Condition()
        try:
            kind = os.fstat(descriptor).st_mode
        except OSError:  # closed
            kind = None
        self._is_file = kind is not None and stat.S_ISREG(kind)
        self._is_pipe = kind is not None and (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind))
        self._is_closed = kind is None
        self._start = os.lseek(descriptor, 0, os.SEEK_CUR) if self._is_file else None

    @contextlib.contextmanager
    def open_for_run(self) -> Iterator[int | None]:
        """What subprocess takes as stdin; None: this process's own."""
        if self._start is not None:
            os.lseek(self._descriptor, self._start, os.SEEK_SET)
        if not self._is_pipe:
            yield subprocess.DEVNULL if self._is_closed else None
            return
        if self._reader is None:
            self._reader = threading.Thread(target=self._copy_input, daemon=True)
            self._reader.start()
        reading, writing = os.pipe()
        is_over = threading.Event()
        player = threading.Thread(target=self._play, args=(writing, is_over), daemon=True)
        player.start()
        try:
            yield reading
        finally:
            os.close(reading)
            is_over.set()
            with self._changed:
                self._changed.notify_all()
            player.join()

    def _copy_input(self) -> None:
        chunk: bytes | None = None
        while chunk != b"":
            try:
                chunk = os.read(self._descriptor, 1 << 16)
            except OSError:
                chunk = b""
            with self._changed:
                if chunk:
                    self._chunks.append(chunk)
                else:
                    self._has_ended = True
                self._changed.notify_all()

    def _play(self, descriptor: int, is_over: threading.Event) -> None:
        """From the beginning, as fast as the program reads; then on as it comes."""
        with contextlib.suppress(OSError), os.fdopen(descriptor, "wb", buffering=0) as pipe:
            at = 0
            while (chunk := self._wait_for_chunk(at, is_over)) is not None:
                at += 1
                while chunk:
                    chunk = chunk[pipe.write(chunk) :]

    def _wait_for_chunk(self, at: int, is_over: threading.Event) -> memoryview | None:
        """None where the input or the run has ended."""
        with self._changed:
            while at == len(self._chunks) and not self._has_ended and not is_over.is_set():
                self._changed.wait()
            return None if at == len(self._chunks) or is_over.is_set() else memoryview(self._chunks[at])
