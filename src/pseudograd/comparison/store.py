"""Finished runs in a folder, and the fingerprint that recognises a run.

A fingerprint covers what pickle writes of the function and its arguments, the source of the program's modules with their numbers and texts,
torch's settings, and the versions of what is installed. Files, the environment and other variables do not count. We do not use
joblib.Memory: it reads pickles, which may run code, and it does not notice a damaged file.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import io
import json
import pickle
import platform
import sys
import sysconfig
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ..errors import must
from ..rewrite import entered_contexts

_FINISHED, _UNFINISHED = ".run", ".part"  # how the names of these files end
Key = Mapping[str, object]


class Store:
    """A folder of finished runs, each in its own file. A damaged run is run again."""

    def __init__(self, folder: Path, where: str) -> None:
        self.folder, self.where = folder, where
        files = list(folder.iterdir()) if folder.is_dir() else [folder] if folder.exists() else []
        if not all(file.suffix in (_FINISHED, _UNFINISHED) for file in files):
            raise ValueError(must(where, "keep", "hold finished runs alone", str(folder), "Choose another folder"))

    def read(self, key: Key) -> dict[str, Any] | None:
        """The run that was written under this key. None if there is no such run, or if its file is damaged."""
        with suppress(Exception):  # torch.load raises errors of many kinds; a file has a checksum of each part
            run: dict[str, Any] = torch.load(self._file(key), weights_only=True)
            return run
        return None

    def write(self, key: Key, run: dict[str, object]) -> None:
        staged = self.folder / f"{uuid.uuid4().hex}{_UNFINISHED}"
        buffer = io.BytesIO()
        torch.save(run, buffer)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            staged.write_bytes(buffer.getvalue())
            staged.replace(self._file(key))
        except OSError as error:
            remedy = f"{error.strerror}: choose another folder"
            text = must(self.where, "keep", "take the finished runs", str(self.folder), remedy)
            raise ValueError(text) from error
        finally:
            staged.unlink(missing_ok=True)

    def _file(self, key: Key) -> Path:
        return self.folder / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]}{_FINISHED}"


class FingerprintError(Exception):
    """An object has no fingerprint. The text gives the reason, for the user."""


class _Pickler(pickle.Pickler):
    """Writes a tensor as the digest of its numbers. torch's own pickling depends on the address of its memory."""

    def reducer_override(self, obj: object) -> tuple[type[str], tuple[str]]:
        if not isinstance(obj, torch.Tensor):
            return NotImplemented
        flat = obj.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        digest = hashlib.sha256(flat.view(torch.uint8).numpy().data if flat.numel() else b"").hexdigest()
        kind = f"{type(obj).__name__} {obj.dtype} {tuple(obj.shape)} {obj.device} {obj.requires_grad}"
        return str, (f"{kind} {digest}",)


def fingerprint(held: object) -> str:
    """A text that is equal for equal functions, arguments, sources, settings of torch and installed versions. Raises FingerprintError."""
    if entered_contexts.modes():
        raise FingerprintError("it runs inside a context of override or pin_edge, and a context has no fingerprint")
    pickled = io.BytesIO()
    pickler = _Pickler(pickled)
    pickler.fast = True  # equal parts give equal bytes, even if they are different objects
    try:
        pickler.dump(held)
    except Exception as error:
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        raise FingerprintError(
            f"pickle does not take what run holds ({text}). Define it at the top of a file"
        ) from error
    if b"__main__" in pickled.getvalue() and not hasattr(sys.modules["__main__"], "__file__"):
        raise FingerprintError("run is in no file. Define it at the top of one")
    parts = [hashlib.sha256(pickled.getvalue()).hexdigest(), _program(), _settings()]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _program() -> list[object]:
    """The loaded modules of the program: the source of each, and its variables that are numbers or texts."""
    parts: list[object] = []
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")  # getattr would load modules that load on demand
        if file and not _is_installed(file) and Path(file).is_file():
            plain = {key: value for key, value in vars(module).items() if isinstance(value, (int, float, complex, str))}
            own = sorted((key, repr(value)) for key, value in plain.items() if not key.startswith("__"))
            parts.append((name, hashlib.sha256(Path(file).read_bytes()).hexdigest(), own))
    return parts


@functools.cache  # each fingerprint calls it for every module
def _is_installed(file: str) -> bool:
    path = Path(file).resolve()
    is_packaged = "site-packages" in path.parts or "dist-packages" in path.parts
    return is_packaged or not _installed_folders().isdisjoint(path.parents)


@functools.cache
def _installed_folders() -> frozenset[Path]:
    """The folders of Python, of torch, of this package and of its neighbours."""
    folders = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return frozenset(folder.resolve() for folder in (*folders, Path(torch.__file__).parent, *_own_folders()))


def _own_folders() -> list[Path]:
    """The folders of this package and of its neighbours."""
    return sorted(Path(__file__).resolve().parents[2].glob("pseudograd*/"))


@functools.cache
def _installed() -> list[str]:
    """The versions of all distributions, and a digest of this package's source, which may change while its version stays."""
    own = hashlib.sha256()
    for file in sorted(file for folder in _own_folders() for file in folder.rglob("*.py")):
        own.update(file.read_bytes())
    versions = {f"{distribution.name} {distribution.version}" for distribution in importlib.metadata.distributions()}
    return [own.hexdigest(), *sorted(versions)]


def _settings() -> list[object]:
    """The settings of torch and of the machine that can change the numbers of a run."""
    return [
        _installed(),
        torch.__version__,
        platform.python_version(),
        platform.machine(),
        torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        str(torch.get_default_device()),
        torch.get_num_threads(),
        str(torch.get_default_dtype()),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled(),
    ]
