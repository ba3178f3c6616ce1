"""Runs in each process of a program that a command follows: it begins when torch has been imported, and writes a part at the end.

A part is written whole or not at all: at a normal end, at os._exit, and at SIGTERM in the process that the command started. A process that
ends in another way leaves only its mark.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from .. import patches
from .files import write

_PATIENCE = 10.0  # seconds: SIGTERM and os._exit do not wait longer for a device that hangs
_DATA_WORKER = "torch.utils.data._utils.worker"
Handler = Callable[[int, FrameType | None], object] | int | None


@contextlib.contextmanager
def standard_library_first() -> Iterator[None]:
    """Inside, our imports find modules of Python itself, and no file of the program that has the name of such a module.

    At the end these modules are forgotten, so that the program imports its own files.
    """
    folder, before = os.path.dirname(os.__file__), set(sys.modules)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        for name in (set(sys.modules) - before) & sys.stdlib_module_names:
            spec = PathFinder.find_spec(name)
            if spec is not None and not (spec.origin or "").startswith(folder):
                for part in [part for part in sys.modules if f"{part}.".startswith(f"{name}.")]:
                    del sys.modules[part]


class Follower(Protocol):
    """Does the work of a command in a process. `begin(job, process)` of the module that the job names makes it."""

    def content(self) -> object:
        """The content of the part, made of plain records; None if there is nothing to report."""

    def forked(self) -> None:
        """Called in a process that was forked: forget what was seen, which belongs to the parent, and stop until the next `begin`."""


class Process:
    """One process of the program, and the files that it writes into the folder of the command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.job: dict[str, Any] = json.loads((folder / "job.json").read_text(encoding="utf-8"))
        self.follower: Follower | None = None
        self._rank: int | None = None
        self._start_afresh()

    def _start_afresh(self) -> None:
        """Take a new name, and note that nothing is written yet. A process that was forked does so, too."""
        self.name = f"{os.getpid()}-{time.time_ns()}"
        self._is_marked = self._is_written = False

    @property
    def is_main(self) -> bool:
        """Did the command itself start this process?"""
        return os.getppid() == self.job["parent"]

    def begin(self) -> None:
        try:
            with standard_library_first():
                module = importlib.import_module(self.job["module"])
            self.follower = module.begin(self.job, self)
        except Exception as error:
            self._note(error)

    def mark(self) -> None:
        """Note that this process has something to report."""
        if not self._is_marked:
            self._is_marked = True
            self._store("mark", json.dumps(self._who()))

    def _who(self) -> dict[str, object]:
        rank = _rank()  # None at the end, if the program has left its distributed job
        self._rank = self._rank if rank is None else rank
        return {"process": os.getpid(), "is_main": self.is_main, "rank": self._rank}

    def write(self) -> None:
        if self._is_written or not self._is_marked or self.follower is None:
            return
        self._is_written = True
        try:
            with standard_library_first():
                content = self.follower.content()
            if content is not None:
                self._store("part", pickle.dumps({**self._who(), "content": content}))
        except Exception as error:
            self._note(error)

    def write_in_time(self) -> None:
        """Write in another thread and wait for a limited time: this thread may hold a lock, and a device may hang."""
        if self._is_marked and not self._is_written:
            with contextlib.suppress(RuntimeError):  # no thread starts while the interpreter ends
                thread = threading.Thread(target=self.write, daemon=True)
                thread.start()
                thread.join(_PATIENCE)

    def _store(self, kind: str, content: str | bytes) -> None:
        with contextlib.suppress(ValueError):  # the command has ended, and its folder is gone
            write("", "", self.folder / f"{self.name}.{kind}", content)

    def _note(self, error: Exception) -> None:
        self._store("error", f"{type(error).__name__}: {error}")

    # --- processes that begin in another way --------------------------------------------------------------------------

    def await_bootstrap(self) -> None:
        """Begin when multiprocessing runs the task of this process, unless the task is to load data: such workers are not followed."""
        importlib.import_module("multiprocessing.process")
        patches.BOOTSTRAP.apply(self._begin_in)

    def _begin_in(self, bootstrap: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(bootstrap)
        def begin_and_bootstrap(process: object, *arguments: object, **named: object) -> object:
            if getattr(getattr(process, "_target", None), "__module__", None) != _DATA_WORKER:
                self.begin()
            return bootstrap(process, *arguments, **named)

        return begin_and_bootstrap

    def forked(self) -> None:
        """Called in the child, inside os.fork."""
        try:
            if self.follower is not None:
                self.follower.forked()
            was_followed, self.follower = self.follower is not None, None
            self._start_afresh()
            caller = os.path.basename(sys._getframe(1).f_code.co_filename)
            if caller in ("popen_fork.py", "forkserver.py"):
                self.await_bootstrap()
            elif was_followed and caller != "subprocess.py":
                self.begin()
        except Exception as error:
            self._note(error)


def begin(folder: str) -> None:
    """Called once in a process, when torch has been imported."""
    process = Process(Path(folder))
    if process.is_main:
        _end_with(process.job["parent"])
    atexit.register(_write_at_exit, process)
    _before_exit(process)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=process.forked)
    if process.is_main:
        _before_sigterm(process)  # a child forgets what its parent saw before SIGTERM reaches the child
    if _is_being_spawned():
        process.await_bootstrap()
    else:
        process.begin()


def _write_at_exit(process: Process) -> None:
    """Write at the end. A program that a KeyboardInterrupt ended still ends by SIGINT, as python lets it."""
    process.write()
    if getattr(sys, "last_type", None) is KeyboardInterrupt:
        # python forgets the interrupt at the next string of code that runs, such as that of a dataclass which `write` imports
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")


def _is_being_spawned() -> bool:
    module = sys.modules.get("multiprocessing.process")
    return module is not None and getattr(module.current_process(), "_inheriting", False)


def _rank() -> int | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    with contextlib.suppress(ValueError):
        return int(os.environ.get("RANK", ""))
    return None


def _end_with(parent: int) -> None:
    """End the program if the command is killed, because its user meant the program."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(Exception):
            import ctypes

            ctypes.CDLL(None).prctl(1, int(signal.SIGTERM), 0, 0, 0)  # PR_SET_PDEATHSIG
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGTERM)


def _before_exit(process: Process) -> None:
    """Write before os._exit, which skips the atexit handlers. Every forked child of multiprocessing ends in this way."""

    def wrap(leave: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(leave)
        def write_and_leave(*status: object, **named: object) -> object:
            process.write_in_time()
            return leave(*status, **named)

        return write_and_leave

    patches.EXIT.apply(wrap)


def _before_sigterm(process: Process) -> None:
    """Write before SIGTERM ends the process, if the program does not handle SIGTERM. The program does not see our handler.

    Its children have none. A handler in Python waits for the main thread to return to Python, and one that waits in C++, as for a rank that
    never comes, would live on although its parent ends it.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(os, "kill") or os.name == "nt":
        return
    set_handler, handler_of = signal.signal, signal.getsignal

    def stop(number: int, frame: object) -> None:
        process.write_in_time()
        set_handler(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def hide_ours(handler: object) -> object:
        return signal.SIG_DFL if handler is stop else handler

    @functools.wraps(set_handler)
    def set_visible_handler(number: int, handler: Handler) -> object:
        is_default = number == signal.SIGTERM and handler == signal.SIG_DFL and process.is_main
        return hide_ours(set_handler(number, stop if is_default else handler))

    @functools.wraps(handler_of)
    def visible_handler_of(number: int) -> object:
        return hide_ours(handler_of(number))

    masks = threading.local()

    def block() -> None:
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def unblock_in_child() -> None:
        if handler_of(signal.SIGTERM) is stop:
            set_handler(signal.SIGTERM, signal.SIG_DFL)
        unblock()

    if handler_of(signal.SIGTERM) == signal.SIG_DFL:
        set_handler(signal.SIGTERM, stop)
    # A child forgets a signal that has a handler and arrives before the child leaves os.fork.
    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=unblock_in_child)
    patches.SET_SIGNAL.apply(lambda hidden: set_visible_handler)
    patches.GET_SIGNAL.apply(lambda hidden: visible_handler_of)
