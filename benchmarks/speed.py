"""How long forward and backward of a clamp take: torch.clamp, the popular snippet, and pseudograd's rules.

    python benchmarks/speed.py                      # the table, and which promised ratios hold
    python benchmarks/speed.py --check              # the same; exit status 1 if a promised ratio does not hold
    python benchmarks/speed.py --sizes 1e5,1e6 --dtype bfloat16 --threads 4 --json speed.json

Ratios are taken between timings side by side, as interleaved.py says.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import pseudograd as pg
from interleaved import Taken, ratio, seconds_of

Route = Callable[[Tensor, float, float], Tensor]


class Promise(NamedTuple):
    """`route` takes at most `limit` times as long as `against`, at `size` elements."""

    route: str
    against: str
    size: int
    limit: float


PROMISES = (
    Promise("inward", "snippet", 100_000, 0.45),
    Promise("inward", "snippet", 1_000_000, 0.45),
    Promise("inward", "snippet", 10_000_000, 0.45),
    Promise("inward", "native", 10, 1.5),
)


class Snippet(torch.autograd.Function):
    """What people paste: the one-sided rule as a product of signs, with a mask that multiplies."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bounds = low, high
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        passes = grad * (x - x.clamp(*ctx.bounds)) >= 0
        return grad * passes, None, None


def rule_route(rule: str, edge: str = "closed") -> Route:
    return lambda x, low, high: pg.clamp(x, low, high, rule=rule, edge=edge)


ROUTES: dict[str, Route] = {
    "native": torch.clamp,
    "snippet": Snippet.apply,
    "inward": rule_route("inward"),
    "zero/closed": rule_route("zero", "closed"),
    "zero/open": rule_route("zero", "open"),
    "sign": rule_route("sign"),
    "identity": rule_route("identity"),
}


def forward_and_backward(route: Route, x: Tensor, bounds: tuple[float, float], grad: Tensor) -> None:
    torch.autograd.grad(route(x, *bounds), x, grad)


def calls_per_sample(route: Route, x: Tensor, bounds: tuple[float, float], grad: Tensor, seconds: float) -> int:
    """As many calls as fill `seconds`, so that the clock's own resolution does not count."""
    for _ in range(3):
        forward_and_backward(route, x, bounds, grad)
    start = time.perf_counter()
    forward_and_backward(route, x, bounds, grad)
    return max(1, int(seconds / max(time.perf_counter() - start, 1e-7)))


def sample(route: Route, x: Tensor, bounds: tuple[float, float], grad: Tensor, calls: int) -> float:
    """Seconds per call. One call goes first unmeasured: it evicts what the previous route left in the cache."""
    forward_and_backward(route, x, bounds, grad)
    start = time.perf_counter()
    for _ in range(calls):
        forward_and_backward(route, x, bounds, grad)
    return (time.perf_counter() - start) / calls


def measure(size: int, dtype: torch.dtype, bounds: tuple[float, float], rounds: int, seconds: float) -> Taken:
    """Seconds per call, one entry a round."""
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(size, generator=generator) * 1.5).to(dtype).requires_grad_()
    grad = torch.randn(size, generator=generator).to(dtype)
    calls = {name: calls_per_sample(route, x, bounds, grad, seconds) for name, route in ROUTES.items()}
    return seconds_of(ROUTES, lambda name: sample(ROUTES[name], x, bounds, grad, calls[name]), rounds)


def table(size: int, taken: Taken) -> str:
    lines = [f"{size:,} elements", f"  {'route':<12} {'microseconds':>14} {'x native':>10} {'x snippet':>10}"]
    for name, samples in taken.items():
        median = statistics.median(samples) * 1e6
        over_native, over_snippet = ratio(taken, name, "native"), ratio(taken, name, "snippet")
        lines.append(f"  {name:<12} {median:>14,.1f} {over_native:>10.2f} {over_snippet:>10.2f}")
    return "\n".join(lines)


def judge(results: dict[int, Taken]) -> tuple[list[str], bool]:
    """A line for each promise, and whether all that were measured hold."""
    lines, all_hold = [], True
    for promise in PROMISES:
        what = f"{promise.route} <= {promise.limit} x {promise.against} at {promise.size:,} elements"
        if promise.size not in results:
            lines.append(f"  not measured  {what}")
            continue
        found = ratio(results[promise.size], promise.route, promise.against)
        holds = found <= promise.limit
        all_hold = all_hold and holds
        lines.append(f"  {'holds' if holds else 'FAILS':<13} {what}: {found:.3f}")
    return lines, all_hold


def sizes(text: str) -> list[int]:
    return [int(float(part)) for part in text.split(",")]


def bounds(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=sizes, default=[10, 1_000, 100_000, 1_000_000, 10_000_000])
    parser.add_argument("--rounds", type=int, default=31, help="samples of every route at every size")
    parser.add_argument("--threads", type=int, default=1, help="torch's own threads")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--bounds", type=bounds, default=(-1.0, 1.0), help="two numbers, such as 0,1 or (with =) -1,1")
    parser.add_argument("--seconds", type=float, default=0.003, help="least length of one sample")
    parser.add_argument("--json", type=Path, help="write all medians and ratios to this file")
    parser.add_argument(
        "--check",
        action="store_true",
        help="exit with 1 if a promised ratio does not hold; the promises are for one thread, float32 and -1,1",
    )
    options = parser.parse_args(arguments)
    if len(options.bounds) != 2:
        parser.error(f"--bounds must be two numbers, got {len(options.bounds)}")
    return options


def report(results: dict[int, Taken], options: argparse.Namespace) -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": options.threads,
        "dtype": options.dtype,
        "bounds": list(options.bounds),
        "rounds": options.rounds,
        "sizes": {
            size: {
                name: {
                    "microseconds": statistics.median(samples) * 1e6,
                    "over_native": ratio(taken, name, "native"),
                    "over_snippet": ratio(taken, name, "snippet"),
                }
                for name, samples in taken.items()
            }
            for size, taken in results.items()
        },
    }


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    print(
        f"torch {torch.__version__}, {options.dtype}, {options.threads} thread(s), bounds {options.bounds}, "
        f"median of {options.rounds} rounds, forward and backward",
        flush=True,
    )
    results = {}
    for size in options.sizes:
        results[size] = measure(size, getattr(torch, options.dtype), options.bounds, options.rounds, options.seconds)
        print("\n" + table(size, results[size]), flush=True)
    promised = options.dtype == "float32" and options.threads == 1 and options.bounds == (-1.0, 1.0)
    lines, all_hold = judge(results) if promised else (["  nothing: the promises are for the default options"], True)
    print("\npromised\n" + "\n".join(lines))
    if options.json:
        options.json.write_text(json.dumps(report(results, options), indent=1) + "\n")
    return 1 if options.check and not all_hold else 0


if __name__ == "__main__":
    sys.exit(main())
