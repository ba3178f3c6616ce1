"""The contexts that are entered in each thread.

torch's own stack of modes does not always list them: it is empty while a mode handles a call, and during a backward, because `backward` was
such a call. So each backward puts the modes of entered contexts back, because a function of the user may run a forward in its backward.
A checkpoint recomputes under the contexts of its first forward.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch.overrides import TorchFunctionMode

from ..listen import hooks, nodes, patches
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
        self._before_end: dict[str, object] = {}  # the attributes that `end` has emptied

    def end(self) -> None:
        """Another thread ends the context. From now on the mode rewrites nothing in its own thread."""
        self._before_end = {"replacements": self.replacements, "conventions": self.conventions}
        self.replacements, self.conventions = {}, {}

    def as_it_was_entered(self) -> Entered:
        """A mode that rewrites, for the recomputation of a checkpoint that was made inside the context."""
        if not self._before_end:
            return self
        mode = copy.copy(self)
        vars(mode).update(self._before_end)
        return mode


NO_FAMILY: frozenset[str] = frozenset()


@dataclass(eq=False)
class Entry:
    """One entry of a context."""

    mode: Entered | None  # None if the context replaces nothing
    left_to_torch: frozenset[str] = NO_FAMILY  # families for which the pin asks for what torch does
    has_ended: bool = False  # has another thread ended it?


class _Thread(threading.local):
    entries: tuple[Entry, ...] = ()
    modes: tuple[Entered, ...] = ()


this_thread = _Thread()
_lock = threading.Lock()
_count = 0  # of modes, in all threads
_ended_elsewhere: weakref.WeakSet[Entry] = weakref.WeakSet()  # by another thread; their own threads forget them


def modes() -> tuple[Entered, ...]:
    """The modes of this thread, the innermost last."""
    if _ended_elsewhere:
        _forget_ended()
    return this_thread.modes


def families_left_to_torch() -> frozenset[str]:
    """The families that a pin of this thread leaves to the installed torch, which has the wanted convention by itself."""
    entries = this_thread.entries
    return NO_FAMILY.union(*[entry.left_to_torch for entry in entries if not entry.has_ended]) if entries else NO_FAMILY


def is_replaced(form: Form) -> bool:
    """Does a context that is entered in this thread replace what torch does in this form?"""
    names = {*form.switches, *form.names}
    return any(names & (mode.replacements.keys() | mode.conventions.keys()) for mode in this_thread.modes)


def is_pinned(family: str) -> bool:
    """Does a context that is entered in this thread pin this family of functions to something else than torch does?"""
    return any(family in mode.conventions for mode in this_thread.modes)


def enter(mode: Entered | None, left_to_torch: frozenset[str]) -> Entry:
    """Push a mode, and put it back in each backward until `leave`. mode: None if the context replaces nothing."""
    global _count
    if hooks.ended or _ended_elsewhere:
        hooks.take_off_ended()
        _forget_ended()
    entry = Entry(mode, left_to_torch)
    this_thread.entries = (*this_thread.entries, entry)
    if mode is None:
        return entry
    if torch_private.has_mode_stack:
        mode.take_off = functools.partial(_take_off, (mode,))
    with _lock:
        if not _count:
            patches.in_contexts.__enter__()
            backwards.subscribe(_restore)
        _count += 1
    this_thread.modes = (*this_thread.modes, mode)
    mode.__enter__()
    return entry


def leave(entry: Entry) -> None:
    """Take a mode off torch's stack, wherever it is on it: contexts that were entered in generators do not end in order.

    If another thread ends the context, the mode rewrites nothing any more, and its own thread takes it off later.
    """
    global _count
    entries, mode = this_thread.entries, entry.mode
    is_in_its_thread = entry in entries
    if is_in_its_thread:
        at = entries.index(entry)
        this_thread.entries = entries[:at] + entries[at + 1 :]
    else:
        entry.has_ended = True
        _ended_elsewhere.add(entry)
    if mode is None:
        return
    modes = this_thread.modes
    is_in_its_thread = is_in_its_thread and mode in modes
    if is_in_its_thread:
        at = modes.index(mode)
        this_thread.modes = modes[:at] + modes[at + 1 :]
    else:
        mode.end()
        hooks.note_ended(mode)
    torch_private.end_mode(mode, is_in_its_thread)
    mode.take_off = None  # the partial refers to the mode
    if nodes.waiting:
        nodes.end_waiting()
    with _lock:
        _count -= 1
        if _count == 0:
            patches.in_contexts.__exit__()
            backwards.unsubscribe(_restore)


def _forget_ended() -> None:
    """Forget the entries of this thread that other threads have ended."""
    ended = [entry for entry in this_thread.entries if entry.has_ended]
    _ended_elsewhere.difference_update(ended)
    this_thread.entries = tuple([entry for entry in this_thread.entries if entry not in ended])
    modes = {entry.mode for entry in ended}
    this_thread.modes = tuple([mode for mode in this_thread.modes if mode not in modes])


# --- checkpoints ------------------------------------------------------------------------------------------------------


def _replace_stack(stack: Sequence[object]) -> None:
    for _ in torch_private.mode_stack():
        torch_private.pop_mode()
    for mode in stack:
        torch_private.push_mode(mode)


@contextlib.contextmanager
def exactly(wanted: tuple[Entered, ...]) -> Iterator[None]:
    """Enter these contexts of ours and leave all others of ours. Modes that are not ours stay."""
    wanted = tuple([mode.as_it_was_entered() for mode in wanted])
    entered, stack = this_thread.modes, torch_private.mode_stack()
    ours = [entry for entry in stack if isinstance(entry, Entered)]
    if list(map(id, ours)) == list(map(id, entered)) == list(map(id, wanted)):
        yield
        return
    this_thread.modes = wanted
    _replace_stack([entry for entry in stack if not isinstance(entry, Entered)] + list(wanted))
    try:
        yield
    finally:
        this_thread.modes = entered
        _replace_stack(stack)


hooks.surround("rewriting", modes, lambda entered: exactly(entered or ()))

# --- backwards --------------------------------------------------------------------------------------------------------


def _restore(roots: Iterable[object], grads: object, inputs: object) -> Callable[[object], None]:
    """Push the modes of this thread before a backward; returns a function that takes them off again."""
    entered = modes()
    for mode in entered:
        log = mode.log
        if log is not None and log.nodes.may_hide_some():
            log.look_at(mode.replacements, roots)
    if len(entered) == 1 and mode.take_off is not None and not torch_private.mode_count():  # the usual case
        torch_private.push_mode(mode)
        return mode.take_off
    missing = entered if torch_private.has_mode_stack else ()
    if missing and torch_private.mode_count():
        stack = torch_private.mode_stack()
        missing = tuple([mode for mode in entered if mode not in stack])
    for mode in missing:
        torch_private.push_mode(mode)
    return functools.partial(_take_off, missing)


def _take_off(pushed: tuple[object, ...], result: object = None) -> None:
    """Take these modes off torch's stack, also from below modes that were pushed since."""
    for mode in reversed(pushed):
        torch_private.take_off_the_stack(mode)
