"""The output of `compare` in a terminal, while it runs and at the end."""

from __future__ import annotations

import shutil
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pseudograd.comparison.text import aligned

from ..sentences import Section
from .figures import strip
from .results import Results, cell

Step = Callable[[str, str, str, int, int], None]
_SILENCE = 10.0  # seconds without a line, after which the last line is repeated


@contextmanager
def progress(line: str = "starting") -> Iterator[Step]:
    """Print a line when a world begins, and the newest state after ten seconds without a line. line: the text before the first step."""
    begun: set[tuple[str, str]] = set()
    last, ended = time.monotonic(), threading.Event()

    def print_line() -> None:
        nonlocal last
        last = time.monotonic()
        print(line, flush=True)

    def on_step(task: str, world: str, variant: str, done: int, total: int) -> None:
        nonlocal line
        line = f"{task}, {world} ({done} of {total} runs done)"
        if (task, world) not in begun:
            begun.add((task, world))
            print_line()

    def remind() -> None:
        while not ended.wait(last + _SILENCE - time.monotonic()):
            if time.monotonic() >= last + _SILENCE:
                print_line()

    thread = threading.Thread(target=remind, daemon=True)
    thread.start()
    try:
        yield on_step
    finally:
        ended.set()
        thread.join()


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
