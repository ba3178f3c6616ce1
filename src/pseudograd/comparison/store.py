"""Finished runs, kept one by one in a folder, so that work that was broken off goes on where it stopped."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import torch

from ..errors import must

_MARK = b"pseudograd run 3\n"  # before the checksum
_STAGED = ".part"  # of a file that is being written


class Store:
    """A folder of finished runs. Each is a file of its own, whole or not there; its name is what the run depends on, digested.

    A file carries a checksum: a damaged one is run again, and `notes` says so.
    """

    def __init__(self, folder: Path, where: str, argument: str = "keep") -> None:
        self.folder, self.where, self.argument = folder, where, argument
        self.damaged = 0
        if folder.exists() and (not folder.is_dir() or any(not _is_ours(path) for path in folder.iterdir())):
            raise ValueError(must(where, argument, "hold finished runs alone", str(folder), "Choose another folder"))

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.damaged:
            return ()
        runs = "1 kept run was damaged" if self.damaged == 1 else f"{self.damaged} kept runs were damaged"
        return (f"{runs}, and made again.",)

    def find(self, name: dict[str, object]) -> dict[str, Any] | None:
        try:
            data = self._file(name).read_bytes()
        except OSError:  # not there
            return None
        start = len(_MARK) + hashlib.sha256().digest_size
        if data[:start] != _MARK + hashlib.sha256(data[start:]).digest():
            self.damaged += 1
            return None
        found: dict[str, object] = torch.load(io.BytesIO(data[start:]), weights_only=True)
        return found

    def put(self, name: dict[str, object], found: dict[str, object]) -> None:
        staging = self.folder / f"{uuid.uuid4().hex}{_STAGED}"
        buffer = io.BytesIO()
        torch.save(found, buffer)
        data = buffer.getvalue()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            staging.write_bytes(_MARK + hashlib.sha256(data).digest() + data)
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
        return len(list(self.folder.glob("*.run"))) if self.folder.is_dir() else 0

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, name: dict[str, object]) -> Path:
        text = json.dumps(name, sort_keys=True)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.run"


def _is_ours(path: Path) -> bool:
    return path.suffix in (".run", _STAGED)
