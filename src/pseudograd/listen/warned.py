"""Warnings that torch raises in a call which a mode of ours passes on are shown at the program's line, as without us.

Python locates a warning at the frame that called; there that is ours. Filters still see that location.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from . import patches
from .frames import is_ours

_HANDED_ON = f"torch{os.sep}overrides.py"


def locate_at_the_program() -> None:
    """From here on, in this process."""
    patches.SHOW_WARNING.apply(_locating)


def _locating(show: Callable[[Any], object]) -> Callable[[Any], None]:
    def show_located(message: Any) -> None:
        frame = _frame_without_us(sys._getframe(1)) if is_ours(message.filename) else None
        if frame is not None:
            message.filename, message.lineno = frame.f_code.co_filename, frame.f_lineno
        show(message)

    return show_located


def _frame_without_us(frame: FrameType | None) -> FrameType | None:
    """Outwards from our innermost frame, the first that would have been there without us."""
    while frame is not None and not is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
        if frame is not None and frame.f_code.co_filename.endswith(_HANDED_ON):
            frame = frame.f_back and frame.f_back.f_back  # a function written in Python, which called us before it ran
    return frame
