"""Timings of several routes side by side, for the benchmarks here.

Single timings on a shared machine are worthless; ratios of timings taken side by side are not. So every round times every route,
starting one route later than the round before, and a ratio is the median of the ratios within a round.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterable

Taken = dict[str, list[float]]


def seconds_of(routes: Iterable[str], sample: Callable[[str], float], rounds: int) -> Taken:
    """What `sample(route)` returned, one entry a round, with Python's garbage collector off."""
    names = list(routes)
    taken: Taken = {name: [] for name in names}
    gc.collect()
    gc.disable()
    try:
        for turn in range(rounds):
            start = turn % len(names)
            for name in names[start:] + names[:start]:
                taken[name].append(sample(name))
    finally:
        gc.enable()
    return taken


def ratio(taken: Taken, route: str, against: str) -> float:
    """The median, over rounds, of the ratio within one round."""
    return statistics.median(a / b for a, b in zip(taken[route], taken[against], strict=True))
