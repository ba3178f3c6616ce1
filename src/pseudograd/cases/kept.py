"""Finished runs, kept one by one in a folder, so that work that was broken off goes on where it stopped."""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import torch

from ..errors import must


class Kept:
    """A folder of finished runs. Each is a file of its own, whole or not there; its name is what the run depends on, digested.

    A run is found again with the same name, settings, function as it stands in its file, torch and pseudograd. What else a function
    reads, such as data or other modules, nobody checks.
    """

    def __init__(self, folder: Path, where: str, argument: str = "keep") -> None:
        self.folder, self.where, self.argument = folder, where, argument
        if folder.exists() and (not folder.is_dir() or any(path.suffix != ".run" for path in folder.iterdir())):
            raise ValueError(must(where, argument, "hold finished runs alone", str(folder), "Choose another folder"))

    def find(self, name: dict[str, Any]) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = torch.load(self._file(name), weights_only=True)
        except Exception:  # not there, or damaged: it is run again
            return None
        return found

    def put(self, name: dict[str, Any], found: dict[str, Any]) -> None:
        staging = self.folder.with_name(f".{self.folder.name}-{uuid.uuid4().hex}")
        data = io.BytesIO()
        torch.save(found, data)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            staging.write_bytes(data.getvalue())
            staging.replace(self._file(name))
        except OSError as error:
            remedy = f"{error.strerror}: choose another folder"
            raise ValueError(
                must(self.where, self.argument, "take the finished runs", str(self.folder), remedy)
            ) from error
        finally:
            staging.unlink(missing_ok=True)

    @property
    def count(self) -> int:
        return len(list(self.folder.iterdir())) if self.folder.is_dir() else 0

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, name: dict[str, Any]) -> Path:
        text = json.dumps({**name, **_versions()}, sort_keys=True, default=str)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.run"


def _versions() -> dict[str, str]:
    from .. import __version__

    return {"pseudograd": __version__, "torch": torch.__version__}


def source_of(function: Any) -> str:
    """The function's name, and the text of its file as a digest: an edited one is another function."""
    function = inspect.unwrap(function)
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"
    try:
        file = inspect.getsourcefile(function) or inspect.getsourcefile(type(function))
        text = Path(file or "").read_bytes()
    except (OSError, TypeError):
        return name
    return f"{name} {hashlib.sha256(text).hexdigest()}"
