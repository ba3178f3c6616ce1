"""A training of the user: a function that takes a clamp, a seed and further arguments by name, and returns numbers."""

from __future__ import annotations

import contextlib
import inspect
import numbers
import pickle
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import must
from ..rule import RuleLike
from .runs import Outcome, Run
from .variants import Choice

ONLY = "the number"  # the name of the result if a run returns a single number
_KNOWN_NAMES = ("seed", "steps", "project")  # the arguments that a training may take by name
_REMEDY = "Return what the training ends with, such as its loss"


@dataclass(frozen=True)
class Training:
    """A training as an Experiment, which `compare` can run."""

    where: str  # the public function that error messages name
    function: Callable[..., object]
    choice: Choice
    positional: tuple[str, ...]  # the arguments among clamp and seed that the function takes by position, in this order
    named: tuple[str, ...]  # the arguments among seed, steps and project that the function takes by name

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    @property
    def variants(self) -> tuple[str, ...]:
        return self.choice.names

    @property
    def rules(self) -> tuple[RuleLike, ...]:
        return tuple(rule for rule, _ in self.choice.rules.values())

    @property
    def depends_on(self) -> object:
        return [self.function, self.choice.families, dict(self.choice.by_name)]

    def measure(self, run: Run) -> Outcome:
        """Run the training with this seed, and restore the random states of the caller. Raises an error if a result is no number."""
        result: object = None
        failure: str | None = None
        with _seeded(run.seed) as randomness, self.choice.enter(run.variant) as entry:
            arguments = {"clamp": entry.handed, "seed": run.seed, "steps": run.steps, "project": entry.projects}
            named = {name: arguments[name] for name in self.named if arguments[name] is not None}
            try:
                with torch.inference_mode(False), torch.enable_grad():
                    result = self.function(*[arguments[name] for name in self.positional], **named)
            except (Exception, SystemExit) as error:
                failure = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
        when = f"with {run.variant} and seed {run.seed}"
        values = read_result(self.where, result, when) if failure is None else {}
        return Outcome(
            values, failure=failure, has_acted=entry.has_acted, has_drawn=randomness.was_used, reached=entry.reach
        )

    def check_can_be_sent(self) -> None:
        main = vars(sys.modules["__main__"])
        is_in_notebook = getattr(self.function, "__module__", None) == "__main__" and not main.get("__file__")
        if is_in_notebook or not _can_be_pickled(self.function):
            remedy = "Other processes import it: define it at the top of a file, or leave jobs at 1"
            raise ValueError(must(self.where, "run", "be at the top of a module for jobs above 1", self.name, remedy))
        for name, variant in self.choice.by_name.items() if self.choice.is_given else ():
            if not _can_be_pickled(variant):
                requirement = f"be functions at the top of a module for jobs above 1, {name!r} too"
                remedy = "Or give an executor that takes functions apart, as loky and dask do, or leave jobs at 1"
                raise ValueError(must(self.where, "variants", requirement, variant, remedy))


def _can_be_pickled(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True


def read_signature(
    where: str, function: Callable[..., object], takes_clamp: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The arguments that a training takes: by position, then by name.

    The clamp comes first, unless the program runs unedited. The next argument without a default is the seed, whatever its name is.
    """
    if not callable(function):
        raise TypeError(must(where, "run", "be a function", function))
    positional, named = ["clamp"] if takes_clamp else [], []
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C
        return tuple(positional), ()
    parameters = list(signature.parameters.values())
    by_position = [parameter for parameter in parameters if parameter.kind <= parameter.POSITIONAL_OR_KEYWORD]
    takes_any = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
    is_wrong = len(by_position) < len(positional) and not takes_any
    keyword_only = [parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    for index, parameter in enumerate([*by_position[len(positional) :], *keyword_only]):
        is_required = parameter.default is parameter.empty
        if parameter.name in _KNOWN_NAMES and parameter.kind is not parameter.POSITIONAL_ONLY:
            named.append(parameter.name)
        elif is_required and index == 0 and parameter not in keyword_only:
            positional.append("seed")
        else:
            is_wrong |= is_required
    if is_wrong or ("seed" in positional and "seed" in named):
        shape = "run(clamp) or run(clamp, seed)" if takes_clamp else "run() or run(seed)"
        got = f"{getattr(function, '__name__', type(function).__name__)}{signature}"
        remedy = "Give all else a default, or wrap it in a function."
        raise TypeError(f"{where}: run must be callable as {shape}, got {got}. {remedy}")
    return tuple(positional), tuple(named)


class _Randomness:
    """was_used: after the run: did the run move a generator that a seed sets? True if we cannot know it."""

    was_used = True


def _random_states() -> list[object] | None:
    """The states of all generators that a seed sets; None on a device whose states are not compared."""
    devices = (getattr(torch.backends, "mps", None), getattr(torch, "xpu", None), getattr(torch, "mtia", None))
    if any(getattr(device, "is_available", lambda: False)() for device in devices):
        return None
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    states: list[object] = [bytes(state.tolist()) for state in (torch.get_rng_state(), *cuda)]
    numpy = sys.modules.get("numpy")
    return [*states, random.getstate(), *([] if numpy is None else [pickle.dumps(numpy.random.get_state())])]


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[_Randomness]:
    """Start torch, random and numpy from the seed; afterwards put their states back."""
    randomness = _Randomness()
    numpy = sys.modules.get("numpy")
    python_state, numpy_state = random.getstate(), numpy.random.get_state() if numpy else None
    has_devices = torch.cuda.is_available() and torch.cuda.is_initialized()
    with torch.random.fork_rng(range(torch.cuda.device_count()) if has_devices else []):
        try:
            torch.manual_seed(seed)
            random.seed(seed)
            if numpy:
                numpy.random.seed(seed % 2**32)  # numpy takes 32 bits
            before = _random_states()
            yield randomness
            randomness.was_used = before is None or before != _random_states()
        finally:
            random.setstate(python_state)
            if numpy:
                numpy.random.set_state(numpy_state)


def read_result(where: str, result: object, when: str) -> dict[str, float]:
    """The numbers that a run returned, at least one. `when`: the run that an error speaks of."""
    if not isinstance(result, Mapping):
        return {ONLY: _number(where, "run", result, when)}
    if not result or not all(isinstance(name, str) and name for name in result):
        raise _no_number(where, "run", dict(result), when)
    return {name: _number(where, f"run's {name!r}", value, when) for name, value in result.items()}


def _number(where: str, argument: str, value: object, when: str) -> float:
    if isinstance(value, Tensor) and value.requires_grad:
        remedy = "Return loss.item(), so that no graph is kept"
        raise TypeError(must(where, argument, f"return numbers without a gradient {when}", value, remedy))
    if isinstance(value, numbers.Real) or (isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex()):
        return float(value)
    raise _no_number(where, argument, value, when)


def _no_number(where: str, argument: str, value: object, when: str) -> TypeError:
    return TypeError(must(where, argument, f"return a number, or numbers by name, {when}", value, _REMEDY))
