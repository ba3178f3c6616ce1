"""Small wrong versions of a source file: one comparison, sign, connective or branch changed in each."""

import ast
import copy
from collections.abc import Callable, Iterator
from typing import NamedTuple

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
CONNECTIVES: dict[type, type] = {ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd}
WHERE = {"where"}


class Mutant(NamedTuple):
    """Where a change was made, what it says before and after, and the whole changed source."""

    file: str
    function: str
    line: int
    before: str
    after: str
    source: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What names a mutant when lines move."""
        return self.file, self.function, f"{self.before} -> {self.after}"

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}: {self.before} -> {self.after}"


def mutants_of(file: str, source: str) -> Iterator[Mutant]:
    """Every mutant of a file, in the order of its lines."""
    tree = ast.parse(source)
    functions = dict(_functions(tree))
    for position, node in enumerate(ast.walk(tree)):
        for change in _changes(node):
            mutated = copy.deepcopy(tree)
            target = next(found for index, found in enumerate(ast.walk(mutated)) if index == position)
            changed = change(target)
            if changed is not target:
                mutated = _Replace(target, changed).visit(mutated)
            ast.fix_missing_locations(mutated)
            line = getattr(node, "lineno", 0)
            yield Mutant(
                file,
                functions.get(id(node), "module"),
                line,
                ast.unparse(node),
                ast.unparse(changed),
                ast.unparse(mutated),
            )


def _functions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(id of a node, name of the innermost function that holds it); annotations and types are left out."""
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for node in ast.walk(function):
                yield id(node), function.name


def _changes(node: ast.AST) -> Iterator[Callable[[ast.AST], ast.AST]]:
    if isinstance(node, ast.Compare):
        for index, op in enumerate(node.ops):
            if type(op) in COMPARISONS:
                yield lambda target, index=index: _with_comparison(target, index)
    elif isinstance(node, ast.BoolOp) or (
        isinstance(node, ast.BinOp) and type(node.op) in CONNECTIVES and not _is_a_type(node)
    ):
        yield _with_other_connective
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not, ast.Invert)):
        yield lambda target: target.operand
    elif isinstance(node, ast.Call) and _called(node) in WHERE and len(node.args) == 3:
        yield _with_swapped_branches


def _is_connective(node: ast.AST) -> bool:
    """`and`, `or`; `&`, `|` between values."""
    if isinstance(node, ast.BinOp):
        return type(node.op) in CONNECTIVES and not _is_a_type(node)
    return isinstance(node, ast.BoolOp)


def _is_a_type(node: ast.BinOp) -> bool:
    """`float | None` means no operation on values."""
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    constants = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
    return None in constants or bool(names & {"int", "float", "str", "Tensor", "RuleChoice", "Callable"})


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _with_comparison(target: ast.AST, index: int) -> ast.AST:
    assert isinstance(target, ast.Compare)
    target.ops[index] = COMPARISONS[type(target.ops[index])]()
    return target


def _with_other_connective(target: ast.AST) -> ast.AST:
    if isinstance(target, ast.BoolOp):
        target.op = ast.Or() if isinstance(target.op, ast.And) else ast.And()
    else:
        assert isinstance(target, ast.BinOp)
        target.op = CONNECTIVES[type(target.op)]()
    return target


def _with_swapped_branches(target: ast.AST) -> ast.AST:
    assert isinstance(target, ast.Call)
    target.args[1], target.args[2] = target.args[2], target.args[1]
    return target


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)
