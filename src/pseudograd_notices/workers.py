"""Worker processes that end with the process that started them, even if that one is killed."""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.process import BaseProcess


def end_with_parent() -> None:
    """Make this process, which multiprocessing started, exit as soon as its parent has ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_wait_and_exit, args=(parent,), daemon=True).start()


def _wait_and_exit(parent: BaseProcess) -> None:
    parent.join()
    exit_with_children()


def exit_with_children(*signal_and_frame: object) -> None:
    """Exit at once, and end the processes that multiprocessing started here, which may outlive this one."""
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(1)
