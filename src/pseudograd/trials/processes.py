"""A pool of processes in which trials give what they give in this one, to the bit."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, process

import torch

from ..errors import must
from ..rule import Rule


@contextlib.contextmanager
def pool(where: str, jobs: int, modules: tuple[str, ...]) -> Iterator[ProcessPoolExecutor]:
    """Processes that compute with as many threads as this one: sums are ordered by threads, and the numbers must not depend on `jobs`."""
    before = set(multiprocessing.active_children())
    executor = ProcessPoolExecutor(
        jobs, multiprocessing.get_context("spawn"), _prepare, (list(sys.path), torch.get_num_threads(), modules)
    )
    try:
        yield executor
        executor.shutdown()
    except BaseException as error:  # nobody waits for the runs that others have begun
        executor.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
            child.join()
        if not isinstance(error, process.BrokenProcessPool):
            raise
        remedy = "What it printed says why; a script must call this below `if __name__ == '__main__':`"
        raise ValueError(
            must(where, "jobs", "be processes that live to the end", "one that did not", remedy)
        ) from error


def _prepare(path: list[str], threads: int, modules: tuple[str, ...]) -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process hears it, and ends the others
    sys.path[:] = path
    torch.set_num_threads(threads)
    for name in modules:
        importlib.import_module(name)


def modules_of(rows: Iterable[Rule]) -> tuple[str, ...]:
    """Where rules of the user's were registered: another process has them once it has imported these."""
    return tuple(sorted({_module_of(row.author) for row in rows} - {"", "__main__"}))


def _module_of(path: str) -> str:
    """Of "package.module.outer.function", what can be imported."""
    while path and path not in sys.modules:
        path = path.rpartition(".")[0]
    return path
