"""What a run found, and how a folder keeps it: the numbers in results.json, what the figures draw in arrays.npz."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..cases.records import Comparison
from ..tasks import Measured, Task, World
from ..tasks.base import KINDS
from ..torch_eras import measure
from ..torch_forms import at_the_bound

KIND = "pseudograd compare"
NUMBERS, ARRAYS = "results.json", "arrays.npz"


@dataclass
class Results:
    """All that a report needs. By task: `records`, the tasks themselves, `contexts`, and what was measured, `tasks[task][world][variant]`.

    `first[task, world]` are the pictures that a figure shows before those of the variants, by their title. `own`: the comparison of the
    user's own that this is a report of.
    """

    rules: tuple[str, ...]
    loss: str | None = None
    records: dict[str, Task] = field(default_factory=dict)
    contexts: dict[str, dict[str, Any]] = field(default_factory=dict)
    tasks: dict[str, dict[str, World]] = field(default_factory=dict)
    first: dict[tuple[str, str], dict[str, Tensor]] = field(default_factory=dict)
    edges: dict[str, float] = field(default_factory=dict)
    era: str = ""
    torch: str = torch.__version__
    seconds: float = 0.0
    own: Comparison | None = None

    def as_json(self) -> dict[str, Any]:
        """Numbers only; NaN becomes null, what is infinite "inf" or "-inf"."""
        from .. import __version__

        own = {} if self.own is None else {"own": self.own.to_json()}
        return {
            "kind": KIND,
            "pseudograd": __version__,
            "torch": self.torch,
            "rules": list(self.rules),
            "loss": self.loss,
            "torch_at_the_bound": self.edges,
            "installed_era": self.era,
            "seconds": self.seconds,
            "tasks": {
                name: {
                    "settings": _written(self.contexts[name]),
                    "seeds": {
                        world: {variant: _of_seeds(measured) for variant, measured in rows.items() if measured.seeds}
                        for world, rows in worlds.items()
                    },
                    "worlds": {
                        world: {variant: _written(measured.numbers) for variant, measured in rows.items()}
                        for world, rows in worlds.items()
                    },
                }
                for name, worlds in self.tasks.items()
            },
            **own,
        }

    def drawn(self) -> Iterator[tuple[str, dict[str, Any], str]]:
        """For every array that a figure draws: its name in arrays.npz, and the dict and key where it is here."""
        for name, worlds in self.tasks.items():
            if (figure := self.records[name].figure) is None:
                continue
            for world, rows in worlds.items():
                for title in figure.first:
                    yield f"{name}/{world}/{title}", self.first[name, world], title
                for variant, measured in rows.items():
                    for key in KINDS[figure.kind]:
                        yield f"{name}/{world}/{variant}/{key}", measured.arrays, key


def _written(values: dict[str, Any]) -> dict[str, Any]:
    return {key: _as_json(value) for key, value in values.items()}


def _of_seeds(measured: Measured) -> list[Any]:
    return [_as_json(value) for value in measured.seeds]


def _as_json(value: Any) -> Any:
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return None if math.isnan(value) else str(value)


def edges_now() -> dict[str, float]:
    """What the installed torch does at a bound, by the way it is written."""
    return {way.text: measure(way.f).x for way in at_the_bound()}


def text_of(results: Results) -> str:
    return json.dumps(results.as_json(), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def save(results: Results, folder: Path) -> None:
    (folder / NUMBERS).write_text(text_of(results), encoding="utf-8")
    np.savez_compressed(folder / ARRAYS, **{name: here[key].numpy() for name, here, key in results.drawn()})
