"""A comparison of the user's own as a report: its worlds are the numbers that the run returns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ..cases.records import Comparison, spread
from ..cases.text import closing, headlines, listed, sentences
from ..cases.trials import ONLY
from ..tasks import TASKS, Measured, Task, World
from ..torch_eras import ERAS, installed_era
from .results import Results, edges_now

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def results_of(found: Comparison) -> Results:
    """What `write` makes a report of."""
    task = task_of(found)
    results = Results(found.variants, edges=edges_now(), era=ERAS[installed_era()].rule, torch=found.torch, own=found)
    results.seconds = found.seconds
    results.records[task.name] = task
    results.contexts[task.name] = {}
    results.tasks[task.name] = {world: _world(found, number) for world, number in _worlds(found).items()}
    results.first |= {(task.name, world): {} for world in results.tasks[task.name]}
    return results


def task_of(found: Comparison) -> Task:
    """It has been run: this task holds its words."""

    def verdicts(*_: object) -> list[str]:
        by_number = [(world, line) for world, number in _worlds(found).items() for line in sentences(found, number)]
        told = [f"{world}: {line}" if len(found.values) > 1 else line for world, line in by_number]
        return [*headlines(found), *told, *closing(found)]

    def not_run(*_: object) -> Measured:
        raise AssertionError("a comparison has been run")

    return Task(
        name=_name(found.run),
        title=f"Your own case: {found.run}",
        worlds=lambda settings: tuple(_worlds(found)),
        run=not_run,
        columns={
            "mean": "mean",
            "spread": "standard deviation over seeds",
            "median": "median",
            "lost": "runs without a number",
        },
        headline=("median", "median"),
        has_leaves=False,
        setting=lambda context: _setting(found),
        verdicts=verdicts,
    )


def figures_of(found: Comparison) -> Iterator[tuple[str, str, Figure]]:
    """(file stem, what it shows, figure) for each number."""
    from matplotlib.figure import Figure

    from ..cases.picture import draw, size

    for place, (world, number) in enumerate(_worlds(found).items(), start=1):
        figure = Figure(figsize=size(found), layout="constrained", dpi=110)
        draw(found, number, figure.subplots())
        stem = _name(found.run) if len(found.values) == 1 else f"{_name(found.run)}-{place}"
        yield stem, f"{found.run}: {world} of every variant, a dot for each seed", figure


def _setting(found: Comparison) -> str:
    how = f"unedited, with {listed(found.replaced)} replaced" if found.replaced else "with the clamp of each rule"
    count = f"{len(found.seeds)} seeds" if len(found.seeds) > 1 else "one seed"
    better = [f"a {way} {world}" for (world, _), way in zip(_worlds(found).items(), found.better.values(), strict=True)]
    return f"{found.run} was run {how}, over {count}. Better is {listed(better)}."


def _worlds(found: Comparison) -> Mapping[str, str]:
    return {"result" if number == ONLY else number: number for number in found.values}


def _world(found: Comparison, number: str) -> World:
    rows: World = {}
    for name, values in found.values[number].items():
        mean, apart = spread(values)
        lost = sum(not math.isfinite(value) for value in values)
        numbers = {"mean": mean, "spread": apart, "median": found.median(name, number), "lost": float(lost)}
        rows[name] = Measured(numbers, seeds=values)
    return rows


def _name(run: str) -> str:
    """It names files and a section of the page, and is no task's."""
    return run if run.isidentifier() and run.isascii() and run not in TASKS else "own_case"
