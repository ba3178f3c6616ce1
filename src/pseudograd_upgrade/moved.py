"""Matches lines that moved: two versions of a package can have the same statement at different line numbers."""

from __future__ import annotations

import ast
import difflib
import functools
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pseudograd.listen.frames import format_location

from .recording import Recording, align

_Functions = dict[str, list[ast.stmt]]  # the statements of each function, by its qualified name


class MovedLines:
    """old_folders, new_folders: where the two interpreters look for modules."""

    def __init__(self, old_folders: Sequence[str], new_folders: Sequence[str]) -> None:
        # A folder may be inside another one, so longer paths come first.
        self._folders = [sorted(folders, key=len, reverse=True) for folders in (old_folders, new_folders)]

    def align(self, run: Recording) -> Recording:
        """The run of the newer environment, whose events get the lines of the older environment."""
        wheres = {event.origin.where for events in run.steps.values() for event in events}
        lines = {where: line for where in wheres if (line := self._find_old_line(where)) != where}
        return align(run, lines) if lines else run

    def _find_old_line(self, where: str) -> str:
        file, _, number = where.rpartition(":")
        new_folders = self._folders[1]
        name = next((file[len(folder) + 1 :] for folder in new_folders if file.startswith(folder + os.sep)), file)
        if not number.isdigit() or os.path.isfile(name):  # the program's own, in the current folder
            return where
        old_file, new_file = (_find_file(name, folders) for folders in self._folders)
        if old_file is None or new_file is None:
            return where
        lines = match_lines(old_file, new_file)
        old_number = int(number) if lines is None else lines.get(int(number))
        return f"{where}, new" if old_number is None else format_location(old_file, old_number)


def _find_file(name: str, folders: Sequence[str]) -> str | None:
    return next((path for folder in folders if os.path.isfile(path := os.path.join(folder, name))), None)


@functools.cache
def match_lines(old_file: str, new_file: str) -> Mapping[int, int] | None:
    """For each line of the newer file that the older file has too: its number there. None if the texts are equal or no Python.

    Statements are matched inside functions of the same name. The statements of functions with other names are matched by text alone.
    """
    texts = [Path(file).read_bytes() for file in (old_file, new_file)]
    if texts[0] == texts[1]:
        return None
    try:
        old, new = (_list_statements(ast.parse(text)) for text in texts)
    except (SyntaxError, ValueError, RecursionError):
        return None
    lines: dict[int, int] = {}
    for name in old.keys() & new.keys():
        _match(old.pop(name), new.pop(name), lines, edited=True)
    rest, new_rest = ([*itertools.chain(*functions.values())] for functions in (old, new))
    _match(rest, new_rest, lines, edited=False)
    return lines


def _list_statements(tree: ast.Module) -> _Functions:
    functions: _Functions = {}

    def collect(node: ast.AST, function: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                functions.setdefault(function, []).append(child)
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                collect(child, f"{function}.{child.name}")
            else:
                collect(child, function)

    collect(tree, "")
    return functions


def _match(old: list[ast.stmt], new: list[ast.stmt], lines: dict[int, int], edited: bool) -> None:
    """Add the matching lines to `lines`. edited: if n statements replace n statements, they count as edited versions of these."""
    texts, new_texts = (
        ["".join(map(ast.dump, _expressions(statement))) for statement in statements] for statements in (old, new)
    )
    matcher = difflib.SequenceMatcher(None, texts, new_texts, autojunk=False)
    for change, first, last, new_first, new_last in matcher.get_opcodes():
        if change == "equal" or (edited and change == "replace" and last - first == new_last - new_first):
            for pair in zip(old[first:last], new[new_first:new_last], strict=True):
                for line, new_line in zip(*map(_numbers, pair), strict=False):
                    lines.setdefault(new_line, line)


def _expressions(statement: ast.stmt) -> list[ast.AST]:
    """The expressions of the statement itself, without those of its block."""
    blocks = (ast.stmt, ast.ExceptHandler, ast.match_case)
    return [child for child in ast.iter_child_nodes(statement) if not isinstance(child, blocks)]


def _numbers(statement: ast.stmt) -> Iterator[int]:
    yield statement.lineno
    for expression in _expressions(statement):
        yield from (node.lineno for node in ast.walk(expression) if hasattr(node, "lineno"))
