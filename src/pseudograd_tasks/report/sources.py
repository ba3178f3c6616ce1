"""What a report is made of: outcomes of tasks, run for it, or a comparison of the user's own, whose worlds are the numbers of its run."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from pseudograd.comparison.comparison import Comparison
from pseudograd.comparison.statistics import spread
from pseudograd.comparison.store import Store
from pseudograd.comparison.text import closing_lines, headlines, sentences
from pseudograd.comparison.training import ONLY
from pseudograd.ops.bound_rules import COMPARED_RULES
from pseudograd.wording import listed

from .. import DEFAULT_TASKS, TASKS, Outcome, Task, World, by_name
from ..base import Section, Settings, Subject
from ..experiment import OnStep, measure_tasks
from .results import Results, blank


def run_tasks(
    tasks: Sequence[str | Task] = DEFAULT_TASKS,
    rules: Sequence[str] = COMPARED_RULES,
    settings: Settings | None = None,
    on_step: OnStep = lambda *_: None,
    *,
    jobs: int = 1,
    store: Store | None = None,
) -> Results:
    """Run `tasks`, names or your own, with `rules`, every era, the installed torch and no clamp.

    On one thread, so that a run repeats to the bit; in `jobs` processes, which gives the same. Runs in the `store` are not repeated.
    on_step(task, world, variant, done, of) is called before each run.
    """
    results = blank(rules, loss=(settings.loss_name or None) if settings else None)
    began = time.perf_counter()
    results.sections = measure_tasks(list(by_name(tasks).values()), rules, settings or Settings(), on_step, jobs, store)
    results.seconds = round(time.perf_counter() - began, 3)
    return results


def results_of(found: Comparison) -> Results:
    """What `write` makes a report of."""
    subject = _subject(found)
    worlds = {world: _world(found, number) for world, number in worlds_of(found).items()}
    section = Section(subject, {}, worlds, {world: {} for world in worlds})
    return blank(found.variants, sections={subject.name: section}, torch=found.torch, seconds=found.seconds, own=found)


def _subject(found: Comparison) -> Subject:
    by_number = [(world, line) for world, number in worlds_of(found).items() for line in sentences(found, number)]
    told = [f"{world}: {line}" if len(found.values) > 1 else line for world, line in by_number]
    verdicts = [*headlines(found), *told, *closing_lines(found)]
    return Subject(
        name=_name(found.run),
        title=f"Your own case: {found.run}",
        columns={
            "mean": "mean",
            "spread": "standard deviation over seeds",
            "median": "median",
            "lost": "runs without a number",
        },
        headline=("median", "median"),
        setting=lambda context: _setting(found),
        verdicts=lambda worlds, context: verdicts,
    )


def _setting(found: Comparison) -> str:
    handed = "with each variant" if found.is_given else "with the clamp of each rule"
    how = f"unedited, with {listed(found.replaced)} replaced" if found.replaced else handed
    count = f"{len(found.seeds)} seeds" if len(found.seeds) > 1 else "one seed"
    better = [
        f"a {way} {world}" for (world, _), way in zip(worlds_of(found).items(), found.better.values(), strict=True)
    ]
    return f"{found.run} was run {how}, over {count}. Better is {listed(better)}."


def worlds_of(found: Comparison) -> Mapping[str, str]:
    """By the name that a reader sees: the numbers that the run returns."""
    return {"result" if number == ONLY else number: number for number in found.values}


def _world(found: Comparison, number: str) -> World:
    rows: World = {}
    for name, values in found.values[number].items():
        mean, apart = spread(values)
        lost = sum(not math.isfinite(value) for value in values)
        numbers = {"mean": mean, "spread": apart, "median": found.median(name, number), "lost": float(lost)}
        rows[name] = Outcome(numbers, seeds=values)
    return rows


def _name(run: str) -> str:
    """It names files and a section of the page, and is no task's."""
    return run if run.isidentifier() and run.isascii() and run not in TASKS else "own_case"
