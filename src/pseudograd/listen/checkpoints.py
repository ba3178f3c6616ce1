"""A checkpoint runs its forward twice. The second run gets the surroundings of the first one, wherever and in whatever thread it is.

Torch compares what the two runs save: under another rule, or compiled where the first was not, they would save other tensors. Checkpoints
note their surroundings while a context of ours is entered. A checkpoint keeps its notes as long as its graph lives, without a patch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

from . import patches


class Surrounding(NamedTuple):
    """note(): what surrounds the forward of a checkpoint. under(note), or under(None) without a note: a context for its recomputation."""

    note: Callable[[], object]
    under: Callable[[Any], contextlib.AbstractContextManager[object]]


_surroundings: dict[str, Surrounding] = {}


def surround(
    what: str, note: Callable[[], object], under: Callable[[Any], contextlib.AbstractContextManager[object]]
) -> None:
    """Every checkpoint notes this from now on, while a context of ours is entered."""
    _surroundings[what] = Surrounding(note, under)


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
            stack.enter_context(patches.in_contexts)
            for what, surrounding in _surroundings.items():
                stack.enter_context(surrounding.under(self._notes.get(what)))
            return self._function(*args, **kwargs)


_FUNCTIONS = {patch: _Function(patch.attribute) for patch in patches.CHECKPOINTS}
for _patch, _function in _FUNCTIONS.items():
    patches.in_contexts.replacements[_patch] = lambda hidden, function=_function: function  # type: ignore[misc]
