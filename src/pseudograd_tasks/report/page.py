"""The page of a report: the words and tables of every task, and its figures inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pseudograd import __version__

from ..base import Section
from .pictures import PICTURES, Tile, as_data, strip, tiles
from .results import Results
from .tables import table


def page(results: Results, figures: Mapping[str, Sequence[Mapping[str, str]]]) -> str:
    """`figures` are {"data": a PNG in base64, "caption": its caption}, by task; pictures stand on the page one by one."""
    import jinja2

    here = Path(__file__).parent
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string((here / "page.html").read_text(encoding="utf-8"))
    sections = [
        {**told, "figures": figures.get(told["name"], ()), "galleries": _galleries(section, results.era)}
        for section, told in zip(results.sections.values(), words_and_tables(results), strict=True)
    ]
    return template.render(
        style=(here / "style.css").read_text(encoding="utf-8"),
        title=results.title,
        opening=_opening(results),
        threads="" if results.own else " on one thread",
        installed=results.installed,
        pseudograd=__version__,
        torch=results.torch,
        seconds=results.seconds,
        sections=sections,
        edges=results.edges,
        when_not_to=results.when_not_to,
    )


def check_numbers(results: Results) -> None:
    """Every sentence and table of a page whose pictures are not there yet: a number that is missing raises."""
    _ = words_and_tables(results), results.installed, results.when_not_to


def words_and_tables(results: Results) -> list[dict[str, Any]]:
    """Of every section."""
    return [
        {
            "name": name,
            "title": section.subject.title,
            "setting": section.subject.setting(section.context),
            "verdicts": section.verdicts,
            "tables": [table(section.subject, world, rows) for world, rows in section.worlds.items()],
        }
        for name, section in results.sections.items()
    ]


def _opening(results: Results) -> dict[str, object] | None:
    found = strip(results)
    return None if found is None else {"sentence": found.sentence, "tiles": _on_page(found.tiles)}


def _galleries(section: Section, era: str) -> list[dict[str, object]]:
    figure = section.subject.figure
    if figure is None or figure.kind != PICTURES:
        return []
    return [
        {
            "title": figure.title.format(world=world) or world,
            "tiles": _on_page(tiles(section.subject, rows, section.first[world], era)),
        }
        for world, rows in section.worlds.items()
    ]


def _on_page(shown: Sequence[Tile]) -> list[dict[str, str]]:
    return [
        {"title": tile.title, "note": tile.note, "text": tile.text, "frame": tile.frame, "data": as_data(tile.picture)}
        for tile in shown
    ]
