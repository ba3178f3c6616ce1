"""The statements of a program around a recorded line: which statement assigns a name, and does another one read it?"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import re
from collections import deque
from collections.abc import Iterator
from types import CodeType
from typing import NamedTuple

import torch

from ...listen.frames import Point, format_location, is_users, lines_of, span_at

# calls that nobody makes for their result
_ACTS = (
    "backward",
    "register_hook",
    "retain_grad",
    "register_post_accumulate_grad_hook",
    "batch_norm",
    "instance_norm",
)
# functions whose first argument is not what they change
_OF_INDICES = ("embedding", "embedding_bag", "where")
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Place(NamedTuple):
    """A statement: where is file:line."""

    where: str
    source: str


@functools.lru_cache(maxsize=16)
def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def _tree(point: Point) -> ast.Module | None:
    return _parsed("".join(lines_of(point.code.co_filename)))


def _nodes_around(outer: ast.AST | None, line: int) -> Iterator[ast.AST]:
    """The nodes of a syntax tree that contain a line, from outside inwards. It does not visit the other nodes, which are many more."""
    todo = deque([] if outer is None else [outer])
    while todo:
        node = todo.popleft()
        first, last = getattr(node, "lineno", line), getattr(node, "end_lineno", None)
        first = min([first, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
        if first <= line <= (last or line):
            yield node
            todo.extend(ast.iter_child_nodes(node))


def scope_of(point: Point) -> ast.AST | None:
    """The innermost function around a line, or the module; None where there is no source."""
    scope: ast.AST | None = _tree(point)
    for node in _nodes_around(scope, point.line):
        if isinstance(node, _SCOPES) and node.lineno <= point.line:
            scope = node
    return scope


def statement_at(point: Point) -> ast.stmt | None:
    """The innermost statement around a call."""
    span = span_at(point.code, point.instruction)
    start, end = ((point.line, 0), (point.line, 0)) if span is None else ((span[0], span[2]), (span[1], span[3]))
    inner = None
    for node in _nodes_around(scope_of(point), start[0]):
        if not isinstance(node, ast.stmt):
            continue
        last = node.end_lineno or node.lineno, node.end_col_offset or 0
        is_around = (node.lineno, node.col_offset) <= start and end <= last
        if is_around if span is not None else node.lineno <= point.line <= last[0]:
            inner = node
    return inner


def _source(point: Point, node: ast.stmt | ast.expr) -> str:
    """The source of a node, read from its own lines: `ast.get_source_segment` would read the file from its start."""
    lines = lines_of(point.code.co_filename)[node.lineno - 1 : node.end_lineno]
    alone = ast.copy_location(ast.Pass(), node)
    alone.lineno, alone.end_lineno = 1, len(lines)
    return ast.get_source_segment("".join(lines), alone) or ""


def _place(point: Point, node: ast.stmt) -> Place:
    text = " ".join(line.strip() for line in _source(point, node).splitlines())
    return Place(format_location(point.code, node.lineno), text)


def _assignments(scope: ast.AST | None) -> Iterator[tuple[ast.stmt, list[ast.expr], ast.expr]]:
    for node in ast.walk(scope) if scope is not None else ():
        if isinstance(node, ast.Assign):
            yield node, node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield node, [node.target], node.value


def find_making(point: Point) -> Place | None:
    """The last assignment before this line, in its function, that gives a name of the line an object of a class such as Parameter."""
    statement, making = statement_at(point), None
    if statement is None:
        return None
    read = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    for node, targets, value in _assignments(scope_of(point)):
        names = {target.id for target in targets if isinstance(target, ast.Name)}
        if node.lineno <= point.line and names & read and any(map(_makes, ast.walk(value))):
            making = _place(point, node)
    return making


def is_made_from_itself(point: Point) -> bool:
    """Is something that this line reads made anew from its own value, as in `scale = Parameter(2 * scale.detach())`?

    An attribute may be made so anywhere in the file, a variable in the function of the line.
    """
    read, assigned = _names_in(statement_at(point)), list(_assignments(scope_of(point)))
    assigned += [
        row for row in _assignments(_tree(point)) if not any(isinstance(target, ast.Name) for target in row[1])
    ]
    made: set[str] = set()
    again: set[str] = set()
    for _, targets, value in assigned:
        names = read.intersection(*map(_names_in, targets))
        made |= names if any(map(_makes, ast.walk(value))) else set()
        again |= names & _names_in(value)
    return not made.isdisjoint(again)


def _names_in(node: ast.AST | None) -> set[str]:
    """The variables and attributes, such as `scale` and `self.scale`."""
    nodes = [] if node is None else ast.walk(node)
    return {ast.unparse(part) for part in nodes if isinstance(part, (ast.Name, ast.Attribute))}


def _makes(node: ast.AST) -> bool:
    """Is it a call of a class, or of deepcopy?"""
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name[:1].isupper() or name == "deepcopy"


def reads_gradient(point: Point) -> bool:
    """Does the function around this line read the `.grad` of a variable that the line uses?"""
    statement, scope = statement_at(point), scope_of(point)
    if statement is None or scope is None:
        return False
    read = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return any(
        isinstance(node, ast.Attribute) and node.attr == "grad" and getattr(node.value, "id", None) in read
        for node in ast.walk(scope)
    )


def find_assignment(point: Point, name: str) -> Place | None:
    """The line that assigns the result of a call to this name: in the function of the point, else the only one in its file."""
    last = name.rpartition(".")[2]
    for scope in (scope_of(point), _tree(point)):
        places = []
        for node, targets, value in _assignments(scope):
            names = {getattr(target, "attr", None) or getattr(target, "id", "") for target in targets}
            if last in names and isinstance(value, ast.Call):
                places.append(_place(point, node))
        if len(places) == 1:
            return places[0]
    return None


def find_attribute(kind: type, attribute: str, *methods: str) -> Place | None:
    """The first line in these methods of a module that sets an attribute or puts something into it."""
    name = re.escape(attribute)
    sets = rf"([\w.]+, )*\w+\.{name}(\[.+\])?(: [^=]+)?(, [\w.]+)*\)? = "
    into = rf"\w+\.{name}\.(append|insert|extend|update|add_module|register_\w+)\("
    by_name = rf"(setattr\(\w+, |\w+\.(add_module|register_module|register_parameter)\()[\"']{name}[\"']"
    for method in (vars(base)[method] for method in methods for base in kind.__mro__ if method in vars(base)):
        code = getattr(inspect.unwrap(method), "__code__", None)
        if isinstance(code, CodeType) and is_users(code.co_filename):
            with contextlib.suppress(OSError):  # no source
                for number, line in enumerate(inspect.getsourcelines(code)[0], code.co_firstlineno):
                    if re.match(rf"\s*\(?({sets}|{into}|{by_name})", line):
                        return Place(format_location(code, number), line.strip())
    return None


def lines_of_addend(point: Point) -> set[int]:
    """The lines that assign the names in the last term of a sum, such as `weight` and `penalty` in `loss + weight * penalty`."""
    try:
        value: ast.AST = ast.parse(point.expression).body[0]
    except (SyntaxError, IndexError):
        return set()
    value = getattr(value, "value", value)  # of an expression, or of an assignment in place
    right = getattr(value, "right", value)
    nodes, arithmetic = list(ast.walk(right)), (ast.Name, ast.Constant, ast.BinOp, ast.operator, ast.Load)
    if not all(isinstance(node, arithmetic) for node in nodes):
        return set()
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    lines: set[int] = set()
    for statement, targets, _ in _assignments(scope_of(point)):
        if any(getattr(target, "id", None) in names for target in targets):
            lines.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    return lines


def find_unread(point: Point, is_number: bool) -> str | None:
    """For a line whose result nobody reads, the name or the line to use instead; None if the result may be read.

    Such a line is a call of torch that stands alone, or assigns one number to a name that its function never reads.
    """
    statement, text = statement_at(point), point.expression
    value = getattr(statement, "value", None)
    if not isinstance(value, ast.expr) or any(isinstance(node, (ast.Yield, ast.Await)) for node in ast.walk(value)):
        return None
    is_whole = " ".join(_source(point, value).split()) == " ".join(text.split())
    if isinstance(statement, ast.Expr):
        return _keep(value, text) if is_whole else None
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if len(targets) != 1 or not isinstance(targets[0], ast.Name):
        return None
    name = targets[0].id
    if name.startswith("_") or not ((is_whole and is_number) or _is_total(value)) or _reads(scope_of(point), name):
        return None
    return name


def _is_total(value: ast.expr) -> bool:
    if not isinstance(value, ast.Call) or value.args or value.keywords:
        return False
    return isinstance(value.func, ast.Attribute) and value.func.attr in ("sum", "mean")


def _reads(scope: ast.AST | None, name: str) -> bool:
    """May something in this function read the name?"""
    for node in ast.walk(scope) if scope is not None else ():
        if isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names:
            return True
        if isinstance(node, ast.AugAssign) and getattr(node.target, "id", None) == name:
            return True
        is_loaded = isinstance(getattr(node, "ctx", None), ast.Load)
        if is_loaded and getattr(node, "id", None) in (name, "locals", "vars", "globals"):
            return True
    return scope is None


def _keep(value: ast.expr, text: str) -> str | None:
    """The call as an assignment to the name that it reads first; None if the call is made for an effect other than its result."""
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return None
    name, owner = value.func.attr, value.func.value
    is_of_torch = name == "apply" or any(hasattr(place, name) for place in (torch.Tensor, torch, torch.nn.functional))
    changes = name.endswith("_") or any(keyword.arg in ("out", "inplace", "max_norm") for keyword in value.keywords)
    if not is_of_torch or name in _ACTS or changes:
        return None
    first = value.args[0] if value.args else None
    is_method = name != "apply" and getattr(owner, "id", "") not in ("torch", "F", "functional")
    target = owner if is_method else first if name not in _OF_INDICES else None
    return f"{target.id} = {text}" if isinstance(target, ast.Name) else f"y = {text}"


def name_of_optimiser(step: str) -> str:
    """The name of the optimiser in `optimizer.step()`, `optimizer.step(closure)` or `scaler.step(optimizer)`."""
    match = re.fullmatch(r"([\w.]+)\.step\(([\w.]*)\)", step)
    if match is None:
        return "optimizer"
    return match[2] if match[2] and re.search("scaler|fabric|accelerator", match[1], re.I) else match[1]
