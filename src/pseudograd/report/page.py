"""The page of a report: the words and tables of every task, and its figures inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .. import __version__
from . import sentences
from .results import Results
from .tables import table


def page(results: Results, figures: Mapping[str, Sequence[Mapping[str, str]]]) -> str:
    """`figures` are {"data": a PNG in base64, "caption": its caption}, by task."""
    import jinja2

    here = Path(__file__).parent
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string((here / "page.html").read_text(encoding="utf-8"))
    sections = [
        {
            "name": name,
            "title": results.records[name].title,
            "setting": sentences.setting(name, results),
            "figures": figures.get(name, ()),
            "verdicts": sentences.verdicts(name, results),
            "tables": [table(results.records[name], world, rows) for world, rows in worlds.items()],
        }
        for name, worlds in results.tasks.items()
    ]
    return template.render(
        style=(here / "style.css").read_text(encoding="utf-8"),
        title=sentences.title(results),
        threads="" if results.own else " on one thread",
        installed=sentences.installed(results),
        pseudograd=__version__,
        torch=results.torch,
        seconds=results.seconds,
        sections=sections,
        edges=results.edges,
        when_not_to=sentences.when_not_to(results),
    )
