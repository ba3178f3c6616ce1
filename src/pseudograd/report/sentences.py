"""The words of a report that speak of the whole run; those of a section stand in its subject."""

from __future__ import annotations

from ..tasks import words
from .results import Results


def title(results: Results) -> str:
    if results.own is not None:
        return "Same training. Same seeds. One backward rule changed."
    return "Same picture. Same loss. One backward rule changed."


def when_not_to(results: Results) -> list[str]:
    """The closing words: where something else is as good or better, from this run's own numbers."""
    simpler: dict[str, list[str]] = {}
    for section in results.sections.values():
        for advice, where in section.subject.simpler(section.worlds).items():
            simpler.setdefault(advice, []).extend(where)
    return words.closing(simpler)


def installed(results: Results) -> str:
    return words.installed(results.era, results.edges["clamp(x, min=0)"])
