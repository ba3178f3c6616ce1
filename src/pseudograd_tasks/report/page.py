"""The page of a report: the words and tables of every task, and its figures inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pseudograd import __version__
from pseudograd.look.palette import colour

from ..base import Section, Subject, World
from .figures import PICTURES, Tile, as_data, strip, tiles
from .results import Results, cell


def page(results: Results, figures: Mapping[str, Sequence[Mapping[str, str]]]) -> str:
    """`figures` are {"data": a PNG in base64, "caption": its caption}, by task; pictures stand on the page one by one."""
    import jinja2

    folder = Path(__file__).parent
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string((folder / "page.html").read_text(encoding="utf-8"))
    sections = [
        {**words, "figures": figures.get(words["name"], ()), "galleries": _galleries(section, results.era)}
        for section, words in zip(results.sections.values(), words_and_tables(results), strict=True)
    ]
    return template.render(
        style=(folder / "style.css").read_text(encoding="utf-8"),
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


def words_and_tables(results: Results) -> list[dict[str, Any]]:
    """Of every section."""
    return [
        {
            "name": name,
            "title": section.subject.title,
            "setting": section.subject.setting(section.context),
            "verdicts": section.verdicts,
            "tables": [_table(section.subject, world, rows) for world, rows in section.worlds.items()],
        }
        for name, section in results.sections.items()
    ]


def _table(subject: Subject, world: str, rows: World) -> dict[str, Any]:
    """A row for each variant, in the order they ran."""
    return {
        "world": world,
        "columns": list(subject.columns.values()),
        "rows": [
            {"name": name, "colour": colour(name), "cells": [cell(outcome.numbers[key]) for key in subject.columns]}
            for name, outcome in rows.items()
        ],
    }


def _opening(results: Results) -> dict[str, object] | None:
    opening = strip(results)
    return None if opening is None else {"sentence": opening.sentence, "tiles": _tile_data(opening.tiles)}


def _galleries(section: Section, era: str) -> list[dict[str, object]]:
    figure = section.subject.figure
    if figure is None or figure.kind != PICTURES:
        return []
    return [
        {
            "title": figure.title.format(world=world) or world,
            "tiles": _tile_data(tiles(section.subject, rows, section.first[world], era)),
        }
        for world, rows in section.worlds.items()
    ]


def _tile_data(tiles: Sequence[Tile]) -> list[dict[str, str]]:
    return [
        {"title": tile.title, "note": tile.note, "text": tile.text, "frame": tile.frame, "data": as_data(tile.picture)}
        for tile in tiles
    ]
