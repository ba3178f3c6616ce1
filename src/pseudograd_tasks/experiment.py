"""Tasks as experiments: every variant in every world, once, since a task measures all its seeds in one trial."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pseudograd.comparison.runs import Outcome, Run, open_runner
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

    def measure(self, run: Run) -> Outcome:
        chosen = next(variant for variant in self._variants() if variant.name == run.variant)
        return self.task.run(self.world, chosen, self.settings)

    def _variants(self) -> list[Variant]:
        return variants(self.rules, has_leaves=self.task.has_leaves)

    def check_travels(self) -> None:
        from . import TASKS

        if TASKS.get(self.task.name) is not self.task:
            requirement = "be 1 for tasks of your own, which other processes do not know"
            raise ValueError(must("compare", "jobs", requirement, [self.task.name]))

    def __reduce__(self) -> tuple[Any, ...]:
        return _problem, (self.task.name, self.world, self.rules, self.settings)


def _problem(name: str, *rest: Any) -> Problem:
    from . import TASKS

    return Problem(TASKS[name], *rest)


def measure_tasks(
    tasks: Sequence[Task], rules: Sequence[str], settings: Settings, on_step: OnStep, jobs: int, store: Store | None
) -> dict[str, Section]:
    """By task. On one thread, so that it repeats to the bit. on_step(task, world, variant, done, total) is called before each run."""

    def on_run(problem: Problem, run: Run, done: int, total: int) -> None:
        on_step(problem.task.name, problem.world, run.variant, done, total)

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        worlds: dict[str, dict[str, World]] = {task.name: {} for task in tasks}
        problems = [Problem(task, world, tuple(rules), settings) for task in tasks for world in task.worlds(settings)]
        with open_runner("compare", problems, on_run, jobs=jobs, store=store) as runner:
            plan = [(problem, Run(name, 0)) for problem in problems for name in problem.variants]
            for problem, run, outcome in runner.outcomes(plan):
                _check_complete(problem.task, outcome)
                worlds[problem.task.name].setdefault(problem.world, {})[run.variant] = outcome
        return {
            task.name: Section(task, task.context(settings), worlds[task.name], _first_pictures(task, settings))
            for task in tasks
        }
    finally:
        torch.set_num_threads(threads)


def _first_pictures(task: Task, settings: Settings) -> dict[str, dict[str, Tensor]]:
    first = task.figure.first if task.figure else {}
    return {world: {title: picture(world) for title, picture in first.items()} for world in task.worlds(settings)}


def _check_complete(task: Task, outcome: Outcome) -> None:
    """A task that leaves out what its table or figure shows fails here, not when the report is written."""
    for what, needed, got in (
        ("numbers", task.columns, outcome.numbers),
        ("arrays", KINDS[task.figure.kind] if task.figure else (), outcome.arrays),
    ):
        if missing := [key for key in needed if key not in got]:
            raise ValueError(must(f"compare: {task.name}", what, f"have {', '.join(missing)}", ", ".join(got)))
