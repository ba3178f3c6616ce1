"""A checkpoint runs its forward twice. The second run gets the surroundings of the first one, wherever and in whatever thread it is.

Torch compares what the two runs save: under another rule, or compiled where the first was not, they would save other tensors. Torch is
patched while somebody has entered `note_surroundings`. What a checkpoint noted lives as long as its graph, and needs no patch.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch.utils.checkpoint

from ..torch_table import private as torch_private
from . import patches


class Surrounding(NamedTuple):
    """note(): what surrounds the forward of a checkpoint. under(note), or under(None) without a note: a context for its recomputation."""

    note: Callable[[], object]
    under: Callable[[Any], contextlib.AbstractContextManager[object]]


_surroundings: dict[str, Surrounding] = {}
_lock = threading.RLock()
_count = 0


def surround(what: str, note: Callable[[], object], under: Callable[[Any], Any]) -> None:
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


class _Surrounded:
    """The function of a checkpoint, which runs under what surrounded its forward. A checkpoint inside it notes the same again."""

    def __init__(self, function: Callable[..., object], notes: dict[str, object]) -> None:
        self.function, self.notes = function, notes

    def __call__(self, *args: object, **kwargs: object) -> object:
        with contextlib.ExitStack() as stack:
            stack.enter_context(note_surroundings())
            for what, surrounding in _surroundings.items():
                stack.enter_context(surrounding.under(self.notes.get(what)))
            return self.function(*args, **kwargs)


def _notes() -> dict[str, object]:
    return {what: surrounding.note() for what, surrounding in _surroundings.items()}


class _RecomputeFn:
    """`recompute_fn` of a checkpoint without reentry, which a frame keeps among its own attributes."""

    def __set__(self, frame: object, recompute: Callable[..., object]) -> None:
        vars(frame)["recompute_fn"] = _Surrounded(recompute, _notes())

    def __get__(self, frame: object, owner: object = None) -> object:
        if frame is None:
            return self
        recompute = vars(frame)["recompute_fn"]
        return recompute if isinstance(recompute, _Surrounded) else _Surrounded(recompute, {})


def _noting(hidden: object) -> object:
    """The forward of a checkpoint with reentry, whose context keeps the function for its backward.

    Read here: another library may have replaced the method, or the class by a subclass.
    """
    forward = torch.utils.checkpoint.CheckpointFunction.forward

    @functools.wraps(forward)
    def noting(ctx: Any, *args: object) -> object:
        notes = _notes()
        result = forward(ctx, *args)
        if hasattr(ctx, "run_function"):  # not in another library's class of this name
            ctx.run_function = _Surrounded(ctx.run_function, notes)
        return result

    return staticmethod(noting)


def _recomputing(hidden: object) -> object:
    """Its backward, which runs the function again: without any surroundings where nobody noted them."""
    backward = torch.utils.checkpoint.CheckpointFunction.backward

    @functools.wraps(backward)
    def recomputing(ctx: Any, *grads: object) -> object:
        if hasattr(ctx, "run_function") and not isinstance(ctx.run_function, _Surrounded):
            ctx.run_function = _Surrounded(ctx.run_function, {})
        return backward(ctx, *grads)

    return staticmethod(recomputing)


_REPLACEMENTS = {
    **({} if torch_private.checkpoint_frame is None else {patches.CHECKPOINT_FRAME: lambda hidden: _RecomputeFn()}),
    patches.CHECKPOINT_FORWARD: _noting,
    patches.CHECKPOINT_BACKWARD: _recomputing,
}
