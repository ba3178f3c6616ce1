"""A comparison of the user's own as a report: its worlds are the numbers that the run returns."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..tasks import TASKS, Outcome, World
from ..tasks.base import Section, Subject
from ..trials.comparison import Comparison, spread
from ..trials.text import closing, headlines, listed, sentences
from ..trials.training import ONLY
from .results import Results, blank


def results_of(found: Comparison) -> Results:
    """What `write` makes a report of."""
    subject = _subject(found)
    worlds = {world: _world(found, number) for world, number in worlds_of(found).items()}
    section = Section(subject, {}, worlds, {world: {} for world in worlds})
    return blank(found.variants, sections={subject.name: section}, torch=found.torch, seconds=found.seconds, own=found)


def _subject(found: Comparison) -> Subject:
    by_number = [(world, line) for world, number in worlds_of(found).items() for line in sentences(found, number)]
    told = [f"{world}: {line}" if len(found.values) > 1 else line for world, line in by_number]
    verdicts = [*headlines(found), *told, *closing(found)]
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
    how = f"unedited, with {listed(found.replaced)} replaced" if found.replaced else "with the clamp of each rule"
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
