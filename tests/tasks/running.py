"""One variant in one world of a task, with checks that hold for every task."""

import math

from pseudograd.comparison.variants import variants
from pseudograd_tasks import Outcome, Task
from pseudograd_tasks.base import KINDS, Settings


def run(task: Task, world: str, name: str, settings: Settings | None = None) -> Outcome:
    by_name = {variant.name: variant for variant in variants(has_leaves=task.has_leaves)}
    measured = task.run(world, by_name[name], settings or Settings())
    assert set(task.columns) == set(measured.numbers)
    assert all(isinstance(value, float) for value in measured.numbers.values())
    if measured.seeds:
        mean = math.fsum(measured.seeds) / len(measured.seeds)
        assert math.isclose(mean, measured.numbers[task.headline[0]], rel_tol=1e-9)
    if task.figure:
        assert set(KINDS[task.figure.kind]) <= set(measured.arrays)
    return measured


def headline(task: Task, world: str, name: str) -> float:
    return run(task, world, name).numbers[task.headline[0]]
