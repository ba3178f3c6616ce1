"""The names of a module, and the expression that each stands for where it is read.

A name stands for the last value that its scope gives it above the reader, if every path to the reader runs that line. A name of an outer
scope stands for its value there, if it has only one. Other names are unknown.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
UNKNOWN = ast.Constant(None)  # the definition of a name whose value the text does not say
_INLINE = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)  # scopes inside an expression
_SCOPES = (ast.Module, *FUNCTIONS, ast.ClassDef, *_INLINE)
_NUMBERS = {kind + rest for kind in ("float", "int", "bool") for rest in ("", " | None")}
_NUMBERS |= {"Optional[float]", "Optional[int]"}
_SOME_NUMBER = ast.parse("float()", mode="eval").body  # what `cutoff: float` stands for
_DEPTH = 12  # definitions that are followed one after another
Block = tuple[ast.AST, str]  # a node, and the field that lists the statements


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def key_of(node: ast.AST | None) -> str | None:
    """ "x" for a name, "self.x.y" for a chain of attributes; None for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def last_name(node: ast.AST) -> str:
    """The last part of a name. For a call, that of the function that is called."""
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def find_keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def is_constant(node: ast.AST | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def is_same(a: ast.AST, b: ast.AST) -> bool:
    """Are both the same expression?"""
    return type(a) is type(b) and ast.dump(a) == ast.dump(b)


def changes_in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


@lru_cache(maxsize=64)  # of a class, for each of its parameters
def unparse(node: ast.AST) -> str:
    """The source as `ast` writes it; "..." if it has a number with more digits than Python writes."""
    try:
        return ast.unparse(node)
    except ValueError:
        return "..."


def ends_with_exit(body: list[ast.stmt]) -> bool:
    """Does the block end with a statement that leaves it, such as return?"""
    return bool(body) and isinstance(body[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break))


class Binding(NamedTuple):
    """A line that gives a name a value."""

    key: str  # the name, as `key_of` writes it
    end: tuple[int, int]  # the line and the column at which it ends
    value: ast.expr | None  # None if the text does not say the value
    block: Block

    def is_within(self, node: ast.stmt) -> bool:
        start, end = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
        return start <= self.end <= end


class Module:
    """The tree of a module, prepared for questions about its names."""

    speaks_of_gradients: bool  # does the text say that something is trained?
    is_recorded: bool  # False if the path says that nothing is

    def __init__(self, tree: ast.Module) -> None:
        self.nodes: list[ast.AST] = [tree]  # all nodes of the tree
        self.parent: dict[ast.AST, ast.AST] = {}  # the parent of each node
        # The names and attributes that are read, by the last part of the name, in the order of lines.
        self.loads: defaultdict[str, list[ast.Name | ast.Attribute]] = defaultdict(list)
        self.imports: dict[str, str] = {}  # the full names of imported things, by their names in this module
        self.functions: dict[str, ast.AST] = {}
        self.uses: dict[ast.AST, object] = {}  # a cache of the module `learning`
        self._shared: set[str] = set()  # names that are declared global or nonlocal
        self._blocks: dict[ast.AST, Block] = {}
        self._ifs: defaultdict[Block, list[ast.If]] = defaultdict(list)
        # By scope and first part of the name.
        self._bindings: defaultdict[tuple[ast.AST, str], list[Binding]] = defaultdict(list)
        self._definitions: dict[ast.AST, ast.expr | None] = {}
        for node in self.nodes:
            self._note_import(node)
            for field, value in ast.iter_fields(node):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        self.parent[child] = node
                        self._blocks[child] = node, field
                        if isinstance(child, ast.If):
                            self._ifs[node, field].append(child)
                        self.nodes.append(child)
        for node in self.nodes:
            self._note(node)
        for names in self.loads.values():
            names.sort(key=lambda node: node.lineno)
        for bindings in self._bindings.values():
            bindings.sort(key=lambda binding: binding.end)

    def definition(self, node: ast.AST) -> ast.expr | None:
        """The expression that a name stands for at this node. UNKNOWN if the text does not say it, None for names of other modules."""
        if node not in self._definitions:
            self._definitions[node] = UNKNOWN  # the search may come back to this node
            self._definitions[node] = self._find_definition(node)
        return self._definitions[node]

    def resolve(self, node: ast.expr) -> ast.expr:
        """The expression that a name stands for. If this expression is a name, too, it is followed, and so on."""
        for _ in range(_DEPTH):
            definition = self.definition(node)
            if definition is None or definition is UNKNOWN:
                break
            node = definition
        return node

    def full_name(self, node: ast.AST, depth: int = _DEPTH) -> str:
        """The full name of `F.relu`; empty if it was not imported. A local name hides an imported one."""
        if not isinstance(node, (ast.Name, ast.Attribute)) or depth == 0:
            return ""
        definition = self.definition(node)
        if definition is not None and definition is not UNKNOWN:
            return self.full_name(definition, depth - 1)
        if isinstance(node, ast.Name):
            return self.imports.get(node.id, "") if definition is None else ""
        base = self.full_name(node.value, depth)
        return f"{base}.{node.attr}" if base else ""

    def called_name(self, node: ast.AST) -> str:
        """The full name of the called function, such as torch.nn.functional.relu."""
        return self.full_name(node.func) if isinstance(node, ast.Call) else ""

    def parents(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, from the innermost on."""
        while node in self.parent:
            node = self.parent[node]
            yield node

    def ifs_above(self, statement: ast.stmt) -> Iterator[ast.If]:
        """The ifs above a statement in its block."""
        return (other for other in self._ifs.get(self._blocks[statement], ()) if other.lineno < statement.lineno)

    def _find_definition(self, node: ast.AST) -> ast.expr | None:
        key = key_of(node)
        if key is None or not isinstance(node, ast.expr):
            return None
        root = key.partition(".")[0]
        is_own = True
        for scope in self.parents(node):
            if not isinstance(scope, _SCOPES) or (isinstance(scope, ast.ClassDef) and not is_own):
                continue
            matches = [
                binding for binding in self._bindings.get((scope, root), ()) if f"{key}.".startswith(f"{binding.key}.")
            ]
            if matches:
                if root in self._shared:
                    return UNKNOWN
                only_match = matches[0] if len(matches) == 1 else None
                binding = self._find_reaching(matches, node) if is_own else only_match
                if binding is not None and binding.key == root == "self":
                    return self._attribute(node, key)
                return UNKNOWN if binding is None or binding.key != key else binding.value or UNKNOWN
            is_own = is_own and isinstance(scope, _INLINE)
        return UNKNOWN if root in self._shared else None

    def _find_reaching(self, bindings: list[Binding], node: ast.expr) -> Binding | None:
        """The last binding above the node, if every path to the node runs it and no other binding after it."""
        around = [node, *self.parents(node)]
        blocks = {self._blocks[inner] for inner in around if inner in self._blocks}
        position = node.lineno, node.col_offset
        for binding in reversed(bindings):
            is_passed = binding.block in blocks
            if binding.end > position or not (is_passed or not ends_with_exit(getattr(*binding.block))):
                continue
            loops = [loop for loop in around if isinstance(loop, (ast.For, ast.AsyncFor, ast.While))]
            is_rebound = any(
                other.is_within(loop) for loop in loops if not binding.is_within(loop) for other in bindings
            )
            return binding if is_passed and not is_rebound else None
        return None

    def owner(self, node: ast.AST) -> ast.ClassDef | None:
        return next((up for up in self.parents(node) if isinstance(up, ast.ClassDef)), None)

    def attribute_bindings(self, owner: ast.ClassDef, key: str) -> list[tuple[str, Binding]]:
        """The lines of a class that give `self.x` a value, each with the name of its method; "" for a line outside of methods."""
        bindings_of_class = [("", binding) for binding in self._bindings.get((owner, key.removeprefix("self.")), ())]
        for method in owner.body:
            if isinstance(method, FUNCTIONS):
                bindings = self._bindings.get((method, "self"), ())
                bindings_of_class += [(method.name, binding) for binding in bindings if binding.key == key]
        return bindings_of_class

    def _attribute(self, node: ast.AST, key: str) -> ast.expr | None:
        """The value of `self.x`, if only one line sets it, in `__init__` or in the class. Parameters are unknown, because they change."""
        owner = self.owner(node)
        bindings = [] if owner is None else self.attribute_bindings(owner, key)
        if len(bindings) != 1 or bindings[0][0] not in ("", "__init__"):
            return UNKNOWN if bindings else None
        value = bindings[0][1].value
        is_parameter = value is not None and (self.called_name(value) or last_name(value)).endswith("Parameter")
        return UNKNOWN if value is None or is_parameter else value

    def _note_import(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                self.imports[alias.asname or root] = alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            self.imports |= {alias.asname or alias.name: f"{base}.{alias.name}" for alias in node.names}

    def _note(self, node: ast.AST) -> None:
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            if not isinstance(node.ctx, ast.Load):
                self._bind_target(node)
            elif not isinstance(node, ast.Subscript):
                self.loads[last_name(node)].append(node)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            self._shared.update(node.names)
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
            self._bind(node, node.name or "", None, (node.lineno, node.col_offset))
            if isinstance(node, FUNCTIONS):
                self.functions[node.name] = node
        elif isinstance(node, ast.arguments):
            self._bind_arguments(node)
        elif isinstance(node, ast.Call):
            if key_of(node.func) in ("self.register_parameter", "self.register_buffer") and len(node.args) > 1:
                value = node if last_name(node) == "register_buffer" else node.args[1]
                self._bind(node, f"self.{getattr(node.args[0], 'value', '')}", value, _end(node))
            for keyword in node.keywords:
                if keyword.arg == "out":
                    self._bind(node, key_of(keyword.value) or "", None, _end(node))
            root = (key_of(node.func) or "").partition(".")[0]
            is_statement = isinstance(self.parent[node], ast.Expr)
            if is_statement and changes_in_place(last_name(node)) and root not in self.imports:
                self._bind(node, (key_of(node.func) or "").rpartition(".")[0], node, _end(node))

    def _bind_target(self, node: ast.Name | ast.Attribute | ast.Subscript) -> None:
        """Bind a target of `=`, `for` or `as`. After `x[0] = y` the value of x is unknown."""
        base: ast.expr = node
        while isinstance(base, ast.Subscript):
            base = base.value
        statement, value = self.parent[node], None
        if isinstance(statement, (ast.Tuple, ast.List)):
            targets, statement = statement.elts, self.parent[statement]
            if isinstance(statement, ast.Assign):
                value = _item(targets, targets.index(node), statement.value)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            value = statement.value
        if isinstance(statement, ast.AnnAssign) and value is None:
            return
        is_plain = isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign))
        end = (0, 0) if isinstance(statement, ast.comprehension) else _end(statement if is_plain else node)
        self._bind(node, key_of(base) or "", value if base is node else None, end)

    def _bind(self, node: ast.AST, key: str, value: ast.expr | None, end: tuple[int, int]) -> None:
        """Note that `node` gives a name a value, in the scope and the block around the node."""
        hidden = _INLINE if isinstance(self.parent[node], ast.NamedExpr) else ()
        scope = next(up for up in self.parents(node) if isinstance(up, _SCOPES) and not isinstance(up, hidden))
        statement = node
        while not isinstance(statement, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            statement = self.parent[statement]
        block = (scope, "body") if scope is statement else self._blocks[statement]  # for arguments, the function
        while isinstance(block[0], (ast.With, ast.AsyncWith)):
            block = self._blocks[block[0]]
        self._bindings[scope, key.partition(".")[0]].append(Binding(key, end, value, block))

    def _bind_arguments(self, args: ast.arguments) -> None:
        """Bind each argument to its default, which is its value in most calls."""
        positional = [*args.posonlyargs, *args.args]
        defaults: list[ast.expr | None] = [None] * (len(positional) - len(args.defaults)) + list(args.defaults)
        rest = [argument for argument in (args.vararg, args.kwarg) if argument is not None]
        names = [*positional, *args.kwonlyargs, *rest]
        for argument, default in zip(names, [*defaults, *args.kw_defaults, *[None] * len(rest)], strict=True):
            is_known = isinstance(default, (ast.Constant, ast.UnaryOp, ast.BinOp, ast.Call))
            if not is_known or is_constant(default, None):
                is_number = argument.annotation is not None and unparse(argument.annotation) in _NUMBERS
                default = _SOME_NUMBER if is_number else None
            self._bind(args, argument.arg, default, (0, 0))


def _item(targets: list[ast.expr], index: int, value: ast.expr) -> ast.expr | None:
    """The value of one of several targets: c for a in `a, b = c, d`; f(x) for both in `a, b = f(x)`."""
    values = [value] * len(targets) if isinstance(value, ast.Call) else getattr(value, "elts", [])
    has_star = any(isinstance(part, ast.Starred) for part in (*targets, *values))
    return None if has_star or len(values) != len(targets) else values[index]


def _end(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "end_lineno", 0) or 0, getattr(node, "end_col_offset", 0) or 0
