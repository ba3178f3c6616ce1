"""Copied into a folder that stands first on PYTHONPATH: python runs it at the start of every process of a program.

It waits for torch and imports nothing itself, so that a process without torch starts as fast. Nothing here may harm a program.
"""

from __future__ import annotations

import os
import sys
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


def _other_sitecustomize() -> None:
    """The one that python would have run without us. What it raises, python's own start reports."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
    ours = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", ours)


class _WhenTorchArrives:
    """A finder that stands first until an import of torch has succeeded."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name != "torch":
            return None
        behind = sys.meta_path.index(self) + 1 if self in sys.meta_path else 0  # type: ignore[arg-type]
        for finder in sys.meta_path[behind:]:
            spec = getattr(finder, "find_spec", lambda *_: None)(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Telling(spec.loader, self)
                return spec
        return None


class _Telling:
    """A loader that begins to follow once it has run the module."""

    def __init__(self, loader: Any, finder: object) -> None:
        self.loader = loader
        self.finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)
            module.__spec__._initializing = (
                False  # it is whole: a thread of ours that imports it must not wait for this import
            )
            _follow()


def _follow() -> None:
    """Whatever goes wrong is written down, and the program goes on without us."""
    try:
        try:
            from pseudograd.listen.program import process
        except ImportError:  # a process that does not see what the command sees
            with open(os.path.join(_HERE, "root.txt"), encoding="utf-8") as file:
                sys.path.append(file.read())
            try:
                from pseudograd.listen.program import process
            finally:
                sys.path.pop()
        process.begin(_HERE)
    except Exception as error:
        try:
            with open(os.path.join(_HERE, f"{os.getpid()}.error"), "w", encoding="utf-8") as file:
                file.write(f"{type(error).__name__}: {error}")
        except OSError:
            pass


if __name__ == "sitecustomize":  # else somebody imports us by our name in the package
    if os.path.isdir(_HERE):
        sys.meta_path.insert(0, _WhenTorchArrives())  # type: ignore[arg-type]
    _other_sitecustomize()
