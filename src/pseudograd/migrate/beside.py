"""What the other files of a folder use of a class that a script defines."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

_LARGEST = 2**20  # bytes of a file that is read
_MOST = 500  # files


def use_beside(file: Path, name: str) -> str:
    """Where one of them takes more of the class than its `apply`; "" where none does. Files that cannot be read are passed over."""
    for other in sorted(file.resolve().parent.glob("*.py"))[:_MOST]:
        try:
            if other == file.resolve() or other.stat().st_size > _LARGEST:
                continue
            text = other.read_bytes()
            line = next(_uses(ast.parse(text), file.stem, name), None) if name.encode() in text else None
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue
        if line is not None:
            return f"{other.name}:{line} uses more of it than `{name}.apply`"
    return ""


def _uses(tree: ast.Module, module: str, name: str) -> Iterator[int]:
    """The lines, of a file that imports the class, or its module, in either form."""
    names, modules = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[-1] == module:
            names |= {one.asname or one.name for one in node.names if one.name == name}
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            modules |= {one.asname or one.name for one in node.names if one.name.split(".")[-1] == module}
    applied = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Attribute) and one.attr == "apply"}
    for node in ast.walk(tree):
        is_name = isinstance(node, ast.Name) and node.id in names
        is_of_module = isinstance(node, ast.Attribute) and node.attr == name and ast.unparse(node.value) in modules
        if (is_name or is_of_module) and id(node) not in applied:
            yield node.lineno  # type: ignore[attr-defined]
