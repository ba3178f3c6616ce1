"""One runner for the worlds of tasks and for trainings of the user's: trials are made here or elsewhere, or found where they were kept."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, process
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from ..errors import must
from ..rule import Rule
from .executors import Borrowed, setup
from .fingerprints import FingerprintError, fingerprint
from .reached import Reached
from .store import Store
from .variants import users_rows


class Asked(NamedTuple):
    """steps: how long a shortened trial is, None for a whole one."""

    variant: str
    seed: int
    steps: int | None = None


@dataclass
class Outcome:
    """What one trial gave: numbers for tables and arrays for figures; none where it failed, and `failure` says what it raised.

    seeds: of a trial that measures several seeds at once, the number that matters most for each of them, in the same order for every
    variant; its mean is in `numbers`. reached: did the variant's clamp, or rewriting, do anything? draws: False where it provably drew no
    random numbers. came_upon: of an unedited program, what its rewriting reached. is_late: it failed for a limit of time, which may be
    another one tomorrow, so it is not kept.
    """

    numbers: dict[str, float]
    arrays: dict[str, Any] = field(default_factory=dict)
    seeds: tuple[float, ...] = ()
    failure: str | None = None
    reached: bool = True
    seconds: float = 0.0
    draws: bool = True
    came_upon: Reached = field(default_factory=Reached)
    is_late: bool = False


class Experiment(Protocol):
    """What is run in every variant. It travels into other processes, which pickle it.

    rules: those of the variants, by name or as objects. depends_on: all that decides a trial, beside the variant, the seed and the steps.
    """

    @property
    def name(self) -> str: ...
    @property
    def variants(self) -> Sequence[str]: ...
    @property
    def rules(self) -> Sequence[Any]: ...
    @property
    def depends_on(self) -> Any: ...
    def trial(self, variant: str, seed: int, steps: int | None = None) -> Outcome: ...
    def check_travels(self) -> None: ...  # raises our error if other processes could not run it


E = TypeVar("E", bound=Experiment)
OnTrial = Callable[[Any, Asked, int, int], object]


@contextlib.contextmanager
def runner(
    where: str,
    experiments: Sequence[Experiment],
    jobs: int,
    store: Store | None,
    on_trial: OnTrial,
    executor: object = None,
) -> Iterator[Runner]:
    """For trials of these, in so many processes, or in those of an executor. `where`: the public function that errors name."""
    for one in experiments if jobs > 1 else ():
        one.check_travels()
    rules = [rule for one in experiments for rule in one.rules]
    modules = modules_of(users_rows(rules))
    if executor is not None:
        with borrowed(where, executor, modules) as others:
            yield Runner(where, experiments, others, store, on_trial)
        return
    with pool(where, jobs, modules) if jobs > 1 else contextlib.nullcontext() as own:
        yield Runner(where, experiments, own, store, on_trial)


@dataclass
class Runner:
    """Makes trials, or finds those that were kept. `notes`: what a reader of the outcomes has to know of that.

    executor: only its `submit` is asked; None is this process. on_trial(experiment, asked, done, of) is called before each trial.
    """

    where: str
    experiments: Sequence[Experiment]
    executor: Executor | Borrowed | None
    store: Store | None
    on_trial: OnTrial
    _unkept: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        try:  # now: a run may change what it holds
            self._keys = {one.name: fingerprint(one.depends_on) for one in self.experiments if self.store is not None}
        except FingerprintError as error:
            self.store, self._unkept = None, (f"Nothing was kept: {error}",)
            warnings.warn(f"{self.where}: nothing is kept: {error}", stacklevel=8)

    @property
    def notes(self) -> tuple[str, ...]:
        return self._unkept if self.store is None else self.store.notes

    def outcomes(
        self, plan: Sequence[tuple[E, Asked]], done: int = 0, of: int = 0
    ) -> Iterator[tuple[E, Asked, Outcome]]:
        """In the order of the plan. `done`: so many trials are behind us, of all `of` to which these belong."""
        found = [self._kept(*planned) for planned in plan]
        missing = [planned for planned, outcome in zip(plan, found, strict=True) if outcome is None]
        waiting = iter([self.executor.submit(_elsewhere, *planned) for planned in missing] if self.executor else [])
        done += len(plan) - len(missing)
        for (experiment, asked), outcome in zip(plan, found, strict=True):
            if outcome is None:
                self.on_trial(experiment, asked, done, of or len(plan))
                outcome = _with_tensors(next(waiting).result()) if self.executor else experiment.trial(*asked)
                if self.store is not None and not outcome.is_late:
                    self.store.put(self._file_of(experiment, asked), asdict(outcome))
                done += 1
            yield experiment, asked, outcome

    def _kept(self, experiment: Experiment, asked: Asked) -> Outcome | None:
        kept = None if self.store is None else self.store.find(self._file_of(experiment, asked))
        return None if kept is None else Outcome(**{**kept, "came_upon": Reached(**kept["came_upon"])})

    def _file_of(self, experiment: Experiment, asked: Asked) -> dict[str, object]:
        return {"key": self._keys[experiment.name], "of": experiment.name, **asked._asdict()}


def _elsewhere(experiment: Experiment, asked: Asked) -> Outcome:
    """With arrays of numpy: torch would share the memory of its tensors, which goes with the process."""
    outcome = experiment.trial(*asked)
    return replace(outcome, arrays={key: value.numpy() for key, value in outcome.arrays.items()})


def _with_tensors(outcome: Outcome) -> Outcome:
    return replace(outcome, arrays={key: torch.from_numpy(value) for key, value in outcome.arrays.items()})


# --- processes --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def borrowed(where: str, executor: object, modules: tuple[str, ...]) -> Iterator[Borrowed]:
    """Processes of somebody else's, which stay open."""
    others = Borrowed(executor, setup(where, modules))
    try:
        yield others
    except BaseException:  # nobody waits for the runs that others have not begun
        others.cancel()
        raise


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
