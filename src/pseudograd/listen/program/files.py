"""Output files of commands. A command checks its file before the work, and writes all of it or nothing."""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path

from ...errors import must


def checked_file(where: str, argument: str, file: Path) -> Path:
    """The absolute path of a file that can be written: a program may change folders later. ValueError if it cannot be written."""
    try:
        path = file.resolve()
        if path.exists() and not path.is_file():
            raise ValueError(must(where, argument, "be a file", str(file), "Choose another path"))
        if path.exists():
            path.open("ab").close()
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise _unwritable(where, argument, file, error) from error
    return path


def write(where: str, argument: str, path: Path, content: str | bytes) -> None:
    """Writes the whole file, or leaves an older file unchanged."""
    staging = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        staging.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", errors="replace"))
        staging.replace(path)
    except OSError as error:
        raise _unwritable(where, argument, path, error) from error
    finally:
        staging.unlink(missing_ok=True)


def json_text(answer: Mapping[str, object]) -> str:
    return json.dumps(answer, indent=1, ensure_ascii=False) + "\n"


def _unwritable(where: str, argument: str, file: Path, error: OSError) -> ValueError:
    remedy = f"{error.strerror}: choose another path"
    return ValueError(must(where, argument, "lie where files can be written", str(file), remedy))
