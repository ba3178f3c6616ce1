"""A callback for Lightning that diagnoses some of its steps."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from torch import nn

from ..errors import not_installed
from .sampling import Sampler

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

# Two packages have the same trainer. Each takes only callbacks of its own.
_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _package() -> object:
    """The package that the program has imported, or else one that is installed."""
    for name in sorted(_PACKAGES, key=lambda name: name not in sys.modules):
        try:
            return import_module(name)
        except ModuleNotFoundError:
            continue
    raise not_installed("pseudograd.integrations.lightning", "lightning or pytorch_lightning", "lightning")


class DiagnoseCallback(Sampler, _package().Callback):  # type: ignore[misc]
    """Diagnose one step in every hundred, and log the findings.

    Args:
        every_n_steps: begin a diagnosis every N steps of the optimiser. The first step is always diagnosed.
        window: the number of steps that one diagnosis lasts. The findings `stalled` and `wind-up` need a window of ten.
        stop_on: the finding that ends the training, written as for `--fail-on`: "starved", "cut>0.5" or "any"; or a list of findings.
        detail, ignore, sensitivity: as `pseudograd.diagnose` takes them. The finding `convention` judges five steps or more.
    Raises: ValueError for a wrong number of steps, or an unknown code.
    Example:
        trainer = lightning.Trainer(callbacks=[DiagnoseCallback(every_n_steps=100, stop_on="starved")])
        print(callback.last)  # the newest diagnosis, as `pseudograd.diagnose` gives it
    Source: new in pseudograd. The numbers are those of `Diagnosis.metrics()`, in every logger of the trainer.
    """

    def on_train_batch_start(self, trainer: Trainer, pl_module: nn.Module, *batch: object) -> None:
        self.begin_batch(trainer.global_step, pl_module)

    def on_train_batch_end(self, trainer: Trainer, *batch: object) -> None:
        def log(metrics: dict[str, float]) -> None:
            for logger in trainer.loggers:
                logger.log_metrics(metrics, step=trainer.global_step)

        self.end_batch(trainer.global_step, log)
        if self.stops:
            trainer.should_stop = True

    def on_train_end(self, *state: object) -> None:
        self.end()

    on_exception = on_train_end
