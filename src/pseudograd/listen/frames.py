"""The location of a call: the line that calls torch, the program's own line that led there, the expression, and the running module.

One walk outwards over the frames of a call finds them all.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import os
import re
import sys
import weakref
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from ..torch_table.private import children_of, module_call, module_wrapped_call, modules_in, traced_frames

_TORCH = os.path.dirname(torch.__file__) + os.sep
OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # the folder of pseudograd
_OURS = (OURS + os.sep, OURS + "_")  # with pseudograd_lint and the like
_TORCHS_OR_OURS = (_TORCH, *_OURS)
_PACKAGES = f"{os.sep}site-packages{os.sep}"


def _current_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return None


_FIRST_FOLDER = _current_folder()  # the folder in which the program imported pseudograd


def is_users(file: str) -> bool:
    """Is it a file of the program or of another package: neither torch's nor ours?"""
    return not file.startswith(_TORCHS_OR_OURS)


def is_torchs(file: str) -> bool:
    return file.startswith(_TORCH)


def is_ours(file: str) -> bool:
    return file.startswith(_OURS)


def is_of_a_package(file: str) -> bool:
    """Is it a file of an installed package?"""
    return _PACKAGES in file


def calling_frame() -> FrameType | None:
    """The innermost frame that is neither torch's nor ours: the line that calls a function of torch."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_TORCHS_OR_OURS):
        frame = frame.f_back
    return frame


def next_program_frame(frame: FrameType | None) -> FrameType | None:
    """The first frame of the program itself, from this frame outwards; None if there is none."""
    while frame is not None and _owner_of(frame.f_code.co_filename) != _OF_THE_PROGRAM:
        frame = frame.f_back
    return frame


def expression_at(code: CodeType, line: int, instruction: int) -> str:
    """The source of a call, as Python marks it in a traceback; its whole line before Python 3.11."""
    lines, span = lines_of(code.co_filename), span_at(code, instruction)
    text = lines[line - 1] if line <= len(lines) else ""
    if not text or span is None or span[1] > len(lines):
        return text.strip()
    first, last, start, end = span
    encoded = [text.encode() for text in lines[first - 1 : last]]  # positions count bytes
    encoded[-1] = encoded[-1][:end]
    encoded[0] = encoded[0][start:]
    return " ".join(part.decode(errors="replace").strip() for part in encoded)


def file_of(code: CodeType | str) -> str:
    """The absolute path of a file. A relative one is looked up in the folder in which the program was when it imported pseudograd."""
    name = code if isinstance(code, str) else code.co_filename
    if not name or os.path.isabs(name) or name.startswith("<") or _FIRST_FOLDER is None:
        return name
    file = os.path.join(_FIRST_FOLDER, name)
    return file if os.path.exists(file) else name


def lines_of(file: str) -> list[str]:
    """The lines of the file as it is now. They are read by the absolute path: a relative one changes its meaning with the folder."""
    file = file_of(file)
    linecache.checkcache(file)
    return linecache.getlines(file)


def span_at(code: CodeType, instruction: int) -> tuple[int, int, int, int] | None:
    """First line, last line, and the columns in bytes where they start and end; None before Python 3.11."""
    if not hasattr(code, "co_positions"):
        return None
    # Not a list of all positions: a function may have a thousand calls.
    first, last, start, end = next(itertools.islice(code.co_positions(), instruction // 2, None))
    if first is None or last is None or start is None or end is None:
        return None
    return first, last, start, end


class Point(NamedTuple):
    """A location in a program that outlives its frame."""

    code: CodeType
    line: int
    instruction: int

    def __str__(self) -> str:
        return format_location(self.code, self.line)

    @property
    def expression(self) -> str:
        return expression_at(*self)


NO_LINE = "?"  # in place of a file and line that nobody recorded


def file_and_line(point: Point | None) -> str:
    """Such as "train.py:42"; NO_LINE if the point is None."""
    return NO_LINE if point is None else str(point)


def point(frame: FrameType | None) -> Point | None:
    """The point at which a frame is now."""
    return None if frame is None else Point(frame.f_code, frame.f_lineno, frame.f_lasti)


@dataclass(frozen=True, eq=False)  # compared by identity: the hash of a code object would cost more than the walk
class Location:
    """The line that calls torch, the program's own line, and the path of the running module in the outermost module."""

    call: Point | None
    program: Point | None
    module: str | None


NOWHERE = Location(None, None, None)
_MOST_LOCATIONS = 10_000


class Locations:
    """One object for each location, also if a program makes its code anew in every step. It keeps the code of each location alive."""

    def __init__(self) -> None:
        self.roots: dict[int, weakref.ref[torch.nn.Module]] = {}  # the outermost modules that ran, by their id
        self._known: dict[tuple[object, ...], Location] = {}
        self._by_instruction: dict[tuple[object, ...], Location] = {}

    def here(self) -> Location:
        """The location that called torch or us, or the first location that was equal to it. NOWHERE if there are too many.

        Code objects are compared by what they do, and generated files such as "<string-1>" by their names without numbers.
        """
        call, program, module = _walk_outwards(sys._getframe(1), self.roots)
        key = (
            0 if call is None else (id(call.f_code), call.f_lasti),
            0 if program is None or program is call else (id(program.f_code), program.f_lasti),
            module,
        )
        known = self._by_instruction.get(key)
        return self._same_as(key, Location(point(call), point(program), module)) if known is None else known

    def _same_as(self, key: tuple[object, ...], location: Location) -> Location:
        value = _comparable(location.call), _comparable(location.program), location.module
        if value not in self._known and len(self._known) >= _MOST_LOCATIONS:
            return NOWHERE
        first = self._known.setdefault(value, location)
        if first is location:  # the location keeps its code alive, so no other code object gets the ids in the key
            self._by_instruction[key] = location
        return first

    def of_function(self, function: object) -> Location:
        """The first line of a function; NOWHERE if it is not written in Python."""
        while isinstance(function, functools.partial):
            function = function.func
        function = getattr(function, "__func__", None) or function
        code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
        if code is None:
            return NOWHERE
        key = id(code), 0, 0, 0, None
        known, first = self._by_instruction.get(key), Point(code, code.co_firstlineno, 0)
        return self._same_as(key, Location(first, first, None)) if known is None else known


def _comparable(point: Point | None) -> tuple[object, ...] | None:
    """A tuple that is equal for points in equal code."""
    if point is None:
        return None
    file = point.code.co_filename
    return re.sub(r"\d+", "", file) if file.startswith("<") else file, *point


_OF_TORCH_OR_OURS, _OF_A_PACKAGE, _OF_THE_PROGRAM = range(3)


@functools.lru_cache(maxsize=4096)
def _owner_of(file: str) -> int:
    """Who has written this file? One of the three constants above."""
    if not is_users(file):
        return _OF_TORCH_OR_OURS
    return _OF_A_PACKAGE if _PACKAGES in file or file.startswith("<frozen") else _OF_THE_PROGRAM


def location() -> Location:
    """The location that called torch or us. Nothing is stored: see `Locations.here`."""
    call, program, module = _walk_outwards(sys._getframe(1), {})
    return Location(point(call), point(program), module)


def _walk_outwards(
    frame: FrameType | None, roots: dict[int, weakref.ref[torch.nn.Module]]
) -> tuple[FrameType | None, FrameType | None, str | None]:
    """The frames of the call and of the program, and the path of the module. The outermost module is added to `roots`."""
    call = program = None
    # Two of the frames that run a module. Their locals are read at the end, because that takes longer than a step of the walk.
    innermost: FrameType | None = None
    outermost: FrameType | None = None
    while frame is not None:
        code = frame.f_code
        if code is module_call:
            outermost = frame
            if innermost is None:
                innermost = frame
        elif program is None and (owner := _owner_of(code.co_filename)) != _OF_TORCH_OR_OURS:
            if call is None:
                call = frame
            if owner == _OF_THE_PROGRAM:
                program = frame
        frame = frame.f_back
    if innermost is None or outermost is None:
        return call, program, None
    root = _self_of(outermost)
    if id(root) not in roots or roots[id(root)]() is not root:
        roots[id(root)] = weakref.ref(root)
    return call, program, _path(root if innermost is outermost else _self_of(innermost), root)


def _self_of(frame: FrameType) -> Any:
    """The module that a frame runs. It is read from torch's frame around it if there is one, which has fewer locals to copy."""
    outer = frame.f_back
    return (frame if outer is None or outer.f_code is not module_wrapped_call else outer).f_locals["self"]


def format_location(code: CodeType | str, line: int) -> str:
    """file:line; the file is relative to site-packages or to the current folder."""
    file = file_of(code)
    if _PACKAGES in file:
        file = file.rsplit(_PACKAGES, 1)[1]
    elif os.path.isabs(file) and os.path.splitdrive(file)[0] == "" and (folder := _current_folder()) is not None:
        inside = os.path.relpath(file, folder)
        file = file if inside.startswith(os.pardir) else inside
    return f"{file}:{line}"


def is_same_line(where: str, text: str) -> bool:
    """Is `text`, which a person wrote as file:line, the line that `format_location` writes as `where`?"""
    (file, line), (other, other_line) = (location.rpartition(":")[::2] for location in (where, text))
    return line == other_line and is_same_file(file, other)


def is_same_file(file: str, other: str) -> bool:
    """Is `other`, which a person wrote, the file that `format_location` writes as `file`? The end of its path is enough."""
    file, other = (name.replace(os.sep, "/") for name in (file, other))
    if not file or not other:
        return False
    path = file if file.startswith(("/", "<")) else f"{_current_folder() or ''}/{file}".replace(os.sep, "/")  # absolute
    if f"/{path}".endswith(f"/{other}"):
        return True
    # A file of a package: `format_location` leaves out the folder site-packages.
    return not os.path.exists(path) and f"/{other}".endswith(f"/{file}")


_Names = tuple[str, ...]  # from a root to a module in it
_MOST_PATHS = 65_536
_paths: dict[tuple[int, int], tuple[str, _Names]] = {}  # by the ids of a root and of a module in it


def _path(module: torch.nn.Module, root: torch.nn.Module) -> str | None:
    if module is root:
        return ""
    key = id(root), id(module)
    known = _paths.get(key)
    if known is None or not _lead_to(module, known[1], root):
        _paths.pop(key, None)
        if len(_paths) > _MOST_PATHS:
            _paths.clear()
        _paths.update(((id(root), id(part)), (path, tuple(path.split(".")))) for path, part in modules_in(root).items())
        known = _paths.get(key)
    return None if known is None else known[0]


def _lead_to(module: torch.nn.Module, names: _Names, root: object) -> bool:
    """Do these names lead from the root to the module? Layers may have moved, and a new layer may have the id of an old one.

    torch's own `get_submodule` takes ten times as long, more than all the rest of `location`.
    """
    for name in names:
        root = children_of(root).get(name)
    return root is module


def compiled_lines() -> tuple[str, str, str]:
    """The line of the call that Dynamo is tracing, the line of the program that led there, and the source of the call."""
    entries = [entry for entry in traced_frames() if is_users(entry.filename)]
    if not entries:
        return NO_LINE, NO_LINE, ""
    call = entries[-1]
    program = next((entry for entry in reversed(entries) if not is_of_a_package(entry.filename)), None)
    user_where = NO_LINE if program is None else format_location(program.filename, program.lineno or 0)
    return format_location(call.filename, call.lineno or 0), user_where, (call.line or "").strip()
