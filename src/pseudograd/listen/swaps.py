"""One hook around torch.utils.swap_tensors, by which a module changes what its parameters are: it refuses tensors with weak references.

around(one, other).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .around import Around, ends


def _announced(swap: Callable[..., object]) -> Callable[..., object]:
    def swap_tensors(t1: object, t2: object) -> object:
        endings = hook.begins(t1, t2)
        try:
            return swap(t1, t2)
        finally:
            ends(endings)

    return swap_tensors


hook = Around(torch.utils, "swap_tensors", _announced)
