"""Files, folders, notebooks and the standard input: what there is to read, and the text of it."""

from __future__ import annotations

import ast
import fnmatch
import io
import json
import os
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

from pseudograd_notices.notice import Notice, Problem
from pseudograd_notices.source import split_lines, without_magics

from .check import check, parsed

SUFFIXES = (".py", ".pyi", ".pyw", ".ipynb")
_LEFT_OUT = frozenset(
    [
        ".git",
        ".hg",
        ".svn",
        ".bzr",
        ".tox",
        ".nox",
        ".venv",
        "venv",
        "env",
        ".env",
        ".eggs",
        "__pycache__",
        "node_modules",
        "build",
        "dist",
        "_build",
        "site-packages",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        ".ipynb_checkpoints",
        ".direnv",
        ".pixi",
        "__pypackages__",
    ]
)
_LARGEST = 32 * 1024 * 1024  # bytes; larger than any file that a person wrote
_TOO_DEEP = "is nested too deeply to be read"


def files(paths: Sequence[str], exclude: Sequence[str]) -> Iterator[str]:
    """Every file once, by its real path. What is named itself is read whatever it is called."""
    seen: set[str] = set()
    for path in paths:
        for file in _below(path, exclude) if os.path.isdir(path) else [path]:
            real = os.path.realpath(file)
            if real not in seen:
                seen.add(real)
                yield file


def _below(folder: str, exclude: Sequence[str]) -> Iterator[str]:
    """Links to folders are not followed, so that none leads round."""
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(one for one in folders if not _is_left_out(here, one, exclude))
        for name in sorted(names):
            path = os.path.join(here, name)
            if name.endswith(SUFFIXES) and not _matches(path, name, exclude) and os.path.isfile(path):
                yield os.path.normpath(path)


def _is_left_out(here: str, name: str, exclude: Sequence[str]) -> bool:
    path = os.path.join(here, name)
    if name in _LEFT_OUT or name.endswith(".egg-info") or _matches(path, name, exclude):
        return True
    return os.path.exists(os.path.join(path, "pyvenv.cfg"))


def _matches(path: str, name: str, exclude: Sequence[str]) -> bool:
    whole = Path(os.path.normpath(path)).as_posix()
    return any(
        fnmatch.fnmatch(name, one) or fnmatch.fnmatch(whole, one) or fnmatch.fnmatch(whole, f"*/{one}")
        for one in exclude
    )


def check_file(path: str, numbers: Sequence[str]) -> tuple[list[Notice], list[Problem]]:
    try:
        if os.path.getsize(path) > _LARGEST:
            return [], [
                Problem(
                    path, 0, f"must be at most {_LARGEST // 2**20} MiB, got more. Name the files that a person wrote."
                )
            ]
        content = Path(path).read_bytes()
    except OSError as error:
        return [], [Problem(path, 0, f"cannot be read: {error.strerror or error}")]
    return check_bytes(content, path, numbers)


def check_bytes(content: bytes, path: str, numbers: Sequence[str]) -> tuple[list[Notice], list[Problem]]:
    if path.endswith(".ipynb"):
        return _of_notebook(content, path, numbers)
    try:
        text = _decoded(content)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        return [], [
            Problem(
                path,
                0,
                f"cannot be decoded: {error}. Save it as UTF-8, or name its encoding in a comment on the first line.",
            )
        ]
    tree, problem = _tree(text, path)
    try:
        return ([], [problem]) if tree is None else (check(tree, split_lines(text), path, numbers), [])  # type: ignore[list-item]
    except RecursionError:
        return [], [Problem(path, 0, _TOO_DEEP)]


def _decoded(content: bytes) -> str:
    encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    return content.decode(encoding)


def _tree(text: str, path: str) -> tuple[ast.Module | None, Problem | None]:
    try:
        return parsed(text), None
    except SyntaxError as error:
        return None, Problem(path, error.lineno or 0, f"is no Python that this interpreter reads: {error.msg}")
    except ValueError as error:
        return None, Problem(path, 0, f"is no Python: {error}")
    except (RecursionError, MemoryError):
        return None, Problem(path, 0, _TOO_DEEP)


# --- notebooks --------------------------------------------------------------------------------------------------------


def _of_notebook(content: bytes, path: str, numbers: Sequence[str]) -> tuple[list[Notice], list[Problem]]:
    """All cells as one module, so that an import of one serves the others. A cell that cannot be read is a line."""
    try:
        stored = json.loads(content.decode("utf-8-sig"))
        cells = [one for one in stored["cells"] if one["cell_type"] == "code"]
        sources = ["".join(one["source"]) for one in cells]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return [], [Problem(path, 0, f"is no notebook of version 4: {type(error).__name__}: {error}")]
    lines: list[str] = []
    starts: list[int] = []
    whole = ast.Module(body=[], type_ignores=[])
    problems: list[Problem] = []
    for at, source in enumerate(sources, 1):
        text = source
        starts.append(len(lines))
        tree, problem = _tree(text, path)
        if tree is None:  # Python as it stands, or with what is IPython's
            text = without_magics(source)
            tree, problem = _tree(text, path)
        if problem is not None:
            problems.append(problem._replace(line=0, message=f"cell {at}, line {problem.line}: {problem.message}"))
        if tree is not None:
            ast.increment_lineno(tree, len(lines))
            whole.body += tree.body
        lines += split_lines(text)
    try:
        found = check(whole, lines, path, numbers)
    except RecursionError:
        return [], [*problems, Problem(path, 0, _TOO_DEEP)]
    return [_in_cell(one, starts) for one in found], problems


def _in_cell(one: Notice, starts: Sequence[int]) -> Notice:
    cell = max(at for at, start in enumerate(starts) if start < one.line)
    return one._replace(cell=cell + 1, line=one.line - starts[cell], end_line=one.end_line - starts[cell])
