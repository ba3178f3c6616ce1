"""The modes during a backward. torch's own stack is empty there, because backward itself was dispatched through it.

Non-reentrant checkpoints recompute inside backward, reentrant ones run a forward and a backward of their own there. Both must see the
modes that are entered. While any is, `_engine_run_backward` puts them back.
"""

from __future__ import annotations

import functools
import sys
import threading
import warnings
from types import CodeType, FrameType
from typing import Any

import torch
from torch.autograd import graph

_lock = threading.Lock()
_entered = 0


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.modes: list[Any] = []


_active = _OfThread()


def enter(mode: Any) -> None:
    """Before the mode is pushed."""
    global _entered
    _active.modes.append(mode)
    with _lock:
        _entered += 1
        if _entered == 1:
            _install()


def leave(mode: Any) -> None:
    global _entered
    _active.modes = [entry for entry in _active.modes if entry is not mode]
    with _lock:
        _entered -= 1
        if _entered == 0:
            _uninstall()


def modes() -> list[Any]:
    """Those entered in this thread, the innermost last."""
    return list(_active.modes)


def _install() -> None:
    run = graph._engine_run_backward

    @functools.wraps(run)
    def run_with_modes(*args: Any, **kwargs: Any) -> Any:
        for mode in _active.modes:
            mode.log.look_at(mode, args[0])
        stack = torch.overrides._get_current_function_mode_stack()
        missing = [mode for mode in _active.modes if not any(mode is entry for entry in stack)]
        for mode in missing:
            torch.overrides._push_mode(mode)
        try:
            return run(*args, **kwargs)
        finally:
            for _ in missing:
                torch.overrides._pop_mode()

    run_with_modes.pseudograd_stands_before = run  # type: ignore[attr-defined]
    graph._engine_run_backward = run_with_modes
    torch.autograd._engine_run_backward = run_with_modes  # type: ignore[attr-defined]


def _uninstall() -> None:
    """Give torch its function back, unless somebody has put another in front of ours."""
    for owner in (graph, torch.autograd):
        before = getattr(owner._engine_run_backward, "pseudograd_stands_before", None)  # type: ignore[attr-defined]
        if before is not None:
            owner._engine_run_backward = before  # type: ignore[attr-defined]


# --- reentrant checkpoints --------------------------------------------------------------------------------------------


def note_checkpoint(mode: Any) -> None:
    """A matching call that records nothing: is it in a reentrant checkpoint, which will run it again in backward?"""
    checkpoint = sys.modules.get("torch.utils.checkpoint")
    if checkpoint is None or torch.is_grad_enabled():
        return
    frame = _frame_of(checkpoint.CheckpointFunction.forward.__code__)
    if frame is None:
        return
    _warn_from_its_backward(checkpoint.CheckpointFunction)
    context = frame.f_locals["ctx"]
    noted = getattr(context, "pseudograd_choices", None)
    if noted is None:
        noted = context.pseudograd_choices = []
    if not any(choices is mode.choices for choices in noted):
        noted.append(mode.choices)


def _frame_of(code: CodeType) -> FrameType | None:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame


def _warn_from_its_backward(function: Any) -> None:
    with _lock:
        run = function.backward
        if hasattr(run, "pseudograd_stands_before"):
            return

        @functools.wraps(run)
        def backward(ctx: Any, *grads: Any) -> Any:
            entered = [getattr(mode, "choices", None) for mode in torch.overrides._get_current_function_mode_stack()]
            for choices in getattr(ctx, "pseudograd_choices", ()):
                if not any(choices is other for other in entered):
                    warnings.warn(_OUTSIDE, stacklevel=2)
                    break
            return run(ctx, *grads)

        backward.pseudograd_stands_before = run  # type: ignore[attr-defined]
        function.backward = staticmethod(backward)


_OUTSIDE = (
    "override: backward runs outside the context, so this reentrant checkpoint is recomputed with torch's own rules. "
    "Call backward inside the context, or checkpoint with use_reentrant=False."
)
