"""What becomes of a value within its function: does it go anywhere that a gradient could come from?"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from .ops import is_detached, is_named

# They give values and where these were: the second is a choice.
_CHOOSE = ("topk", "sort", "max", "min", "kthvalue", "median", "mode", "cummax", "cummin")


def only_chooses(node: ast.AST, function: ast.AST | None) -> bool:
    """Is it compared, sorted or printed, and nothing else, as distances are that find neighbours?"""
    if function is None:
        return False
    above = {child: parent for parent in ast.walk(function) for child in ast.iter_child_nodes(parent)}
    seen: set[str] = set()
    is_compared = False
    stack = [node]
    while stack:
        names = _handed_to(stack.pop(), above)
        if names is None:
            return False
        is_compared = is_compared or not names or "_" in names
        for name in set(names) - seen:
            seen.add(name)
            stack += [
                one for one in above if isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Load)
            ]
    return is_compared


def _handed_to(node: ast.AST, above: dict[ast.AST, ast.AST]) -> Sequence[str] | None:
    """The names that it, or what is made of it, is given; none if it ends here; None if it goes where nobody follows."""
    parents: list[ast.AST] = []
    inner = node
    while inner in above and not isinstance(inner, ast.stmt):
        inner = above[inner]
        parents.insert(0, inner)
    if is_detached(node, parents) or any(_is_place(one) for one in parents):
        return []
    if not isinstance(inner, ast.Assign) or len(inner.targets) != 1:
        return None
    (target,) = inner.targets
    given = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
    if (
        isinstance(target, (ast.Tuple, ast.List))
        and isinstance(inner.value, ast.Call)
        and is_named(inner.value, *_CHOOSE)
    ):
        given = given[:1]
    return (
        [one.id for one in given if isinstance(one, ast.Name)]
        if all(isinstance(one, ast.Name) for one in given)
        else None
    )


def _is_place(node: ast.AST) -> bool:
    """`x.topk(3)[1]`"""
    is_second = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == 1
    return is_second and isinstance(node.value, ast.Call) and is_named(node.value, *_CHOOSE)  # type: ignore[attr-defined]
