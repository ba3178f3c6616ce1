"""The edit of a script: an import under the same names replaces the classes that pseudograd knows."""

from __future__ import annotations

import ast
import difflib
import io
import json
import tokenize
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pseudograd_notices.source import blank_magics

from ..errors import must
from ..notebook import to_html
from .classes import OldClass, find_classes, find_use_beside, judge_class, split_with_ends


@dataclass(frozen=True)
class Migration:
    """The classes of a file, and its text before and after."""

    file: Path
    classes: tuple[OldClass, ...]
    before: str
    after: str

    @property
    def diff(self) -> str:
        """The lines that `diff -u` prints. For a notebook, the diff compares the code of its cells."""
        texts = [_code_of_cells(text) if self.file.suffix == ".ipynb" else text for text in (self.before, self.after)]
        before, after = (text.splitlines(keepends=True) for text in texts)
        return "".join(difflib.unified_diff(before, after, str(self.file), str(self.file)))

    def _repr_html_(self) -> str:
        return to_html(str(self))

    def __str__(self) -> str:
        if not self.classes:
            return f"{self.file}: finds no class of autograd.Function here\n"
        cells = ("" if old.cell is None else f"cell {old.cell}:" for old in self.classes)
        lines = [f"{self.file}:{cell}{old.line}: {old}" for cell, old in zip(cells, self.classes, strict=True)]
        return "\n".join([*lines, self.diff])


def make_migration(file: Path) -> Migration:
    """The edit that `pseudograd migrate` shows; writes nothing. Raises ValueError for a file that is no script and no notebook."""
    try:
        content = file.read_bytes()  # with its own line ends
        text = content.decode(tokenize.detect_encoding(io.BytesIO(content).readline)[0])
        classes, after = _edit_notebook(text) if file.suffix == ".ipynb" else _edit_script(text, file)
    except (OSError, UnicodeDecodeError, SyntaxError, json.JSONDecodeError, KeyError, TypeError) as error:
        why = " ".join(str(error).split())
        raise ValueError(must("migrate", "PATH", "be a script or a notebook", str(file), why)) from error
    return Migration(file, tuple(classes), text, after)


def _edit_script(text: str, file: Path) -> tuple[list[OldClass], str]:
    tree = ast.parse(text)
    classes = [judge_class(node, text, tree, [tree]) for node in find_classes(tree)]
    classes = [
        replace(old, why_it_stays=find_use_beside(file, old.name)) if old.is_replaced else old for old in classes
    ]
    return classes, _edit(text, tree, classes)


def _edit_notebook(text: str) -> tuple[list[OldClass], str]:
    """Edit cell by cell. Any cell may use a class, so all cells are searched for uses."""
    notebook = json.loads(text)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    trees = [_parse(_source(cell)) for cell in cells]
    unread = "\n".join(_source(cell) for cell, tree in zip(cells, trees, strict=True) if tree is None)
    readable = [tree or ast.Module([], []) for tree in trees]
    program = ast.Module([node for tree in readable for node in tree.body], [])
    classes: list[OldClass] = []
    for number, (cell, tree) in enumerate(zip(cells, trees, strict=True), 1):
        if tree is None:
            continue
        source = blank_magics(_source(cell))
        judged = (judge_class(node, source, program, readable, unread) for node in find_classes(tree))
        cell_classes = [replace(old, cell=number) for old in judged]
        if any(old.is_replaced for old in cell_classes):
            lines = _edit(_source(cell), tree, cell_classes).splitlines(keepends=True)
            cell["source"] = lines if isinstance(cell["source"], list) else "".join(lines)
        classes += cell_classes
    if not any(old.is_replaced for old in classes):
        return classes, text
    _, *others = text.splitlines()
    indent = others[0][: -len(others[0].lstrip())] if others else None
    edited = json.dumps(notebook, indent=indent, ensure_ascii=False) + ("\n" if text.endswith("\n") else "")
    return classes, edited.replace("\n", "\r\n") if "\r\n" in text else edited


def _source(cell: dict[str, Any]) -> str:
    return cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])


def _parse(source: str) -> ast.Module | None:
    """None for a cell that is no Python, as IPython allows."""
    try:
        return ast.parse(blank_magics(source))
    except (SyntaxError, ValueError):
        return None


def _code_of_cells(text: str) -> str:
    return "\n\n".join(_source(cell) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code") + "\n"


def _edit(text: str, tree: ast.Module, classes: list[OldClass]) -> str:
    """One import replaces all classes at the top level. An import in its place replaces a class inside a function, a class or a block."""
    replaced = {(old.name, old.line): old for old in classes if old.is_replaced}
    lines = split_with_ends(text)
    end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    edits: list[tuple[int, int, list[str]]] = []  # first line, last line, the new lines
    at_top: list[tuple[int, OldClass]] = []
    for node in find_classes(tree):
        old = replaced.get((node.name, node.lineno))
        if old is None:
            continue
        first, last = node.lineno - 1, node.end_lineno or node.lineno
        if node in tree.body:
            while last < len(lines) and not lines[last].strip():  # blank lines after the class go too
                last += 1
            at_top.append((first, old))
            edits.append((first, last, []))
        else:
            edits.append((first, last, [lines[first][: node.col_offset] + _write_import([old]) + end]))
    if at_top:
        # The import comes after the last import above the first class, or in place of the class if no import is above it.
        first = at_top[0][0]
        imports = [
            node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom)) and node.lineno <= first
        ]
        position = max((node.end_lineno or 0 for node in imports), default=first)
        edits.append((position, position, [_write_import([old for _, old in at_top]) + end]))
    for first, last, new_lines in sorted(edits, reverse=True):
        lines[first:last] = new_lines
    return "".join(lines)


def _write_import(classes: list[OldClass]) -> str:
    return f"from pseudograd.familiar import {', '.join(sorted(old.imported_name for old in classes))}"
