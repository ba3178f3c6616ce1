"""One runner for the worlds of tasks and for trainings of the user's: trials are made here or elsewhere, or found where they were kept."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from .fingerprints import FingerprintError, fingerprint
from .processes import modules_of, pool
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
    random numbers. came_upon: of an unedited program, what its rewriting reached.
    """

    numbers: dict[str, float]
    arrays: dict[str, Any] = field(default_factory=dict)
    seeds: tuple[float, ...] = ()
    failure: str | None = None
    reached: bool = True
    seconds: float = 0.0
    draws: bool = True
    came_upon: Reached = field(default_factory=Reached)

    def to_store(self) -> dict[str, Any]:
        return {**vars(self), "came_upon": asdict(self.came_upon)}

    @classmethod
    def from_store(cls, kept: dict[str, Any]) -> Outcome:
        return cls(**{**kept, "came_upon": Reached(**kept["came_upon"])})


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


class Executor(Protocol):
    """Of this only `submit` is asked: concurrent.futures has some, and so have others."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]: ...


E = TypeVar("E", bound=Experiment)
OnTrial = Callable[[Any, Asked, int, int], Any]


@contextlib.contextmanager
def runner(
    where: str, experiments: Sequence[Experiment], jobs: int, store: Store | None, on_trial: OnTrial
) -> Iterator[Runner]:
    """For trials of these, in so many processes. `where`: the public function that errors name."""
    if jobs == 1:
        yield Runner(where, experiments, None, store, on_trial)
        return
    for one in experiments:
        one.check_travels()
    rules = [rule for one in experiments for rule in one.rules]
    with pool(where, jobs, modules_of(users_rows(rules))) as executor:
        yield Runner(where, experiments, executor, store, on_trial)


class Runner:
    """Makes trials, or finds those that were kept. `notes`: what a reader of the outcomes has to know of that.

    on_trial(experiment, asked, done, of) is called before each trial that is made or waited for.
    """

    def __init__(
        self,
        where: str,
        experiments: Iterable[Experiment],
        executor: Executor | None,
        store: Store | None,
        on_trial: OnTrial,
    ) -> None:
        self.executor, self.store, self.on_trial = executor, store, on_trial
        self._unkept = ""
        self._keys: dict[str, str] = {}
        if store is None:
            return
        try:  # now: a run may change what it holds
            self._keys = {one.name: fingerprint(one.depends_on) for one in experiments}
        except FingerprintError as error:
            self.store, self._unkept = None, f"Nothing was kept: {error}"
            warnings.warn(f"{where}: nothing is kept: {error}", stacklevel=5)

    @property
    def notes(self) -> tuple[str, ...]:
        if self.store is None:
            return (self._unkept,) if self._unkept else ()
        return self.store.notes

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
                if self.store is not None:
                    self.store.put(self._file_of(experiment, asked), outcome.to_store())
                done += 1
            yield experiment, asked, outcome

    def _kept(self, experiment: Experiment, asked: Asked) -> Outcome | None:
        kept = None if self.store is None else self.store.find(self._file_of(experiment, asked))
        return None if kept is None else Outcome.from_store(kept)

    def _file_of(self, experiment: Experiment, asked: Asked) -> dict[str, Any]:
        return {"key": self._keys[experiment.name], "of": experiment.name, **asked._asdict()}


def _elsewhere(experiment: Experiment, asked: Asked) -> Outcome:
    """With arrays of numpy: torch would share the memory of its tensors, which goes with the process."""
    outcome = experiment.trial(*asked)
    return replace(outcome, arrays={key: value.numpy() for key, value in outcome.arrays.items()})


def _with_tensors(outcome: Outcome) -> Outcome:
    return replace(outcome, arrays={key: torch.from_numpy(value) for key, value in outcome.arrays.items()})
