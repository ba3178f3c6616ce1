"""What `compare` shows while it runs and when it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..tasks import TASKS, Measured
from . import sentences
from .run import Results
from .tables import cell

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
        console=console,
        transient=True,
    )
    with bar:
        running = bar.add_task("starting", total=None)

        def on_step(task: str, world: str, variant: str, done: int, of: int) -> None:
            bar.update(running, description=f"{task}, {world}: {variant}", completed=done, total=of)

        yield on_step


def _lines() -> Step:
    seen: set[tuple[str, str]] = set()

    def on_step(task: str, world: str, variant: str, done: int, of: int) -> None:
        if (task, world) not in seen:
            seen.add((task, world))
            print(f"{task}, {world} ({done} of {of} runs done)", flush=True)

    return on_step


def show(results: Results) -> None:
    """One table: a row for each variant, a column for each world, the number that matters most there."""
    console = Console()
    table = Table(title="What each backward rule makes of the same problem", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("rule", no_wrap=True)
    columns = [
        (name, world, headline, by_variant)
        for name, worlds in results.tasks.items()
        for world, by_variant in worlds.items()
        if (headline := TASKS[name].headline)
    ]
    for name, world, headline, _ in columns:
        table.add_column(f"{name}\n{world}\n{headline[1]}", justify="right", overflow="fold")
    for variant in dict.fromkeys(variant for *_, by_variant in columns for variant in by_variant):
        table.add_row(
            variant, *[_headline(headline[0], by_variant.get(variant)) for *_, headline, by_variant in columns]
        )
    console.print(table)
    console.print(sentences.installed(results), markup=False, highlight=False, soft_wrap=True)


def _headline(key: str, measured: Measured | None) -> str:
    return "" if measured is None else cell(measured.numbers[key])
