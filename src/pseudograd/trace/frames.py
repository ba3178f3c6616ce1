"""Where a call stands: the user's line and the line of torch or a package that it led to, the expression, and the running module."""

from __future__ import annotations

import linecache
import os
import sys
import weakref
from types import CodeType, FrameType

import torch

from ..torch_private import module_call, traced_frames

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_NOT_THEIRS = (_TORCH, _OURS)
_PACKAGES = f"{os.sep}site-packages{os.sep}"


def is_users(file: str) -> bool:
    """Is it neither torch's nor this package's? So of the program, or of a package that calls torch."""
    return not file.startswith(_NOT_THEIRS)


def calling_frame(depth: int) -> FrameType | None:
    """The innermost frame that is neither torch's nor this package's: the line that calls a function of torch."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THEIRS):
        frame = frame.f_back
    return frame


def program_frame(frame: FrameType | None) -> FrameType | None:
    """From there outwards, the first frame that no installed package holds: the line of the program itself, where there is one."""
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file) and _PACKAGES not in file and not file.startswith("<frozen"):
            return frame
        frame = frame.f_back
    return None


def expression(frame: FrameType) -> str:
    """The source of the call that the frame is at, as Python shows it in a traceback; its whole line before Python 3.11."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    if not line or not hasattr(frame.f_code, "co_positions"):
        return line.strip()
    positions = list(frame.f_code.co_positions())
    first, last, start, end = positions[frame.f_lasti // 2]
    if first is None or last is None or start is None or end is None:
        return line.strip()
    lines = [linecache.getline(frame.f_code.co_filename, number) for number in range(first, last + 1)]
    encoded = [text.encode() for text in lines]  # positions count bytes
    encoded[-1] = encoded[-1][:end]
    encoded[0] = encoded[0][start:]
    return " ".join(part.decode(errors="replace").strip() for part in encoded)


def shown(code: CodeType | str, line: int) -> str:
    """file:line, from site-packages or the current folder on."""
    file = code if isinstance(code, str) else code.co_filename
    if _PACKAGES in file:
        file = file.rsplit(_PACKAGES, 1)[1]
    else:
        inside = os.path.relpath(file) if os.path.isabs(file) and os.path.splitdrive(file)[0] == "" else file
        file = file if inside.startswith(os.pardir) else inside
    return f"{file}:{line}"


_paths: weakref.WeakKeyDictionary[torch.nn.Module, dict[int, str]] = weakref.WeakKeyDictionary()


def module_path() -> str | None:
    """The dotted path of the innermost running module in the outermost one; None outside any module."""
    running = _running_modules(sys._getframe(2))
    if not running:
        return None
    innermost, root = running[0], running[-1]
    paths = _paths.get(root)
    if paths is None or id(innermost) not in paths:
        paths = _paths[root] = {id(module): path for path, module in root.named_modules()}
    return paths.get(id(innermost))


def _running_modules(frame: FrameType | None) -> list[torch.nn.Module]:
    found: list[torch.nn.Module] = []
    while frame is not None:
        if frame.f_code is module_call and (not found or found[-1] is not frame.f_locals["self"]):
            found.append(frame.f_locals["self"])
        frame = frame.f_back
    return found


def compiled_line() -> str:
    """The user's line that Dynamo is tracing."""
    lines = [entry for entry in traced_frames() if is_users(entry.filename)]
    return shown(lines[-1].filename, lines[-1].lineno or 0) if lines else "?"
