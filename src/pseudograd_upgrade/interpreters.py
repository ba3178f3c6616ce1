"""Can this interpreter run the program with what hears it? Asked before any work, without importing its torch."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pseudograd.errors import must

from .recorded import SHAKEN

_PYTHON, _TORCH = (3, 10), (2, 8)
_SECONDS = 60
_ASK = """
import importlib.metadata, importlib.util, json, sys
def version(name):
    try:
        return importlib.metadata.version(name) if importlib.util.find_spec(name) else None
    except importlib.metadata.PackageNotFoundError:
        return None
print(json.dumps({"python": sys.version_info[:2], "torch": version("torch"), "extensions": version("typing_extensions")}))
"""


@dataclass(frozen=True)
class Interpreter:
    """path: absolute, as it was given otherwise: a link into a virtual environment stays one."""

    path: str
    torch: str
    is_shaken: bool = field(default=False, kw_only=True)  # are parameters moved by roundings there?
    follows: ClassVar[str] = "pseudograd_upgrade.following"  # the module that hears the program there

    def label(self, torch: str) -> str:
        """What a run there is called, of a torch that says it is this one."""
        return torch

    @property
    def said(self) -> str:
        """What is said of it besides."""
        return f", {SHAKEN}" if self.is_shaken else ""

    @property
    def environment(self) -> Mapping[str, str]:
        """What a run there has besides."""
        return {}

    @property
    def asked(self) -> Mapping[str, Any]:
        """What the module is asked besides."""
        return {"is_shaken": self.is_shaken}


def asked(argument: str, given: str) -> Interpreter:
    """The interpreter behind a path or a name on PATH; ValueError where it cannot do."""
    found = shutil.which(given)
    if found is None:
        raise ValueError(must("upgrade", argument, "be an interpreter that can be run", given))
    path = os.path.abspath(found)
    try:
        done = subprocess.run(
            [path, "-c", _ASK], capture_output=True, text=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
        said = json.loads(done.stdout)
        python, torch = tuple(said["python"]), said["torch"]
    except (OSError, ValueError, KeyError, TypeError, subprocess.TimeoutExpired) as error:
        raise ValueError(must("upgrade", argument, "be a python that can be run", given)) from error
    if torch is None:
        raise ValueError(must("upgrade", argument, "have torch", given, "Its python found none. Install it there"))
    if python < _PYTHON:
        raise ValueError(must("upgrade", argument, "be Python 3.10 or later", given, f"It is {_dotted(python)}"))
    if said["extensions"] is None:
        raise ValueError(must("upgrade", argument, "have typing_extensions", given, "Install it there"))
    if tuple(int(part) for part in torch.split("+")[0].split(".")[:2]) < _TORCH:
        raise ValueError(must("upgrade", argument, f"have torch {_dotted(_TORCH)} or later", given, f"It has {torch}"))
    return Interpreter(path, torch)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


@contextlib.contextmanager
def ourselves() -> Iterator[str]:
    """A folder with this package and nothing else, for the path of an interpreter that may have another one, or none."""
    home = Path(__file__).resolve().parents[1]
    packages = [path for path in (home / "pseudograd", *home.glob("pseudograd_*")) if path.is_dir()]
    with tempfile.TemporaryDirectory(prefix="pseudograd-path-") as folder:
        for package in packages:
            link = Path(folder) / package.name
            try:
                link.symlink_to(package, target_is_directory=True)
            except OSError:  # a system without links
                shutil.copytree(package, link)
        yield folder
