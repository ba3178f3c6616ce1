"""Where a call stands: the user's line and the line of torch or a package that it led to, the expression, and the running module.

One file, as one walk outwards from a call meets all of them.
"""

from __future__ import annotations

import functools
import linecache
import os
import re
import sys
import weakref
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from ..torch_table.private import children_of, module_call, module_wrapped_call, traced_frames

_TORCH = os.path.dirname(torch.__file__) + os.sep
OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # pseudograd_lint and its like stand beside it
_OURS = (OURS + os.sep, OURS + "_")
_NOT_THEIRS = (_TORCH, *_OURS)
_PACKAGES = f"{os.sep}site-packages{os.sep}"


def _current_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return None


_HOME = _current_folder()  # when this was imported


def is_users(file: str) -> bool:
    """Is it neither torch's nor this package's? So of the program, or of a package that calls torch."""
    return not file.startswith(_NOT_THEIRS)


def is_torchs(file: str) -> bool:
    return file.startswith(_TORCH)


def is_ours(file: str) -> bool:
    """Is it this package's?"""
    return file.startswith(_OURS)


def is_of_a_package(file: str) -> bool:
    """Was it installed?"""
    return _PACKAGES in file


def calling_frame() -> FrameType | None:
    """The innermost frame that is neither torch's nor this package's: the line that calls a function of torch."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THEIRS):
        frame = frame.f_back
    return frame


def program_frame(frame: FrameType | None) -> FrameType | None:
    """From there outwards, the first frame that no installed package holds: the line of the program itself, where there is one."""
    while frame is not None and _whose(frame.f_code.co_filename) != _OF_THE_PROGRAM:
        frame = frame.f_back
    return frame


def expression_at(code: CodeType, line: int, instruction: int) -> str:
    """The source of a call, as Python shows it in a traceback; its whole line before Python 3.11."""
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
    """Its absolute path. A relative one belongs to the folder that the program was started in, which it may have left since."""
    name = code if isinstance(code, str) else code.co_filename
    if not name or os.path.isabs(name) or name.startswith("<") or _HOME is None:
        return name
    file = os.path.join(_HOME, name)
    return file if os.path.exists(file) else name


def lines_of(file: str) -> list[str]:
    """As the file is now: Python remembers it by its name, which may be that of another file in the folder one was in before."""
    file = file_of(file)
    linecache.checkcache(file)
    return linecache.getlines(file)


def span_at(code: CodeType, instruction: int) -> tuple[int, int, int, int] | None:
    """First line, last line, and the columns in bytes where they start and end; None before Python 3.11."""
    if not hasattr(code, "co_positions"):
        return None
    first, last, start, end = _positions(code)[instruction // 2]
    if first is None or last is None or start is None or end is None:
        return None
    return first, last, start, end


_MOST_POSITIONS = 256  # of codes whose positions are remembered
_remembered: dict[int, tuple[CodeType, list[Any]]] = {}  # by the id of a code: its hash would cost as much as the list


def _positions(code: Any) -> list[Any]:
    """Of every instruction. Python lists those of the whole code each time, and a function may have a thousand calls."""
    known = _remembered.get(id(code))
    if known is None:
        while len(_remembered) >= _MOST_POSITIONS:
            _remembered.pop(next(iter(_remembered)), None)
        known = _remembered[id(code)] = code, list(code.co_positions())
    return known[1]


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


def named(point: Point | None) -> str:
    """Its file and line; "?" where nobody saw it."""
    return "?" if point is None else str(point)


def point(frame: FrameType | None) -> Point | None:
    """Where a frame is now."""
    return None if frame is None else Point(frame.f_code, frame.f_lineno, frame.f_lasti)


@dataclass(frozen=True, eq=False)  # compared by identity: the hash of a code object would cost more than the walk
class Location:
    """Where a call stands: the line that calls torch, the program's own line, and the running module by its path in the outermost."""

    call: Point | None
    program: Point | None
    module: str | None


NOWHERE = Location(None, None, None)
_MOST_LOCATIONS = 10_000


class Locations:
    """Each location once, so that a program which makes its code anew in every step stays at the same locations. It keeps their code.

    roots: the outermost modules that were seen to run, by their id.
    """

    def __init__(self) -> None:
        self.roots: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._known: dict[tuple[object, ...], Location] = {}
        self._by_instruction: dict[tuple[object, ...], Location] = {}

    def here(self, depth: int) -> Location:
        """The location of the frame `depth` above; the first location that was alike. NOWHERE where there are too many.

        Code is compared by what it does, and a made file by its name without numbers.
        """
        call, program, module = _walk_outwards(sys._getframe(depth), self.roots)
        key = (
            0 if call is None else (id(call.f_code), call.f_lasti),
            0 if program is None or program is call else (id(program.f_code), program.f_lasti),
            module,
        )
        known = self._by_instruction.get(key)
        return self._same_as(key, Location(point(call), point(program), module)) if known is None else known

    def _same_as(self, key: tuple[object, ...], location: Location) -> Location:
        alike = _alike(location.call), _alike(location.program), location.module
        if alike not in self._known and len(self._known) >= _MOST_LOCATIONS:
            return NOWHERE
        first = self._known.setdefault(alike, location)
        if first is location:  # its code is kept, so that no other one gets its id
            self._by_instruction[key] = location
        return first

    def of_function(self, function: object) -> Location:
        """The first line of a function of the program; NOWHERE for what is not written in Python."""
        while isinstance(function, functools.partial):
            function = function.func
        function = getattr(function, "__func__", None) or function
        code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
        if code is None:
            return NOWHERE
        key = id(code), 0, 0, 0, None
        known, first = self._by_instruction.get(key), Point(code, code.co_firstlineno, 0)
        return self._same_as(key, Location(first, first, None)) if known is None else known


def _alike(point: Point | None) -> tuple[object, ...] | None:
    if point is None:
        return None
    file = point.code.co_filename
    return re.sub(r"\d+", "", file) if file.startswith("<") else file, *point


_OF_OTHERS, _OF_A_PACKAGE, _OF_THE_PROGRAM = range(3)


@functools.lru_cache(maxsize=4096)
def _whose(file: str) -> int:
    """The code in a file: torch's and ours, a package's, or the program's."""
    if not is_users(file):
        return _OF_OTHERS
    return _OF_A_PACKAGE if _PACKAGES in file or file.startswith("<frozen") else _OF_THE_PROGRAM


def location(depth: int) -> Location:
    """The location of the frame `depth` above, where no `Locations` remembers it."""
    call, program, module = _walk_outwards(sys._getframe(depth), {})
    return Location(point(call), point(program), module)


def _walk_outwards(
    frame: FrameType | None, roots: dict[int, weakref.ref[torch.nn.Module]]
) -> tuple[FrameType | None, FrameType | None, str | None]:
    """The frames of the call and of the program, and the path of the module. The outermost module is added to `roots`."""
    call = program = None
    # Of the frames that run a module. To read the locals of a frame takes longer than to walk past it.
    innermost: FrameType | None = None
    outermost: FrameType | None = None
    while frame is not None:
        code = frame.f_code
        if code is module_call:
            outermost = frame
            if innermost is None:
                innermost = frame
        elif program is None and (whose := _whose(code.co_filename)):
            if call is None:
                call = frame
            if whose == _OF_THE_PROGRAM:
                program = frame
        frame = frame.f_back
    if innermost is None or outermost is None:
        return call, program, None
    root = _self_of(outermost)
    if id(root) not in roots or roots[id(root)]() is not root:
        roots[id(root)] = weakref.ref(root)
    return call, program, _path(root if innermost is outermost else _self_of(innermost), root)


def _self_of(frame: FrameType) -> Any:
    """The module that a frame runs: from the frame around it, where that is torch's, as it has fewer locals to be copied."""
    outer = frame.f_back
    return (frame if outer is None or outer.f_code is not module_wrapped_call else outer).f_locals["self"]


def format_location(code: CodeType | str, line: int) -> str:
    """file:line, from site-packages or the current folder on."""
    file = file_of(code)
    if _PACKAGES in file:
        file = file.rsplit(_PACKAGES, 1)[1]
    elif os.path.isabs(file) and os.path.splitdrive(file)[0] == "" and (folder := _current_folder()) is not None:
        inside = os.path.relpath(file, folder)
        file = file if inside.startswith(os.pardir) else inside
    return f"{file}:{line}"


def is_same_line(where: str, text: str) -> bool:
    """Does a person who writes `text` mean the line `where`, as `format_location` names it? The end of the path of a file is enough."""
    (file, number), (other, its) = (line.rpartition(":")[::2] for line in (where, text))
    return number == its and is_same_file(file, other)


def is_same_file(file: str, other: str) -> bool:
    """Does a person who writes `other` mean the file that `format_location` names so?"""
    file, other = (name.replace(os.sep, "/") for name in (file, other))
    if not file or not other:
        return False
    path = file if file.startswith(("/", "<")) else f"{_current_folder() or ''}/{file}".replace(os.sep, "/")
    if f"/{path}".endswith(f"/{other}"):
        return True
    # in a package, whose folder `format_location` leaves out
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
        _paths.update(((id(root), id(part)), (path, tuple(path.split(".")))) for path, part in root.named_modules())
        known = _paths.get(key)
    return None if known is None else known[0]


def _lead_to(module: torch.nn.Module, names: _Names, root: object) -> bool:
    """Do they still? Layers move where one before them is taken out, and a new one may get the id of an old one.

    torch's own `get_submodule` takes ten times as long, more than all the rest of `location`.
    """
    for name in names:
        root = children_of(root).get(name)
    return root is module


def compiled_lines() -> tuple[str, str, str]:
    """Of the call that Dynamo is tracing: its line, the program's own line, and the source of the line."""
    entries = [entry for entry in traced_frames() if is_users(entry.filename)]
    if not entries:
        return "?", "?", ""
    call = entries[-1]
    program = next((entry for entry in reversed(entries) if not is_of_a_package(entry.filename)), None)
    user_where = "?" if program is None else format_location(program.filename, program.lineno or 0)
    return format_location(call.filename, call.lineno or 0), user_where, (call.line or "").strip()
