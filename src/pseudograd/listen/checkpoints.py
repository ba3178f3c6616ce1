"""A checkpoint runs its forward twice. What surrounded the first run surrounds the second, wherever and in whatever thread that is.

Torch compares what the two runs keep: under another rule, or compiled where the first was not, they would keep other tensors.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from ..torch_table import private as torch_private


class _Surrounding(NamedTuple):
    note: Callable[[], object]
    under: Callable[[Any], contextlib.AbstractContextManager[object]]


_surroundings: dict[str, _Surrounding] = {}


def remember(
    what: str, note: Callable[[], object], under: Callable[[Any], contextlib.AbstractContextManager[object]]
) -> None:
    """From now on note() is asked at the forward of each checkpoint, and under(what it said) is entered around its recomputation.

    Under None for a checkpoint whose forward nobody noted. For good: its backward may run when every context has ended. Twice is once.
    """
    _surroundings[what] = _Surrounding(note, under)
    _watch()


@functools.cache
def _watch() -> None:
    if torch_private.checkpoint_frame is not None:
        torch_private.checkpoint_frame.recompute_fn = _AsNoted()
    function = torch_private.checkpoint_function
    function.forward = staticmethod(_noting(function.forward))
    function.backward = staticmethod(_as_noted(function.backward))


def _noted() -> dict[str, object]:
    return {what: one.note() for what, one in _surroundings.items()}


def _under(noted: dict[str, object], function: Callable[..., object], *args: object, **kwargs: object) -> object:
    with contextlib.ExitStack() as stack:
        for what, one in _surroundings.items():
            stack.enter_context(one.under(noted.get(what)))
        return function(*args, **kwargs)


class _AsNoted:
    """`recompute_fn` of a checkpoint without reentry."""

    def __set__(self, frame: object, recompute: Callable[..., object]) -> None:
        vars(frame)["recompute_fn"] = recompute
        vars(frame)["pseudograd_noted"] = _noted()

    def __get__(self, frame: object, owner: object = None) -> Any:
        if frame is None:
            return self
        return functools.partial(_under, vars(frame).get("pseudograd_noted", {}), vars(frame)["recompute_fn"])


def _noting(forward: Callable[..., object]) -> Callable[..., object]:
    """The forward of a checkpoint with reentry."""

    @functools.wraps(forward)
    def noting(ctx: Any, *args: object) -> object:
        ctx.pseudograd_noted = _noted()
        return forward(ctx, *args)

    return noting


def _as_noted(backward: Callable[..., object]) -> Callable[..., object]:
    """Its backward, which runs the forward again."""

    @functools.wraps(backward)
    def as_noted(ctx: object, *grads: object) -> object:
        return _under(getattr(ctx, "pseudograd_noted", {}), backward, ctx, *grads)

    return as_noted
