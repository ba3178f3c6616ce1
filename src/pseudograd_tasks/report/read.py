"""Take a report from its folder, to draw it again without running anything."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pseudograd import __version__
from pseudograd.comparison.comparison import from_json, read_number
from pseudograd.errors import UnknownNameError, must, unknown_name

from .. import TASKS, Outcome, Task, by_name
from ..base import Section
from .page import check_numbers
from .results import ARRAYS, KIND, NUMBERS, Results
from .sources import results_of


class FolderError(ValueError):
    """A folder cannot be used: to write a report there, or as a report."""


def is_report(folder: Path) -> bool:
    try:
        return bool(numbers_in(folder)["kind"] == KIND)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def numbers_in(folder: Path) -> Any:
    """What a report keeps in results.json."""
    return json.loads((folder / NUMBERS).read_text(encoding="utf-8"))


def read(folder: Path, tasks: Iterable[str | Task] = tuple(TASKS)) -> Results:
    """What `write` left in `folder`, whose tasks are among `tasks`. Nothing is run, and `write` draws the same report from it.

    Raises an error that names the task that is not among `tasks`; FolderError where this is no whole report of this version.
    """
    if not is_report(folder):
        raise _unreadable("be a folder that compare wrote", folder, "Choose another one")
    numbers = numbers_in(folder)
    if (version := numbers.get("pseudograd")) != __version__:
        raise _unreadable(f"hold a report of pseudograd {__version__}", version)
    try:
        results = (
            results_of(from_json(numbers["own"])) if "own" in numbers else _without_arrays(numbers, by_name(tasks))
        )
        results.edges, results.era = numbers["torch_at_the_bound"], numbers["installed_era"]
        check_numbers(results)
    except UnknownNameError:
        raise
    except Exception as error:
        raise _unreadable(f"hold {NUMBERS} as compare wrote it", folder) from error
    if not (folder / ARRAYS).exists():
        raise _unreadable(f"hold {ARRAYS}, from which its figures are drawn", folder)
    try:
        with (folder / ARRAYS).open("rb") as file, np.load(file) as arrays:
            for name, here, key in results.drawn():
                here[key] = torch.from_numpy(arrays[name])
    except Exception as error:  # zipfile, zlib and numpy each have errors of their own for a damaged file
        raise _unreadable(f"hold {ARRAYS} as compare wrote it", folder) from error
    return results


def _without_arrays(stored: Mapping[str, Any], known: Mapping[str, Task]) -> Results:
    results = Results(
        tuple(stored["rules"]),
        stored["loss"],
        torch=stored["torch"],
        seconds=stored["seconds"],
    )
    for name, task in stored["tasks"].items():
        if name not in known:
            raise unknown_name("compare", "task", known, name)
        seeds = task.get("seeds", {})
        worlds = {
            world: {
                variant: Outcome(_numbers(row), seeds=tuple(map(read_number, seeds.get(world, {}).get(variant, ()))))
                for variant, row in rows.items()
            }
            for world, rows in task["worlds"].items()
        }
        results.sections[name] = Section(
            known[name], _numbers(task["settings"]), worlds, {world: {} for world in worlds}
        )
    return results


def _numbers(stored: Mapping[str, object]) -> dict[str, Any]:
    return {key: read_number(value) for key, value in stored.items()}


def _unreadable(requirement: str, got: object, remedy: str = "Run compare again") -> FolderError:
    return FolderError(must("compare", "--redraw", requirement, str(got), remedy))
