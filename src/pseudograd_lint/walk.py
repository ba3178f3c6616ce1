"""Through a module, statement by statement: every expression once, with what its names stand for there."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from .classes import facts_of
from .places import FUNCTIONS
from .quiet import branch_that_learns, is_no_grad, is_quiet, is_quiet_class, is_quiet_function, only_called_there
from .terms import Env, Module, Term, arguments_of, bindings, key_of

_SCOPES = (*FUNCTIONS, ast.ClassDef, ast.Lambda)
_ENDS = (ast.Return, ast.Raise, ast.Continue, ast.Break)


class Spot(NamedTuple):
    """An expression to be judged. parents: what it stands in, the statement first. is_recorded: could autograd see it, as far as the
    surroundings say? function, owner: those that it stands in.
    """

    term: Term
    parents: tuple[ast.AST, ...]
    is_recorded: bool
    function: str
    owner: ast.ClassDef | None


class Walker:
    """judge: called with every Spot whose node is of these kinds."""

    def __init__(
        self, tree: ast.Module, kinds: tuple[type, ...], judge: Callable[[Spot], None], path: str = ""
    ) -> None:
        self.tree, self.kinds, self.judge = tree, kinds, judge
        self.module = Module(tree)
        self.recorded, self.function = not is_quiet(path), ""
        self.owner: ast.ClassDef | None = None
        self.quiet = only_called_there(tree, self.module)

    def run(self) -> None:
        env: Env = {}
        later: list[ast.AST] = []
        self._block(self.tree.body, env, later)
        often = _assigned_twice(self.tree.body)
        constants = {key: (None if key in often else value) for key, value in env.items()}
        self._all(later, constants)

    # --- scopes -------------------------------------------------------------------------------------------------------

    def _all(self, scopes: Iterable[ast.AST], env: Env) -> None:
        for scope in scopes:
            if isinstance(scope, ast.ClassDef):
                self._class(scope, env)
            elif isinstance(scope, FUNCTIONS):
                self._function(scope, env)

    def _class(self, node: ast.ClassDef, env: Env) -> None:
        before = self.module.parameters, self.module.buffers, self.owner, self.recorded
        facts = facts_of(node, env, self.module)
        self.module.parameters, self.module.buffers = facts.parameters, facts.buffers
        self.owner = node
        if is_quiet_class(node, self.module):
            self.recorded = False
        inner: Env = {**env}
        later: list[ast.AST] = []
        self._block(node.body, inner, later)
        self._all(later, {**env, **facts.attributes})
        self.module.parameters, self.module.buffers, self.owner, self.recorded = before

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, env: Env) -> None:
        before = self.recorded, self.function, self.module.function
        self.module.function = node
        if is_quiet_function(node) or node.name in self.quiet:
            self.recorded = False
        self.function = node.name
        inner: Env = {**env, **arguments_of(node.args, env, self.module)}
        later: list[ast.AST] = []
        self._block(node.body, inner, later)
        self._all(later, inner)
        self.recorded, self.function, self.module.function = before

    # --- statements ---------------------------------------------------------------------------------------------------

    def _block(self, body: Sequence[ast.stmt], env: Env, later: list[ast.AST]) -> None:
        before = self.recorded
        for statement in body:
            self._statement(statement, env, later)
            if isinstance(statement, ast.If) and branch_that_learns(statement.test) and _leaves(statement.body):
                self.recorded = False
        self.recorded = before

    def _statement(self, node: ast.stmt, env: Env, later: list[ast.AST]) -> None:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            for one in node.decorator_list:
                self._expressions(one, env, node)
            if isinstance(node, ast.ClassDef) and ast.ClassDef in self.kinds:
                self.judge(Spot(Term(node, env, self.module), (), True, self.function, node))  # type: ignore[arg-type]
            env[node.name] = None
            later.append(node)
        elif isinstance(node, ast.If):
            self._if(node, env, later)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            self._expressions(node.test if isinstance(node, ast.While) else node.iter, env, node)
            _forget(env, _assigned([node]))
            self._branches([node.body, []], env, later)
            self._block(node.orelse, env, later)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            self._with(node, env, later)
        elif isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
            self._try(node, env, later)  # type: ignore[arg-type]
        elif type(node).__name__ == "Match":
            self._expressions(node.subject, env, node)  # type: ignore[attr-defined]
            _forget(env, _assigned([node]))
            self._branches([*(case.body for case in node.cases), []], env, later)  # type: ignore[attr-defined]
        else:
            self._expressions(node, env, node)
            self._assign(node, env)

    def _if(self, node: ast.If, env: Env, later: list[ast.AST]) -> None:
        """With its elifs. What stands behind `if self.training:` as else is not trained."""
        bodies: list[Sequence[ast.stmt]] = []
        quiet: set[int] = set()
        is_quiet_from_here = False
        while True:
            self._expressions(node.test, env, node)
            learns = branch_that_learns(node.test)
            if is_quiet_from_here or learns is False:
                quiet.add(len(bodies))
            bodies.append(node.body)
            is_quiet_from_here = is_quiet_from_here or learns is True
            if len(node.orelse) != 1 or not isinstance(node.orelse[0], ast.If):
                break
            node = node.orelse[0]
        if is_quiet_from_here:
            quiet.add(len(bodies))
        self._branches([*bodies, node.orelse], env, later, quiet)

    def _branches(
        self, bodies: Sequence[Sequence[ast.stmt]], env: Env, later: list[ast.AST], quiet: Collection[int] = ()
    ) -> None:
        """What holds behind them is what holds at the end of each that does not leave. quiet: where nothing learns, by their places."""
        ends = []
        before = self.recorded
        for at, body in enumerate(bodies):
            inner = dict(env)
            self.recorded = before and at not in quiet
            self._block(body, inner, later)
            if not _leaves(body):
                ends.append(inner)
        self.recorded = before
        if not ends:
            return
        for key in {key for one in ends for key in one}:
            values = [one.get(key) for one in ends]
            env[key] = values[0] if all(value is values[0] for value in values) else None

    def _with(self, node: ast.With | ast.AsyncWith, env: Env, later: list[ast.AST]) -> None:
        before = self.recorded
        for item in node.items:
            self._expressions(item.context_expr, env, node)
            self.recorded = self.recorded and not is_no_grad(item.context_expr)
            if item.optional_vars is not None:
                _forget(env, _targets(item.optional_vars))
        self._block(node.body, env, later)
        self.recorded = before

    def _try(self, node: ast.Try, env: Env, later: list[ast.AST]) -> None:
        before = dict(env)
        self._block([*node.body, *node.orelse], env, later)
        _forget(before, _assigned(node.body))
        for handler in node.handlers:
            self._block(handler.body, dict(before), later)
        if not all(_leaves(handler.body) for handler in node.handlers):
            _forget(env, _assigned(node.body) | _assigned([s for handler in node.handlers for s in handler.body]))
        self._block(node.finalbody, env, later)

    # --- what names stand for -----------------------------------------------------------------------------------------

    def _assign(self, node: ast.stmt, env: Env) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind(target, node.value, env)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._bind(node.target, node.value, env)
        elif isinstance(node, ast.AugAssign):
            key = key_of(node.target)
            if key is None or key in self.module.shared:
                _forget(env, _targets(node.target))
                return
            old = ast.copy_location(ast.Name(key, ast.Load()), node.target)
            whole = ast.copy_location(ast.BinOp(old, node.op, node.value), node)
            env[key] = Term(whole, {**bindings(node.value, env), key: env.get(key)}, self.module)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self._in_place(node.value, env)
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                _forget(env, _targets(target))

    def _bind(self, target: ast.expr, value: ast.expr, env: Env) -> None:
        pairs = _pairs(target, value)
        if pairs:
            terms = [Term(one, bindings(one, env), self.module) for _, one in pairs]
            for (one, _), each in zip(pairs, terms, strict=True):
                _forget(env, _targets(one))
                if (name := key_of(one)) is not None and name not in self.module.shared:
                    env[name] = each
            return
        key = key_of(target)
        term = None if key is None else Term(value, bindings(value, env), self.module)
        _forget(env, _targets(target))
        if key is not None and key not in self.module.shared:
            env[key] = term

    def _in_place(self, call: ast.Call, env: Env) -> None:
        """`x.clamp_(0, 1)` as a statement gives x a new value, also through `x.data`; `torch.add(x, 1, out=x)` one that nobody follows."""
        for keyword in call.keywords:
            if keyword.arg == "out":
                _forget(env, _targets(keyword.value))
        if isinstance(call.func, ast.Attribute) and call.func.attr.endswith("_") and not call.func.attr.endswith("__"):
            key = key_of(call.func.value)
            if key is not None and not key.endswith(".data"):
                env[key] = Term(call, bindings(call, env), self.module)

    # --- expressions --------------------------------------------------------------------------------------------------

    def _expressions(self, root: ast.AST, env: Env, statement: ast.AST) -> None:
        hidden = _bound_inside(root)
        seen = {**env, **dict.fromkeys(hidden)} if hidden else env
        is_recorded = self.recorded and not isinstance(root, ast.Assert)
        self._visit(root, seen, (statement,) if root is not statement else (), is_recorded)

    def _visit(self, node: ast.AST, env: Env, parents: tuple[ast.AST, ...], is_recorded: bool) -> None:
        if isinstance(node, self.kinds):
            self.judge(Spot(Term(node, env, self.module), parents, is_recorded, self.function, self.owner))  # type: ignore[arg-type]
        inner = (*parents, node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.expr, ast.keyword, ast.comprehension, ast.FormattedValue)):
                self._visit(child, env, inner, is_recorded)


# --- helpers ----------------------------------------------------------------------------------------------------------


def _leaves(body: Sequence[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], _ENDS)


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """Of `a, b = c, d` (a, c) and (b, d), of `a, b = f(x)` (a, f(x)[0]) and (b, f(x)[1]); none where it is not so plain."""
    if not isinstance(target, (ast.Tuple, ast.List)):
        return []
    if isinstance(value, ast.Call) and not any(isinstance(one, ast.Starred) for one in target.elts):
        return [(one, _item(value, at)) for at, one in enumerate(target.elts)]
    if not isinstance(value, (ast.Tuple, ast.List)):
        return []
    if len(target.elts) != len(value.elts) or any(isinstance(one, ast.Starred) for one in (*target.elts, *value.elts)):
        return []
    return list(zip(target.elts, value.elts, strict=True))


def _item(value: ast.expr, at: int) -> ast.expr:
    place = ast.copy_location(ast.Constant(at), value)
    return ast.copy_location(ast.Subscript(value, place, ast.Load()), value)


def _targets(node: ast.expr) -> set[str]:
    """The names that an assignment to it changes: x for `x[0]` and `x.y`, too, where it is no chain."""
    if isinstance(node, (ast.Tuple, ast.List)):
        return {key for one in node.elts for key in _targets(one)}
    if isinstance(node, ast.Starred):
        return _targets(node.value)
    if isinstance(node, ast.Subscript):
        return _targets(node.value)
    key = key_of(node)
    if key is not None:
        return {key}
    return _targets(node.value) if isinstance(node, ast.Attribute) else set()


def _assigned(body: Iterable[ast.AST]) -> set[str]:
    """Every name that anything in it gives a value, without those of inner scopes."""
    found: set[str] = set()
    stack: list[ast.AST] = list(body)
    while stack:
        node = stack.pop()
        if isinstance(node, _SCOPES):
            found.add(getattr(node, "name", ""))
            continue
        if isinstance(node, (ast.Assign, ast.Delete)):
            for target in node.targets:
                found |= _targets(target)
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.For, ast.AsyncFor, ast.NamedExpr)):
            found |= _targets(node.target)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            found |= _targets(node.optional_vars)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            func = node.value.func
            if isinstance(func, ast.Attribute) and func.attr.endswith("_"):
                found |= _targets(func.value)
        elif type(node).__name__ in ("MatchAs", "MatchStar") and node.name:  # type: ignore[attr-defined]
            found.add(node.name)  # type: ignore[attr-defined]
        stack.extend(ast.iter_child_nodes(node))
    return found


def _assigned_twice(body: Iterable[ast.stmt]) -> set[str]:
    """Of a module: what is no constant."""
    seen: set[str] = set()
    twice: set[str] = set()
    for statement in body:
        new = _assigned([statement])
        twice |= seen & new
        seen |= new
    return twice


def _forget(env: Env, keys: set[str]) -> None:
    """They stand for something that nobody can say, and so do their attributes."""
    for key in keys:
        env[key] = None
    if keys:
        for known in [known for known in env if "." in known and known.rpartition(".")[0] in keys]:
            env[known] = None


def _bound_inside(root: ast.AST) -> set[str]:
    """Names that comprehensions and lambdas of this expression bind."""
    found: set[str] = set()
    for node in ast.walk(root):
        if isinstance(node, ast.comprehension):
            found |= _targets(node.target)
        elif isinstance(node, ast.Lambda):
            found |= {one.arg for one in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]}
        elif isinstance(node, ast.NamedExpr):
            found |= _targets(node.target)
    return found
