"""Finished runs, kept one by one in a folder, so that work that was broken off goes on where it stopped."""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import shutil
import uuid
from collections.abc import Callable
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
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            strangers = [
                path.name for path in folder.iterdir() if path.suffix != ".run" and not path.name.startswith(".")
            ]
        except OSError as error:
            remedy = f"{error.strerror}: choose another folder"
            raise ValueError(must(where, argument, "be a folder for finished runs", str(folder), remedy)) from error
        if strangers:
            raise ValueError(must(where, argument, "hold finished runs alone", str(folder), "Choose another folder"))

    def __call__(self, name: dict[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What `make` returned for this name before; else what it returns now."""
        found = self.find(name)
        if found is None:
            found = make()
            self.put(name, found)
        return found

    def find(self, name: dict[str, Any]) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = torch.load(self._file(name), weights_only=True)
        except Exception:  # not there, or damaged: it is run again
            return None
        return found

    def put(self, name: dict[str, Any], found: dict[str, Any]) -> None:
        staging = self.folder / f".{uuid.uuid4().hex}"
        try:
            data = io.BytesIO()
            torch.save(found, data)
            staging.write_bytes(data.getvalue())
            staging.replace(self._file(name))
        finally:
            staging.unlink(missing_ok=True)

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
