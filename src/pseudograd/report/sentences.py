"""The words of a report: each task's own about what was measured, and those that speak of the whole run."""

from __future__ import annotations

from ..tasks import words
from .results import Results


def title(results: Results) -> str:
    if results.own is not None:
        return "Same training. Same seeds. One backward rule changed."
    return "Same picture. Same loss. One backward rule changed."


def setting(task: str, results: Results) -> str:
    return results.records[task].setting(results.contexts[task])


def verdicts(task: str, results: Results) -> list[str]:
    """Where a task ran in one world, its name before each of them would tell nothing."""
    worlds = results.tasks[task]
    told = results.records[task].verdicts(worlds, results.contexts[task])
    if len(worlds) > 1:
        return told
    ((world, rows),) = worlds.items()
    return [_without(world, tuple(rows), sentence) for sentence in told]


def _without(world: str, rules: tuple[str, ...], sentence: str) -> str:
    rest = sentence.removeprefix(f"{world}: ")
    return rest if rest == sentence or rest.startswith(rules) else rest[:1].upper() + rest[1:]


def when_not_to(results: Results) -> list[str]:
    """The closing words: where something else is as good or better, from this run's own numbers."""
    simpler: dict[str, list[str]] = {}
    for name, worlds in results.tasks.items():
        for advice, where in results.records[name].simpler(worlds).items():
            simpler.setdefault(advice, []).extend(where)
    return words.closing(simpler)


def installed(results: Results) -> str:
    return words.installed(results.era, results.edges["clamp(x, min=0)"])
