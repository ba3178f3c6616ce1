"""What `compare` shows while it runs and when it is done."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pseudograd.comparison.text import GAP, aligned

from .. import World
from ..base import Subject
from .figures import strip
from .results import Results, cell

Step = Callable[[str, str, str, int, int], None]


@contextmanager
def progress() -> Iterator[Step]:
    """A bar on a terminal; one line for each task elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines()
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    with bar:
        running = bar.add_task("starting", total=None)

        def on_step(task: str, world: str, variant: str, done: int, of: int) -> None:
            bar.update(running, description=f"{task}, {world}: {variant}", completed=done, total=of)

        yield on_step


def _lines() -> Step:
    begun: set[tuple[str, str]] = set()

    def on_step(task: str, world: str, variant: str, done: int, of: int) -> None:
        if (task, world) not in begun:
            begun.add((task, world))
            print(f"{task}, {world} ({done} of {of} runs done)", flush=True)

    return on_step


class _Column(NamedTuple):
    """One world of one task: the number that matters most there, for each variant."""

    task: str
    heading: list[str]
    cells: dict[str, str]

    @property
    def width(self) -> int:
        """Wide enough for every line of the heading and every number, so that none is cut."""
        return max(len(line) for line in (*self.heading, *self.cells.values()))


def show(results: Results) -> None:
    """Tables with a row for each variant and a column for each world: one, or several where they do not fit side by side."""
    if results.own is not None:
        print(results.own)
        return
    columns = [
        _column(section.subject, world, rows)
        for section in results.sections.values()
        for world, rows in section.worlds.items()
    ]
    rules = list(dict.fromkeys(variant for column in columns for variant in column.cells))
    width = shutil.get_terminal_size().columns
    opening = strip(results)
    first = "What each backward rule makes of the same problem" if opening is None else opening.sentence
    print(textwrap.fill(first, width))
    for block in _blocks(columns, width - max(map(len, rules))):
        print("", *_lines_of(block, rules), sep="\n")
    for section in results.sections.values():
        print()
        print(textwrap.fill(section.subject.title, width))
        for verdict in section.verdicts:
            print(textwrap.fill(verdict, width, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False))
    print(f"\n{results.installed}")


def _lines_of(block: list[_Column], rules: list[str]) -> Iterator[str]:
    """One table. Rules that no column has are left out; headings of one line more or less end on the same line."""
    height = max(len(column.heading) for column in block)
    shown = [rule for rule in rules if any(rule in column.cells for column in block)]
    first = ["" for _ in range(height - 1)] + ["rule"]
    headings = [[""] * (height - len(column.heading)) + column.heading for column in block]
    lines = [list(line) for line in zip(first, *headings, strict=True)]
    lines += [[rule, *[column.cells.get(rule, "") for column in block]] for rule in shown]
    return aligned(lines, str.rjust, height)


def _column(subject: Subject, world: str, rows: World) -> _Column:
    key, unit = subject.headline
    cells = {variant: cell(outcome.numbers[key]) for variant, outcome in rows.items()}
    width = max(len(line) for line in (subject.name, world, *cells.values()))
    return _Column(subject.name, [subject.name, world, *textwrap.wrap(unit, width, break_long_words=False)], cells)


def _blocks(columns: list[_Column], width: int) -> list[list[_Column]]:
    """The columns in as many tables as the width asks for; those of one task stay together where they can."""
    tasks = [[column for column in columns if column.task == task] for task in dict.fromkeys(c.task for c in columns)]
    blocks: list[list[_Column]] = [[]]
    for group in tasks:
        if _width(blocks[-1]) + _width(group) <= width:
            blocks[-1] += group
            continue
        blocks.append([])
        for column in group:
            if blocks[-1] and _width([*blocks[-1], column]) > width:
                blocks.append([])
            blocks[-1].append(column)
    return [block for block in blocks if block]


def _width(columns: list[_Column]) -> int:
    return sum(column.width + len(GAP) for column in columns)
