"""Somebody else's processes: anything with `submit`, as concurrent.futures has it."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import must


@dataclass(frozen=True)
class Setup:
    """What a trial needs in another process to give the same numbers as here: as many threads, and the modules that register rules."""

    where: str
    host: str
    process: int
    threads: int
    path: tuple[str, ...]
    modules: tuple[str, ...]

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        is_here = (socket.gethostname(), os.getpid()) == (self.host, self.process)
        if is_here and threading.current_thread() is not threading.main_thread():
            remedy = "Threads share one state of random numbers; use processes, or leave it out"
            raise ValueError(must(self.where, "executor", "run things in processes of their own", "threads", remedy))
        sys.path += [folder for folder in self.path if folder not in sys.path]
        for name in self.modules:
            importlib.import_module(name)
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)  # sums are ordered by them
        try:
            yield
        finally:
            torch.set_num_threads(before)


def setup(where: str, modules: tuple[str, ...]) -> Setup:
    here = socket.gethostname(), os.getpid()
    return Setup(where, *here, torch.get_num_threads(), tuple(sys.path), modules)


class Borrowed:
    """An executor that others made and will end. What it cannot send is our error; what is asked of it is taken back after an error."""

    def __init__(self, executor: Any, made: Setup) -> None:
        if not callable(getattr(executor, "submit", None)):
            remedy = "Such as concurrent.futures.ProcessPoolExecutor(), or Client(...).get_executor() of dask"
            raise TypeError(must(made.where, "executor", "have a method submit", executor, remedy))
        self._executor, self._setup = executor, made
        self._asked: list[object] = []

    def submit(self, f: Callable[..., object], *args: object) -> Any:
        with self._sending():
            future = self._executor.submit(_inside, self._setup, f, *args)
        self._asked.append(future)
        return _Future(future, self)

    def cancel(self) -> None:
        for future in self._asked:
            if hasattr(future, "cancel"):
                future.cancel()

    @contextlib.contextmanager
    def _sending(self) -> Iterator[None]:
        try:
            yield
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            if "pickle" not in str(error) and "get attribute" not in str(error):
                raise
            where, text = self._setup.where, " ".join(str(error).split())[:200]
            remedy = "Define run and variants at the top of a module, or use an executor that takes functions apart, as loky and dask do"
            raise ValueError(must(where, "run", "be what the executor can send", text, remedy)) from error


@dataclass(frozen=True)
class _Future:
    future: Any
    of: Borrowed

    def result(self) -> Any:
        with self.of._sending():
            return self.future.result()


def _inside(made: Setup, f: Callable[..., object], *args: object) -> object:
    with made.entered():
        return f(*args)
