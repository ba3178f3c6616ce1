"""The results of tasks, and those of a comparison on a training of the user."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from pseudograd.comparison.comparison import Comparison
from pseudograd.comparison.statistics import spread
from pseudograd.comparison.text import closing_lines, headlines, sentences
from pseudograd.ops.bound_rules import COMPARED_RULES
from pseudograd.wording import listed

from .. import DEFAULT_TASKS, TASKS, Outcome, Task, find_tasks
from ..base import Settings, Subject
from ..experiment import OnStep, measure_tasks
from ..sentences import Section
from .results import Results, own_worlds


def run_tasks(
    tasks: Sequence[str | Task] = DEFAULT_TASKS,
    rules: Sequence[str] = COMPARED_RULES,
    settings: Settings | None = None,
    on_step: OnStep = lambda *_: None,
    *,
    jobs: int = 1,
) -> Results:
    """Run `tasks`, names or Task objects, with `rules`, every era, the installed torch and no clamp.

    A run has one thread, so that it repeats to the bit. Any number of processes, `jobs`, gives the same numbers.
    on_step(task, world, variant, done, total) is called before each run.
    """
    results = Results(tuple(rules), loss=(settings.loss_name or None) if settings else None)
    began = time.perf_counter()
    chosen = list(find_tasks(tasks).values())
    results.sections = measure_tasks(chosen, rules, settings or Settings(), on_step, jobs)
    results.seconds = round(time.perf_counter() - began, 3)
    return results


def own_results(comparison: Comparison) -> Results:
    """The results for a report of the user's own training. Its worlds are the numbers of the run."""
    run = comparison.run
    name = run if run.isidentifier() and run.isascii() and run not in TASKS else "own_case"  # files have this name
    worlds = {
        world: {variant: _own_outcome(comparison, number, variant) for variant in comparison.values[number]}
        for world, number in own_worlds(comparison).items()
    }
    section = Section(_own_subject(comparison, name), {}, worlds, {world: {} for world in worlds})
    return Results(
        comparison.variants,
        sections={name: section},
        torch=comparison.torch,
        seconds=comparison.seconds,
        own=comparison,
    )


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
