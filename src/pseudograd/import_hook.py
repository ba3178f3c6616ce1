"""A finder that waits for the first import of a module. It needs `sys` alone, so that commands can run it at the start of a program."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    Act = Callable[[ModuleType], object]


class WhenImported:
    """A finder that calls act(module) after the first import of the module. `wait` puts it before all other finders.

    It stays until an import has succeeded: find_spec may be called without an import, and an import may fail and be tried again.
    """

    def __init__(self, module: str, act: Act) -> None:
        self.awaits, self.act = module, act

    def wait(self) -> None:
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != self.awaits:
            return None
        next_finder = sys.meta_path.index(self) + 1 if self in sys.meta_path else 0
        for finder in sys.meta_path[next_finder:]:
            spec = getattr(finder, "find_spec", lambda *_: None)(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self)
                return spec
        return None


class _Loader:
    """Runs the module with its own loader, then calls `act`."""

    def __init__(self, loader: Loader, hook: WhenImported) -> None:
        self.loader, self.hook = loader, hook

    def __getattr__(self, name: str) -> object:
        return getattr(self.loader, name)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        if self.hook in sys.meta_path:
            sys.meta_path.remove(self.hook)
            self.hook.act(module)
