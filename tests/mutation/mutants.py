"""Small wrong versions of a source file: one comparison, operator, sign, connective, branch, constant or call changed in each."""

import ast
import copy
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

_OPPOSITES = ((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn))
COMPARISONS = {one: other for pair in _OPPOSITES for one, other in (pair, pair[::-1])}
OPERATORS = {
    one: other
    for pair in ((ast.BitAnd, ast.BitOr), (ast.Add, ast.Sub), (ast.Mult, ast.Div))
    for one, other in (pair, pair[::-1])
}
# Arguments on which no value hangs: hints for Python, the looks of a figure, and data of the tests in a row.
NO_VALUE = {"stacklevel", "maxsize", "strict", "frozen", "kw_only"}
LOOKS = set(
    "alpha width linewidth lw fontsize figsize zorder pad pad_inches dpi s labelpad markersize markeredgewidth hspace wspace top "  # noqa: SIM905
    "bottom left right handlelength capsize".split()
)
DATA_OF_TESTS = {"samples", "picture", "jumps", "ulps", "cancels"}


# Mutants that no test can kill: (file below src, function, change) -> the reason.
EXPLAINED: dict[tuple[str, str, str], str] = {
    (file, function, change): reason
    for file, function, change, reason in json.loads(Path(__file__).with_name("explained.json").read_text())
}


class Mutant(NamedTuple):
    """Where a change is made, and the code before and after it. `number` counts the changes of a file."""

    file: str
    function: str
    line: int
    last_line: int
    before: str
    after: str
    number: int

    @property
    def key(self) -> tuple[str, str, str]:
        """Names a mutant when lines move."""
        return self.file, self.function, f"{self.before} -> {self.after}"

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}: {self.before} -> {self.after}"


def mutants_of(file: str, source: str) -> Iterator[Mutant]:
    """Every mutant of a file, in the order of its lines."""
    tree = ast.parse(source)
    functions = dict(_functions(tree))
    for number, (node, change) in enumerate(_changes_in(tree)):
        changed = ast.unparse(change(copy.deepcopy(node)))
        function = functions.get(id(node), "module")
        first = getattr(node, "lineno", 0)
        last = getattr(getattr(node, "test", node), "end_lineno", None) or first
        yield Mutant(file, function, first, last, ast.unparse(node), changed, number)


def draw(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """A random sample. A change elsewhere in the package changes few of its members."""
    times: Counter[tuple[str, str, str]] = Counter()
    ranks = []
    for mutant in mutants:
        times[mutant.key] += 1
        text = f"{seed} {mutant.key} {times[mutant.key]}"
        ranks.append((hashlib.sha256(text.encode()).digest(), mutant))
    return [mutant for _, mutant in sorted(ranks)[:count]]


def changed_source(mutant: Mutant, source: str) -> str:
    """The whole file with the one change in it."""
    tree = ast.parse(source)
    node, change = next(itertools.islice(_changes_in(tree), mutant.number, None))
    changed = change(node)
    tree = tree if changed is node else _Replace(node, changed).visit(tree)
    return ast.unparse(ast.fix_missing_locations(tree))


def _changes_in(tree: ast.AST) -> Iterator[tuple[ast.AST, Callable[[ast.AST], ast.AST]]]:
    """A node, and one way to change it."""
    silent = _silent_ids(tree)
    for node in list(ast.walk(tree)):
        if id(node) not in silent:
            for change in _changes(node):
                yield node, change


def _silent_ids(tree: ast.AST) -> set[int]:
    """Ids of the nodes that change no value of the package."""
    keywords = [node for node in ast.walk(tree) if isinstance(node, ast.keyword)]
    no_value = NO_VALUE | (LOOKS if _draws(tree) else set())
    silent = {id(node.value) for node in keywords if node.arg in no_value}
    silent |= {id(node) for node in ast.walk(tree) if isinstance(node, ast.If) and _is_for_types(node)}
    silent |= {id(part) for node in keywords if node.arg in DATA_OF_TESTS for part in ast.walk(node.value)}
    samples = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "_samples"]
    silent |= {id(part) for function in samples for part in ast.walk(function)}
    return silent | {id(part) for annotation in _annotations(tree) for part in ast.walk(annotation)}


def _draws(tree: ast.AST) -> bool:
    """Does the file use matplotlib? Then LOOKS are only how a curve is shown."""
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return any(module.startswith("matplotlib") for module in modules)


def _is_for_types(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _functions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(id of a node, name of the innermost function that holds it)."""
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for node in ast.walk(function):
                yield id(node), function.name


def _annotations(tree: ast.AST) -> Iterator[ast.expr]:
    """Types, which no value hangs on."""
    for node in ast.walk(tree):
        annotation = getattr(node, "annotation", None) or getattr(node, "returns", None)
        if annotation is not None:
            yield annotation


def _changes(node: ast.AST) -> Iterator[Callable[[Any], ast.AST]]:
    """Each changes a node in place, or gives another one for it."""
    if isinstance(node, ast.Compare):
        for index, op in enumerate(node.ops):
            if type(op) in COMPARISONS:
                changed = [*node.ops[:index], COMPARISONS[type(op)](), *node.ops[index + 1 :]]
                yield lambda target, changed=changed: _set(target, ops=changed)
    elif isinstance(node, ast.BoolOp):
        yield lambda target: _set(target, op=ast.Or() if isinstance(target.op, ast.And) else ast.And())
    elif isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in OPERATORS and not _is_no_arithmetic(node):
        yield lambda target: _set(target, op=OPERATORS[type(target.op)]())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not, ast.Invert)):
        yield lambda target: target.operand
    elif isinstance(node, ast.Call) and _called(node) == "where" and len(node.args) == 3:
        yield lambda target: _set(target, args=[target.args[0], *target.args[:0:-1]])
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield lambda target: _set(target, value=not target.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield lambda target: _set(target, value=target.value + 1)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield lambda _: ast.Pass()
    if isinstance(node, (ast.If, ast.IfExp, ast.While)) and isinstance(node.test, (ast.Name, ast.Attribute, ast.Call)):
        yield lambda target: _set(target, test=ast.UnaryOp(ast.Not(), target.test))


def _set(node: ast.AST, **fields: object) -> ast.AST:
    vars(node).update(fields)
    return node


def _is_no_arithmetic(node: ast.BinOp | ast.AugAssign) -> bool:
    """`float | None` means no operation on values, and text is only joined."""
    parts = list(ast.walk(node))
    names = {part.id for part in parts if isinstance(part, ast.Name)}
    constants = [part.value for part in parts if isinstance(part, ast.Constant)]
    types = {"int", "float", "str", "Tensor", "RuleObject", "Callable"}
    return None in constants or bool(names & types) or any(isinstance(value, str) for value in constants)


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)
