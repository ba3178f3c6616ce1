"""A callback for Lightning that diagnoses some of its steps."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from ..diagnosis.context import Diagnosis
from ..errors import not_installed
from .sampling import Sampler

# A trainer takes the callbacks of its own package alone: the one that the program has imported is meant.
_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _package() -> object:
    for name in sorted(_PACKAGES, key=lambda name: name not in sys.modules):
        try:
            return import_module(name)
        except ModuleNotFoundError:
            continue
    raise not_installed("pseudograd.integrations.lightning", "lightning or pytorch_lightning", "lightning")


class DiagnoseCallback(_package().Callback):  # type: ignore[misc]
    """Diagnose one step in every hundred, and log what was found.

    Args:
        every_n_steps: of the optimiser; the first step is always one of them.
        window: how many steps one diagnosis lasts. Findings that need ten steps, `stalled` and `wind-up`, need a window of ten.
        stop_on: what ends the training, as `--fail-on` takes it: "starved", "cut>0.5" or "any"; or several.
        detail, ignore, sensitivity: as `pseudograd.diagnose` takes them. The finding `convention` judges five steps or more.
    Raises: ValueError for a number of steps that is none, or a code that is unknown.
    Example:
        trainer = lightning.Trainer(callbacks=[DiagnoseCallback(every_n_steps=100, stop_on="starved")])
        print(callback.last)  # the newest diagnosis, as `pseudograd.diagnose` gives it
    Source: new in pseudograd. The numbers are those of `Diagnosis.metrics()`, in every logger of the trainer.
    """

    def __init__(
        self,
        every_n_steps: int = 100,
        *,
        window: int = 1,
        stop_on: str | Sequence[str] = (),
        detail: str = "full",
        ignore: Sequence[str] = (),
        sensitivity: int | bool = False,
    ) -> None:
        super().__init__()
        self._sampler = Sampler("DiagnoseCallback", every_n_steps, window, stop_on, detail, ignore, sensitivity)

    @property
    def last(self) -> Diagnosis | None:
        """The newest diagnosis that has ended."""
        return self._sampler.last

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: object, batch_idx: int) -> None:
        self._sampler.before(trainer.global_step, pl_module)

    def on_train_batch_end(
        self, trainer: Any, pl_module: object, outputs: object, batch: object, batch_idx: int
    ) -> None:
        def log(metrics: dict[str, float]) -> None:
            for logger in trainer.loggers:
                logger.log_metrics(metrics, step=trainer.global_step)

        self._sampler.after(trainer.global_step, log)
        if self._sampler.stops:
            trainer.should_stop = True

    def on_train_end(self, trainer: object, pl_module: object) -> None:
        self._sampler.end()

    def on_exception(self, trainer: object, pl_module: object, exception: BaseException) -> None:
        self._sampler.end()
