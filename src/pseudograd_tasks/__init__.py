"""The tasks of `pseudograd compare`, one file each, and the report about them.

A task gets a `Variant`, calls its clamp, and returns an `Outcome`; it knows nothing of rules. To add a task, write a file that makes a
`Task`, with its sentences and its figure. `ORDER` in the file gives each of its tasks a position. Without `--tasks`, the tasks with a
position below 100 run; they take half a minute.
"""

from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules

from pseudograd.errors import must, unknown_name

from .base import Gallery, Outcome, Task, Variant, World, Worlds

_FILES = [vars(import_module(f"{__name__}.{file.name}")) for file in iter_modules(__path__) if not file.ispkg]
_ALL = {value.name: value for file in _FILES for value in file.values() if isinstance(value, Task)}
_LAST = 1000  # the position of a task without one
_ORDER: dict[str, int] = {name: position for file in _FILES for name, position in file.get("ORDER", {}).items()}
TASKS: dict[str, Task] = dict(sorted(_ALL.items(), key=lambda item: (_ORDER.get(item[0], _LAST), item[0])))
DEFAULT_TASKS = tuple(name for name in TASKS if _ORDER.get(name, _LAST) < 100)

__all__ = ["DEFAULT_TASKS", "TASKS", "Gallery", "Outcome", "Task", "Variant", "World", "Worlds", "find_tasks"]


def find_tasks(tasks: Iterable[str | Task]) -> dict[str, Task]:
    """The tasks by their names, each once. tasks: Task objects, or names in `TASKS`."""
    chosen: dict[str, Task] = {}
    for name in tasks:
        if isinstance(name, str) and name not in TASKS:
            raise unknown_name("compare", "task", TASKS, name)
        task = TASKS[name] if isinstance(name, str) else name
        if chosen.setdefault(task.name, task) is not task:
            raise ValueError(must("compare", "tasks", "have names of their own", task.name))
    return chosen


# What this package imports from `pseudograd`: the whole interface between the two. tests/engine/test_import.py holds it.
USES = (
    "pseudograd",
    "pseudograd.cli._arguments",
    "pseudograd.comparison.compare",
    "pseudograd.comparison.comparison",
    "pseudograd.comparison.picture",
    "pseudograd.comparison.runs",
    "pseudograd.comparison.statistics",
    "pseudograd.comparison.text",
    "pseudograd.comparison.training",
    "pseudograd.comparison.variants",
    "pseudograd.comparison.verdicts",
    "pseudograd.errors",
    "pseudograd.listen.program.process",
    "pseudograd.listen.program.signals",
    "pseudograd.look.palette",
    "pseudograd.ops.bound_rules",
    "pseudograd.ops.rounding",
    "pseudograd.parse_rule",
    "pseudograd.torch_table.eras",
    "pseudograd.torch_table.forms",
    "pseudograd.wording",
    "pseudograd_notices.command_line",
)
