"""Time of clamps on a CUDA device, forward and backward: torch's own, copying twice, the popular snippet, ours.

    python benchmarks/on_cuda.py    # a line for each dtype and size, as multiples of torch.clamp

A sample is many calls between two events of the device, so it is what a program waits for: the kernels, or, below some ten million
elements, the Python that starts them.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from itertools import product
from types import SimpleNamespace

import torch

from harness import ratio, seconds_of
from suite.routes import ROUTES

SIZES = (10_000, 1_000_000, 10_000_000, 30_000_000, 100_000_000)
NAMES = ("native", "floor", "snippet", "inward", "zero/closed")
ROUNDS = 9
MOST = 200_000_000  # elements of a sample


def microseconds(call: Callable[[], object], calls: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / calls * 1000


def measure(dtype: torch.dtype, size: int) -> str:
    x = torch.randn(size, device="cuda", dtype=dtype, requires_grad=True)
    grad, work = torch.randn_like(x), SimpleNamespace(x=x, low=-1.0, high=1.0)
    forwards = {name: ROUTES["clamp"][name](work) for name in NAMES}
    steps = {name: lambda f=f: torch.autograd.grad(f(), x, grad) for name, f in forwards.items()}
    for step in steps.values():
        microseconds(step, 3)  # compiles
    calls = max(10, min(200, MOST // size))
    taken = seconds_of(steps, lambda name: microseconds(steps[name], calls), ROUNDS)
    ratios = ", ".join(f"{name} {ratio(taken, name, 'native'):.2f} x" for name in NAMES[1:])
    return f"{statistics.median(taken['native']):8.1f} us native; {ratios}"


def main() -> int:
    if not torch.cuda.is_available():
        print("on_cuda.py: a CUDA device must be there, got none.", file=sys.stderr)
        return 2
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for dtype, size in product((torch.float32, torch.bfloat16), SIZES):
        print(f"{str(dtype).removeprefix('torch.'):8} {size:>11,} elements  {measure(dtype, size)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
