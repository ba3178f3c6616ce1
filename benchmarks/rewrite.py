"""What a rewriting costs a training step: a small transformer and a small ResNet, plain and under override or pin_edge.

    python benchmarks/rewrite.py            # the table, and which promised ratios hold
    python benchmarks/rewrite.py --check    # the same; exit status 1 if a promised ratio does not hold

Ratios are taken between timings side by side, as interleaved.py says.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

import pseudograd as pg
from interleaved import Taken, ratio, seconds_of
from pseudograd.torch_table.eras import ERAS, installed_era

Step = Callable[[], None]
Context = Callable[[], contextlib.AbstractContextManager[object]]


class Promise(NamedTuple):
    model: str
    route: str
    limit: float


PROMISES = (
    Promise("transformer", "override(clamp, relu)", 1.10),
    Promise("transformer", "pin_edge", 1.10),
    Promise("resnet", "override(clamp, relu)", 1.25),
    Promise("resnet", "pin_edge", 1.25),
)


class Encoder(nn.Module):
    """Two layers of width 256 with ReLU, clamped logits."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(256, 4, 512, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        return torch.clamp(self.head(self.body(x).mean(1)), -8.0, 8.0)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x + self.body(x))


def resnet() -> nn.Module:
    blocks = [Block(32) for _ in range(4)]
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10), nn.Hardtanh()
    )


def step_of(model: nn.Module, x: Tensor) -> Step:
    """Forward, backward and one SGD step."""
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    target = torch.randn(x.shape[0], 10)

    def step() -> None:
        loss = (model(x) - target).pow(2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return step


def models() -> dict[str, Step]:
    torch.manual_seed(0)
    return {
        "transformer": step_of(Encoder(), torch.randn(8, 64, 256)),
        "resnet": step_of(resnet(), torch.randn(16, 3, 32, 32)),
    }


def routes() -> dict[str, Context]:
    other = next(era for era in ERAS if era != installed_era())
    return {
        "plain": contextlib.nullcontext,
        "override(clamp, relu)": lambda: pg.override(clamp="inward", relu="inward"),
        "override(clamp)": lambda: pg.override(clamp="inward"),
        "pin_edge": lambda: pg.pin_edge(other),
    }


def measure(step: Step, rounds: int) -> Taken:
    """Seconds a step, one entry a round."""
    contexts = routes()
    for context in contexts.values():
        with context():
            step()

    def sample(name: str) -> float:
        with contexts[name]():
            step()
            begin = time.perf_counter()
            step()
            return time.perf_counter() - begin

    return seconds_of(contexts, sample, rounds)


def table(model: str, taken: Taken) -> str:
    lines = [f"{model}, one training step", f"  {'route':<24} {'milliseconds':>14} {'x plain':>10}"]
    for name, samples in taken.items():
        over_plain = ratio(taken, name, "plain")
        lines.append(f"  {name:<24} {statistics.median(samples) * 1e3:>14.2f} {over_plain:>10.3f}")
    return "\n".join(lines)


def judge(results: dict[str, Taken]) -> tuple[list[str], bool]:
    lines, all_hold = [], True
    for promise in PROMISES:
        found = ratio(results[promise.model], promise.route, "plain")
        holds = found <= promise.limit
        all_hold = all_hold and holds
        verdict = "holds" if holds else "FAILS"
        lines.append(f"  {verdict:<7} {promise.model}, {promise.route} <= {promise.limit} x plain: {found:.3f}")
    return lines, all_hold


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=41, help="samples of every route")
    parser.add_argument("--threads", type=int, default=1, help="torch's own threads")
    parser.add_argument("--json", type=Path, help="write medians and ratios to this file")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a promised ratio does not hold")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} thread(s), median of {options.rounds} rounds", flush=True)
    results = {}
    for model, step in models().items():
        results[model] = measure(step, options.rounds)
        print("\n" + table(model, results[model]), flush=True)
    lines, all_hold = judge(results)
    print("\npromised\n" + "\n".join(lines))
    if options.json:
        report = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "threads": options.threads,
            "rounds": options.rounds,
            "models": {
                model: {
                    name: {"milliseconds": statistics.median(samples) * 1e3, "over_plain": ratio(taken, name, "plain")}
                    for name, samples in taken.items()
                }
                for model, taken in results.items()
            },
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if options.check and not all_hold else 0


if __name__ == "__main__":
    sys.exit(main())
