"""What a diagnosis computes for itself: no diagnosis counts it, neither this one nor another that is entered around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..formula import Depth
from ..torch_private import backward_pass

aside = Depth()
_passes: set[int] = set()  # the numbers of our backward passes: those of a device run their hooks in another thread


def is_aside() -> bool:
    """Is this a computation of a diagnosis, in this thread or in a backward pass that it has started?"""
    return aside.depth > 0 or (bool(_passes) and backward_pass() in _passes)


@contextmanager
def passes_from(starts: Sequence[Any]) -> Iterator[None]:
    """Backward passes that begin with these nodes are ours."""
    mine: set[int] = set()

    def note(grads: Any) -> None:
        mine.add(backward_pass())
        _passes.update(mine)

    handles = [node.register_prehook(note) for node in starts if node is not None]
    try:
        with aside:
            yield
    finally:
        for handle in handles:
            handle.remove()
        _passes.difference_update(mine)
