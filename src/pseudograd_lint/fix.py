"""`pseudograd lint --fix`: edits that change no value, and no gradient that was finite.

Only PG104 has an edit: `where(x > 0, log(x), 0)` becomes `where(x > 0, log(where(x > 0, x, 1)), 0)`, if no shape or infinity can change.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from functools import partial

from pseudograd_notices.notice import Notice
from pseudograd_notices.source import edit_file, span

from .calls import read_call
from .check import parse
from .names import Module, unparse
from .rules.guards import hidden_functions
from .values import number

FIXED = "PG104"
_SAFE = dict.fromkeys(("log1p", "acos", "arccos", "asin", "arcsin", "atanh", "arctanh", "erfinv"), "0")
_SAFE |= {"acosh": "2", "arccosh": "2", "logit": "0.5", "ndtri": "0.5"}
_IMPURE = (ast.Call, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)


def fix_files(notices: Iterable[Notice]) -> int:
    """Edit the scripts that these notices are about; notebooks stay as they are. Returns the number of files that changed."""
    calls: defaultdict[str, set[tuple[int, str]]] = defaultdict(set)
    for notice in notices:
        if notice.code == FIXED and notice.cell is None:
            calls[notice.path].add((notice.line, notice.expression))
    return sum(edit_file("lint", path, partial(fix_text, calls=lines)) for path, lines in calls.items())


def fix_text(text: str, calls: Collection[tuple[int, str]]) -> str:
    """The text after the edits. Not every call has an edit. calls: the line and the expression of each call."""
    module, edits = Module(parse(text)), {}
    for node in module.nodes:
        if isinstance(node, ast.Call) and (node.lineno, unparse(node)) in calls:
            for x, is_first, safe in _guards(module, node):
                name, condition, value = (text[span(text, part)] for part in (node.func, node.args[0], x))
                branches = (value, safe) if is_first else (safe, value)
                edits[span(text, x).start] = x, f"{name}({', '.join((condition, *branches))})"
    for start in sorted(edits, reverse=True):
        x, new = edits[start]
        text = text[:start] + new + text[span(text, x).stop :]
    return text


def _guards(module: Module, node: ast.Call) -> Iterator[tuple[ast.expr, bool, str]]:
    """The expressions to guard; for each: is it in the first branch, and which number replaces it where the other branch is chosen?"""
    call = read_call(module, node)
    condition = None if call is None or call.name != "where" else call.arguments[0]
    writes = any(isinstance(part, ast.Call) and unparse(part.func).endswith("_") for part in ast.walk(node))
    if call is None or not isinstance(condition, ast.Compare) or writes:
        return
    numbers = [side for side in (condition.left, condition.comparators[0]) if number(module, side) is not None]
    # A name may be an argument, whose default is a number and whose value may be a tensor.
    is_compared = any(not any(isinstance(part, ast.Name) for part in ast.walk(side)) for side in numbers)
    for part, singular, is_first in hidden_functions(module, call):
        parents = [part, *module.parents(part)]
        inside = parents[: parents.index(node)] if node in parents else []
        is_pure = not any(isinstance(part, _IMPURE) for root in (condition, singular.x) for part in ast.walk(root))
        if inside and is_pure and is_compared and all(map(_is_finite, inside[1:], inside)):
            yield singular.x, is_first, _SAFE.get(singular.name, "1")


def _is_finite(parent: ast.AST, child: ast.AST) -> bool:
    """Is the parent finite if the child is? True for a sum or product with the child, and for the child divided by something."""
    if isinstance(parent, ast.BinOp) and not (isinstance(parent.op, ast.Div) and child is parent.right):
        return isinstance(parent.op, (ast.Add, ast.Sub, ast.Mult, ast.Div))
    return isinstance(parent, ast.UnaryOp)
