"""Write a report as one folder, whole or not at all: index.html (self-contained), its PNGs, results.json."""

from __future__ import annotations

import base64
import io
import json
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from ..errors import must
from ..stopping import held
from ..tasks import TASKS
from . import sentences
from .run import Results
from .tables import table

_MARK = "results.json"


class FolderError(ValueError):
    """The output folder cannot be used."""


def check_folder(folder: Path) -> None:
    """Raise before the work starts if the report could not be written: it may replace an empty folder or an older report."""
    try:
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise FolderError(must("compare", "--out", "be a folder", str(folder), "Choose another path"))
        if folder.is_dir() and any(folder.iterdir()) and not _is_report(folder):
            raise FolderError(
                must("compare", "--out", "be empty, new, or an older report", str(folder), "Choose another folder")
            )
        nearest = next(parent for parent in folder.absolute().parents if parent.exists())
        tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=nearest).cleanup()
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: OSError) -> FolderError:
    remedy = f"{error.strerror}: choose another folder"
    return FolderError(must("compare", "--out", "lie where files can be written", str(folder), remedy))


def _is_report(folder: Path) -> bool:
    try:
        kind = json.loads((folder / _MARK).read_text(encoding="utf-8"))["kind"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(kind == "pseudograd compare")


def write(results: Results, folder: Path) -> Path:
    """Write everything beside `folder`, then put it there in one step; return the path of the page."""
    check_folder(folder)
    try:
        with _staging(folder) as staging:
            _fill(staging / "new", results)
            with held():
                _put(staging, folder)
    except OSError as error:
        raise FolderError(
            must(
                "compare", "--out", "take the whole report", str(folder), f"{error.strerror}: nothing was changed there"
            )
        ) from error
    return folder / "index.html"


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """A hidden folder beside `folder`. It goes in the end, whatever stopped the work, and so do the parents made for nothing."""
    made = [parent for parent in folder.absolute().parents if not parent.exists()]
    staging = folder.parent / f".{folder.name}-{uuid.uuid4().hex}"  # named before it is made: a signal may come at once
    try:
        staging.mkdir(parents=True)
        yield staging
    finally:
        with held():
            shutil.rmtree(staging, ignore_errors=True)
            with suppress(OSError):  # from the inside outwards; one that holds the report stays
                for parent in made:
                    parent.rmdir()


def _put(staging: Path, folder: Path) -> None:
    """The new report in the place of the older one, which comes back if that fails."""
    try:
        if folder.exists():
            folder.rename(staging / "old")
        (staging / "new").rename(folder)
    except OSError:
        if not folder.exists() and (staging / "old").exists():
            (staging / "old").rename(folder)
        raise


def _fill(folder: Path, results: Results) -> None:
    from .figures import figures

    folder.mkdir()
    pictures: dict[str, list[dict[str, str]]] = {}
    for stem, caption, figure in figures(results):
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
        (folder / f"{stem}.png").write_bytes(buffer.getvalue())
        data = base64.b64encode(buffer.getvalue()).decode("ascii")
        pictures.setdefault(stem.split("-")[0], []).append({"data": data, "caption": caption})
    (folder / "index.html").write_text(_page(results, pictures), encoding="utf-8")
    text = json.dumps(results.as_json(), indent=1, allow_nan=False, ensure_ascii=False)
    (folder / _MARK).write_text(text + "\n", encoding="utf-8")


def _page(results: Results, pictures: dict[str, list[dict[str, str]]]) -> str:
    import jinja2

    from .. import __version__

    here = Path(__file__).parent
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string((here / "page.html").read_text(encoding="utf-8"))
    sections = [
        {
            "name": name,
            "title": TASKS[name].title,
            "setting": sentences.setting(name, results),
            "figures": pictures[name],
            "verdicts": sentences.verdicts(name, results),
            "tables": [table(TASKS[name], world, rows) for world, rows in results.tasks[name].items()],
        }
        for name in results.tasks
    ]
    return template.render(
        style=(here / "style.css").read_text(encoding="utf-8"),
        installed=sentences.installed(results),
        pseudograd=__version__,
        torch=torch.__version__,
        seconds=results.seconds,
        sections=sections,
        edges=results.edges,
        when_not_to=sentences.when_not_to(results),
    )
