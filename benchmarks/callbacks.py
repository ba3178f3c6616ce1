"""What the callbacks for Lightning and Hugging Face's Trainer cost: in steps that they do not sample, and over all of a training.

python benchmarks/callbacks.py [--check]

The noise is the same training without a callback, timed once more: a ratio that would be 1 on a machine at rest.
"""

from __future__ import annotations

import logging
import statistics
import sys
import tempfile
import time
import warnings
from functools import partial

import torch
from torch import Tensor, nn

from harness import Limit, judge, parser_of, ratio, seconds_of

STEPS, FIRST = 320, 20  # the steps before FIRST are not timed
PROMISED = 1.03  # a step that is not sampled takes at most so many times one without the callback
EVERY = {"without": None, "noise": None, "not sampled": 10**6, "one in a hundred": 100}


class Net(nn.Module):
    """Notes the time of step FIRST and of the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
        self.times: list[float] = []

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        self.times.append(time.perf_counter())
        return {"loss": self.net(x).square().mean()}

    @property
    def seconds(self) -> float:
        return self.times[-1] - self.times[FIRST]


def lightning(folder: str, every: int | None) -> float:
    import lightning.pytorch as package

    from pseudograd.integrations.lightning import DiagnoseCallback

    class Lit(package.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, x: Tensor, number: int) -> Tensor:
            return self.net(x)["loss"]  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 1e-3)

    module = Lit()
    silent = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    callbacks = [] if every is None else [DiagnoseCallback(every)]
    trainer = package.Trainer(
        accelerator="cpu", callbacks=callbacks, max_steps=STEPS, default_root_dir=folder, **silent
    )
    trainer.fit(module, torch.utils.data.DataLoader([torch.ones(32, 64)] * STEPS, batch_size=None))
    return module.net.seconds


def trainer(folder: str, every: int | None) -> float:
    from transformers import PrinterCallback, Trainer, TrainingArguments

    from pseudograd.integrations.transformers import DiagnoseCallback

    silent = {"report_to": "none", "disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no"}
    arguments = TrainingArguments(folder, per_device_train_batch_size=32, max_steps=STEPS, use_cpu=True, **silent)
    net = Net()
    training = Trainer(net, arguments, train_dataset=[{"x": torch.ones(64)}] * 1024)
    training.remove_callback(PrinterCallback)
    if every is not None:
        training.add_callback(DiagnoseCallback(training, every))
    training.train()
    return net.seconds


def main() -> int:
    options = parser_of(__doc__, rounds=15).parse_args()
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, one thread, median of {options.rounds} ratios of {STEPS - FIRST} steps")
    limits = []
    for name, run in {"Lightning": lightning, "Trainer": trainer}.items():
        with tempfile.TemporaryDirectory() as folder:
            train = partial(run, folder)
            train(None)
            taken = seconds_of(EVERY, lambda route: train(EVERY[route]), options.rounds)  # noqa: B023
        print(f"{name}: a step takes {statistics.median(taken['without']) / (STEPS - FIRST) * 1e3:.2f} ms")
        ratios = {route: ratio(taken, route, "without") for route in EVERY if route != "without"}
        print(*(f"    {route:<17} {over:.3f} x" for route, over in ratios.items()), sep="\n", flush=True)
        limits.append(Limit(f"{name}, a step that is not sampled, x without", ratios["not sampled"], PROMISED))
    return judge(limits, options.check)


if __name__ == "__main__":
    sys.exit(main())
