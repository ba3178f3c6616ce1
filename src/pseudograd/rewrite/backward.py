"""The contexts during a backward. torch's own stack is empty there, because backward itself was dispatched through it.

While a context is entered, each backward puts the modes back: a function of the user may run a forward in its backward. A
checkpoint always recomputes under the contexts of its first forward pass, wherever and in whatever thread its backward runs; another
rule would keep other tensors, which torch could not tell from the right ones.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from .. import torch_private
from ..trace import around_backward
from . import entered

_lock = threading.Lock()
_count = 0


def enter(mode: Any) -> None:
    """Before the mode is pushed."""
    global _count
    entered.add(mode)
    with _lock:
        _count += 1
        if _count == 1:
            _watch_checkpoints()
            around_backward.subscribe(_put_back)


def leave(mode: Any) -> None:
    global _count
    entered.remove(mode)
    with _lock:
        _count -= 1
        if _count == 0:
            around_backward.unsubscribe(_put_back)


def _put_back(roots: Any, grads: Any = None) -> Callable[[], None]:
    """The modes of this thread, before a backward; returns what takes them off again."""
    modes = entered.modes()
    for mode in modes:
        mode.log.look_at(mode, roots)
    stack = torch_private.mode_stack()
    missing = [mode for mode in modes if not any(mode is entry for entry in stack)]
    for mode in missing:
        torch_private.push_mode(mode)
    return functools.partial(_take_off, len(missing))


def _take_off(count: int) -> None:
    for _ in range(count):
        torch_private.pop_mode()


# --- checkpoints ------------------------------------------------------------------------------------------------------


@functools.cache
def _watch_checkpoints() -> None:
    """Once, and for good: a checkpoint made inside a context may run its backward when all of them have ended."""
    if torch_private.checkpoint_frame is not None:
        torch_private.checkpoint_frame.recompute_fn = _UnderItsContexts()
    function = torch_private.checkpoint_function
    function.forward = staticmethod(_noting(function.forward))
    function.backward = staticmethod(_as_noted(function.backward))


class _UnderItsContexts:
    """`recompute_fn` of a checkpoint without reentry; frames that were made before the first context have none."""

    def __set__(self, frame: Any, recompute: Callable[..., Any]) -> None:
        vars(frame)["recompute_fn"] = recompute
        vars(frame)["pseudograd_modes"] = entered.modes()

    def __get__(self, frame: Any, owner: Any = None) -> Any:
        if frame is None:
            return self
        return functools.partial(_under, vars(frame).get("pseudograd_modes", ()), vars(frame)["recompute_fn"])


def _noting(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward of a checkpoint with reentry, which notes the contexts that it runs in."""

    @functools.wraps(forward)
    def noting(ctx: Any, *args: Any) -> Any:
        ctx.pseudograd_modes = entered.modes()
        return forward(ctx, *args)

    return noting


def _as_noted(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Its backward, under those contexts."""

    @functools.wraps(backward)
    def as_noted(ctx: Any, *grads: Any) -> Any:
        return _under(getattr(ctx, "pseudograd_modes", ()), backward, ctx, *grads)

    return as_noted


def _under(modes: tuple[Any, ...], function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with entered.exactly(modes):
        return function(*args, **kwargs)
