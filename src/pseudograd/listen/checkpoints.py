"""A checkpoint runs its forward twice. The second run gets the surroundings of the first one, wherever and in whatever thread it is.

Torch compares what the two runs save: under another rule, or compiled where the first was not, they would save other tensors. Torch is
patched while somebody has entered `note_surroundings`. A checkpoint keeps its notes as long as its graph lives, and needs no patch for it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from . import patches


class Surrounding(NamedTuple):
    """note(): what surrounds the forward of a checkpoint. under(note), or under(None) without a note: a context for its recomputation."""

    note: Callable[[], object]
    under: Callable[[Any], contextlib.AbstractContextManager[object]]


_surroundings: dict[str, Surrounding] = {}
_lock = threading.RLock()
_count = 0


def surround(
    what: str, note: Callable[[], object], under: Callable[[Any], contextlib.AbstractContextManager[object]]
) -> None:
    """Every checkpoint notes this from now on, while anybody has entered `note_surroundings`."""
    _surroundings[what] = Surrounding(note, under)


@contextlib.contextmanager
def note_surroundings() -> Iterator[None]:
    """While it is entered, checkpoints note their surroundings, and recompute without any where nobody has noted."""
    global _count
    with _lock:
        if not _count:
            patches.apply_all(_REPLACEMENTS)
        _count += 1
    try:
        yield
    finally:
        with _lock:
            _count -= 1
            if not _count:
                patches.remove_all(_REPLACEMENTS)


class _Function:
    """The attribute in which a checkpoint keeps its function from the forward, in which it is set, to the recomputation, which reads it.

    A checkpoint without reentry keeps it in a frame, one with reentry in the node that a CheckpointFunction makes.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __set__(self, owner: object, function: Callable[..., object]) -> None:
        notes = {what: surrounding.note() for what, surrounding in _surroundings.items()}
        vars(owner)[self._name] = _Surrounded(function, notes)

    def __get__(self, owner: object, kind: type) -> object:
        if owner is None:
            return self
        try:
            function = vars(owner)[self._name]
        except KeyError:  # another library's class of the same name has attributes of its own
            raise AttributeError(self._name) from None
        return function if isinstance(function, _Surrounded) else _Surrounded(function, {})


class _Surrounded:
    """The function of a checkpoint, which runs under what surrounded its forward. A checkpoint inside it notes the same again."""

    def __init__(self, function: Callable[..., object], notes: dict[str, object]) -> None:
        self._function, self._notes = function, notes

    def __call__(self, *args: object, **kwargs: object) -> object:
        with contextlib.ExitStack() as stack:
            stack.enter_context(note_surroundings())
            for what, surrounding in _surroundings.items():
                stack.enter_context(surrounding.under(self._notes.get(what)))
            return self._function(*args, **kwargs)


_REPLACEMENTS: dict[patches.Patch, Callable[[object], object]] = {
    patch: lambda hidden, name=patch.attribute: _Function(name)  # type: ignore[misc]
    for patch in patches.CHECKPOINTS
}
