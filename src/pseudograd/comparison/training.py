"""A training of the user's: any function, called with a clamp, a seed and what else it asks for by name, the same to the bit everywhere."""

from __future__ import annotations

import contextlib
import inspect
import pickle
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import must
from ..rule import RuleLike
from .chance import Chance
from .given import Given
from .returned import returned
from .runner import Outcome
from .time_limit import TimeIsUp, at_most
from .variants import Inside, Ways, users_rows


@dataclass(frozen=True)
class Training:
    """An Experiment. where: the public function that errors name. time_limit: of each run, in seconds. Plain data: it travels."""

    where: str
    run: Callable[..., Any]
    ways: Ways | Given
    takes: tuple[str, ...]  # which of clamp, seed, steps and project, in the order of the call; by name where `named`
    named: tuple[str, ...]
    time_limit: float | None = None

    @property
    def name(self) -> str:
        return getattr(self.run, "__name__", type(self.run).__name__)

    @property
    def variants(self) -> tuple[str, ...]:
        return self.ways.names

    @property
    def rules(self) -> tuple[RuleLike, ...]:
        return tuple(rule for _, rule, _ in self.ways.rules)

    @property
    def depends_on(self) -> Any:
        rules = {name: [rule, edge] for name, rule, edge in self.ways.rules}
        handed = self.ways.handed if isinstance(self.ways, Given) else ()
        return [self.run, self.ways.families, rules, [row.pull for row in users_rows(self.rules)], handed]

    def trial(self, variant: str, seed: int, steps: int | None = None) -> Outcome:
        """Seeded, and with the caller's random numbers as they were afterwards. Raises our errors for what is no number."""
        began = time.perf_counter()
        found: object = None
        failure: str | None = None
        is_late = False
        chance = Chance()
        with _seeded(seed), chance.watched(), self.ways.inside(variant) as inside:
            try:
                with torch.inference_mode(False), torch.enable_grad(), at_most(self.time_limit):
                    found = self._called(seed, steps, inside)
            except TimeIsUp:
                failure, is_late = f"it took longer than time_limit={self.time_limit:g} seconds", True
            except (Exception, SystemExit) as error:
                failure = _told(error)
        seconds = time.perf_counter() - began
        when = f"with {variant} and seed {seed}"
        given, arrays = returned(self.where, found, when) if failure is None else ({}, {})
        draws = not chance.none
        return Outcome(given, arrays, (), failure, inside.reached, seconds, draws, inside.came_upon, is_late)

    def check_travels(self) -> None:
        remedy = "Other processes import it: define it at the top of a file, or leave jobs at 1"
        told = must(self.where, "run", "stand at the top of a module for jobs above 1", self.name, remedy)
        try:
            pickle.dumps(self.run)
        except Exception as error:
            raise ValueError(told) from error
        if getattr(self.run, "__module__", None) == "__main__" and not getattr(
            sys.modules["__main__"], "__file__", None
        ):
            raise ValueError(told)  # a notebook or a prompt: no other process can import it
        self.ways.check_travels(self.where)

    def _called(self, seed: int, steps: int | None, inside: Inside) -> object:
        given = {"clamp": inside.handed, "seed": seed, "steps": steps, "project": inside.projects}
        # Without steps: as many as run does by itself.
        named = {name: given[name] for name in self.named if given[name] is not None}
        return self.run(*[given[name] for name in self.takes], **named)


def takes(where: str, run: Callable[..., object], is_handed: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
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


def _wrong_signature(where: str, run: Callable[..., object], is_handed: bool) -> TypeError:
    shape = "run(clamp) or run(clamp, seed)" if is_handed else "run() or run(seed)"
    got = f"{getattr(run, '__name__', type(run).__name__)}{inspect.signature(run)}"
    return TypeError(
        f"{where}: run must be callable as {shape}, got {got}. Give all else a default, or wrap it in a function."
    )


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


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
