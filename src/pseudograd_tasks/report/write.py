"""Write a report as one folder, completely or not at all: index.html (which needs no other file), PNGs, results.json."""

from __future__ import annotations

import base64
import io
import itertools
import json
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from pseudograd import __version__
from pseudograd.errors import must
from pseudograd.listen.program.signals import hold_signals
from pseudograd.look.palette import colour

from ..sentences import CLOSING, Section
from .figures import PICTURES, Tile, figures, strip, strip_figure, tiles
from .results import KIND, NUMBERS, Results, cell, results_text


def check_folder(folder: Path) -> None:
    """Raise an error, before any run, if the report could not be written. It may replace an empty folder or an older report."""
    try:
        if folder.resolve() == Path.cwd():
            raise _unusable("be a folder of its own", folder, "Name a new one, such as report")
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise _unusable("be a folder", folder, "Choose another path")
        if folder.is_dir() and any(folder.iterdir()) and stored_numbers(folder) is None:
            raise _unusable("be empty, new, or an older report", folder, "Choose another folder")
        parent = next(parent for parent in folder.absolute().parents if parent.exists())
        tempfile.TemporaryDirectory(
            prefix=f".{folder.name}-", dir=parent
        ).cleanup()  # raises if nothing can be written there
    except OSError as error:
        remedy = f"{error.strerror}: choose another folder"
        raise _unusable("lie where files can be written", folder, remedy) from error


def _unusable(requirement: str, folder: Path, remedy: str) -> ValueError:
    return ValueError(must("compare", "--out", requirement, str(folder), remedy))


def stored_numbers(folder: Path) -> dict[str, Any] | None:
    """The content of the results.json of a report; None for another folder."""
    try:
        content: dict[str, Any] = json.loads((folder / NUMBERS).read_text(encoding="utf-8"))
        return content if content["kind"] == KIND else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def find_new_name(results: Results, folder: Path) -> Path | None:
    """The new path of the older report in `folder`. None if there is no older report, or if it has the same numbers."""
    stored = stored_numbers(folder)
    if stored is None or _drop_times(stored) == _drop_times(json.loads(results_text(results))):
        return None
    names = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(1))
    return next(name for name in names if not (name.exists() or name.is_symlink()))


def _drop_times(report: dict[str, Any]) -> dict[str, object]:
    own = report.get("own")
    return {**report, "seconds": 0, "own": own and {**own, "seconds": 0}}


def write(results: Results, folder: Path) -> Path:
    """Write the report into a new folder beside `folder`, then rename the new folder to `folder`. Returns the path of the page.

    An older report with other numbers is kept under the name that `find_new_name` gives.
    """
    check_folder(folder)
    try:
        with _staging(folder) as staging:
            _fill(staging / "new", results)
            with hold_signals():
                _swap(staging, folder, find_new_name(results, folder) or staging / "old")
    except OSError as error:
        remedy = f"{error.strerror}: nothing was changed there"
        raise _unusable("take the whole report", folder, remedy) from error
    return folder / "index.html"


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """A hidden folder beside `folder`. In the end it is removed, even after an error, and so are new parents that are still empty."""
    new_parents = [parent for parent in folder.absolute().parents if not parent.exists()]
    # The name is known before the folder exists, because a signal may come at any time.
    staging = folder.parent / f".{folder.name}-{uuid.uuid4().hex}"
    try:
        staging.mkdir(parents=True)
        yield staging
    finally:
        with hold_signals():
            shutil.rmtree(staging, ignore_errors=True)
            with suppress(OSError):  # the innermost first; a parent with the report stays
                for parent in new_parents:
                    parent.rmdir()


def _swap(staging: Path, folder: Path, old: Path) -> None:
    """Rename the older report to `old` and the new one to `folder`. If that fails, rename the older one back."""
    try:
        if folder.exists():
            folder.rename(old)
        (staging / "new").rename(folder)
    except OSError:
        if not folder.exists() and old.exists():
            old.rename(folder)
        raise


def _fill(folder: Path, results: Results) -> None:
    folder.mkdir()
    charts: dict[str, list[dict[str, str]]] = {}
    if (opening := strip(results)) is not None:
        _draw(strip_figure(opening), folder / "strip.png")
    for task, stem, caption, figure in figures(results):
        data = base64.b64encode(_draw(figure, folder / f"{stem}.png")).decode("ascii")
        charts.setdefault(task, []).append({"data": data, "caption": caption})
    (folder / "index.html").write_text(page(results, charts), encoding="utf-8")
    (folder / NUMBERS).write_text(results_text(results), encoding="utf-8")


def _draw(figure: Figure, file: Path) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    file.write_bytes(buffer.getvalue())
    return buffer.getvalue()


def page(results: Results, charts: Mapping[str, Sequence[Mapping[str, str]]]) -> str:
    """The page as HTML. charts: for each section, {"data": a PNG in base64, "caption": its caption} for each chart."""
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
        closing=CLOSING,
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
