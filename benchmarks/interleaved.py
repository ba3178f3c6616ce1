"""Timings of several routes side by side, for the benchmarks here.

Single timings on a shared machine are worthless; ratios of timings taken side by side are not. So every round times every route, in an
order of its own: a route would otherwise always run in the heap and the cache that the same other route left. A ratio is the median of
the ratios within a round.
"""

from __future__ import annotations

import gc
import random
import statistics
from collections.abc import Callable, Iterable

Taken = dict[str, list[float]]


def seconds_of(routes: Iterable[str], sample: Callable[[str], float], rounds: int) -> Taken:
    """What `sample(route)` returned, one entry a round, with Python's garbage collector off."""
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


def ratio(taken: Taken, route: str, against: str) -> float:
    """The median, over rounds, of the ratio within one round."""
    return statistics.median(a / b for a, b in zip(taken[route], taken[against], strict=True))
