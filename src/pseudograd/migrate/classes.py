"""The autograd Functions that a script defines: what each computes, and whether an import can take its place."""

from __future__ import annotations

import ast
import itertools
import linecache
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..look.what_is import DTYPES, Match, what_is
from .hints import hints_for

_LARGEST_FILE = 2**20  # in bytes; a larger file beside the script is not read
_MOST_FILES = 500  # beside the script, that are read
_DECORATORS = ("staticmethod", "once_differentiable", "custom_fwd", "custom_bwd")
# Names that give the shape of a tensor, and functions that may take a shape: they make a tensor of this shape.
_SHAPES = frozenset(("shape", "size", "numel", "nelement", "dim", "ndim", "ndimension", "len"))
_MAKERS = "sum_to_size view reshape expand broadcast_to zeros ones full empty new_zeros new_ones new_full new_empty"
_source_numbers = itertools.count()  # for names of sources that are in no file


@dataclass(frozen=True)
class OldClass:
    """A class of the script."""

    name: str
    line: int
    match: Match | None  # the call that does the same
    why_it_stays: str = ""  # the reason, if no import replaces the class
    cell: int | None = None  # in a notebook, the number of the code cell, from 1; `line` then counts in this cell
    hints: tuple[str, ...] = ()  # advice if the class has the name of a class of another library

    @property
    def is_replaced(self) -> bool:
        return not self.why_it_stays

    @property
    def imported_name(self) -> str:
        """The class of `pseudograd.familiar` as an import names it."""
        familiar = self.match.familiar if self.match else None
        return f"{familiar}" if self.name == familiar else f"{familiar} as {self.name}"

    def __str__(self) -> str:
        if self.match is None or self.match.familiar is None:
            return "\n    hint: ".join([f"{self.name} {self.why_it_stays}: it stays", *self.hints])
        if self.why_it_stays:
            return f"{self.name} is {self.match.familiar}, but {self.why_it_stays}: it stays"
        *first, last = self.match.dtypes
        dtypes = f"{', '.join(first)} and {last}" if first else last
        same = f"{self.name} is {self.match.familiar}: equal to the bit for each usual x and gradient that was tried, in {dtypes}"
        return "\n    differs at ".join([same, *self.match.differences])


def split_with_ends(text: str) -> list[str]:
    """The lines as ast counts them: a form feed, unlike in str.splitlines, ends no line."""
    return re.split(r"(?<=\n)|(?<=\r)(?!\n)", text)


def find_classes(tree: ast.AST) -> list[ast.ClassDef]:
    """The classes, at any depth, that have the methods of an autograd.Function."""
    classes = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and {"forward", "backward"} <= _methods(node).keys()
    ]
    return sorted(classes, key=lambda node: node.lineno)


def _methods(node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {statement.name: statement for statement in node.body if isinstance(statement, ast.FunctionDef)}


def judge_class(
    node: ast.ClassDef, source: str, tree: ast.Module, cells: Sequence[ast.Module], unread: str = ""
) -> OldClass:
    """Decide whether an import can replace the class.

    tree: the module in which the class is executed.
    cells: all code that may use the class: a script, or the cells of a notebook.
    unread: the text of the cells that could not be parsed.
    """
    match = _find_match(node, source, tree)
    if match is None:
        why = "is not recognised as a class of pseudograd.familiar"
    elif match.familiar is None:
        why = f"is {match.meaning}, which has no class in pseudograd.familiar ({match.instead})"
    elif len(match.dtypes) < len(DTYPES):
        why = f"differs in {', '.join(name for name in DTYPES if name not in match.dtypes)}"
    elif more_methods := sorted({"jvp", "symbolic"} & _methods(node).keys()):
        why = f"has a method {more_methods[0]}, which that class has not"
    elif line := _line_with_shape(node):
        why = f"line {line} asks for a shape or a number of elements, and only some of these were tried"
    elif match.defaults:
        why = f"has default arguments ({', '.join(match.defaults)})"
    elif re.search(rf"\b{node.name}\b(?!\.apply\b)", unread):
        why = "a cell that cannot be read uses it"
    else:
        why = _find_other_use(node, cells)
    return OldClass(
        node.name, node.lineno, match, why, hints=() if match else hints_for(node.name, _count_inputs(node))
    )


def _count_inputs(node: ast.ClassDef) -> int:
    """The number of inputs of its forward, without ctx. The forward of a class with a setup_context has no ctx."""
    methods = _methods(node)
    if "forward" not in methods:
        return 0
    inputs = len(methods["forward"].args.args)
    return inputs if "setup_context" in methods else inputs - 1


def _find_match(node: ast.ClassDef, source: str, tree: ast.Module) -> Match | None:
    """Define the methods of the class, run the imports of torch, and compare the class with our ops. Nothing else of the script runs."""
    methods = list(_methods(node).values())
    if node.decorator_list or node.keywords or len(node.bases) != 1 or not all(map(_is_plain, methods)):
        return None
    file = f"<pseudograd migrate {next(_source_numbers)}>"
    linecache.cache[file] = len(source), None, split_with_ends(source), file  # where `what_is` reads it
    names: dict[str, object] = {"torch": torch}
    imports = [statement for statement in tree.body if _imports_torch(statement)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of its old names
            exec(compile(ast.Module([*imports, *methods], []), file, "exec"), names)
        for name in _names_bound_otherwise(tree):
            names.pop(name, None)  # the script means something else by this name
        base = ast.unparse(node.bases[0])
        if base.split(".")[-1] != "Function" and names.get(base) is not torch.autograd.Function:
            return None
        cls = type(node.name, (torch.autograd.Function,), {method.name: names[method.name] for method in methods})
        return what_is(cls)
    except Exception:  # the class needs more of its script
        return None
    finally:
        del linecache.cache[file]


def _names_bound_otherwise(tree: ast.Module) -> set[str]:
    """The names that the script binds, at its top, to anything but torch."""
    names: set[str] = set()
    for statement in tree.body:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            names.add(statement.name)
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            if not _imports_torch(statement):
                names |= {(alias.asname or alias.name).split(".")[0] for alias in statement.names}
        else:
            names |= {
                node.id
                for node in ast.walk(statement)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            }
    return names


def _is_plain(method: ast.FunctionDef) -> bool:
    """Can the method be defined without running other code of the script? Annotations are not evaluated."""
    decorators = [ast.unparse(decorator).partition("(")[0].split(".")[-1] for decorator in method.decorator_list]
    defaults = [*method.args.defaults, *(default for default in method.args.kw_defaults if default)]
    return all(decorator in _DECORATORS for decorator in decorators) and all(
        isinstance(default, (ast.Constant, ast.UnaryOp)) for default in defaults
    )


def _line_with_shape(node: ast.ClassDef) -> int | None:
    """The first line of a class that may compute something else for another shape, or None."""
    names = set(_SHAPES)
    for statement in ast.walk(node):  # a name that holds a shape
        if isinstance(statement, ast.Assign) and _find_shape(statement.value, names):
            targets = [part for target in statement.targets for part in ast.walk(target)]
            stored = [part for part in targets if isinstance(getattr(part, "ctx", None), ast.Store)]
            names |= {name for part in stored if (name := getattr(part, "attr", getattr(part, "id", "")))}
    lines = [_find_shape(statement, names) for method in _methods(node).values() for statement in method.body]
    return next(filter(None, lines), None)


def _find_shape(node: ast.AST, names: Collection[str]) -> int | None:
    """The line that reads one of these names, or None. Arguments of a function that takes shapes do not count."""
    name = getattr(node, "attr", getattr(node, "id", ""))
    if name in names and isinstance(getattr(node, "ctx", None), ast.Load):
        return int(getattr(node, "lineno", 0))
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _MAKERS.split():
        return _find_shape(node.func, names)
    if isinstance(node, ast.Assign) and re.fullmatch(r"\w+\.(shape|\w+\(\))", ast.unparse(node.value)):
        return None  # such as ctx.shape = x.shape, or x.size(): what reads the name comes later
    return next(filter(None, (_find_shape(child, names) for child in ast.iter_child_nodes(node))), None)


def _imports_torch(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")[0] == "torch" and not node.level
    return isinstance(node, ast.Import) and all(alias.name.split(".")[0] == "torch" for alias in node.names)


def _find_other_use(node: ast.ClassDef, cells: Sequence[ast.Module]) -> str:
    """A sentence about a line that defines the class again or uses more of it than its `apply`, or ""."""

    def is_class(use: ast.Name | ast.Attribute) -> bool:
        return node.name in (getattr(use, "id", ""), getattr(use, "attr", ""))

    for number, cell in enumerate(cells, 1):
        line = f"cell {number}, line" if len(cells) > 1 else "line"
        for other in ast.walk(cell):
            if isinstance(other, (ast.ClassDef, ast.FunctionDef)) and other.name == node.name and other is not node:
                return f"{line} {other.lineno} defines {node.name} again"
            if isinstance(other, ast.Attribute) and ast.unparse(other).endswith(("jit.trace", "jit.trace_module")):
                return f"{line} {other.lineno} traces, and torch.jit.trace keeps its gradient but not that of an op of pseudograd"
        for use in _uses(cell, node.name, is_class):
            return f"{line} {use} uses more of it than `{node.name}.apply`"
    return ""


def _uses(tree: ast.AST, name: str, is_class: Callable[[ast.Name | ast.Attribute], bool]) -> Iterator[int]:
    """The lines that use more of a class than its `apply`."""
    applied = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "apply"}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)) and id(node) not in applied and is_class(node):
            yield node.lineno
        # Such as getattr(module, "Name").
        if isinstance(node, ast.Call) and any(
            isinstance(value, ast.Constant) and value.value == name for value in node.args
        ):
            yield node.lineno


def find_use_beside(file: Path, name: str) -> str:
    """A sentence about a file in the same folder that uses more of the class than its `apply`, or "". Unreadable files are skipped."""
    for other in sorted(file.resolve().parent.glob("*.py"))[:_MOST_FILES]:
        try:
            if other == file.resolve() or other.stat().st_size > _LARGEST_FILE:
                continue
            text = other.read_bytes()
            line = next(_uses_of_import(ast.parse(text), file.stem, name), None) if name.encode() in text else None
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue
        if line is not None:
            return f"{other.name}:{line} uses more of it than `{name}.apply`"
    return ""


def _uses_of_import(tree: ast.Module, module: str, name: str) -> Iterator[int]:
    """The lines that use more of the class than its `apply`, in a file that imports the class or its module."""
    names, modules = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[-1] == module:
            names |= {alias.asname or alias.name for alias in node.names if alias.name == name}
            names |= {name for alias in node.names if alias.name == "*"}
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            modules |= {alias.asname or alias.name for alias in node.names if alias.name.split(".")[-1] == module}

    def is_class(use: ast.Name | ast.Attribute) -> bool:
        if isinstance(use, ast.Name):
            return use.id in names
        return use.attr == name and ast.unparse(use.value) in modules

    return _uses(tree, name if names or modules or _mentions_module(tree, module) else "", is_class)


def _mentions_module(tree: ast.AST, module: str) -> bool:
    """Does a call get the name of the module as a text, such as importlib.import_module("script")?"""
    values = (value for node in ast.walk(tree) if isinstance(node, ast.Call) for value in node.args)
    return any(isinstance(value, ast.Constant) and str(value.value).split(".")[-1] == module for value in values)
