"""Runs, each of a variant with a seed, and their outcomes. This process or other processes make a run, or a folder has it already."""

from __future__ import annotations

import contextlib
import functools
import importlib
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, process
from dataclasses import asdict, dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

import torch
from torch import Tensor

from pseudograd_notices.workers import end_with_parent, exit_with_children

from ..errors import must
from ..listen.program.signals import hold_signals
from ..rule import RuleLike
from .reached import Reach
from .store import FingerprintError, Store, fingerprint
from .variants import users_rows


class Run(NamedTuple):
    """One training of one variant with one seed. steps: how long a shortened run is, None for a whole one."""

    variant: str
    seed: int
    steps: int | None = None


@dataclass
class Outcome:
    """The result of one run. A run that failed has a `failure` and neither numbers nor arrays.

    numbers: the numbers for tables, by name.
    arrays: the numbers for figures.
    seeds: if the run measures several seeds at once, the most important number of each seed, in the same order for every variant; `numbers`
        has the mean.
    failure: the error with which the run ended.
    has_acted: the variant's clamp was called, or its rewriting changed a call.
    has_drawn: the run moved a generator that its seed sets.
    reached: the calls that the rewriting of an unedited program reached.
    """

    numbers: dict[str, float]
    arrays: dict[str, Tensor] = field(default_factory=dict)
    seeds: tuple[float, ...] = ()
    failure: str | None = None
    has_acted: bool = True
    has_drawn: bool = True
    reached: Reach = field(default_factory=Reach)

    def __getstate__(self) -> dict[str, object]:
        """Arrays are sent as numpy arrays. Tensors would share their memory, which ends with the process."""
        return {**vars(self), "arrays": {name: array.numpy() for name, array in self.arrays.items()}}

    def __setstate__(self, state: dict[str, object]) -> None:
        arrays = cast("dict[str, object]", state["arrays"])
        vars(self).update(state, arrays={name: torch.as_tensor(array) for name, array in arrays.items()})


class Experiment(Protocol):
    """A thing that is measured in every variant, such as a training. Other processes get it pickled.

    rules: the rules of the variants, as names or objects.
    depends_on: all that decides an outcome, except the run.
    check_can_be_sent: raises an error if other processes could not make the runs.
    """

    @property
    def name(self) -> str: ...
    @property
    def variants(self) -> Sequence[str]: ...
    @property
    def rules(self) -> Sequence[RuleLike]: ...
    @property
    def depends_on(self) -> object: ...
    def measure(self, run: Run) -> Outcome: ...
    def check_can_be_sent(self) -> None: ...


class Executor(Protocol):
    """Processes that make runs, as concurrent.futures has them."""

    def submit(self, function: Callable[..., Outcome], /, *arguments: object) -> Future[Outcome]: ...


_PATIENCE = 5.0  # seconds that workers have to end after SIGTERM
E = TypeVar("E", bound=Experiment)
OnRun = Callable[[E, Run, int, int], object]


@contextlib.contextmanager
def open_runner(
    where: str,
    experiments: Sequence[E],
    on_run: OnRun[E],
    *,
    jobs: int = 1,
    executor: object = None,
    store: Store | None = None,
) -> Iterator[Runner[E]]:
    """A Runner in `jobs` processes, or in the processes of an executor. where: the public function that errors name."""
    if executor is not None and not callable(getattr(executor, "submit", None)):
        remedy = "Such as concurrent.futures.ProcessPoolExecutor(), or Client(...).get_executor() of dask"
        raise TypeError(must(where, "executor", "have a method submit", executor, remedy))
    has_pool = executor is None and jobs > 1
    for experiment in experiments if has_pool else ():
        experiment.check_can_be_sent()
    with _pool(where, jobs) if has_pool else contextlib.nullcontext(executor) as processes:
        yield Runner(where, experiments, on_run, cast("Executor | None", processes), store)


@dataclass
class Runner(Generic[E]):
    """Makes runs, or reads them from the store.

    on_run: called before each run as on_run(experiment, run, done, total).
    executor: the processes that make the runs; None for this process.
    """

    where: str
    experiments: Sequence[E]
    on_run: OnRun[E]
    executor: Executor | None
    store: Store | None

    def __post_init__(self) -> None:
        try:  # before any run, because a run may change what its function holds
            stored = self.experiments if self.store is not None else ()
            self._keys = {experiment.name: fingerprint(experiment.depends_on) for experiment in stored}
        except FingerprintError as error:
            self.store = None
            warnings.warn(f"{self.where}: nothing is kept: {error}", stacklevel=8)

    def outcomes(
        self, plan: Sequence[tuple[E, Run]], done: int = 0, total: int = 0
    ) -> Iterator[tuple[E, Run, Outcome]]:
        """The outcomes in the order of the plan. The plan is a part of `total` runs, of which `done` were made before.

        After an error, the executor's runs that have not begun are cancelled.
        """
        stored = [self._read_stored(experiment, run) for experiment, run in plan]
        missing = [item for item, outcome in zip(plan, stored, strict=True) if outcome is None]
        futures: list[Future[Outcome]] = []
        done += len(plan) - len(missing)
        try:
            if self.executor is not None:
                measure = self._measure_elsewhere()
                with _blocked_ctrl_c():
                    for item in missing:
                        with _explain_pickle_errors(self.where):
                            futures.append(self.executor.submit(measure, *item))
            waiting = iter(futures)
            for (experiment, run), outcome in zip(plan, stored, strict=True):
                if outcome is None:
                    self.on_run(experiment, run, done, total or len(plan))
                    with _explain_pickle_errors(self.where) if futures else contextlib.nullcontext():
                        outcome = next(waiting).result() if futures else experiment.measure(run)
                    if self.store is not None:
                        self.store.write(self._key(experiment, run), asdict(outcome))
                    done += 1
                yield experiment, run, outcome
        except BaseException:
            for future in futures:
                if hasattr(future, "cancel"):  # not every executor has it
                    future.cancel()
            raise

    def _measure_elsewhere(self) -> Callable[..., Outcome]:
        """A function that makes a run in another process, where it gives the same numbers as here."""
        rules = [rule for experiment in self.experiments for rule in experiment.rules]
        modules = {_module_name(row.author) for row in users_rows(rules)} - {"", "__main__"}
        this_process, threads = (socket.gethostname(), os.getpid()), torch.get_num_threads()
        return functools.partial(_measure, self.where, this_process, threads, tuple(sys.path), sorted(modules))

    def _read_stored(self, experiment: E, run: Run) -> Outcome | None:
        stored = None if self.store is None else self.store.read(self._key(experiment, run))
        return None if stored is None else Outcome(**{**stored, "reached": Reach(**stored["reached"])})

    def _key(self, experiment: E, run: Run) -> dict[str, object]:
        return {"key": self._keys[experiment.name], "experiment": experiment.name, **run._asdict()}


def _measure(
    where: str,
    sender: tuple[str, int],
    threads: int,
    path: Sequence[str],
    modules: Sequence[str],
    experiment: Experiment,
    run: Run,
) -> Outcome:
    """Make a run in another process.

    sender: host and id of the process that asks for the run.
    path: the `sys.path` of that process.
    modules: the names of the modules that register rules.
    """
    is_sender = (socket.gethostname(), os.getpid()) == sender
    if is_sender and threading.current_thread() is not threading.main_thread():
        remedy = "Threads share one state of random numbers; use processes, or leave it out"
        raise ValueError(must(where, "executor", "run things in processes of their own", "threads", remedy))
    sys.path += [folder for folder in path if folder not in sys.path]
    for name in modules:
        importlib.import_module(name)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)  # the order of sums depends on them
    try:
        return experiment.measure(run)
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _explain_pickle_errors(where: str) -> Iterator[None]:
    """Replace an error of pickle by ours."""
    try:
        yield
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        if "pickle" not in str(error) and "get attribute" not in str(error):
            raise
        text = " ".join(str(error).split())[:200]
        remedy = "Define run and variants at the top of a module, or use an executor that takes functions apart, as loky and dask do"
        raise ValueError(must(where, "run", "be what the executor can send", text, remedy)) from error


@contextlib.contextmanager
def _pool(where: str, jobs: int) -> Iterator[ProcessPoolExecutor]:
    """An executor with processes of its own. After an error they are ended at once, in the middle of their runs."""
    before = set(multiprocessing.active_children())
    executor = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _start_worker)
    try:
        yield executor
        executor.shutdown()
    except BaseException as error:
        with hold_signals():  # a second signal must not leave workers, for which Python would wait at its end
            executor.shutdown(wait=False, cancel_futures=True)
            children = set(multiprocessing.active_children()) - before
            for child in children:
                child.terminate()
            end = time.monotonic() + _PATIENCE
            for child in children:
                child.join(max(0.0, end - time.monotonic()))
                child.kill()  # inside C code a worker does not answer `terminate`
        if not isinstance(error, process.BrokenProcessPool):
            raise
        remedy = "Its output says why; a script must call this below `if __name__ == '__main__':`"
        text = must(where, "jobs", "be processes that live to the end", "one that did not", remedy)
        raise ValueError(text) from error


@contextlib.contextmanager
def _blocked_ctrl_c() -> Iterator[None]:
    """A worker that starts in this block gets no Ctrl-C before `_start_worker`. Otherwise its import of torch would show a traceback."""
    if os.name == "nt":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker() -> None:
    """Ignore Ctrl-C: the main process gets it too, and ends this worker. Processes that the run started, such as DataLoader's, end with
    the worker.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.name != "nt":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    signal.signal(signal.SIGTERM, exit_with_children)
    end_with_parent()


def _module_name(path: str) -> str:
    """The module in "package.module.outer.function"."""
    while path and path not in sys.modules:
        path = path.rpartition(".")[0]
    return path
