"""The worlds that `compare` runs rules in, one file each. A world knows nothing of rules: it gets a clamp and returns an outcome.

To add a task, write its file, with its words and the kind of its figure: every Task that a file of this folder makes is one.
"""

from collections.abc import Iterable, Iterator
from importlib import import_module
from pkgutil import iter_modules

from pseudograd.errors import must, unknown_name

from .base import Gallery, Outcome, Task, Variant, World, Worlds


def _found() -> Iterator[Task]:
    for file in iter_modules(__path__):
        made = vars(import_module(f"{__name__}.{file.name}")).values()
        yield from (value for value in made if isinstance(value, Task))


TASKS: dict[str, Task] = {task.name: task for task in sorted(_found(), key=lambda task: (task.order, task.name))}
DEFAULT_TASKS = tuple(
    name for name, task in TASKS.items() if task.order < 100
)  # what a first run takes, in half a minute

__all__ = ["DEFAULT_TASKS", "TASKS", "Gallery", "Outcome", "Task", "Variant", "World", "Worlds", "by_name"]


def by_name(tasks: Iterable[str | Task]) -> dict[str, Task]:
    """Tasks as they are and tasks of `TASKS` by their names, each once."""
    found: dict[str, Task] = {}
    for given in tasks:
        if isinstance(given, str) and given not in TASKS:
            raise unknown_name("compare", "task", TASKS, given)
        task = TASKS[given] if isinstance(given, str) else given
        if found.setdefault(task.name, task) is not task:
            raise ValueError(must("compare", "tasks", "have names of their own", task.name))
    return found


# What this package imports from `pseudograd`: the whole interface between the two. tests/engine/test_import.py holds it.
USES = (
    "pseudograd",
    "pseudograd.cli._arguments",
    "pseudograd.comparison.compare",
    "pseudograd.comparison.comparison",
    "pseudograd.comparison.picture",
    "pseudograd.comparison.runs",
    "pseudograd.comparison.statistics",
    "pseudograd.comparison.store",
    "pseudograd.comparison.text",
    "pseudograd.comparison.training",
    "pseudograd.comparison.variants",
    "pseudograd.comparison.verdicts",
    "pseudograd.errors",
    "pseudograd.listen.program.signals",
    "pseudograd.look.gradient",
    "pseudograd.look.palette",
    "pseudograd.ops.bound_rules",
    "pseudograd.ops.policy_rows",
    "pseudograd.ops.replace",
    "pseudograd.ops.rounding",
    "pseudograd.parse_rule",
    "pseudograd.torch_table.eras",
    "pseudograd.torch_table.forms",
    "pseudograd.wording",
)
