"""Files of ours: written whole or not at all, and refused before any work where they could not be."""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path

from ...errors import must


def checked_file(where: str, argument: str, file: Path) -> Path:
    """The file's absolute path, for a program may change folders; an error if it could not be written in the end."""
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
    """All of it or nothing: an older file stays until the new one is whole."""
    staging = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        staging.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", errors="replace"))
        staging.replace(path)
    except OSError as error:
        raise _unwritable(where, argument, path, error) from error
    finally:
        staging.unlink(missing_ok=True)


def json_text(answer: Mapping[str, object]) -> str:
    """What a file of an answer for programs holds."""
    return json.dumps(answer, indent=1, ensure_ascii=False) + "\n"


def _unwritable(where: str, argument: str, file: Path, error: OSError) -> ValueError:
    remedy = f"{error.strerror}: choose another path"
    return ValueError(must(where, argument, "lie where files can be written", str(file), remedy))
