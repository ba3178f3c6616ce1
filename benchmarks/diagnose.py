"""What a diagnosis costs: training steps with and without it, side by side. python benchmarks/diagnose.py [--check]"""

from __future__ import annotations

import contextlib
import sys
import time

import torch

from harness import Limit, judge, parser_of, ratio, seconds_of
from models import models
from pseudograd import diagnose

DETAILS = ("counts", "full")
PROMISED = {"transformer": (1.3, 2), "resnet": (1.3, 2), "mlp": (3.0, 100)}  # limit, x plain; steps of a sample


def main() -> int:
    options = parser_of(__doc__, rounds=9).parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread, median of {options.rounds} ratios", flush=True)
    limits = []
    for name, (net, step) in models().items():
        limit, steps = PROMISED[name]

        def sample(detail: str) -> float:
            with contextlib.nullcontext() if detail == "plain" else diagnose(net, detail=detail):  # noqa: B023
                step()  # noqa: B023
                start = time.perf_counter()
                for _ in range(steps):  # noqa: B023
                    step()  # noqa: B023
                return time.perf_counter() - start

        taken = seconds_of(("plain", *DETAILS), sample, options.rounds)
        limits += [
            Limit(f"{name}, detail {detail}, x plain", ratio(taken, detail, "plain"), limit) for detail in DETAILS
        ]
    return judge(limits, options.check)


if __name__ == "__main__":
    sys.exit(main())
