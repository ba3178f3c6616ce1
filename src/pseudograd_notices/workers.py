"""Processes that work for another one end with it, also if that one is killed."""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.process import BaseProcess


def end_with_parent() -> None:
    """Called in a process of multiprocessing: it exits as soon as the process that started it has ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_wait_and_exit, args=(parent,), daemon=True).start()


def _wait_and_exit(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
