"""One hook around Optimizer.zero_grad: around(optimizer, set_to_none)."""

from __future__ import annotations

from collections.abc import Callable

from torch.optim import Optimizer

from .around import Around, ends


def _announced(clear: Callable[..., None]) -> Callable[..., None]:
    def zero_grad(self: Optimizer, set_to_none: bool = True) -> None:
        endings = hook.begins(self, set_to_none)
        try:
            return clear(self, set_to_none)
        finally:
            ends(endings)

    return zero_grad


hook = Around(Optimizer, "zero_grad", _announced)
