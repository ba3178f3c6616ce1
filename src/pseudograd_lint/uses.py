"""What becomes of a value: is it only compared, or does it go into a loss?"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .calls import is_detached
from .quiet import class_names
from .terms import FUNCTIONS, is_constant, key_of, last_name, words
from .walk import Spot

# They give values and where these were: the second is a choice.
_CHOOSE = ("topk", "sort", "max", "min", "kthvalue", "median", "mode", "cummax", "cummin")
_MOST = 100  # uses of one value, as many as a reader would look at
_LOSSES = (*words("loss losses criterion penalty penalties nll elbo regularizer regularization regulariser"),)
_BESIDE_LOSS = words("weight weights scale mask fn func type name")
_LOSS_CLASS = re.compile(r".*(Loss(es)?|Criterion|Penalty|Regulari[sz]\w*)([A-Z0-9_].*)?")


class _Use(NamedTuple):
    """A place that a value gets to. parents: what it stands in, the statement first. function: that it stands in; None at the top of a
    module. ends: is it compared, an index, or detached there?
    """

    parents: tuple[ast.AST, ...]
    line: int
    function: ast.AST | None
    owner: ast.ClassDef | None
    ends: bool

    def targets(self) -> list[ast.expr]:
        """What the statement gives the value to; of `values, places = x.topk(3)` the values."""
        statement = self.parents[0] if self.parents else None
        if not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            return []
        targets: list[ast.expr] = []
        chooses = isinstance(statement.value, ast.Call) and last_name(statement.value) in _CHOOSE
        for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
            parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
            targets += parts[:1] if len(parts) > 1 and chooses else parts
        return targets


def only_chooses(spot: Spot) -> bool:
    """Is it compared, sorted or printed, and nothing else, as distances are that find neighbours?"""
    is_compared = False
    for use in (walk := _Walk(spot)):
        targets = use.targets()
        is_followed = targets and all(isinstance(target, ast.Name) for target in targets)
        if len(walk.visited) >= _MOST or not (use.ends or is_followed):
            return False
        is_compared = is_compared or use.ends or any(key_of(target) == "_" for target in targets)
    return is_compared


def reaches_loss(spot: Spot) -> bool:
    """Does a function that is called a loss return it, or is it given to such a name or function? Through calls in the module, too."""
    for use in (walk := _Walk(spot)):
        if use.ends:
            continue
        if any(map(_is_loss_target, use.targets())) or any(map(_is_call_of_loss, use.parents)):
            return True
        if use.parents and isinstance(use.parents[0], ast.Return) and isinstance(use.function, FUNCTIONS):
            name = use.function.name
            classes = [] if use.owner is None else class_names(use.owner)
            if _says_loss(name) or any(map(_LOSS_CLASS.fullmatch, classes)):
                return True
            walk.add(walk.index.calls(name) if name != "forward" and not name.endswith("__") else ())
    return False


class _Walk:
    """Through the uses of a value, each once."""

    def __init__(self, spot: Spot) -> None:
        self.index = spot.term.module.index()
        self.stack: list[ast.AST] = [spot.term.node]
        self.visited: set[ast.AST] = set(self.stack)

    def __iter__(self) -> Iterator[_Use]:
        while self.stack:
            node = self.stack.pop()
            if node not in self.index.uses:  # many values of a module may get to the same place
                self.index.uses[node] = _find_use(node, self.index.above)
            use: _Use = self.index.uses[node]
            yield use
            if not use.ends:  # then wherever a name is read afterwards that was given the value
                for name in {target.id for target in use.targets() if isinstance(target, ast.Name)}:
                    self.add(self.index.reads(use.function, name, use.line, _MOST))

    def add(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            if node not in self.visited and len(self.visited) < _MOST:
                self.visited.add(node)
                self.stack.append(node)


def _find_use(node: ast.AST, above: dict[ast.AST, ast.AST]) -> _Use:
    parents: list[ast.AST] = []
    inner = node
    while inner in above and not isinstance(inner, ast.stmt):
        inner = above[inner]
        parents.insert(0, inner)
    function: ast.AST | None = inner
    while function is not None and not isinstance(function, FUNCTIONS):
        function = above.get(function)
    owner = above.get(function) if function is not None else None
    ends = is_detached(node, parents) or any(map(_is_second_item, parents))
    line = getattr(node, "lineno", 0)
    return _Use(tuple(parents), line, function, owner if isinstance(owner, ast.ClassDef) else None, ends)


def _is_second_item(node: ast.AST) -> bool:
    """`x.topk(3)[1]`"""
    if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Call):
        return False
    return last_name(node.value) in _CHOOSE and is_constant(node.slice, 1)


def _is_loss_target(target: ast.expr) -> bool:
    while isinstance(target, ast.Subscript):
        target = target.value
    name = key_of(target) or ""
    return _says_loss(name) and re.split(r"[._]", name.lower())[-1] not in _BESIDE_LOSS


def _says_loss(name: str) -> bool:
    name = name.lower()
    is_word = any(part.endswith(_LOSSES) for part in re.split(r"[._]", name))
    return is_word or "cross_entropy" in name or "kl_div" in name


def _is_call_of_loss(node: ast.AST) -> bool:
    """`criterion(value, y)`, `losses.append(value)`, `value.backward()`"""
    if not isinstance(node, ast.Call):
        return False
    name = key_of(node.func) or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
    return _says_loss(name) or f".{name}".endswith((".backward", "autograd.grad"))
