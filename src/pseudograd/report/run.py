"""Run every variant in every world and collect the numbers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..tasks import TASKS, Measured, variants
from ..tasks.base import DEFAULT_RULES, Settings, unknown_task
from ..torch_eras import ERAS, installed_era, measure
from ..torch_forms import at_the_bound

World = dict[str, Measured]  # by variant


@dataclass
class Results:
    """All that a report needs. `tasks[task][world][variant]`."""

    settings: Settings
    rules: tuple[str, ...]
    tasks: dict[str, dict[str, World]] = field(default_factory=dict)
    contexts: dict[str, dict[str, Any]] = field(default_factory=dict)
    edges: dict[str, float] = field(default_factory=dict)
    era: str = ""
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Numbers only; what is not finite becomes null."""
        from .. import __version__

        return {
            "kind": "pseudograd compare",
            "pseudograd": __version__,
            "torch": torch.__version__,
            "rules": list(self.rules),
            "loss": self.settings.loss_name or None,
            "torch_at_the_bound": self.edges,
            "installed_era": self.era,
            "seconds": round(self.seconds, 3),
            "tasks": {
                name: {
                    "settings": self.contexts[name],
                    "worlds": {
                        world: {
                            variant: {key: finite_or_none(value) for key, value in measured.numbers.items()}
                            for variant, measured in by_variant.items()
                        }
                        for world, by_variant in worlds.items()
                    },
                }
                for name, worlds in self.tasks.items()
            },
        }


def finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _edges() -> dict[str, float]:
    return {way.text: measure(way.f).x for way in at_the_bound()}


def compare(
    tasks: Sequence[str] = tuple(TASKS),
    rules: Sequence[str] = DEFAULT_RULES,
    settings: Settings | None = None,
    on_step: Callable[[str, str, str, int, int], None] = lambda *_: None,
) -> Results:
    """Run `tasks` with `rules`, both eras, the installed torch and no clamp. On one thread, so that a run repeats to the bit.

    on_step(task, world, variant, done, of) is called before each run.
    """
    if error := unknown_task(tasks, TASKS):
        raise error
    settings = settings or Settings()
    results = Results(settings, tuple(rules), edges=_edges(), era=ERAS[installed_era()].rule)
    plan = [
        (task, world, variant)
        for task in (TASKS[name] for name in dict.fromkeys(tasks))
        for world in task.worlds(settings)
        for variant in variants(rules, has_leaves=task.has_leaves)
    ]
    threads = torch.get_num_threads()
    began = time.perf_counter()
    try:
        torch.set_num_threads(1)
        for position, (task, world, variant) in enumerate(plan):
            on_step(task.name, world, variant.name, position, len(plan))
            measured = task.run(world, variant, settings)
            results.tasks.setdefault(task.name, {}).setdefault(world, {})[variant.name] = measured
        for name in results.tasks:
            results.contexts[name] = TASKS[name].context(settings)
    finally:
        torch.set_num_threads(threads)
    results.seconds = time.perf_counter() - began
    return results
