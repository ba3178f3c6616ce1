"""How much `override` and `pin_edge` slow a training step: python benchmarks/rewrite.py [--check]

The models are a small transformer and a small ResNet. A plain step has no context.
"""

from __future__ import annotations

import contextlib
import statistics
import sys

import torch

import pseudograd as pg
from harness import Limit, Route, judge, parser_of, ratio, time_routes
from models import models
from pseudograd.torch_table.eras import ERAS, installed_era

PROMISED = {"transformer": 1.10, "resnet": 1.25}  # the time of a step is at most so many times that of a plain step


def main() -> int:
    options = parser_of(__doc__, rounds=41).parse_args()
    torch.set_num_threads(1)
    other = next(era for era in ERAS if era != installed_era())
    contexts = {
        "plain": contextlib.nullcontext,
        "override(clamp, relu)": lambda: pg.override(clamp="inward", relu="inward"),
        "override(clamp)": lambda: pg.override(clamp="inward"),
        "pin_edge": lambda: pg.pin_edge(other),
    }
    print(f"torch {torch.__version__}, one thread, median of {options.rounds} rounds", flush=True)
    limits = []
    for model, (_, step) in models().items():
        if model in PROMISED:
            routes = {name: Route(step, context) for name, context in contexts.items()}
            taken = time_routes(routes, options.rounds, seconds=0, settles=1)
            for name, samples in taken.items():
                over = ratio(taken, name, "plain")
                print(f"  {model:<12} {name:<24} {statistics.median(samples) * 1e3:>8.2f} ms {over:>8.3f} x plain")
                if name in ("override(clamp, relu)", "pin_edge"):
                    limits.append(Limit(f"{model}, {name}, x plain", over, PROMISED[model]))
    return judge(limits, options.check)


if __name__ == "__main__":
    sys.exit(main())
