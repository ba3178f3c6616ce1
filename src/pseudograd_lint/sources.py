"""Find the files to check, read scripts, notebooks and the standard input, and check them."""

from __future__ import annotations

import ast
import bisect
import fnmatch
import io
import json
import os
import re
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

from pseudograd_notices.notice import Notice, Problem
from pseudograd_notices.source import blank_magics, split_lines

from .check import check, parse
from .names import words

SUFFIXES = (".py", ".pyi", ".pyw", ".ipynb")
_IGNORED = words(
    ".git .hg .svn .bzr .tox .nox .venv venv env .env .eggs __pycache__ node_modules build dist _build site-packages .mypy_cache "
    ".ruff_cache .pytest_cache .ipynb_checkpoints .direnv .pixi __pypackages__"
)
_LARGEST = 32 << 20  # bytes; larger than any file that a person wrote
Result = tuple[list[Notice], list[Problem]]
_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


def files(paths: Sequence[str], exclude: Sequence[str]) -> Iterator[str]:
    """The files of these paths. Two paths of the same real file count once. A path that is a file may have any suffix."""
    visited: set[str] = set()
    for path in paths:
        for file in _files_below(path, exclude) if os.path.isdir(path) else [path]:
            real = os.path.realpath(file)
            if real not in visited:
                visited.add(real)
                yield file


def _files_below(root: str, exclude: Sequence[str]) -> Iterator[str]:
    """The files in a folder. Links to folders are not followed, because they may lead back."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not _is_ignored(folder, name, exclude))
        for name in sorted(names):
            path = os.path.join(folder, name)
            if name.endswith(SUFFIXES) and not _matches(path, name, exclude) and os.path.isfile(path):
                yield os.path.normpath(path)


def _is_ignored(folder: str, name: str, exclude: Sequence[str]) -> bool:
    path = os.path.join(folder, name)
    is_named = name in _IGNORED or name.endswith(".egg-info") or _matches(path, name, exclude)
    return is_named or os.path.exists(os.path.join(path, "pyvenv.cfg"))


def _matches(path: str, name: str, exclude: Sequence[str]) -> bool:
    path = Path(os.path.normpath(path)).as_posix()
    pairs = ((text, pattern) for pattern in exclude for text in (name, path, f"/{path}"))
    return any(fnmatch.fnmatch(text, f"*/{pattern}" if text[0] == "/" else pattern) for text, pattern in pairs)


def check_file(path: str, numbers: Sequence[str]) -> Result:
    try:
        if os.path.getsize(path) > _LARGEST:
            return [], [Problem(path, 0, "must be at most 32 MiB, got more. Name the files that a person wrote.")]
        content = Path(path).read_bytes()
    except OSError as error:
        return [], [Problem(path, 0, f"cannot be read: {error.strerror or error}")]
    return check_bytes(content, path, numbers)


def check_bytes(content: bytes, path: str, numbers: Sequence[str]) -> Result:
    if path.endswith(".ipynb"):
        return _check_notebook(content, path, numbers)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        remedy = "Save it as UTF-8, or name its encoding in a comment on the first line."
        return [], [Problem(path, 0, f"cannot be decoded: {error}. {remedy}")]
    try:
        return check(parse(text), split_lines(text), path, numbers), []
    except _UNREADABLE as error:
        return [], [_problem(path, error)]


def _problem(path: str, error: BaseException) -> Problem:
    if isinstance(error, SyntaxError):
        return Problem(path, error.lineno or 0, f"is no Python that this interpreter reads: {error.msg}")
    if isinstance(error, ValueError):
        return Problem(path, 0, f"is no Python: {error}")
    return Problem(path, 0, "is nested too deeply to be read")


def _check_notebook(content: bytes, path: str, numbers: Sequence[str]) -> Result:
    """Check all cells as one module, because a cell may use the imports of another. A cell that cannot be read is a problem."""
    try:
        stored = json.loads(content.decode("utf-8-sig"))
        sources = ["".join(cell["source"]) for cell in stored["cells"] if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return [], [Problem(path, 0, f"is no notebook of version 4: {type(error).__name__}: {error}")]
    lines: list[str] = []
    starts: list[int] = []
    module = ast.Module([], [])
    problems: list[Problem] = []
    for cell, source in enumerate(sources, 1):
        starts.append(len(lines))
        try:
            try:
                tree = parse(source)
            except SyntaxError:  # it may have lines of IPython
                source = blank_magics(source)
                tree = parse(source)
        except _UNREADABLE as error:
            problem = _problem(path, error)
            problems.append(problem._replace(line=0, message=f"cell {cell}, line {problem.line}: {problem.message}"))
            tree = ast.Module([], [])
        ast.increment_lineno(tree, len(lines))
        module.body += tree.body
        lines += split_lines(source)
    try:
        notices = check(module, lines, path, numbers)
    except RecursionError as error:
        return [], [*problems, _problem(path, error)]
    return [_place_in_cell(notice, starts) for notice in notices], problems


def _place_in_cell(notice: Notice, starts: Sequence[int]) -> Notice:
    def place(line: int) -> tuple[int, int]:
        cell = bisect.bisect_left(starts, line)
        return cell, line - starts[cell - 1]

    (cell, line), (_, end_line) = place(notice.line), place(notice.end_line)
    message = re.sub(r"\(line (\d+)\)", lambda m: "(cell {}, line {})".format(*place(int(m[1]))), notice.message)
    return notice._replace(cell=cell, line=line, end_line=end_line, message=message)
