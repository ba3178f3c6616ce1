"""The results of tasks, and those of a comparison on a training of the user."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch

from pseudograd.comparison.comparison import Comparison
from pseudograd.comparison.runs import Run, open_runner
from pseudograd.comparison.statistics import spread
from pseudograd.comparison.text import closing_lines, headlines, sentences
from pseudograd.errors import must
from pseudograd.ops.bound_rules import COMPARED_RULES
from pseudograd.wording import listed

from .. import DEFAULT_TASKS, TASKS, Outcome, Task, find_tasks
from ..base import KINDS, Settings, Subject
from ..experiment import Problem
from ..sentences import Section
from .results import Results, own_worlds


def run_tasks(
    tasks: Sequence[str | Task] = DEFAULT_TASKS,
    rules: Sequence[str] = COMPARED_RULES,
    settings: Settings | None = None,
    on_step: Callable[[str, str, str, int, int], object] = lambda *_: None,
    *,
    jobs: int = 1,
) -> Results:
    """Run `tasks`, names or Task objects, with `rules`, every era, the installed torch and no clamp.

    A run has one thread, so that it repeats to the bit. Any number of processes, `jobs`, gives the same numbers.
    on_step(task, world, variant, done, total) is called before each run.
    """
    settings = settings or Settings()
    chosen = list(find_tasks(tasks).values())
    results = Results(tuple(rules), loss=settings.loss_name or None)
    results.sections = sections = {task.name: Section(task, {}, {}, {}) for task in chosen}
    began, threads = time.perf_counter(), torch.get_num_threads()

    def on_run(problem: Problem, run: Run, done: int, total: int) -> None:
        on_step(problem.task.name, problem.world, run.variant, done, total)

    try:
        torch.set_num_threads(1)
        problems = [Problem(task, world, tuple(rules), settings) for task in chosen for world in task.worlds(settings)]
        with open_runner("compare", problems, on_run, jobs=jobs) as runner:
            plan = [(problem, Run(name, 0)) for problem in problems for name in problem.variants]
            for problem, run, outcome in runner.outcomes(plan):
                _check_complete(problem.task, outcome)
                sections[problem.task.name].worlds.setdefault(problem.world, {})[run.variant] = outcome
        for task in chosen:
            section, first = sections[task.name], task.figure.first if task.figure else {}
            section.context = task.context(settings)
            section.first = {
                world: {title: picture(world) for title, picture in first.items()} for world in section.worlds
            }
    finally:
        torch.set_num_threads(threads)
    results.seconds = round(time.perf_counter() - began, 3)
    return results


def _check_complete(task: Task, outcome: Outcome) -> None:
    """Raise an error if the outcome lacks a number of the task's table or an array of its figure."""
    arrays = KINDS[task.figure.kind] if task.figure else ()
    for what, needed, got in (("numbers", task.columns, outcome.numbers), ("arrays", arrays, outcome.arrays)):
        if missing := [key for key in needed if key not in got]:
            raise ValueError(must(f"compare: {task.name}", what, f"have {', '.join(missing)}", ", ".join(got)))


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
    not_finite = float(sum(not math.isfinite(value) for value in values))
    median = comparison.median(variant, number)
    return Outcome({"mean": mean, "spread": deviation, "median": median, "lost": not_finite}, seeds=values)


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
