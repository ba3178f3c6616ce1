"""An expression together with what its names stand for where it is written."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from .places import Places

_NUMBERS = {kind + more for kind in ("float", "int", "bool") for more in ("", " | None")} | {
    "Optional[float]",
    "Optional[int]",
}
_DEPTH = 12  # of definitions that are followed one after another

Env = dict[str, "Term | None"]  # by "x" and "self.x"; None: known to be something that nobody can say


class Term(NamedTuple):
    """A node, the definitions that hold there, and the facts of its module."""

    node: ast.expr
    env: Env
    module: Module

    def of(self, node: ast.expr) -> Term:
        """Another node of the same place."""
        return Term(node, self.env, self.module)

    def resolved(self) -> Term:
        """The expression behind a name that was given one; through names of names."""
        term = self
        for _ in range(_DEPTH):
            key = key_of(term.node)
            found = term.env.get(key) if key is not None else None
            if found is None:
                return term
            term = found
        return term

    def text(self) -> str:
        return written(self.node)


def written(node: ast.AST) -> str:
    """As `ast` writes it; nothing for a number with more digits than Python writes."""
    try:
        return ast.unparse(node)
    except ValueError:
        return "..."


def key_of(node: ast.AST) -> str | None:
    """ "x" for a name, "self.x.y" for a chain of attributes; None for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)]) if parts else node.id


def is_same(one: ast.AST, other: ast.AST) -> bool:
    """Written alike?"""
    return type(one) is type(other) and ast.dump(one) == ast.dump(other)


class Parameter(NamedTuple):
    """Of a model, as its class makes it. values: what its entries start as, as far as every line that sets them says; empty if not."""

    name: str
    line: int
    values: frozenset[float]


class Module:
    """imports: what each imported name stands for, with dots. shared: names that are declared global or nonlocal; set_from_afar: attributes
    of others that are worked on in place. parameters: of the class that is looked at, by "self.x"; buffers alike."""

    def __init__(self, tree: ast.Module) -> None:
        nodes = tuple(ast.walk(tree))
        self._tree = tree
        self._places: Places | None = None
        self.imports = _imports(nodes)
        self.shared = _shared(nodes)
        self.set_from_afar = _set_from_afar(nodes)
        self.reads: dict[int, Counter[str]] = {}  # of classes, by their id: see `flat_start`
        self.function: ast.AST | None = None  # the one that is looked at
        self.speaks_of_gradients = True  # is there a word of training in it?
        self.parameters: dict[str, Parameter] = {}
        self.buffers: frozenset[str] = frozenset()

    def places(self) -> Places:
        """Made for the few modules that are asked."""
        if self._places is None:
            self._places = Places(self._tree)
        return self._places

    def dotted(self, node: ast.AST, env: Env) -> str | None:
        """The full name behind `F.relu`; None for what was not imported. A local name hides an imported one."""
        key = key_of(node)
        if key is None:
            return None
        if key in env and (found := env[key]) is not None and found.node is not node:
            return self.dotted(found.node, found.env)
        root, _, rest = key.partition(".")
        if root in env:
            found = env[root]
            base = None if found is None else self.dotted(found.node, found.env)
        else:
            base = self.imports.get(root)
        return base if base is None or not rest else f"{base}.{rest}"


def _shared(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """Names that a function may give another value from afar: nobody can say what they stand for."""
    found = (node.names for node in nodes if isinstance(node, (ast.Global, ast.Nonlocal)))
    return frozenset(name for names in found for name in names)


def _set_from_afar(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """Attributes of others that something works on in place, as `nn.init.zeros_(module.bias)` in a function that is applied to a model."""
    found: set[str] = set()
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if not name.endswith("_") or name.endswith("__"):
            continue
        for one in (*node.args[:1], *([node.func.value] if isinstance(node.func, ast.Attribute) else [])):
            parts = (key_of(one) or "").removesuffix(".data").split(".")
            if len(parts) > 1 and parts[0] != "self":
                found.add(parts[-1])
    return frozenset(found)


def _imports(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Those of every scope: nobody imports two things under one name."""
    found: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for one in node.names:
                root = one.name.partition(".")[0]
                found[one.asname or root] = one.name if one.asname else root
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            for one in node.names:
                found[one.asname or one.name] = f"{base}.{one.name}"
    return found


def arguments_of(args: ast.arguments, env: Env, module: Module) -> Env:
    """A default stands for its argument: it is what most calls have."""
    found: Env = {}
    positional = [*args.posonlyargs, *args.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(args.defaults)) + list(args.defaults)
    for one, default in zip([*positional, *args.kwonlyargs], [*defaults, *args.kw_defaults], strict=True):
        is_known = isinstance(default, (ast.Constant, ast.UnaryOp, ast.BinOp, ast.Call)) and not (
            isinstance(default, ast.Constant) and default.value is None
        )
        found[one.arg] = Term(default, env, module) if is_known else _declared(one, module)  # type: ignore[arg-type]
    for rest in (args.vararg, args.kwarg):
        if rest is not None:
            found[rest.arg] = None
    return found


def _declared(argument: ast.arg, module: Module) -> Term | None:
    """`cutoff: float` is `float(cutoff)` to the rules: a number, if none that stands there."""
    if argument.annotation is None or ast.unparse(argument.annotation) not in _NUMBERS:
        return None
    name = ast.copy_location(ast.Name(argument.arg, ast.Load()), argument)
    kind = ast.copy_location(ast.Name("float", ast.Load()), argument)
    return Term(ast.copy_location(ast.Call(kind, [name], []), argument), {}, module)


def bindings(value: ast.expr, env: Env) -> Env:
    """What the names of this expression stand for now."""
    found: Env = {}
    for node in ast.walk(value):
        if isinstance(node, (ast.Name, ast.Attribute)) and (key := key_of(node)) in env:
            found[key] = env[key]  # type: ignore[index]
    return found
