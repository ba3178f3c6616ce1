"""Compiled code hides its nodes, so it runs eagerly while any diagnosis is entered."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

import torch

from ..dynamo import when_dynamo_arrives
from ..formula import Depth
from ..listen import checkpoints, patches
from ..listen.harmless import harmless

NOT_COMPILED = "diagnose: the context must be entered outside code that torch.compile runs"

_lock = threading.RLock()
_entering = Depth()
_count = 0
_stance: contextlib.AbstractContextManager[object] | None = None  # of torch.compiler, entered during a diagnosis


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """The stance before the first of them comes back when the last has ended, in whatever order they end."""
    global _count
    with _lock:
        _count += 1
    try:
        with _entering:
            when_dynamo_arrives(_arrived)
        with patches.in_contexts:
            yield
    finally:
        with _lock:
            _count -= 1
            if not _count:
                _leave_the_stance()


def _arrived(dynamo: object) -> None:
    """The error is for code that enters a diagnosis, not for a program that imports Dynamo."""
    (_take_the_stance if _entering.depth else _take_it_later)()


def _take_the_stance() -> None:
    global _stance
    with _lock:
        if _count and _stance is None:
            try:
                _stance = torch.compiler.set_stance("force_eager")
            except RuntimeError as error:
                raise RuntimeError(NOT_COMPILED) from error


_take_it_later = harmless("compiled code")(_take_the_stance)  # in the middle of a program


@harmless("compiled code")
def _leave_the_stance() -> None:
    global _stance
    if _stance is not None:
        _stance.__exit__(None, None, None)
        _stance = None


@contextlib.contextmanager
def _surround_as_noted(was_eager: bool | None) -> Iterator[None]:
    """A checkpoint made in a diagnosis recomputes eagerly, another one as it was compiled."""
    undo = _match(was_eager)
    try:
        yield
    finally:
        if undo is not None:
            harmless("a checkpoint")(undo)()


@harmless("a checkpoint")
def _match(was_eager: bool | None) -> Callable[[], object] | None:
    """Returns the function that restores the stance."""
    own = _stance
    if was_eager and own is None and "torch._dynamo" in sys.modules:
        stance = torch.compiler.set_stance("force_eager")
        return lambda: stance.__exit__(None, None, None)
    if not was_eager and own is not None:
        own.__exit__(None, None, None)
        return own.__enter__
    return None


checkpoints.surround("diagnosis", lambda: _count > 0, _surround_as_noted)
