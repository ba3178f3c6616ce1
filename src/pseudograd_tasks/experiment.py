"""Run tasks: one run for each variant in each world. A run measures all seeds of the task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from pseudograd.comparison.runs import Outcome, Run, open_runner
from pseudograd.comparison.variants import Variant, variants
from pseudograd.errors import must

from .base import KINDS, Settings, Task
from .sentences import Section

OnStep = Callable[[str, str, str, int, int], object]


@dataclass(frozen=True)
class Problem:
    """One world of a task, as an `Experiment` of `comparison.runs`. It is sent to another process by the name of the task."""

    task: Task
    world: str
    rules: tuple[str, ...]
    settings: Settings

    @property
    def name(self) -> str:
        return f"{self.task.name}, {self.world}"

    @property
    def variants(self) -> tuple[str, ...]:
        return tuple(self._variants())

    @property
    def depends_on(self) -> object:
        raise NotImplementedError("runs of tasks are not stored")

    def measure(self, run: Run) -> Outcome:
        return self.task.run(self.world, self._variants()[run.variant], self.settings)

    def _variants(self) -> dict[str, Variant]:
        return {variant.name: variant for variant in variants(self.rules, has_leaves=self.task.has_leaves)}

    def check_can_be_sent(self) -> None:
        from . import TASKS

        if TASKS.get(self.task.name) is not self.task:
            requirement = "be 1 for tasks of your own, which other processes do not know"
            raise ValueError(must("compare", "jobs", requirement, [self.task.name]))

    def __reduce__(self) -> tuple[object, ...]:
        return _make_problem, (self.task.name, self.world, self.rules, self.settings)


def _make_problem(name: str, world: str, rules: tuple[str, ...], settings: Settings) -> Problem:
    from . import TASKS

    return Problem(TASKS[name], world, rules, settings)


def measure_tasks(
    tasks: Sequence[Task], rules: Sequence[str], settings: Settings, on_step: OnStep, jobs: int
) -> dict[str, Section]:
    """Run the tasks on one thread, so that runs repeat to the bit. on_step(task, world, variant, done, total) is called before each run."""

    def on_run(problem: Problem, run: Run, done: int, total: int) -> None:
        on_step(problem.task.name, problem.world, run.variant, done, total)

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        sections = {task.name: Section(task, {}, {}, {}) for task in tasks}
        problems = [Problem(task, world, tuple(rules), settings) for task in tasks for world in task.worlds(settings)]
        with open_runner("compare", problems, on_run, jobs=jobs) as runner:
            plan = [(problem, Run(name, 0)) for problem in problems for name in problem.variants]
            for problem, run, outcome in runner.outcomes(plan):
                _check_complete(problem.task, outcome)
                sections[problem.task.name].worlds.setdefault(problem.world, {})[run.variant] = outcome
        for task in tasks:
            section, first = sections[task.name], task.figure.first if task.figure else {}
            section.context = task.context(settings)
            section.first = {
                world: {title: picture(world) for title, picture in first.items()} for world in section.worlds
            }
        return sections
    finally:
        torch.set_num_threads(threads)


def _check_complete(task: Task, outcome: Outcome) -> None:
    """Raise an error if the outcome lacks a number of the task's table or an array of its figure."""
    arrays = KINDS[task.figure.kind] if task.figure else ()
    for what, needed, got in (("numbers", task.columns, outcome.numbers), ("arrays", arrays, outcome.arrays)):
        if missing := [key for key in needed if key not in got]:
            raise ValueError(must(f"compare: {task.name}", what, f"have {', '.join(missing)}", ", ".join(got)))
