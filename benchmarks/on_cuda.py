"""Time of clamps on a CUDA device, forward and backward: torch's own, copying twice, the popular snippet, ours.

    python benchmarks/on_cuda.py            # a line for each dtype and size, as multiples of torch.clamp
    python benchmarks/on_cuda.py --write    # and docs/speed_on_cuda.md, with the name of the device

A sample is many calls between two events of the device, so it is what a program waits for: the kernels, or, below some ten million
elements, the Python that starts them.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import torch

from harness import ratio, seconds_of
from suite.routes import ROUTES

SIZES = (10_000, 1_000_000, 10_000_000, 30_000_000, 100_000_000)
NAMES = ("native", "floor", "snippet", "inward", "zero/closed")
ROUNDS = 9
MOST = 200_000_000  # elements of a sample
PAGE = Path(__file__).parents[1] / "docs" / "speed_on_cuda.md"


def microseconds(call: Callable[[], object], calls: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / calls * 1000


def measure(dtype: torch.dtype, size: int) -> tuple[str, list[float]]:
    """A line for a person; the microseconds of torch.clamp and the multiples of it, by NAMES."""
    x = torch.randn(size, device="cuda", dtype=dtype, requires_grad=True)
    grad, work = torch.randn_like(x), SimpleNamespace(x=x, low=-1.0, high=1.0)
    forwards = {name: ROUTES["clamp"][name](work) for name in NAMES}
    steps = {name: lambda f=f: torch.autograd.grad(f(), x, grad) for name, f in forwards.items()}
    for step in steps.values():
        microseconds(step, 3)  # compiles
    calls = max(10, min(200, MOST // size))
    taken = seconds_of(steps, lambda name: microseconds(steps[name], calls), ROUNDS)
    numbers = [statistics.median(taken["native"]), *[ratio(taken, name, "native") for name in NAMES[1:]]]
    ratios = ", ".join(f"{name} {number:.2f} x" for name, number in zip(NAMES[1:], numbers[1:], strict=True))
    return f"{numbers[0]:8.1f} us native; {ratios}", numbers


def write(rows: list[tuple[str, list[float]]]) -> None:
    lines = [
        "---\norphan: true\n---\n\n# Speed on CUDA\n",
        f"Forward and backward, as multiples of `torch.clamp`, on an {torch.cuda.get_device_name()} under torch {torch.__version__}.",
        "`python benchmarks/on_cuda.py --write` measured this page.\n",
        f"| dtype and elements | torch.clamp, microseconds | {' | '.join(NAMES[1:])} |",
        "|---|" + "---|" * len(NAMES),
    ]
    for label, (first, *others) in rows:
        lines.append(f"| {label} | {first:.0f} | {' | '.join(f'{number:.2f}' for number in others)} |")
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> int:
    if not torch.cuda.is_available():
        print("on_cuda.py: a CUDA device must be there, got none.", file=sys.stderr)
        return 2
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    rows: list[tuple[str, list[float]]] = []
    for dtype, size in product((torch.float32, torch.bfloat16), SIZES):
        text, numbers = measure(dtype, size)
        name = str(dtype).removeprefix("torch.")
        rows.append((f"{name}, {size:,}", numbers))
        print(f"{name:8} {size:>11,} elements  {text}", flush=True)
    if "--write" in sys.argv[1:]:
        write(rows)
        print(f"wrote {PAGE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
