"""Run from a folder that is first on PYTHONPATH, so python runs it at the start of every process of a program.

It waits for torch, and imports only the finder that this folder has, too, so a process without torch starts as fast as without us. Nothing
here may harm a program.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


def _other_sitecustomize() -> None:
    """Run the sitecustomize that python would have run without us. Python itself reports what it raises."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
    ours = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", ours)


def _follow(module: Any) -> None:
    """Begin to follow the process. An error is written to a file, and the program goes on without us."""
    module.__spec__._initializing = False  # torch is complete: a thread of ours that imports it must not wait
    try:
        try:
            from pseudograd.listen.program import process
        except ImportError:  # this process has another sys.path than the command
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
        importlib.import_module("pseudograd_import_hook").WhenImported("torch", _follow).wait()
    _other_sitecustomize()
