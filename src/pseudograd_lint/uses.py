"""What becomes of a value: is it only compared, or does it go into a loss?"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .ops import is_detached, is_named
from .places import FUNCTIONS
from .terms import key_of
from .walk import Spot

# They give values and where these were: the second is a choice.
_CHOOSE = ("topk", "sort", "max", "min", "kthvalue", "median", "mode", "cummax", "cummin")
_MOST = 100  # places of one value
_OF_LOSS = (
    "loss",
    "losses",
    "criterion",
    "penalty",
    "penalties",
    "nll",
    "elbo",
    "regularizer",
    "regularization",
    "regulariser",
)
_BESIDE_LOSS = frozenset(["weight", "weights", "scale", "mask", "fn", "func", "type", "name"])
_LOSS_CLASS = re.compile(r".*(Loss(es)?|Criterion|Penalty|Regulari[sz]\w*)([A-Z0-9_].*)?")
_GIVES = (ast.Assign, ast.AnnAssign, ast.AugAssign)


class _Use(NamedTuple):
    """Where a value stands. parents: what it stands in, the statement first. function: that it stands in; None at the top of a module."""

    parents: tuple[ast.AST, ...]
    line: int
    function: ast.AST | None
    owner: ast.ClassDef | None
    ends: bool  # here: compared, an index, detached

    def targets(self) -> list[ast.expr]:
        """What it is given to; of `values, places = x.topk(3)` the values."""
        statement = self.parents[0] if self.parents else None
        if not isinstance(statement, _GIVES):
            return []
        given = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        found: list[ast.expr] = []
        for one in given:
            parts = one.elts if isinstance(one, (ast.Tuple, ast.List)) else [one]
            chooses = len(parts) > 1 and isinstance(statement.value, ast.Call) and is_named(statement.value, *_CHOOSE)
            found += parts[:1] if chooses else parts
        return found


def only_chooses(spot: Spot) -> bool:
    """Is it compared, sorted or printed, and nothing else, as distances are that find neighbours?"""
    is_compared = False
    for use in (walk := _Walk(spot)):
        targets = use.targets()
        if len(walk.seen) >= _MOST or not (use.ends or (targets and all(isinstance(one, ast.Name) for one in targets))):
            return False
        is_compared = is_compared or use.ends or any(key_of(one) == "_" for one in targets)
    return is_compared


def reaches_loss(spot: Spot) -> bool:
    """Is it returned by what is called a loss, given to such a name, or to such a function? Through calls within the module, too."""
    for use in (walk := _Walk(spot)):
        if use.ends:
            continue
        if any(map(_is_loss_target, use.targets())) or any(map(_is_call_of_loss, use.parents)):
            return True
        if use.parents and isinstance(use.parents[0], ast.Return) and isinstance(use.function, FUNCTIONS):
            name = use.function.name
            if _is_loss(name, use.owner):
                return True
            walk.add(walk.places.calls(name) if name != "forward" and not name.endswith("__") else ())
    return False


class _Walk:
    """Through the places that a value gets to, each once, and no more than a reader would look at."""

    def __init__(self, spot: Spot) -> None:
        self.places = spot.term.module.places()
        self.stack: list[ast.AST] = [spot.term.node]
        self.seen: set[ast.AST] = set(self.stack)

    def __iter__(self) -> Iterator[_Use]:
        while self.stack:
            use = self._use(self.stack.pop())
            yield use
            if not use.ends:
                self._follow(use)

    def _use(self, node: ast.AST) -> _Use:
        """Many values of a module may get to the same place."""
        if node not in self.places.uses:
            self.places.uses[node] = _use_of(node, self.places.above)
        use: _Use = self.places.uses[node]
        return use

    def _follow(self, use: _Use) -> None:
        """Wherever a name is read afterwards that was given it."""
        for name in {one.id for one in use.targets() if isinstance(one, ast.Name)}:
            self.add(self.places.reads(use.function, name, use.line, _MOST))

    def add(self, nodes: Iterable[ast.AST]) -> None:
        for one in nodes:
            if one not in self.seen and len(self.seen) < _MOST:
                self.seen.add(one)
                self.stack.append(one)


def _use_of(node: ast.AST, above: dict[ast.AST, ast.AST]) -> _Use:
    parents: list[ast.AST] = []
    inner = node
    while inner in above and not isinstance(inner, ast.stmt):
        inner = above[inner]
        parents.insert(0, inner)
    function: ast.AST | None = inner
    while function is not None and not isinstance(function, FUNCTIONS):
        function = above.get(function)
    owner = above.get(function) if function is not None else None
    return _Use(
        tuple(parents), getattr(node, "lineno", 0), function, owner if isinstance(owner, ast.ClassDef) else None,
        is_detached(node, parents) or any(map(_is_place, parents)),
    )  # fmt: skip


def _is_place(node: ast.AST) -> bool:
    """`x.topk(3)[1]`"""
    if not (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Call) and is_named(node.value, *_CHOOSE)):
        return False
    return isinstance(node.slice, ast.Constant) and node.slice.value == 1


def _is_loss_target(target: ast.expr) -> bool:
    while isinstance(target, ast.Subscript):
        target = target.value
    name = key_of(target) or ""
    return _says_loss(name) and re.split(r"[._]", name.lower())[-1] not in _BESIDE_LOSS


def _says_loss(name: str) -> bool:
    name = name.lower()
    return (
        any(part.endswith(_OF_LOSS) for part in re.split(r"[._]", name)) or "cross_entropy" in name or "kl_div" in name
    )


def _is_call_of_loss(node: ast.AST) -> bool:
    """`criterion(value, y)`, `losses.append(value)`, `value.backward()`"""
    if not isinstance(node, ast.Call):
        return False
    name = key_of(node.func) or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
    return _says_loss(name) or f".{name}".endswith((".backward", "autograd.grad"))


def _is_loss(name: str, owner: ast.ClassDef | None) -> bool:
    classes = [] if owner is None else [owner.name, *((key_of(base) or "").rpartition(".")[2] for base in owner.bases)]
    return _says_loss(name) or any(map(_LOSS_CLASS.fullmatch, classes))
