"""What the callbacks for Lightning and Hugging Face's Trainer cost: in steps that they do not sample, and over all of a training.

python benchmarks/callbacks.py [--check]      --check: status 1 above what is promised below

The noise is the same training without a callback, timed once more: a ratio that would be 1 on a machine at rest.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from interleaved import ratio, seconds_of

ROUNDS, STEPS, FIRST = 15, 320, 20  # the steps before FIRST are not timed
PROMISED = 1.03  # times a step without the callback, of those that are not sampled
EVERY = {"without": None, "noise": None, "not sampled": 10**6, "one in a hundred": 100}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"loss": self.net(x).square().mean()}


class Clock:
    """The seconds from step FIRST to the last one."""

    def __init__(self) -> None:
        self.step = 0
        self.start = self.end = 0.0

    def tick(self) -> None:
        self.step += 1
        self.end = time.perf_counter()
        if self.step == FIRST:
            self.start = self.end

    @property
    def seconds(self) -> float:
        return self.end - self.start


def lightning(every: int | None) -> float:
    import lightning.pytorch as package

    clock = Clock()

    class Lit(package.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, x: Tensor, number: int) -> Tensor:
            clock.tick()
            return self.net(x)["loss"]  # type: ignore[no-any-return]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 1e-3)

    callbacks = []
    if every is not None:
        from pseudograd.integrations.lightning import DiagnoseCallback

        callbacks.append(DiagnoseCallback(every))
    with tempfile.TemporaryDirectory() as folder:
        trainer = package.Trainer(
            accelerator="cpu",
            logger=False,
            callbacks=callbacks,
            max_steps=STEPS,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        trainer.fit(Lit(), torch.utils.data.DataLoader([torch.ones(32, 64)] * STEPS, batch_size=None))
    return clock.seconds


def trainer(every: int | None) -> float:
    from transformers import PrinterCallback, Trainer, TrainingArguments

    clock = Clock()

    class Timed(Net):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            clock.tick()
            return super().forward(x)

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=32,
            max_steps=STEPS,
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            save_strategy="no",
            logging_strategy="no",
        )
        made = Trainer(Timed(), arguments, train_dataset=[{"x": torch.ones(64)}] * 1024)
        made.remove_callback(PrinterCallback)
        if every is not None:
            from pseudograd.integrations.transformers import DiagnoseCallback

            made.add_callback(DiagnoseCallback(made, every))
        made.train()
    return clock.seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, one thread, median of {ROUNDS} ratios of {STEPS - FIRST} steps")
    missed = False
    runs: dict[str, Callable[[int | None], float]] = {"Lightning": lightning, "Trainer": trainer}
    for name, run in runs.items():
        run(None)

        def sample(route: str, run: Callable[[int | None], float] = run) -> float:
            return run(EVERY[route])

        taken = seconds_of(EVERY, sample, ROUNDS)
        step = statistics.median(taken["without"]) / (STEPS - FIRST) * 1e3
        print(f"{name}: a step takes {step:.2f} ms")
        for route in EVERY:
            if route != "without":
                found = ratio(taken, route, "without")
                promised = f"   promised: {PROMISED} x" if route == "not sampled" else ""
                missed |= bool(promised) and found > PROMISED
                print(f"    {route:<17} {found:.3f} x{promised}")
    return int(missed and options.check)


if __name__ == "__main__":
    sys.exit(main())
