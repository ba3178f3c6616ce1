"""The worlds that `compare` runs rules in, one file each. A world knows nothing of rules: it gets a clamp and returns measurements.

To add a task, write its file, with its words and the kind of its figure, and list it here.
"""

from collections.abc import Iterable

from ..errors import must, unknown_name
from .attack import ATTACK
from .base import Gallery, Measured, Task, Variant, World, Worlds, variants
from .basin import BASIN
from .bounded_head import BOUNDED_HEAD
from .canvas import CANVAS
from .curve import CURVE
from .kinematics import KINEMATICS
from .least_squares import LEAST_SQUARES
from .moving_target import MOVING_TARGET
from .policy import POLICY
from .quantized import FOUR_BITS, TERNARY
from .retarget import RETARGET, RETARGET_SRGB
from .splats import SPLATS
from .text_to_digit import TEXT_TO_DIGIT

_QUICK = (RETARGET, CANVAS, LEAST_SQUARES, BASIN, CURVE)
_LONGER = (
    RETARGET_SRGB,
    ATTACK,
    TERNARY,
    FOUR_BITS,
    BOUNDED_HEAD,
    KINEMATICS,
    MOVING_TARGET,
    SPLATS,
    TEXT_TO_DIGIT,
    POLICY,
)
TASKS: dict[str, Task] = {task.name: task for task in (*_QUICK, *_LONGER)}
DEFAULT_TASKS = tuple(task.name for task in _QUICK)  # what a first run takes, in half a minute

__all__ = ["DEFAULT_TASKS", "TASKS", "Gallery", "Measured", "Task", "Variant", "World", "Worlds", "by_name", "variants"]


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
