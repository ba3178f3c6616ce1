"""Finished runs, kept one by one in a folder, so that work that was broken off goes on where it stopped."""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import shutil
import uuid
from collections.abc import Iterator
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


def source_of(function: Any, depth: int = 3) -> str:
    """What a function computes, as far as one can tell: its name and line, a digest of its file, and what it holds, so many functions deep.

    An edited function is another one, and so is the same one that holds another number or function.
    """
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"
    parts = [name, str(getattr(code, "co_firstlineno", ""))]
    try:
        file = inspect.getsourcefile(function if code else type(function))
        parts.append(hashlib.sha256(Path(file or "").read_bytes()).hexdigest())
    except (OSError, TypeError):  # written in C, or at a prompt
        parts += [code.co_code.hex(), repr(code.co_consts)] if code else []
    return " ".join([*parts, *(_held(function, depth - 1) if depth else ())])


def _held(function: Any, depth: int) -> Iterator[str]:
    """The numbers, texts and functions in what it closes over, in its defaults and in its attributes."""
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    values = [*cells, *(getattr(function, "__defaults__", None) or ()), *getattr(function, "__dict__", {}).values()]
    values += [getattr(function, name) for name in ("func", "args", "keywords") if hasattr(function, name)]
    for value in values:
        if isinstance(value, (int, float, str, bytes, tuple, dict, type(None))):
            yield repr(value)
        elif inspect.isfunction(value) or inspect.isbuiltin(value):
            yield source_of(value, depth)
