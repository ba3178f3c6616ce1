"""The output of `compare` in a terminal, while it runs and at the end."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Iterator

from pseudograd.comparison.text import aligned

from ..sentences import Section
from .figures import strip
from .results import Results, cell

Step = Callable[[str, str, str, int, int], None]


def progress() -> Step:
    """A function that prints a line when a world begins."""
    begun: set[tuple[str, str]] = set()

    def on_step(task: str, world: str, variant: str, done: int, of: int) -> None:
        if (task, world) not in begun:
            begun.add((task, world))
            print(f"{task}, {world} ({done} of {of} runs done)", flush=True)

    return on_step


def show(results: Results) -> None:
    """Print a table for each subject, with a row for each variant and a column for each world; then a summary."""
    if results.own is not None:
        print(results.own)
        return
    width = shutil.get_terminal_size().columns
    opening = strip(results)
    print("What each backward rule makes of the same problem")
    for section in results.sections.values():
        subject = section.subject
        print("", textwrap.fill(f"{subject.title}: {subject.headline[1]}", width), *_table(section), sep="\n")
        for verdict in section.verdicts:
            print(textwrap.fill(verdict, width, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False))
    print(f"\n{results.installed}")
    if opening is not None:
        print(f"\n{textwrap.fill(opening.sentence, width)}")


def _table(section: Section) -> Iterator[str]:
    key = section.subject.headline[0]
    rules = dict.fromkeys(rule for rows in section.worlds.values() for rule in rows)
    lines = [
        [rule, *(cell(rows[rule].numbers[key]) if rule in rows else "" for rows in section.worlds.values())]
        for rule in rules
    ]
    return aligned([["rule", *section.worlds], *lines], str.rjust)
