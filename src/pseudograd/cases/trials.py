"""One trial is one call of the user's function: with a variant and a seed, in this process or in another one, the same to the bit."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import multiprocessing
import numbers
import pickle
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, process
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from ..errors import must
from ..rule import OPS, RuleObject
from .chance import Chance
from .reached import Reached
from .variants import Inside, Ways

ONLY = "the number"  # what a run that returns one number calls it


class Asked(NamedTuple):
    variant: str
    seed: int
    steps: int | None = None


@dataclass(frozen=True)
class Outcome:
    """What a trial returned; None where it failed, with what it raised. reached: did the variant's clamp, or rewriting, do anything?

    draws: False where it provably drew no random numbers. came_upon: of an unedited run, what its rewriting reached.
    """

    numbers: dict[str, float] | None
    failure: str | None = None
    reached: bool = True
    seconds: float = 0.0
    draws: bool = True
    came_upon: Reached = field(default_factory=Reached)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Outcome:
        """What dataclasses.asdict made of one."""
        return cls(**{**stored, "came_upon": Reached(**stored["came_upon"])})


@dataclass(frozen=True)
class Case:
    """A user's function, with all that a trial of it needs. where: the public function that errors name. Plain data, so that it travels."""

    where: str
    run: Callable[..., Any]
    ways: Ways
    takes: tuple[str, ...]  # which of clamp, seed, steps and project, in the order of the call; by name where `named`
    named: tuple[str, ...]

    def trial(self, asked: Asked) -> Outcome:
        """Seeded, and with the caller's random numbers as they were afterwards. Raises our errors for what is no number."""
        began = time.perf_counter()
        found: Any = None
        failure = None
        chance = Chance()
        with _seeded(asked.seed), chance.watched(), self.ways.inside(asked.variant) as inside:
            try:
                with torch.inference_mode(False), torch.enable_grad():
                    found = self._called(asked, inside)
            except (Exception, SystemExit) as error:
                failure = _told(error)
        seconds = time.perf_counter() - began
        outcome = Outcome(None, failure, inside.reached, seconds, not chance.none, inside.came_upon)
        if failure is not None:
            return outcome
        return replace(outcome, numbers=_numbers(self.where, found, f"with {asked.variant} and seed {asked.seed}"))

    @property
    def takes_seed(self) -> bool:
        return "seed" in (*self.takes, *self.named)

    def _called(self, asked: Asked, inside: Inside) -> Any:
        given = {"clamp": inside.clamp, "seed": asked.seed, "steps": asked.steps, "project": inside.projects}
        # Without steps: as many as run does by itself.
        named = {name: given[name] for name in self.named if given[name] is not None}
        return self.run(*[given[name] for name in self.takes], **named)

    @property
    def name(self) -> str:
        return getattr(self.run, "__name__", type(self.run).__name__)


def takes(where: str, run: Callable[..., Any], is_handed: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What `run` asks for, from its signature: by position, then by name.

    The clamp comes first, unless the program runs unedited. `seed`, `steps` and `project` are known by their names; a seed may bear another
    name where it is the next argument and has no default.
    """
    if not callable(run):
        raise TypeError(must(where, "run", "be a function", run))
    first = ("clamp",) if is_handed else ()
    try:
        parameters = list(inspect.signature(run).parameters.values())
    except (TypeError, ValueError):  # written in C
        return first, ()
    by_place = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    takes_all = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    rest, named = by_place[len(first) :], [one for one in parameters if one.kind is one.KEYWORD_ONLY]
    order = list(first)
    by_name: list[str] = []
    for place, one in enumerate(rest):
        if one.name in ("seed", "steps", "project") and one.kind is not one.POSITIONAL_ONLY:
            by_name.append(one.name)
        elif one.default is one.empty and place == 0:
            order.append("seed")
        elif one.default is one.empty:
            raise _wrong_signature(where, run, is_handed)
    by_name += [one.name for one in named if one.name in ("seed", "steps", "project")]
    needs = [one for one in named if one.default is one.empty and one.name not in by_name]
    if needs or (len(by_place) < len(first) and not takes_all) or ("seed" in order and "seed" in by_name):
        raise _wrong_signature(where, run, is_handed)
    return tuple(order), tuple(by_name)


def _wrong_signature(where: str, run: Callable[..., Any], is_handed: bool) -> TypeError:
    shape = "run(clamp) or run(clamp, seed)" if is_handed else "run() or run(seed)"
    got = f"{getattr(run, '__name__', type(run).__name__)}{inspect.signature(run)}"
    return TypeError(
        f"{where}: run must be callable as {shape}, got {got}. Give all else a default, or wrap it in a function."
    )


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def _numbers(where: str, found: Any, when: str) -> dict[str, float]:
    if isinstance(found, Mapping):
        if not found or not all(isinstance(name, str) and name for name in found):
            raise _no_number(where, "run", dict(found), when)
        return {name: _number(where, f"run's {name!r}", value, when) for name, value in found.items()}
    return {ONLY: _number(where, "run", found, when)}


def _number(where: str, what: str, value: Any, when: str) -> float:
    if isinstance(value, torch.Tensor):
        if value.requires_grad:
            remedy = "Return loss.item(), so that no graph is kept"
            raise TypeError(must(where, what, f"return numbers without a gradient {when}", value, remedy))
        if value.numel() == 1 and not value.is_complex():
            return float(value)
    elif isinstance(value, numbers.Real):
        return float(value)
    raise _no_number(where, what, value, when)


def _no_number(where: str, what: str, value: Any, when: str) -> TypeError:
    remedy = "Return what the training ends with, such as its loss"
    return TypeError(must(where, what, f"return a number, or numbers by name, {when}", value, remedy))


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """torch, random and numpy start from the seed, and afterwards go on for the caller as if nothing had happened."""
    numpy = sys.modules.get("numpy")
    of_python, of_numpy = random.getstate(), numpy.random.get_state() if numpy else None
    devices = (
        list(range(torch.cuda.device_count())) if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    )
    with torch.random.fork_rng(devices):
        try:
            torch.manual_seed(seed)
            random.seed(seed)
            if numpy:
                numpy.random.seed(seed % 2**32)
            yield
        finally:
            random.setstate(of_python)
            if numpy:
                numpy.random.set_state(of_numpy)


# --- many trials ------------------------------------------------------------------------------------------------------

OnTrial = Callable[[Asked, int, int], Any]


def trials(
    case: Case, asked: Iterable[Asked], executor: ProcessPoolExecutor | None, on_trial: OnTrial
) -> Iterator[tuple[Asked, Outcome]]:
    """The outcomes in the order asked. on_trial(trial, done, of) is called before each is made or waited for."""
    plan = list(asked)
    waiting = [executor.submit(_trial, case, one) for one in plan] if executor else []
    for done, one in enumerate(plan):
        on_trial(one, done, len(plan))
        yield one, waiting[done].result() if executor else case.trial(one)


@contextlib.contextmanager
def processes(case: Case, jobs: int) -> Iterator[ProcessPoolExecutor | None]:
    """Where the trials of a case are made: None for this process."""
    if jobs == 1:
        yield None
        return
    _check_travels(case)
    with pool(case.where, jobs, _modules(case)) as executor:
        yield executor


def _trial(case: Case, asked: Asked) -> Outcome:
    return case.trial(asked)


def _check_travels(case: Case) -> None:
    main = sys.modules["__main__"]
    at_home = getattr(case.run, "__module__", None) == "__main__" and not getattr(main, "__file__", None)
    try:
        pickle.dumps(case)
    except Exception as error:
        raise _stays(case.where, case.name) from error
    if at_home:  # a notebook or a prompt: no other process can import it
        raise _stays(case.where, case.name)


def _stays(where: str, name: str) -> ValueError:
    remedy = "Other processes import it: define it at the top of a file, or leave jobs at 1"
    return ValueError(must(where, "run", "stand at the top of a module for jobs above 1", name, remedy))


def _modules(case: Case) -> tuple[str, ...]:
    """Where rules of the user's were registered: another process has them once it has imported these."""
    names = [rule.name if isinstance(rule, RuleObject) else rule for _, rule, _ in case.ways.rules]
    return modules_of_rules(names)


def modules_of_rules(names: Iterable[str]) -> tuple[str, ...]:
    rows = {name: op.rules[name] for op in OPS.values() for name in names if name in op.rules}
    found = {_module_of(row.author) for row in rows.values() if row.is_users}
    return tuple(sorted(found - {"", "__main__"}))


def _module_of(path: str) -> str:
    """Of "package.module.outer.function", what can be imported."""
    while path and path not in sys.modules:
        path = path.rpartition(".")[0]
    return path


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
