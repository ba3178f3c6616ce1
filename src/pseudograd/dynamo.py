"""What Dynamo has to be told of us, when somebody first imports it: importing it ourselves would cost 0.7 s."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

_awaiting: list[Callable[[Any], None]] = []


class _WhenDynamoArrives:
    """A finder that stands before those which find torch.

    It stays until the import has succeeded: find_spec may be asked without one, and an import may fail and be tried again.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch._dynamo":
            return None
        asked = sys.meta_path.index(self) + 1 if self in sys.meta_path else 0  # type: ignore[arg-type]
        for finder in sys.meta_path[asked:]:
            spec: Any = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Telling(spec.loader, self)
                return spec
        return None


class _Telling:
    """A loader that runs what awaits the module after it has run the module."""

    def __init__(self, loader: Any, hook: _WhenDynamoArrives) -> None:
        self.loader = loader
        self.hook = hook

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        if self.hook in sys.meta_path:  # type: ignore[comparison-overlap]
            sys.meta_path.remove(self.hook)  # type: ignore[arg-type]
        tell(module)


def tell(dynamo: object) -> None:
    """Run what awaits it, once."""
    acts, _awaiting[:] = list(_awaiting), []
    for act in acts:
        act(dynamo)


def when_dynamo_arrives(act: Callable[[object], None]) -> None:
    """Call act(torch._dynamo): now if it is there, else once it has been imported."""
    _awaiting.append(act)
    if "torch._dynamo" in sys.modules:
        dynamo = importlib.import_module("torch._dynamo")  # waits for another thread that is importing it
        if not getattr(dynamo.__spec__, "_initializing", False):  # else it is what imports us
            tell(dynamo)


def is_awaited() -> bool:
    """Does the hook wait for its import?"""
    return any(isinstance(finder, _WhenDynamoArrives) for finder in sys.meta_path)


if "torch._dynamo" not in sys.modules:
    sys.meta_path.insert(0, _WhenDynamoArrives())  # type: ignore[arg-type]
