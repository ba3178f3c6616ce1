"""A callback for Hugging Face's Trainer that diagnoses some of its steps."""

from __future__ import annotations

import functools
from typing import Any

from ..errors import not_installed
from .sampling import Sampler

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState
except ModuleNotFoundError as error:
    raise not_installed("pseudograd.integrations.transformers", "transformers", "transformers") from error


class DiagnoseCallback(Sampler, TrainerCallback):
    """Diagnose one step in every hundred, and log the findings.

    Args:
        trainer: the trainer to which you add the callback. Its `log` gets the numbers.
        every_n_steps: begin a diagnosis every N steps of the optimiser. The first step is always diagnosed.
        window: the number of steps that one diagnosis lasts. The findings `stalled` and `wind-up` need a window of ten.
        stop_on: the finding that ends the training, written as for `--fail-on`: "starved", "cut>0.5" or "any"; or a list of findings.
        detail, ignore, sensitivity: as `pseudograd.diagnose` takes them. The finding `convention` judges five steps or more.
    Raises: ValueError for a wrong number of steps, or an unknown code.
    Example:
        callback = DiagnoseCallback(trainer, every_n_steps=100, stop_on="starved")
        trainer.add_callback(callback)
        trainer.train()
        print(callback.last)  # the newest diagnosis, as `pseudograd.diagnose` gives it
    Source: new in pseudograd. The numbers are those of `Diagnosis.metrics()`, wherever the trainer reports to.
    """

    def __init__(self, trainer: Any, every_n_steps: int = 100, **options: Any) -> None:
        super().__init__(every_n_steps, **options)
        self._trainer, train = trainer, trainer.train

        # The trainer calls no callback after an error, and an open diagnosis would go on in the rest of the notebook.
        @functools.wraps(train)
        def closing(*args: object, **kwargs: object) -> object:
            try:
                return train(*args, **kwargs)
            finally:
                self.end()

        trainer.train = closing

    def on_step_begin(self, args: object, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        self.begin_batch(state.global_step, others["model"])

    def on_step_end(self, args: object, state: TrainerState, control: TrainerControl, **others: object) -> None:
        self.end_batch(state.global_step, self._trainer.log)
        if self.stops:
            control.should_training_stop = True

    def on_train_end(self, *state: object, **others: object) -> None:
        self.end()
