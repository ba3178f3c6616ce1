"""An expression together with what its names stand for where it is written, and what a module says of its names."""

from __future__ import annotations

import ast
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*FUNCTIONS, ast.ClassDef, ast.Lambda)
_NUMBERS = {kind + more for kind in ("float", "int", "bool") for more in ("", " | None")}
_NUMBERS |= {"Optional[float]", "Optional[int]"}
_DEPTH = 12  # of definitions that are followed one after another

Env = dict[str, "Term | None"]  # by "x" and "self.x"; None: known to be something that nobody can say


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


class Term(NamedTuple):
    """A node, the definitions that hold where it stands, and its module."""

    node: ast.expr
    env: Env
    module: Module

    def part(self, node: ast.expr) -> Term:
        """Another node that stands beside this one or in it."""
        return Term(node, self.env, self.module)

    def resolved(self) -> Term:
        """The expression behind a name, through names of names."""
        term = self
        for _ in range(_DEPTH):
            key = key_of(term.node)
            definition = term.env.get(key) if key is not None else None
            if definition is None:
                return term
            term = definition
        return term

    def text(self) -> str:
        return unparse(self.node)

    def full_name(self) -> str:
        """The full name of what this calls, such as torch.nn.functional.relu; empty where it was not imported."""
        return self.module.full_name(self.node.func, self.env) if isinstance(self.node, ast.Call) else ""


def unparse(node: ast.AST) -> str:
    """As `ast` writes it; dots for a number with more digits than Python writes."""
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


def last_name(node: ast.AST) -> str:
    """The last part of a name, or of the name of what is called."""
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def find_keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def is_constant(node: ast.AST | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def is_same(a: ast.AST, b: ast.AST) -> bool:
    """Are both written alike?"""
    return type(a) is type(b) and ast.dump(a) == ast.dump(b)


def changes_in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


class Parameter(NamedTuple):
    """Of a model, as its class makes it. values: what its entries start as, as far as every line that sets them says; empty if not."""

    name: str
    line: int
    values: frozenset[float]


class Module:
    """What a module says of its names.

    imports: what each imported name stands for, with dots; nobody imports two things under one name. shared: names that are declared global
    or nonlocal, so that nobody can say what they stand for. set_elsewhere: attributes of other objects that something works on in place, as
    `nn.init.zeros_(module.bias)` in a function that is applied to a model. parameters, buffers: of the class at hand, by "self.x".
    """

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._index: Index | None = None
        self.imports: dict[str, str] = {}
        self.shared: set[str] = set()
        self.set_elsewhere: set[str] = set()
        self.reads: dict[int, Counter[str]] = {}  # of classes, by their id: see `is_only_use`
        self.parameters: dict[str, Parameter] = {}
        self.buffers: frozenset[str] = frozenset()
        self.speaks_of_gradients = True  # does its text speak of a loss, a parameter or gradients?
        self.function: ast.AST | None = None  # that is looked at
        for node in ast.walk(tree):
            if isinstance(node, (ast.Global, ast.Nonlocal)):
                self.shared.update(node.names)
            elif isinstance(node, ast.Call):
                self.set_elsewhere.update(_set_in_place(node))
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    root = alias.name.partition(".")[0]
                    self.imports[alias.asname or root] = alias.name if alias.asname else root
            elif isinstance(node, ast.ImportFrom):
                base = "." * node.level + (node.module or "")
                self.imports |= {alias.asname or alias.name: f"{base}.{alias.name}" for alias in node.names}

    def index(self) -> Index:
        """Made when a rule first asks for it."""
        if self._index is None:
            self._index = Index(self._tree)
        return self._index

    def full_name(self, node: ast.AST, env: Env) -> str:
        """The full name behind `F.relu`; empty for what was not imported. A local name hides an imported one."""
        key = key_of(node)
        if key is None:
            return ""
        definition = env.get(key)
        if definition is not None and definition.node is not node:
            return self.full_name(definition.node, definition.env)
        root, _, rest = key.partition(".")
        if root in env:
            definition = env[root]
            base = "" if definition is None else self.full_name(definition.node, definition.env)
        else:
            base = self.imports.get(root, "")
        return f"{base}.{rest}" if base and rest else base


def _set_in_place(call: ast.Call) -> Iterator[str]:
    if not changes_in_place(last_name(call)):
        return
    for node in (*call.args[:1], *([call.func.value] if isinstance(call.func, ast.Attribute) else [])):
        parts = (key_of(node) or "").removesuffix(".data").split(".")
        if len(parts) > 1 and parts[0] != "self":
            yield parts[-1]


class Index:
    """above: the node that each node stands in. A name that a function within a function reads is read in both, and in the module."""

    def __init__(self, tree: ast.Module) -> None:
        self.above: dict[ast.AST, ast.AST] = {}
        self.uses: dict[ast.AST, Any] = {}  # a memory of the module `uses`
        self._reads: dict[tuple[ast.AST | None, str], list[ast.Name]] = {}
        self._calls: dict[str, list[ast.Call]] = {}
        stack: list[tuple[ast.AST, tuple[ast.AST | None, ...]]] = [(tree, (None,))]
        while stack:
            node, scopes = stack.pop()
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                for scope in scopes:
                    self._reads.setdefault((scope, node.id), []).append(node)
            elif isinstance(node, ast.Call):
                self._calls.setdefault(last_name(node), []).append(node)
            inner = (*scopes, node) if isinstance(node, FUNCTIONS) else scopes
            for child in ast.iter_child_nodes(node):
                self.above[child] = node
                stack.append((child, inner))
        for names in self._reads.values():
            names.sort(key=lambda name: name.lineno)

    def reads(self, function: ast.AST | None, name: str, line: int, most: int) -> list[ast.Name]:
        """The reads of a name in this function, or in the whole module for None, from this line on."""
        names = self._reads.get((function, name), [])
        start = bisect_left(names, line, key=lambda node: node.lineno)
        return names[start : start + most]

    def calls(self, name: str) -> list[ast.Call]:
        return self._calls.get(name, [])


# --- environments -----------------------------------------------------------------------------------------------------


def bind_arguments(args: ast.arguments, env: Env, module: Module) -> Env:
    """A default stands for its argument: it is what most calls have."""
    names: Env = {}
    positional = [*args.posonlyargs, *args.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(args.defaults)) + list(args.defaults)
    for argument, default in zip([*positional, *args.kwonlyargs], [*defaults, *args.kw_defaults], strict=True):
        is_known = isinstance(default, (ast.Constant, ast.UnaryOp, ast.BinOp, ast.Call))
        if default is not None and is_known and not is_constant(default, None):
            names[argument.arg] = Term(default, env, module)
        else:
            names[argument.arg] = _declared_number(argument, module)
    return names | {rest.arg: None for rest in (args.vararg, args.kwarg) if rest is not None}


def _declared_number(argument: ast.arg, module: Module) -> Term | None:
    """`cutoff: float` is `float(cutoff)` to the rules: a number, if none that stands there."""
    if argument.annotation is None or ast.unparse(argument.annotation) not in _NUMBERS:
        return None
    call = ast.parse(f"float({argument.arg})", mode="eval").body
    for node in ast.walk(call):
        ast.copy_location(node, argument)
    return Term(call, {}, module)


def bindings(value: ast.expr, env: Env) -> Env:
    """What the names in this expression stand for now."""
    keys = (key_of(node) for node in ast.walk(value) if isinstance(node, (ast.Name, ast.Attribute)))
    return {key: env[key] for key in keys if key in env}  # type: ignore[index,misc]


def bind(value: ast.expr, env: Env, module: Module) -> Term:
    return Term(value, bindings(value, env), module)


def target_keys(nodes: Iterable[ast.expr]) -> Iterator[str]:
    """The names that an assignment to these changes: x for `x[0]` and for `f(x).y`, too; of a tuple those of its parts."""
    for node in nodes:
        if isinstance(node, (ast.Tuple, ast.List)):
            yield from target_keys(node.elts)
        elif (key := key_of(node)) is not None:
            yield key
        elif isinstance(node, (ast.Starred, ast.Subscript, ast.Attribute)):
            yield from target_keys([node.value])


def assigned_keys(body: Iterable[ast.AST]) -> set[str]:
    """Every name that anything in it gives a value, without those of inner scopes."""
    keys: set[str] = set()
    stack: list[ast.AST] = list(body)
    while stack:
        node = stack.pop()
        if isinstance(node, _SCOPES):
            keys.add(getattr(node, "name", ""))
            continue
        if isinstance(node, (ast.Assign, ast.Delete)):
            keys.update(target_keys(node.targets))
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.For, ast.AsyncFor, ast.NamedExpr)):
            keys.update(target_keys([node.target]))
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            keys.update(target_keys([node.optional_vars]))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            func = node.value.func
            if isinstance(func, ast.Attribute) and func.attr.endswith("_"):
                keys.update(target_keys([func.value]))
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
            keys.add(node.name)
        stack.extend(ast.iter_child_nodes(node))
    return keys


def bound_inside(root: ast.AST) -> Iterator[str]:
    """Names that comprehensions, lambdas and walruses of this expression bind."""
    for node in ast.walk(root):
        if isinstance(node, (ast.comprehension, ast.NamedExpr)):
            yield from target_keys([node.target])
        elif isinstance(node, ast.Lambda):
            yield from (argument.arg for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs])


def forget(env: Env, keys: Iterable[str]) -> None:
    """They stand for something that nobody can say, and so do their attributes."""
    unknown = set(keys)
    env |= dict.fromkeys(unknown)
    if unknown:
        env |= {key: None for key in env if "." in key and key.rpartition(".")[0] in unknown}
