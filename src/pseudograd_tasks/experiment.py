"""A world of a task as an `Experiment` of `comparison.runs`: one run for each variant, which measures all seeds of the task."""

from __future__ import annotations

from dataclasses import dataclass

from pseudograd.comparison.runs import Outcome, Run
from pseudograd.comparison.variants import Variant, variants
from pseudograd.errors import must

from .base import Settings, Task


@dataclass(frozen=True)
class Problem:
    """One world of a task. Another process makes the Problem from the name of the task."""

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
