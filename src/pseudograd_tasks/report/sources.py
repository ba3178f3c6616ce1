"""Results from tasks that are run, from a comparison of the user's own, or from the folder of an older report."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pseudograd import __version__
from pseudograd.comparison.comparison import Comparison, from_json, read_number
from pseudograd.comparison.statistics import spread
from pseudograd.comparison.store import Store
from pseudograd.comparison.text import closing_lines, headlines, sentences
from pseudograd.errors import UnknownNameError, must, unknown_name
from pseudograd.ops.bound_rules import COMPARED_RULES
from pseudograd.wording import listed

from .. import DEFAULT_TASKS, TASKS, Outcome, Task, find_tasks
from ..base import Settings, Subject
from ..experiment import OnStep, measure_tasks
from ..sentences import Section
from .results import ARRAYS, KIND, NUMBERS, Results, cell, empty_results, own_worlds


def run_tasks(
    tasks: Sequence[str | Task] = DEFAULT_TASKS,
    rules: Sequence[str] = COMPARED_RULES,
    settings: Settings | None = None,
    on_step: OnStep = lambda *_: None,
    *,
    jobs: int = 1,
    store: Store | None = None,
) -> Results:
    """Runs `tasks`, names or your own, with `rules`, every era, the installed torch and no clamp.

    One thread makes a run repeat to the bit; `jobs` processes give the same numbers. Runs in the `store` are not repeated.
    on_step(task, world, variant, done, total) is called before each run.
    """
    results = empty_results(rules, loss=(settings.loss_name or None) if settings else None)
    began = time.perf_counter()
    chosen = list(find_tasks(tasks).values())
    results.sections = measure_tasks(chosen, rules, settings or Settings(), on_step, jobs, store)
    results.seconds = round(time.perf_counter() - began, 3)
    return results


def own_results(comparison: Comparison) -> Results:
    """The results for a report of the user's own training. Its worlds are the numbers of the run."""
    run = comparison.run
    name = run if run.isidentifier() and run.isascii() and run not in TASKS else "own_case"  # it names files
    worlds = {
        world: {variant: _own_outcome(comparison, number, variant) for variant in comparison.values[number]}
        for world, number in own_worlds(comparison).items()
    }
    section = Section(_own_subject(comparison, name), {}, worlds, {world: {} for world in worlds})
    more = {"torch": comparison.torch, "seconds": comparison.seconds, "own": comparison}
    return empty_results(comparison.variants, sections={name: section}, **more)


def _own_outcome(comparison: Comparison, number: str, variant: str) -> Outcome:
    values = comparison.values[number][variant]
    mean, deviation = spread(values)
    lost = float(sum(not math.isfinite(value) for value in values))
    median = comparison.median(variant, number)
    return Outcome({"mean": mean, "spread": deviation, "median": median, "lost": lost}, seeds=values)


def _own_subject(comparison: Comparison, name: str) -> Subject:
    worlds = own_worlds(comparison)
    lines = [
        f"{world}: {line}" if len(worlds) > 1 else line
        for world, number in worlds.items()
        for line in sentences(comparison, number)
    ]
    verdicts = [*headlines(comparison), *lines, *closing_lines(comparison)]
    how = "with each variant" if comparison.is_given else "with the clamp of each rule"
    if comparison.replaced:
        how = f"unedited, with {listed(comparison.replaced)} replaced"
    seeds = f"{len(comparison.seeds)} seeds" if len(comparison.seeds) > 1 else "one seed"
    better = listed([f"a {comparison.better[number]} {world}" for world, number in worlds.items()])
    setting = f"{comparison.run} was run {how}, over {seeds}. Better is {better}."
    columns = {"mean": "mean", "spread": "standard deviation over seeds", "median": "median"}
    return Subject(
        name=name,
        title=f"Your own case: {comparison.run}",
        columns={**columns, "lost": "runs without a number"},
        headline=("median", "median"),
        setting=setting.replace("{", "{{").replace("}", "}}"),
        after=lambda worlds, context: verdicts,
    )


# --- an older report --------------------------------------------------------------------------------------------------


class FolderError(ValueError):
    """A folder cannot be used: to write a report there, or as a report."""


def is_report(folder: Path) -> bool:
    try:
        return bool(stored_numbers(folder)["kind"] == KIND)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def stored_numbers(folder: Path) -> dict[str, Any]:
    """The content of results.json."""
    content: dict[str, Any] = json.loads((folder / NUMBERS).read_text(encoding="utf-8"))
    return content


def load_results(folder: Path, tasks: Iterable[str | Task] = tuple(TASKS)) -> Results:
    """The results of the report in `folder`. Nothing is run, and `write` draws the same report.

    Raises an error that names a task that is not among `tasks`; FolderError if this is no whole report of this version.
    """
    if not is_report(folder):
        raise _unreadable("be a folder that compare wrote", folder, "Choose another one")
    stored = stored_numbers(folder)
    if (version := stored.get("pseudograd")) != __version__:
        raise _unreadable(f"hold a report of pseudograd {__version__}", version)
    try:
        own = own_results(from_json(stored["own"])) if "own" in stored else None
        results = own or _task_results(stored, find_tasks(tasks))
        results.edges, results.era = stored["torch_at_the_bound"], stored["installed_era"]
        _check_numbers(results)
    except UnknownNameError:
        raise
    except Exception as error:
        raise _unreadable(f"hold {NUMBERS} as compare wrote it", folder) from error
    if not (folder / ARRAYS).exists():
        raise _unreadable(f"hold {ARRAYS}, from which its figures are drawn", folder)
    try:
        with (folder / ARRAYS).open("rb") as file, np.load(file) as stored_arrays:
            for name, arrays, key in results.figure_arrays():
                arrays[key] = torch.from_numpy(stored_arrays[name])
    except Exception as error:  # zipfile, zlib and numpy each have errors of their own for a damaged file
        raise _unreadable(f"hold {ARRAYS} as compare wrote it", folder) from error
    return results


def _task_results(stored: Mapping[str, Any], tasks: Mapping[str, Task]) -> Results:
    """Results without arrays."""
    results = Results(tuple(stored["rules"]), stored["loss"], torch=stored["torch"], seconds=stored["seconds"])
    for name, task in stored["tasks"].items():
        if name not in tasks:
            raise unknown_name("compare", "task", tasks, name)
        worlds = {}
        for world, rows in task["worlds"].items():
            seeds = task.get("seeds", {}).get(world, {})
            worlds[world] = {
                variant: Outcome(_parse_numbers(row), seeds=tuple(map(read_number, seeds.get(variant, ()))))
                for variant, row in rows.items()
            }
        first: dict[str, dict[str, torch.Tensor]] = {world: {} for world in worlds}
        results.sections[name] = Section(tasks[name], _parse_numbers(task["settings"]), worlds, first)
    return results


def _parse_numbers(stored: Mapping[str, object]) -> dict[str, Any]:
    return {key: read_number(value) for key, value in stored.items()}


def _check_numbers(results: Results) -> None:
    """Raises if a number is missing that a sentence or a table needs."""
    _ = results.installed, results.when_not_to
    for section in results.sections.values():
        _ = section.setting, section.verdicts
        for rows in section.worlds.values():
            for outcome in rows.values():
                _ = [cell(outcome.numbers[key]) for key in section.subject.columns]


def _unreadable(requirement: str, got: object, remedy: str = "Run compare again") -> FolderError:
    return FolderError(must("compare", "--redraw", requirement, str(got), remedy))
