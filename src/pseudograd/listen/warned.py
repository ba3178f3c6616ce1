"""Warnings that torch raises in a call which a mode of ours passes on are located at the program's line, as without us.

Python locates a warning at the frame that called; there that is ours. A filter that stands first in `warnings.filters` sees every warning
before any other does: one that is located in this package it raises again where it belongs, and drops.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable
from types import FrameType
from typing import cast

from . import patches
from .frames import is_ours

_HANDED_ON = f"torch{os.sep}overrides.py"
_heard = threading.local()


class _Text:
    """Its `match` is called first, for every warning."""

    def match(self, text: str) -> bool:
        _heard.text, _heard.module, _heard.category = text, None, None
        return True


class _Module:
    def match(self, module: str) -> bool:
        _heard.module = module
        return _is_elsewhere()


class _AnyCategory(type):
    def __subclasscheck__(cls, category: type) -> bool:
        _heard.category = category
        return _is_elsewhere()


class _Category(Warning, metaclass=_AnyCategory):
    pass


def _is_elsewhere() -> bool:
    """Once both are known, in whatever order Python asks: is it located in this package, and so raised again?"""
    module, category = _heard.module, _heard.category
    if module is None or category is None:
        return True
    if module.partition(".")[0] != "pseudograd":
        return False
    frame = _frame_without_us(sys._getframe(2))
    if frame is None:
        return False
    text, _heard.module = _heard.text, None
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    name = frame.f_globals.get("__name__") or "<string>"
    warnings.warn_explicit(text, category, frame.f_code.co_filename, frame.f_lineno, name, registry)
    return True


def _frame_without_us(frame: FrameType | None) -> FrameType | None:
    """Outwards from our innermost frame, the first that would have been there without us."""
    while frame is not None and not (is_ours(frame.f_code.co_filename) and frame.f_code.co_filename != __file__):
        frame = frame.f_back
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
        if frame is not None and frame.f_code.co_filename.endswith(_HANDED_ON):
            frame = frame.f_back and frame.f_back.f_back  # a function written in Python, which called us before it ran
    return frame


_FILTER = ("ignore", _Text(), _Category, _Module(), 0)


def locate_at_the_program() -> None:
    """From here on, in this process; also where the program changes the filters."""
    for patch in patches.WARNING_FUNCTIONS:
        patch.apply(lambda change: change if change is None else _keeping_ours_first(change))
    _move_ours_first()


def _keeping_ours_first(change: Callable[..., object]) -> Callable[..., None]:
    def changed(*arguments: object, **named: object) -> None:
        change(*arguments, **named)
        _move_ours_first()

    return changed


def _move_ours_first() -> None:
    filters = cast("list[object]", warnings.filters)
    if filters[:1] != [_FILTER]:
        filters[:] = [_FILTER, *(entry for entry in filters if entry is not _FILTER)]
        mutated = getattr(warnings, "_filters_mutated", None) or getattr(warnings, "_filters_mutated_lock_held", None)
        if mutated is not None:
            mutated()
