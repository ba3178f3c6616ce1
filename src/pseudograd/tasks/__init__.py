"""The worlds that `compare` runs rules in, one file each. A world knows nothing of rules: it gets a clamp and returns measurements."""

from .base import Measured, Task, Variant, variants
from .basin import BASIN
from .canvas import CANVAS
from .curve import CURVE
from .retarget import RETARGET

TASKS: dict[str, Task] = {task.name: task for task in (RETARGET, CANVAS, BASIN, CURVE)}

__all__ = ["TASKS", "Measured", "Task", "Variant", "variants"]
