"""The contexts during a backward. torch's own stack is empty there, because backward itself was dispatched through it.

While a context is entered, each backward puts the modes back: a function of the user may run a forward in its backward. A
checkpoint always recomputes under the contexts of its first forward pass.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from ..listen import checkpoints
from ..listen.around import backwards
from ..torch_table import private as torch_private
from . import entered_contexts

_lock = threading.Lock()
_count = 0
_checkpoints = ExitStack()
checkpoints.surround("rewriting", entered_contexts.modes, lambda modes: entered_contexts.exactly(modes or ()))


def enter(mode: Any) -> None:
    """Before the mode is pushed."""
    global _count
    mode.taken_off = functools.partial(_take_off, (mode,)) if torch_private.has_mode_stack else None
    entered_contexts.add(mode)
    with _lock:
        _count += 1
        if _count == 1:
            _checkpoints.enter_context(checkpoints.kept())
            backwards.subscribe(_put_back)


def leave(mode: Any) -> None:
    global _count
    mode.taken_off = None  # which holds the mode
    entered_contexts.remove(mode)
    with _lock:
        _count -= 1
        if _count == 0:
            _checkpoints.close()
            backwards.unsubscribe(_put_back)


def _put_back(roots: object, grads: object, inputs: object) -> Callable[[object], None]:
    """The modes of this thread, before a backward; returns what takes them off again."""
    modes = entered_contexts.modes()
    for mode in modes:
        log = mode.log
        if log.nodes.may_hide_some():
            log.look_at(mode, roots)
    if len(modes) == 1 and mode.taken_off is not None and not torch_private.mode_count():  # the usual case
        torch_private.push_mode(mode)
        return mode.taken_off  # type: ignore[no-any-return]
    missing = modes if torch_private.has_mode_stack else ()
    if missing and torch_private.mode_count():
        stack = torch_private.mode_stack()
        missing = tuple([mode for mode in modes if mode not in stack])
    for mode in missing:
        torch_private.push_mode(mode)
    return functools.partial(_take_off, missing)


def _take_off(missing: tuple[object, ...], result: object) -> None:
    """These alone, also from below others that somebody has pushed since."""
    if len(missing) == 1 and torch_private.mode_count():
        top = torch_private.pop_mode()
        if top is missing[0]:
            return
        torch_private.push_mode(top)
    above: list[object] = []
    for mode in reversed(missing):
        stack = torch_private.mode_stack()
        while mode in stack:
            torch_private.pop_mode()
            top = stack.pop()
            if top is mode:
                break
            above.append(top)
    for mode in reversed(above):
        torch_private.push_mode(mode)
