"""Compiled code hides its nodes: while any diagnosis is entered, it runs as it is written."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch

from ..dynamo import when_dynamo_arrives
from ..trace import checkpoints

NOT_COMPILED = "diagnose: the context must be entered outside code that torch.compile runs"

_lock = threading.Lock()
_count = 0
_stance: Any = None  # of torch.compiler: entered, while a diagnosis is and Dynamo is here


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """The stance before the first of them comes back when the last has ended, in whatever order they end."""
    global _count
    checkpoints.remember("diagnosis", lambda: _count > 0, _as_then)
    with _lock:
        _count += 1
    try:
        when_dynamo_arrives(_take_the_stance)
        yield
    finally:
        with _lock:
            _count -= 1
            if not _count:
                _leave_the_stance()


def _take_the_stance(dynamo: Any) -> None:
    global _stance
    with _lock:
        if _count and _stance is None:
            try:
                _stance = torch.compiler.set_stance("force_eager")
            except RuntimeError as error:
                raise RuntimeError(
                    "diagnose: the context must be entered outside code that torch.compile runs"
                ) from error


def _leave_the_stance() -> None:
    global _stance
    if _stance is not None:
        _stance.__exit__(None, None, None)
        _stance = None


@contextlib.contextmanager
def _as_then(was_eager: bool | None) -> Iterator[None]:
    """A checkpoint made in a diagnosis recomputes eagerly, another one as it was compiled."""
    here = _stance
    if was_eager and here is None:
        with torch.compiler.set_stance("force_eager") if _dynamo_is_here() else contextlib.nullcontext():
            yield
    elif not was_eager and here is not None:
        here.__exit__(None, None, None)
        try:
            yield
        finally:
            here.__enter__()
    else:
        yield


def _dynamo_is_here() -> bool:
    return "torch._dynamo" in sys.modules
