"""Write a report as one folder, whole or not at all: index.html (self-contained), its PNGs, results.json."""

from __future__ import annotations

import base64
import io
import json
import shutil
import tempfile
from pathlib import Path

import torch

from ..errors import must
from ..tasks import TASKS
from . import sentences
from .run import Results
from .tables import table

_MARK = "results.json"


class FolderError(ValueError):
    """The output folder cannot be used."""


def check_folder(folder: Path) -> None:
    """Raise before the work starts if the report could not be written: it may replace an empty folder or an older report."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise FolderError(must("compare", "--out", "be a folder", str(folder), "Choose another path"))
    if folder.is_dir() and any(folder.iterdir()) and not _is_report(folder):
        raise FolderError(
            must("compare", "--out", "be empty, new, or an older report", str(folder), "Choose another folder")
        )
    nearest = next(parent for parent in folder.absolute().parents if parent.exists())
    try:
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
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        _fill(staging / "new", results)
        if folder.exists():
            folder.rename(staging / "old")
        (staging / "new").rename(folder)
    except OSError as error:
        if not folder.exists() and (staging / "old").exists():
            (staging / "old").rename(folder)
        raise FolderError(
            must(
                "compare", "--out", "take the whole report", str(folder), f"{error.strerror}: nothing was changed there"
            )
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder / "index.html"


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
