"""Diagnoses of some steps of a training that another package runs. The callbacks for these packages share the class Sampler."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Literal

from torch import nn

from ..diagnosis import diagnose
from ..diagnosis.context import Diagnosis
from ..diagnosis.run import parse_conditions
from ..errors import must

Log = Callable[[dict[str, float]], None]


class Sampler:
    """Diagnoses the first `window` of every `every_n_steps` steps of the optimiser. In the other steps it does nothing at all.

    A trainer's callback calls `begin_batch` and `end_batch` around each batch, with the number of steps that were taken, and `end` after
    the training, also after an error.

    last: the newest diagnosis that has ended.
    stops: does a finding of `stop_on` end the training?
    """

    def __init__(
        self,
        every_n_steps: int = 100,
        *,
        window: int = 1,
        stop_on: str | Sequence[str] = (),
        detail: Literal["full", "counts"] = "full",
        ignore: Sequence[str] = (),
        sensitivity: int | bool = False,
    ) -> None:
        super().__init__()  # the callback's other base class is that of the trainer
        self._name = type(self).__name__
        for argument, value in (("every_n_steps", every_n_steps), ("window", window)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(must(self._name, argument, "be a number of steps, 1 or more", value))
        if window > every_n_steps:
            remedy = f"Give every_n_steps={window} to diagnose every step"
            raise ValueError(must(self._name, "window", f"not exceed every_n_steps={every_n_steps}", window, remedy))
        self._every, self._window = every_n_steps, window
        self._find_reason = parse_conditions(stop_on)
        self._diagnose = lambda model: diagnose(model, detail=detail, ignore=tuple(ignore), sensitivity=sensitivity)
        self._diagnose(None)  # raises the errors of wrong arguments before any training
        self._open: tuple[int, Diagnosis] | None = None
        self._next_start: int | None = None  # the number of steps from which the next diagnosis is due
        self.last: Diagnosis | None = None
        self.stops = False

    def begin_batch(self, steps: int, model: nn.Module) -> None:
        """Begin a diagnosis before a batch if one is due. Batches of an accumulated step share a diagnosis.

        steps: the number of steps that were taken.
        """
        if self._next_start is None:  # a training that resumes from a checkpoint goes on with its count
            self._next_start = math.ceil(steps / self._every) * self._every
        if self._open is None and steps >= self._next_start:
            # A batch may take several steps, so `steps` may be past the step that was due.
            self._next_start = (steps // self._every + 1) * self._every
            self._open = steps, self._diagnose(model)
            self._open[1].__enter__()

    def end_batch(self, steps: int, log: Log) -> None:
        """End the diagnosis after a batch if its window is full, and hand its numbers to the trainer's own logger."""
        if self._open is None or steps < self._open[0] + self._window:
            return
        diagnosis = self._open[1]
        self.close()
        log(diagnosis.metrics())
        if reason := self._find_reason(diagnosis):
            self.stops = True
            warnings.warn(f"{self._name}: the training is stopped, as asked: {reason}\n{diagnosis}", stacklevel=2)

    def end(self) -> None:
        """End the open diagnosis and forget when the next is due, because the next training may begin at any step."""
        self.close()
        self._next_start = None

    def close(self) -> None:
        """End the open diagnosis, if there is one."""
        if self._open is not None:
            (_, self.last), self._open = self._open, None
            self.last.__exit__(None, None, None)
