"""The edit of a script: classes that are recognised go, and an import comes, under the same names."""

from __future__ import annotations

import ast
import difflib
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pseudograd_notices.source import without_magics

from ..errors import must
from ..notebook import shown
from .beside import use_beside
from .recognise import name_of


@dataclass(frozen=True)
class Found:
    """A class of the script: its name and line, what it is in `pseudograd.familiar` (None: nothing there), and why it stays, if it does.
    cell: the number of its cell among those of code, from 1, in a notebook; then the line is the cell's.
    """

    name: str
    line: int
    is_known_as: str | None
    why_it_stays: str = ""
    cell: int | None = None

    @property
    def goes(self) -> bool:
        return self.is_known_as is not None and not self.why_it_stays


@dataclass(frozen=True)
class Migration:
    """Of one file: what was found in it, and its text before and after."""

    file: Path
    found: tuple[Found, ...]
    before: str
    after: str

    @property
    def diff(self) -> str:
        """As `diff -u` prints it; of a notebook, of what its cells hold."""
        texts = [_as_script(text) if self.file.suffix == ".ipynb" else text for text in (self.before, self.after)]
        before, after = (text.splitlines(keepends=True) for text in texts)
        return "".join(difflib.unified_diff(before, after, str(self.file), str(self.file)))

    def _repr_html_(self) -> str:
        return shown(str(self))

    def __str__(self) -> str:
        lines = []
        for one in self.found:
            where = f"{one.line}" if one.cell is None else f"cell {one.cell}:{one.line}"
            place = f"{self.file}:{where}: {one.name}"
            if one.is_known_as is None:
                lines.append(f"{place} is no class that pseudograd.familiar has: it stays")
            elif one.why_it_stays:
                lines.append(f"{place} is {one.is_known_as}, but {one.why_it_stays}: it stays")
            else:
                lines.append(
                    f"{place} is {one.is_known_as}: values, gradients and five steps of descent are equal to the bit"
                )
        return "\n".join([*lines, self.diff]) if lines else f"{self.file}: no autograd.Function is defined here\n"


def migrated(file: Path) -> Migration:
    """What `migrate` would make of it; nothing is written. Raises ValueError for what is no script and no notebook."""
    try:
        text = file.read_bytes().decode("utf-8")  # with its own line ends
        found, after = _of_notebook(text) if file.suffix == ".ipynb" else _of_script(text, file)
    except (OSError, UnicodeDecodeError, SyntaxError, json.JSONDecodeError, KeyError, TypeError) as error:
        told = " ".join(str(error).split())
        raise ValueError(must("migrate", "PATH", "be a script or a notebook", str(file), told)) from error
    return Migration(file, tuple(found), text, after)


def _of_script(text: str, file: Path) -> tuple[list[Found], str]:
    tree = ast.parse(text)
    found = [_judged(one, tree) for one in _functions(tree)]
    found = [replace(one, why_it_stays=use_beside(file, one.name)) if one.goes else one for one in found]
    return found, _edited(text, tree, found)


def _of_notebook(text: str) -> tuple[list[Found], str]:
    """Cell by cell. A class may be used in other cells, so all of them are looked at for its uses."""
    notebook = json.loads(text)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    trees = [_tree(_source(cell)) for cell in cells]
    unread = "\n".join(_source(cell) for cell, tree in zip(cells, trees, strict=True) if tree is None)
    whole = ast.Module([node for tree in trees if tree is not None for node in tree.body], [])
    found: list[Found] = []
    for number, (cell, tree) in enumerate(zip(cells, trees, strict=True), 1):
        if tree is None:
            continue
        of_cell = [replace(_judged(one, whole, unread), cell=number) for one in _functions(tree)]
        if any(one.goes for one in of_cell):
            lines = _edited(_source(cell), tree, of_cell).splitlines(keepends=True)
            cell["source"] = lines if isinstance(cell["source"], list) else "".join(lines)
        found += of_cell
    if not any(one.goes for one in found):
        return found, text
    spaces = re.match(r"\{\r?\n( *)", text)  # as it was stored
    indent = len(spaces[1]) if spaces else None
    stored = json.dumps(notebook, indent=indent, ensure_ascii=text.isascii())
    return found, stored + ("\n" if text.endswith("\n") else "")


def _source(cell: Any) -> str:
    return cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])


def _tree(source: str) -> ast.Module | None:
    """Of a cell; None of one that is no Python, as it may be for IPython."""
    try:
        return ast.parse(without_magics(source))
    except (SyntaxError, ValueError):
        return None


def _as_script(text: str) -> str:
    return "\n\n".join(_source(cell) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code") + "\n"


# --- classes ----------------------------------------------------------------------------------------------------------


def _functions(tree: ast.AST) -> list[ast.ClassDef]:
    """Classes at the top of the file that say they are an autograd.Function."""
    return [
        node
        for node in ast.iter_child_nodes(tree)
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).split(".")[-1] == "Function" for base in node.bases)
    ]


def _judged(node: ast.ClassDef, tree: ast.Module, unread: str = "") -> Found:
    """unread: what of the program could not be read, and may use it."""
    known = _known_as(node, tree)
    why = "" if known is None else _other_use(node, tree)
    if known is not None and not why and re.search(rf"\b{node.name}\b(?!\.apply\b)", unread):
        why = "a cell that cannot be read uses it"
    return Found(node.name, node.lineno, known, why)


def _known_as(node: ast.ClassDef, tree: ast.Module) -> str | None:
    """The class alone is made, with what the script imports of torch: nothing else of it runs."""
    names: dict[str, Any] = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional}
    of_torch = [one for one in tree.body if _is_of_torch(one)]
    try:
        exec(compile(ast.Module([*of_torch, node], []), "<migrate>", "exec"), names)
    except Exception:  # it needs more of its script than this
        return None
    return name_of(names[node.name])


def _is_of_torch(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")[0] == "torch" and not node.level
    return isinstance(node, ast.Import) and all(one.name.split(".")[0] == "torch" for one in node.names)


def _other_use(node: ast.ClassDef, tree: ast.Module) -> str:
    """What of the class the script uses beside `apply`, which is all that the imported one has."""
    inside = set(map(id, ast.walk(node)))
    named = [
        one for one in ast.walk(tree) if isinstance(one, (ast.ClassDef, ast.FunctionDef)) and one.name == node.name
    ]
    if len(named) > 1:
        return f"line {next(one.lineno for one in named if one is not node)} defines {node.name} again"
    applied = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Attribute) and one.attr == "apply"}
    for one in ast.walk(tree):
        is_it = isinstance(one, ast.Name) and one.id == node.name
        if is_it and id(one) not in inside and id(one) not in applied:
            return f"line {one.lineno} uses more of it than `{node.name}.apply`"  # type: ignore[attr-defined]
    return ""


# --- the text ---------------------------------------------------------------------------------------------------------


def _edited(text: str, tree: ast.Module, found: list[Found]) -> str:
    going = {one.name: one for one in found if one.goes}
    if not going:
        return text
    lines = re.split(r"(?<=\n)|(?<=\r)(?!\n)", text)  # as ast counts them: a form feed ends none
    nodes = [node for node in _functions(tree) if node.name in going]
    end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    for node in reversed(nodes):
        first = min([node.lineno, *(one.lineno for one in node.decorator_list)]) - 1
        last = node.end_lineno or node.lineno
        while last < len(lines) and not lines[last].strip():  # with the blank lines behind it
            last += 1
        del lines[first:last]
    lines.insert(_place_of_import(tree, nodes), _import(list(going.values())) + end)
    return "".join(lines)


def _place_of_import(tree: ast.Module, nodes: list[ast.ClassDef]) -> int:
    """Behind the last import that stands above the first class; in a place of its own where there is none."""
    first = min(min([node.lineno, *(one.lineno for one in node.decorator_list)]) for node in nodes)
    imports = [
        node.end_lineno or 0
        for node in tree.body
        if isinstance(node, (ast.Import, ast.ImportFrom)) and node.lineno < first
    ]
    return max(imports) if imports else first - 1


def _import(found: list[Found]) -> str:
    named = [
        f"{one.is_known_as}" if one.name == one.is_known_as else f"{one.is_known_as} as {one.name}" for one in found
    ]
    return f"from pseudograd.familiar import {', '.join(sorted(named))}"
