"""The worlds that `compare` runs rules in, one file each. A world knows nothing of rules: it gets a clamp and returns measurements.

To add a task, write its file, with its words and the kind of its figure, and list it here.
"""

from collections.abc import Iterable

from ..errors import must, unknown_name
from .base import Gallery, Measured, Task, Variant, World, Worlds, variants
from .basin import BASIN
from .canvas import CANVAS
from .curve import CURVE
from .retarget import RETARGET

TASKS: dict[str, Task] = {task.name: task for task in (RETARGET, CANVAS, BASIN, CURVE)}

__all__ = ["TASKS", "Gallery", "Measured", "Task", "Variant", "World", "Worlds", "by_name", "variants"]


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
