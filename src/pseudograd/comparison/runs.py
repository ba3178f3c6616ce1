"""Runs: a variant with a seed, what came of it, and who makes it: this process, other processes, or a folder of finished runs."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, process
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from ..errors import must
from .reached import Reached
from .store import FingerprintError, Store, fingerprint
from .variants import users_rows


class Run(NamedTuple):
    """One training of one variant with one seed. steps: how long a shortened run is, None for a whole one."""

    variant: str
    seed: int
    steps: int | None = None


@dataclass
class Outcome:
    """The result of one run: numbers for tables and arrays for figures; neither where it failed, and `failure` says what it raised.

    seeds: if the run measures several seeds at once, the number that matters most for each of them, in the same order for every variant;
    its mean is in `numbers`. has_acted: whether the variant's clamp, or its rewriting, did anything. draws: False where the run provably
    drew no random numbers. reached: what the rewriting of an unedited program reached. is_late: the run failed because of a time limit, so
    it is not stored, because the next limit may be another one.
    """

    numbers: dict[str, float]
    arrays: dict[str, Any] = field(default_factory=dict)
    seeds: tuple[float, ...] = ()
    failure: str | None = None
    has_acted: bool = True
    seconds: float = 0.0
    draws: bool = True
    reached: Reached = field(default_factory=Reached)
    is_late: bool = False


class Experiment(Protocol):
    """Something that is measured in every variant. Other processes get it pickled.

    rules: those of the variants, by name or as objects. depends_on: all that decides an outcome, beside the run.
    """

    @property
    def name(self) -> str: ...
    @property
    def variants(self) -> Sequence[str]: ...
    @property
    def rules(self) -> Sequence[Any]: ...
    @property
    def depends_on(self) -> object: ...
    def measure(self, run: Run) -> Outcome: ...
    def check_travels(self) -> None: ...  # raises our error if other processes could not make its runs


E = TypeVar("E", bound=Experiment)
OnRun = Callable[[Any, Run, int, int], object]


@contextlib.contextmanager
def open_runner(
    where: str,
    experiments: Sequence[Experiment],
    on_run: OnRun,
    *,
    jobs: int = 1,
    executor: object = None,
    store: Store | None = None,
) -> Iterator[Runner]:
    """A Runner in so many processes, or in those of an executor. `where`: the public function that errors name."""
    rules = [rule for experiment in experiments for rule in experiment.rules]
    modules = {_module_name(row.author) for row in users_rows(rules)} - {"", "__main__"}
    setup = Setup(
        where, (socket.gethostname(), os.getpid()), torch.get_num_threads(), tuple(sys.path), tuple(sorted(modules))
    )
    if executor is not None:
        with _borrowed(executor, setup) as others:
            yield Runner(where, experiments, on_run, others, store)
    elif jobs > 1:
        for experiment in experiments:
            experiment.check_travels()
        with _pool(where, jobs) as pool:
            yield Runner(where, experiments, on_run, Workers(pool, setup), store)
    else:
        yield Runner(where, experiments, on_run, None, store)


@dataclass
class Runner:
    """Makes runs, or reads them from the store. `notes`: what a reader of the outcomes has to know about stored runs.

    workers: None is this process. on_run(experiment, run, done, total) is called before each run.
    """

    where: str
    experiments: Sequence[Experiment]
    on_run: OnRun
    workers: Workers | None
    store: Store | None
    _not_stored: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        try:  # now: a run may change what it holds
            stored = self.experiments if self.store is not None else ()
            self._keys = {experiment.name: fingerprint(experiment.depends_on) for experiment in stored}
        except FingerprintError as error:
            self.store, self._not_stored = None, (f"Nothing was kept: {error}",)
            warnings.warn(f"{self.where}: nothing is kept: {error}", stacklevel=8)

    @property
    def notes(self) -> tuple[str, ...]:
        return self._not_stored if self.store is None else self.store.notes

    def outcomes(
        self, plan: Sequence[tuple[E, Run]], done: int = 0, total: int = 0
    ) -> Iterator[tuple[E, Run, Outcome]]:
        """In the order of the plan. `done`: so many of `total` runs, to which these belong, were made before."""
        stored = [self._stored(experiment, run) for experiment, run in plan]
        missing = [item for item, outcome in zip(plan, stored, strict=True) if outcome is None]
        futures = iter([self.workers.submit(*item) for item in missing] if self.workers else [])
        done += len(plan) - len(missing)
        for (experiment, run), outcome in zip(plan, stored, strict=True):
            if outcome is None:
                self.on_run(experiment, run, done, total or len(plan))
                outcome = self.workers.result(next(futures)) if self.workers else experiment.measure(run)
                if self.store is not None and not outcome.is_late:
                    self.store.write(self._key(experiment, run), asdict(outcome))
                done += 1
            yield experiment, run, outcome

    def _stored(self, experiment: Experiment, run: Run) -> Outcome | None:
        stored = None if self.store is None else self.store.read(self._key(experiment, run))
        return None if stored is None else Outcome(**{**stored, "reached": Reached(**stored["reached"])})

    def _key(self, experiment: Experiment, run: Run) -> dict[str, object]:
        return {"key": self._keys[experiment.name], "of": experiment.name, **run._asdict()}


# --- processes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setup:
    """What another process needs to give the same numbers: as many threads, and the modules that register rules."""

    where: str
    process: tuple[str, int]  # host and process that ask
    threads: int
    path: tuple[str, ...]
    modules: tuple[str, ...]


def _measure(setup: Setup, experiment: Experiment, run: Run) -> Outcome:
    """In another process. Arrays go back as numpy's, because torch would share their memory, which goes with the process."""
    is_here = (socket.gethostname(), os.getpid()) == setup.process
    if is_here and threading.current_thread() is not threading.main_thread():
        remedy = "Threads share one state of random numbers; use processes, or leave it out"
        raise ValueError(must(setup.where, "executor", "run things in processes of their own", "threads", remedy))
    sys.path += [folder for folder in setup.path if folder not in sys.path]
    for name in setup.modules:
        importlib.import_module(name)
    before = torch.get_num_threads()
    torch.set_num_threads(setup.threads)  # the order of sums depends on them
    try:
        outcome = experiment.measure(run)
    finally:
        torch.set_num_threads(before)
    return replace(outcome, arrays={key: value.numpy() for key, value in outcome.arrays.items()})


@dataclass
class Workers:
    """Processes that make runs: anything with `submit`, as concurrent.futures has it."""

    executor: Any
    setup: Setup
    futures: list[Any] = field(default_factory=list)

    def submit(self, experiment: Experiment, run: Run) -> Any:
        with self._sending():
            self.futures.append(self.executor.submit(_measure, self.setup, experiment, run))
        return self.futures[-1]

    def result(self, future: Any) -> Outcome:
        with self._sending():
            outcome: Outcome = future.result()
        return replace(outcome, arrays={key: torch.from_numpy(value) for key, value in outcome.arrays.items()})

    @contextlib.contextmanager
    def _sending(self) -> Iterator[None]:
        try:
            yield
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            if "pickle" not in str(error) and "get attribute" not in str(error):
                raise
            text = " ".join(str(error).split())[:200]
            remedy = "Define run and variants at the top of a module, or use an executor that takes functions apart, as loky and dask do"
            raise ValueError(must(self.setup.where, "run", "be what the executor can send", text, remedy)) from error


@contextlib.contextmanager
def _borrowed(executor: object, setup: Setup) -> Iterator[Workers]:
    """The user's processes, which stay open. After an error the runs that have not begun are cancelled."""
    if not callable(getattr(executor, "submit", None)):
        remedy = "Such as concurrent.futures.ProcessPoolExecutor(), or Client(...).get_executor() of dask"
        raise TypeError(must(setup.where, "executor", "have a method submit", executor, remedy))
    workers = Workers(executor, setup)
    try:
        yield workers
    except BaseException:
        for future in workers.futures:
            if hasattr(future, "cancel"):
                future.cancel()
        raise


@contextlib.contextmanager
def _pool(where: str, jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Processes of our own. After an error they are ended at once, with the runs that they have begun."""
    before = set(multiprocessing.active_children())
    # Ctrl-C is for the first process, which ends the others.
    ignored = (signal.SIGINT, signal.SIG_IGN)
    executor = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), signal.signal, ignored)
    try:
        yield executor
        executor.shutdown()
    except BaseException as error:
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


def _module_name(path: str) -> str:
    """The module in "package.module.outer.function"."""
    while path and path not in sys.modules:
        path = path.rpartition(".")[0]
    return path
