"""The page of a report: the words and tables of every task, and its figures inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pseudograd import __version__
from pseudograd.look.palette import colour

from ..sentences import Section
from .figures import PICTURES, Tile, strip, tiles
from .results import Results, cell


def page(results: Results, charts: Mapping[str, Sequence[Mapping[str, str]]]) -> str:
    """charts: for each task {"data": a PNG in base64, "caption": its caption}. Pictures are shown one by one."""
    import jinja2

    folder = Path(__file__).parent
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string((folder / "page.html").read_text(encoding="utf-8"))
    return template.render(
        style=(folder / "style.css").read_text(encoding="utf-8"),
        results=results,
        opening=strip(results),
        pseudograd=__version__,
        sections=[
            (name, section, _galleries(section, results.era), charts.get(name, ()))
            for name, section in results.sections.items()
        ],
        cell=cell,
        colour=colour,
    )


def _galleries(section: Section, era: str) -> dict[str, list[Tile]]:
    """The pictures of each world, by the title above them."""
    figure = section.subject.figure
    if figure is None or figure.kind != PICTURES:
        return {}
    return {
        figure.title.format(world=world) or world: tiles(section.subject, rows, section.first[world], era)
        for world, rows in section.worlds.items()
    }
