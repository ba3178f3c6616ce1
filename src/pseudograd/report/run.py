"""Run every variant in every world and collect the numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from ..errors import must
from ..tasks import DEFAULT_TASKS, Measured, Task, by_name, variants
from ..tasks.base import DEFAULT_RULES, KINDS, Settings
from ..torch_eras import ERAS, installed_era, measure
from ..torch_forms import at_the_bound
from .results import Results


def _edges() -> dict[str, float]:
    return {way.text: measure(way.f).x for way in at_the_bound()}


def compare(
    tasks: Sequence[str | Task] = DEFAULT_TASKS,
    rules: Sequence[str] = DEFAULT_RULES,
    settings: Settings | None = None,
    on_step: Callable[[str, str, str, int, int], None] = lambda *_: None,
) -> Results:
    """Run `tasks`, names or your own, with `rules`, both eras, the installed torch and no clamp.

    On one thread, so that a run repeats to the bit.
    on_step(task, world, variant, done, of) is called before each run.
    """
    records = by_name(tasks)
    settings = settings or Settings()
    results = Results(tuple(rules), settings.loss_name or None, records, edges=_edges(), era=ERAS[installed_era()].rule)
    plan = [
        (task, world, variant)
        for task in records.values()
        for world in task.worlds(settings)
        for variant in variants(rules, has_leaves=task.has_leaves)
    ]
    threads = torch.get_num_threads()
    began = time.perf_counter()
    try:
        torch.set_num_threads(1)
        for position, (task, world, variant) in enumerate(plan):
            on_step(task.name, world, variant.name, position, len(plan))
            measured = _checked(task, task.run(world, variant, settings))
            results.tasks.setdefault(task.name, {}).setdefault(world, {})[variant.name] = measured
        for name, task in records.items():
            first = task.figure.first if task.figure else {}
            results.contexts[name] = task.context(settings)
            results.first |= {(name, w): {title: of(w) for title, of in first.items()} for w in results.tasks[name]}
    finally:
        torch.set_num_threads(threads)
    results.seconds = round(time.perf_counter() - began, 3)
    return results


def _checked(task: Task, measured: Measured) -> Measured:
    """A task that leaves out what its table or figure shows is told so at once, not when the report is written."""
    for what, needed, given in (
        ("numbers", task.columns, measured.numbers),
        ("arrays", KINDS[task.figure.kind] if task.figure else (), measured.arrays),
    ):
        if missing := [key for key in needed if key not in given]:
            raise ValueError(must(f"compare: {task.name}", what, f"have {', '.join(missing)}", ", ".join(given)))
    return measured
