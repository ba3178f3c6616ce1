"""The contexts that are entered in each thread.

torch's own stack of modes does not always list them: it is empty while a mode handles a call, and during a backward, because `backward` was
such a call. So each backward puts the modes of entered contexts back, because a function of the user may run a forward in its backward.
A checkpoint recomputes under the contexts of its first forward.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from torch.overrides import TorchFunctionMode

from ..listen import hooks, patches
from ..listen.hooks import backwards
from ..torch_table import private as torch_private
from ..torch_table.records import Form
from .report import Log


class Entered(TorchFunctionMode):
    """The mode that one entry of a context pushes on torch's stack. The class of `mode.py` derives from it.

    replacements: the rules, by the keyword of `override`. conventions: the conventions, by the family that they pin.
    """

    # Takes the mode off the stack, after a backward for which it alone was pushed.
    take_off: Callable[[object], None] | None = None

    def __init__(
        self, replacements: Mapping[str, object], log: Log | None, conventions: dict[str, str] | None = None
    ) -> None:
        super().__init__()
        self.replacements = replacements
        self.log = log
        self.conventions = conventions or {}
        self.rewritten: set[object] = set()  # the functions of torch that were rewritten


NO_FAMILY: frozenset[str] = frozenset()


class _Thread(threading.local):
    modes: tuple[Entered, ...] = ()
    left_to_torch: tuple[frozenset[str], ...] = ()


_thread = _Thread()
_lock = threading.Lock()
_count = 0  # of modes, in all threads


def modes() -> tuple[Entered, ...]:
    """The modes of this thread, the innermost last."""
    return _thread.modes


def families_left_to_torch() -> frozenset[str]:
    """The families that a pin of this thread leaves to the installed torch, which has the wanted convention by itself."""
    left_to_torch = _thread.left_to_torch
    return NO_FAMILY.union(*left_to_torch) if left_to_torch else NO_FAMILY


def is_replaced(form: Form) -> bool:
    """Does a context that is entered in this thread replace what torch does in this form?"""
    names = {*form.switches, *form.names}
    return any(names & (mode.replacements.keys() | mode.conventions.keys()) for mode in _thread.modes)


def is_pinned(family: str) -> bool:
    """Does a context that is entered in this thread pin this family of functions to something else than torch does?"""
    return any(family in mode.conventions for mode in _thread.modes)


def enter(mode: Entered | None, left_to_torch: frozenset[str]) -> None:
    """Push a mode, and put it back in each backward until `leave`. mode: None if the context replaces nothing."""
    global _count
    _thread.left_to_torch = (*_thread.left_to_torch, left_to_torch)
    if mode is None:
        return
    if torch_private.has_mode_stack:
        mode.take_off = functools.partial(_take_off, (mode,))
    with _lock:
        if not _count:
            patches.in_contexts.__enter__()
            backwards.subscribe(_restore)
        _count += 1
    _thread.modes = (*_thread.modes, mode)
    mode.__enter__()


def leave(mode: Entered | None, left_to_torch: frozenset[str]) -> None:
    """Take a mode off torch's stack, wherever it is on it: contexts that were entered in generators do not end in order.

    If another thread ends the context, the mode stays on the stack of its own thread and rewrites nothing there.
    """
    global _count
    remaining = list(_thread.left_to_torch)
    if left_to_torch in remaining:
        remaining.remove(left_to_torch)
        _thread.left_to_torch = tuple(remaining)
    if mode is None:
        return
    is_in_its_thread = mode in _thread.modes
    torch_private.end_mode(mode, is_in_its_thread)
    if not is_in_its_thread:
        mode.replacements, mode.conventions = {}, {}
    mode.take_off = None  # the partial refers to the mode
    modes = _thread.modes
    _thread.modes = modes[:-1] if modes[-1:] == (mode,) else tuple([entry for entry in modes if entry is not mode])
    with _lock:
        _count -= 1
        if _count == 0:
            patches.in_contexts.__exit__()
            backwards.unsubscribe(_restore)


# --- checkpoints ------------------------------------------------------------------------------------------------------


def _replace_stack(stack: Sequence[object]) -> None:
    for _ in torch_private.mode_stack():
        torch_private.pop_mode()
    for mode in stack:
        torch_private.push_mode(mode)


@contextlib.contextmanager
def exactly(wanted: tuple[Entered, ...]) -> Iterator[None]:
    """Enter these contexts of ours and leave all others of ours. Modes that are not ours stay."""
    entered, stack = _thread.modes, torch_private.mode_stack()
    ours = [entry for entry in stack if isinstance(entry, Entered)]
    if list(map(id, ours)) == list(map(id, entered)) == list(map(id, wanted)):
        yield
        return
    _thread.modes = wanted
    _replace_stack([entry for entry in stack if not isinstance(entry, Entered)] + list(wanted))
    try:
        yield
    finally:
        _thread.modes = entered
        _replace_stack(stack)


hooks.surround("rewriting", modes, lambda entered: exactly(entered or ()))

# --- backwards --------------------------------------------------------------------------------------------------------


def _restore(roots: Iterable[object], grads: object, inputs: object) -> Callable[[object], None]:
    """Push the modes of this thread before a backward; returns a function that takes them off again."""
    modes = _thread.modes
    for mode in modes:
        log = mode.log
        if log is not None and log.nodes.may_hide_some():
            log.look_at(mode.replacements, roots)
    if len(modes) == 1 and mode.take_off is not None and not torch_private.mode_count():  # the usual case, in less time
        torch_private.push_mode(mode)
        return mode.take_off
    missing = modes if torch_private.has_mode_stack else ()
    if missing and torch_private.mode_count():
        stack = torch_private.mode_stack()
        missing = tuple([mode for mode in modes if mode not in stack])
    for mode in missing:
        torch_private.push_mode(mode)
    return functools.partial(_take_off, missing)


def _take_off(pushed: tuple[object, ...], result: object = None) -> None:
    """Take these modes off torch's stack, also from below modes that were pushed since."""
    for mode in reversed(pushed):
        torch_private.take_off_the_stack(mode)
