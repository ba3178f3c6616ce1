"""Time of clamps on a CUDA device, forward and backward: torch's own, copying twice, the popular snippet, ours. Needs a device.

    python benchmarks/on_cuda.py    # a line for each dtype and size, as multiples of torch.clamp

A sample is many calls between two events of the device, so it is what a program waits for: the kernels, or, below some ten million
elements, the Python that starts them.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import Tensor

from interleaved import ratio, seconds_of
from suite.routes import ROUTES

SIZES = (10_000, 1_000_000, 10_000_000, 30_000_000, 100_000_000)
DTYPES = (torch.float32, torch.bfloat16)
ROUNDS = 9
_MOST = 200_000_000  # elements of a sample


def routes(x: Tensor, grad: Tensor) -> dict[str, Callable[[], object]]:
    """By name, a call that computes y and the gradient of x."""
    of = SimpleNamespace(x=x, low=-1.0, high=1.0)
    forwards = {name: ROUTES["clamp"][name](of) for name in ("native", "floor", "snippet", "inward", "zero/closed")}
    return {name: lambda f=f: torch.autograd.grad(f(), x, grad) for name, f in forwards.items()}


def microseconds(call: Callable[[], object], calls: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / calls * 1000


def measured(dtype: torch.dtype, size: int) -> str:
    x = torch.randn(size, device="cuda", dtype=dtype, requires_grad=True)
    timed = routes(x, torch.randn_like(x))
    for call in timed.values():
        microseconds(call, 3)  # compiles
    calls = max(10, min(200, _MOST // size))
    taken = seconds_of(timed, lambda name: microseconds(timed[name], calls), ROUNDS)
    first, *others = timed
    shown = [f"{name} {ratio(taken, name, first):.2f} x" for name in others]
    return f"{statistics.median(taken[first]):8.1f} us {first}; {', '.join(shown)}"


def main() -> int:
    if not torch.cuda.is_available():
        print("on_cuda.py: a CUDA device must be there, got none.", file=sys.stderr)
        return 2
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for dtype in DTYPES:
        for size in SIZES:
            print(f"{str(dtype).removeprefix('torch.'):8} {size:>11,} elements  {measured(dtype, size)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
