"""The contexts that are entered in each thread. torch's own stack of modes cannot tell: it is empty while torch runs a call of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode

from ..torch_table import private as torch_private


class Entered(TorchFunctionMode):
    """One entry of a context: what `mode.py` derives from, and what is ours on torch's stack."""


NO_FAMILY: frozenset[str] = frozenset()


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.modes: tuple[Any, ...] = ()
        self.left_to_torch: tuple[frozenset[str], ...] = ()


_here = _OfThread()


def modes() -> tuple[Any, ...]:
    """Those of this thread, the innermost last."""
    return _here.modes


def left_to_torch() -> frozenset[str]:
    """The families that pins of this thread ask to be as in the installed torch, so that there was nothing to put in their place."""
    some = _here.left_to_torch
    return some[0].union(*some[1:]) if some else NO_FAMILY


def decide_about(form: Any) -> bool:
    """Does a context that is entered in this thread put something else in the place of what torch does there?"""
    asked = {*form.switches, *form.names}
    return any(asked & (mode.replacements.keys() | mode.kinks.keys()) for mode in _here.modes)


def pin(family: str) -> bool:
    """Does a context that is entered in this thread pin this family of functions to something else than torch does?"""
    return any(family in mode.kinks for mode in _here.modes)


def leave_to_torch(families: frozenset[str]) -> None:
    _here.left_to_torch = (*_here.left_to_torch, families)


def no_longer_leave_to_torch(families: frozenset[str]) -> None:
    """Of a generator it may be another thread that ends what this one began."""
    some = list(_here.left_to_torch)
    if families in some:
        some.remove(families)
        _here.left_to_torch = tuple(some)


def add(mode: Entered) -> None:
    _here.modes = (*_here.modes, mode)


def remove(mode: Entered) -> None:
    _here.modes = tuple(entry for entry in _here.modes if entry is not mode)


def take_off_the_stack(mode: Entered) -> None:
    """Wherever it is: contexts that were entered in generators do not end in order."""
    if not torch_private.has_mode_stack:
        mode.__exit__(None, None, None)
        return
    torch_private.take_off_the_stack(mode)


def _replace(wanted: Sequence[object]) -> None:
    for _ in torch_private.mode_stack():
        torch_private.pop_mode()
    for mode in wanted:
        torch_private.push_mode(mode)


@contextlib.contextmanager
def exactly(wanted: tuple[object, ...]) -> Iterator[None]:
    """These contexts of ours and no others, whatever is entered here. The modes of others stay."""
    entered, found = _here.modes, torch_private.mode_stack()
    ours = tuple(entry for entry in found if isinstance(entry, Entered))
    if _same(ours, wanted) and _same(entered, wanted):
        yield
        return
    _here.modes = wanted
    _replace([entry for entry in found if not isinstance(entry, Entered)] + list(wanted))
    try:
        yield
    finally:
        _here.modes = entered
        _replace(found)


def _same(some: tuple[object, ...], others: tuple[object, ...]) -> bool:
    return len(some) == len(others) and all(a is b for a, b in zip(some, others, strict=True))
