"""Tasks as experiments: every variant in every world, once, since a task measures all its seeds in one trial."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pseudograd.comparison.runner import Asked, Outcome, runner
from pseudograd.comparison.store import Store
from pseudograd.comparison.variants import Variant, users_rows, variants
from pseudograd.errors import must

from .base import KINDS, Section, Settings, Task, World

OnStep = Callable[[str, str, str, int, int], Any]


@dataclass(frozen=True)
class Problem:
    """An Experiment: one world of a task. Another process makes it anew, from the name of the task."""

    task: Task
    world: str
    rules: tuple[str, ...]
    settings: Settings

    @property
    def name(self) -> str:
        return f"{self.task.name}, {self.world}"

    @property
    def variants(self) -> tuple[str, ...]:
        return tuple(variant.name for variant in self._variants())

    @property
    def depends_on(self) -> Any:
        settings = self.settings
        users = [row.pull for row in users_rows(self.rules)]
        return [self.task.run, self.rules, users, settings.low, settings.high, settings.loss]

    def trial(self, variant: str, seed: int = 0, steps: int | None = None) -> Outcome:
        chosen = next(one for one in self._variants() if one.name == variant)
        return self.task.run(self.world, chosen, self.settings)

    def _variants(self) -> list[Variant]:
        return variants(self.rules, has_leaves=self.task.has_leaves)

    def check_travels(self) -> None:
        from . import TASKS

        if TASKS.get(self.task.name) is not self.task:
            requirement = "be 1 for tasks of your own, which other processes do not know"
            raise ValueError(must("compare", "jobs", requirement, [self.task.name]))

    def __reduce__(self) -> tuple[Any, ...]:
        return _of_the_table, (self.task.name, self.world, self.rules, self.settings)


def _of_the_table(name: str, *rest: Any) -> Problem:
    from . import TASKS

    return Problem(TASKS[name], *rest)


def run(
    tasks: Sequence[Task], rules: Sequence[str], settings: Settings, on_step: OnStep, jobs: int, store: Store | None
) -> dict[str, Section]:
    """By task. On one thread, so that it repeats to the bit. on_step(task, world, variant, done, of) is called before each trial."""

    def told(problem: Problem, asked: Asked, done: int, of: int) -> None:
        on_step(problem.task.name, problem.world, asked.variant, done, of)

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        found: dict[str, dict[str, World]] = {}
        problems = [Problem(task, world, tuple(rules), settings) for task in tasks for world in task.worlds(settings)]
        with runner("compare", problems, jobs, store, told) as made:
            plan = [(problem, Asked(name, 0)) for problem in problems for name in problem.variants]
            for problem, asked, outcome in made.outcomes(plan):
                worlds = found.setdefault(problem.task.name, {})
                worlds.setdefault(problem.world, {})[asked.variant] = _checked(problem.task, outcome)
        return {
            task.name: Section(task, task.context(settings), found[task.name], _first(task, settings)) for task in tasks
        }
    finally:
        torch.set_num_threads(threads)


def _first(task: Task, settings: Settings) -> dict[str, dict[str, Tensor]]:
    first = task.figure.first if task.figure else {}
    return {world: {title: of(world) for title, of in first.items()} for world in task.worlds(settings)}


def _checked(task: Task, outcome: Outcome) -> Outcome:
    """A task that leaves out what its table or figure shows is told so at once, not when the report is written."""
    for what, needed, given in (
        ("numbers", task.columns, outcome.numbers),
        ("arrays", KINDS[task.figure.kind] if task.figure else (), outcome.arrays),
    ):
        if missing := [key for key in needed if key not in given]:
            raise ValueError(must(f"compare: {task.name}", what, f"have {', '.join(missing)}", ", ".join(given)))
    return outcome
