"""Time routes side by side, and judge promises. All benchmarks use this module. A route is one of the calls that a benchmark compares.

On a shared machine only ratios of timings taken side by side repeat. So every round times every route, in an order of its own: else a
route would always run in the heap and the cache that the same other route left. A ratio is the median of the ratios within a round.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from torch.overrides import TorchFunctionMode

Taken = dict[str, list[float]]  # seconds of each route, one entry a round


class Route(NamedTuple):
    """A call, and the context around its samples."""

    call: Callable[[], object]
    context: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext


class Limit(NamedTuple):
    """A promise: what is measured, the measured value, and the largest value that keeps the promise."""

    what: str
    value: float
    limit: float


def parser_of(doc: str | None, rounds: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"samples of every route; default {rounds}")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a promise does not hold")
    return parser


def seconds_of(routes: Iterable[str], sample: Callable[[str], float], rounds: int) -> Taken:
    """The results of `sample(route)` for each route, one in each round. Python's garbage collector is off meanwhile."""
    names, orders = list(routes), random.Random(0)
    taken: Taken = {name: [] for name in names}
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name in orders.sample(names, len(names)):
                taken[name].append(sample(name))
    finally:
        gc.enable()
    return taken


def time_routes(routes: Mapping[str, Route], rounds: int, seconds: float = 0.003, settles: int = 8) -> Taken:
    """Seconds of a call, by route and round. A sample is as many calls as fill `seconds`, after as many, at most `settles`, untimed."""
    counts = {name: _calls_per_sample(route, seconds) for name, route in routes.items()}

    def sample(name: str) -> float:
        call, count = routes[name].call, counts[name]
        with routes[name].context():
            for _ in range(min(count, settles)):
                call()
            start = time.perf_counter()
            for _ in range(count):
                call()
            return (time.perf_counter() - start) / count

    return seconds_of(routes, sample, rounds)


def _calls_per_sample(route: Route, seconds: float) -> int:
    """The number of calls that fill `seconds`, so that the clock is exact enough. The first calls are slower and do not count."""
    with route.context():
        for _ in range(3):
            start = time.perf_counter()
            route.call()
            taken = time.perf_counter() - start
            if taken >= seconds:
                return 1
    return max(1, int(seconds / max(taken, 1e-7)))


def ratio(taken: Taken, route: str, against: str) -> float:
    """The median, over rounds, of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(taken[route], taken[against], strict=True))


class EmptyMode(TorchFunctionMode):
    """Only passes the calls of torch on. No context that sees these calls can cost less."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        return func(*args, **(kwargs or {}))


def judge(limits: Iterable[Limit], check: bool) -> int:
    """Print which promises hold. Returns the exit status: 1 if one does not hold and `check` is set."""
    limits = list(limits)
    print("\npromised")
    for what, value, limit in limits:
        word, digits = "holds" if value <= limit else "FAILS", ".3f" if limit < 1000 else ",.0f"
        print(f"  {word:<7} {what} at most {limit:,.6g}: {value:{digits}}")
    return int(check and any(value > limit for _, value, limit in limits))
