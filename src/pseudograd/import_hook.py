"""A finder that waits for the first import of a module. It needs `sys` alone, so that commands can copy it into the start of a program."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class WhenImported:
    """Calls act(module) once the module has been imported. `wait` puts it before the finders that find the module.

    It stays until an import has succeeded: find_spec may be called without one, and an import may fail and be tried again.
    """

    def __init__(self, module: str, act: Callable[[Any], object]) -> None:
        self.awaits, self.act = module, act

    def wait(self) -> None:
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.awaits:
            return None
        finders: list[Any] = sys.meta_path  # type: ignore[assignment]
        behind = finders.index(self) + 1 if self in finders else 0
        for finder in finders[behind:]:
            spec = getattr(finder, "find_spec", lambda *_: None)(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self)
                return spec
        return None


class _Loader:
    """The module's own loader, and the act after it has run the module."""

    def __init__(self, loader: Any, hook: WhenImported) -> None:
        self.loader, self.hook = loader, hook

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        finders: list[Any] = sys.meta_path  # type: ignore[assignment]
        if self.hook in finders:
            finders.remove(self.hook)
            self.hook.act(module)
