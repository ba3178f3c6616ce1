"""A diagnosis of some steps of a training that somebody else drives: what the callbacks of all trainers share."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from ..diagnosis import diagnose
from ..diagnosis.context import Diagnosis
from ..diagnosis.run import condition
from ..errors import must

Log = Callable[[dict[str, float]], None]


class Sampler:
    """Diagnoses `window` steps of the optimiser in every `every_n_steps`, from the first on. Between them it does nothing at all.

    A trainer's callback calls `before` and `after` around each batch with the number of steps that were taken, and `end` at the end,
    also after an error. `last` is the newest diagnosis that has ended, `stops` says that one of `stop_on` was found.
    """

    def __init__(
        self,
        name: str,
        every_n_steps: int,
        window: int,
        stop_on: str | Sequence[str],
        detail: str,
        ignore: Sequence[str],
        sensitivity: int | bool = False,
    ) -> None:
        for argument, value in (("every_n_steps", every_n_steps), ("window", window)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(must(name, argument, "be a number of steps, 1 or more", value))
        if window > every_n_steps:
            remedy = f"Give every_n_steps={window} to diagnose every step"
            raise ValueError(must(name, "window", f"not exceed every_n_steps={every_n_steps}", window, remedy))
        self._name = name
        self._every, self._window = every_n_steps, window
        self._stop_on = {text: condition(text) for text in ([stop_on] if isinstance(stop_on, str) else stop_on)}
        self._how: dict[str, Any] = {"detail": detail, "ignore": tuple(ignore), "sensitivity": sensitivity}
        diagnose(None, **self._how)  # the errors of wrong arguments, before any training
        self._open: tuple[int, Diagnosis] | None = None
        self._next: int | None = None  # the number of steps from which one is due
        self.last: Diagnosis | None = None
        self.stops = False

    def before(self, steps: int, model: nn.Module) -> None:
        """Before a batch, when `steps` steps have been taken. The batches of one accumulated step are diagnosed together."""
        if self._next is None:  # a training that goes on from a checkpoint keeps the steps of the one before
            self._next = -(-steps // self._every) * self._every
        if self._open is not None or steps < self._next:
            return
        self._next = (
            steps // self._every + 1
        ) * self._every  # a batch may take several steps, past the one that was due
        self._open = steps, diagnose(model, **self._how)
        self._open[1].__enter__()

    def after(self, steps: int, log: Log) -> None:
        """After a batch. Ends the diagnosis when its window is full, and hands its numbers to the trainer's own logger."""
        if self._open is None or steps < self._open[0] + self._window:
            return
        self.close()
        assert self.last is not None, "it was open"
        log(self.last.metrics())
        found = {text: holds(self.last) for text, holds in self._stop_on.items()}
        if any(found.values()):
            self.stops = True
            said = "; ".join(f"{text} at {', '.join(where[:5])}" for text, where in found.items() if where)
            warnings.warn(f"{self._name}: the training is stopped, as asked: {said}\n{self.last}", stacklevel=2)

    def end(self) -> None:
        """The training has ended; the next one may begin at any step."""
        self.close()
        self._next = None

    def close(self) -> None:
        """Ends what is open, if anything is."""
        if self._open is not None:
            (_, self.last), self._open = self._open, None
            self.last.__exit__(None, None, None)
