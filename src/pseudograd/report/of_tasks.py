"""Run tasks and make results of their outcomes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..tasks import DEFAULT_TASKS, Task, by_name
from ..tasks.base import Settings
from ..tasks.running import OnStep, run
from ..trials.store import Store
from ..trials.variants import DEFAULT_RULES
from .results import Results, blank


def compare(
    tasks: Sequence[str | Task] = DEFAULT_TASKS,
    rules: Sequence[str] = DEFAULT_RULES,
    settings: Settings | None = None,
    on_step: OnStep = lambda *_: None,
    *,
    jobs: int = 1,
    kept: Store | None = None,
) -> Results:
    """Run `tasks`, names or your own, with `rules`, every era, the installed torch and no clamp.

    On one thread, so that a run repeats to the bit; in `jobs` processes, which gives the same. Runs that are `kept` are not made again.
    on_step(task, world, variant, done, of) is called before each run.
    """
    results = blank(rules, loss=(settings.loss_name or None) if settings else None)
    began = time.perf_counter()
    results.sections = run(list(by_name(tasks).values()), rules, settings or Settings(), on_step, jobs, kept)
    results.seconds = round(time.perf_counter() - began, 3)
    return results
