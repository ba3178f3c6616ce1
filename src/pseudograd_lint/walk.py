"""Through a module, statement by statement: every expression once, with what its names stand for there."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from pseudograd_notices.code import Code

from .calls import is_detached
from .classes import read_class
from .quiet import branch_that_learns, is_no_grad, is_quiet_class, is_quiet_folder, is_quiet_function, quiet_helpers
from .terms import (
    FUNCTIONS,
    Env,
    Module,
    Term,
    assigned_keys,
    bind,
    bind_arguments,
    bindings,
    bound_inside,
    changes_in_place,
    forget,
    key_of,
    target_keys,
)

_ENDS = (ast.Return, ast.Raise, ast.Continue, ast.Break)


class Spot(NamedTuple):
    """An expression to be judged. parents: what it stands in, the statement first. is_recorded: could autograd record it, as far as the
    surroundings say? function, owner: the function and the class that it stands in.
    """

    term: Term
    parents: tuple[ast.AST, ...]
    is_recorded: bool
    function: str
    owner: ast.ClassDef | None

    @property
    def is_trained(self) -> bool:
        """Could a gradient come back through it?"""
        return self.is_recorded and not is_detached(self.term.node, self.parents)


class Rule(NamedTuple):
    """code: with a program that shows it and a program in which it is silent. kinds: the nodes that it judges. words: a file that holds
    none of these holds nothing for it. find: the message about a node, a sentence or two; None for nothing.
    """

    code: Code
    kinds: tuple[type, ...]
    words: tuple[str, ...]
    find: Callable[[Spot], str | None]


class Walker:
    """judge: called with every Spot whose node is of these kinds."""

    def __init__(
        self, tree: ast.Module, kinds: tuple[type, ...], judge: Callable[[Spot], None], path: str = ""
    ) -> None:
        self.tree, self.kinds, self.judge = tree, kinds, judge
        self.module = Module(tree)
        self.recorded, self.function = not is_quiet_folder(path), ""
        self.owner: ast.ClassDef | None = None
        self.quiet = quiet_helpers(tree, self.module)
        self.later: list[ast.stmt] = []  # functions and classes of the scope, which are read when it is known

    def run(self) -> None:
        env: Env = {}
        with self._scope():
            self._block(self.tree.body, env)
            counts = Counter(key for statement in self.tree.body for key in assigned_keys([statement]))
            constants = {key: None if counts[key] > 1 else value for key, value in env.items()}
            self._defer(constants)

    # --- scopes -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _scope(self) -> Iterator[None]:
        """What is set inside holds to the end of the scope."""
        module = self.module
        mine = vars(self).copy()
        of_module = module.parameters, module.buffers, module.function
        self.later = []
        yield
        module.parameters, module.buffers, module.function = of_module
        vars(self).update(mine)

    def _defer(self, env: Env) -> None:
        for node in self.later:
            with self._scope():
                if isinstance(node, ast.ClassDef):
                    self._class(node, env)
                elif isinstance(node, FUNCTIONS):
                    self._function(node, env)

    def _class(self, node: ast.ClassDef, env: Env) -> None:
        facts = read_class(node, env, self.module)
        self.module.parameters, self.module.buffers = facts.parameters, facts.buffers
        self.owner = node
        self.recorded = self.recorded and not is_quiet_class(node, self.module)
        self._block(node.body, {**env})
        self._defer({**env, **facts.attributes})

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, env: Env) -> None:
        self.module.function, self.function = node, node.name
        self.recorded = self.recorded and not is_quiet_function(node) and node.name not in self.quiet
        inner: Env = {**env, **bind_arguments(node.args, env, self.module)}
        self._block(node.body, inner)
        self._defer(inner)

    @contextmanager
    def _recorded(self, is_recorded: bool = True) -> Iterator[None]:
        """Inside, nothing is recorded unless is_recorded."""
        before = self.recorded
        self.recorded = before and is_recorded
        yield
        self.recorded = before

    # --- statements ---------------------------------------------------------------------------------------------------

    def _block(self, body: Sequence[ast.stmt], env: Env) -> None:
        with self._recorded():
            for statement in body:
                self._statement(statement, env)
                if isinstance(statement, ast.If) and branch_that_learns(statement.test) and _leaves(statement.body):
                    self.recorded = False

    def _statement(self, node: ast.stmt, env: Env) -> None:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            for decorator in node.decorator_list:
                self._expressions(decorator, env, node)
            if isinstance(node, ast.ClassDef) and ast.ClassDef in self.kinds:
                self.judge(Spot(Term(node, env, self.module), (), True, self.function, node))  # type: ignore[arg-type]
            env[node.name] = None
            self.later.append(node)
        elif isinstance(node, ast.If):
            self._if(node, env)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            self._expressions(node.test if isinstance(node, ast.While) else node.iter, env, node)
            forget(env, assigned_keys([node]))
            self._branches([node.body, []], env)
            self._block(node.orelse, env)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            self._context(node, env)
        elif isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
            self._try(node, env)
        elif isinstance(node, ast.Match):
            self._expressions(node.subject, env, node)
            forget(env, assigned_keys([node]))
            self._branches([*(case.body for case in node.cases), []], env)
        else:
            self._expressions(node, env, node)
            self._assign(node, env)

    def _if(self, node: ast.If, env: Env) -> None:
        """With its elifs. The code behind `if self.training:` as else is not trained."""
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
        self._branches([*bodies, node.orelse], env, quiet)

    def _branches(self, bodies: Sequence[Sequence[ast.stmt]], env: Env, quiet: Collection[int] = ()) -> None:
        """Behind the branches holds what holds at the end of each that does not leave. quiet: the numbers of those where nothing learns."""
        ends = []
        for number, body in enumerate(bodies):
            inner = dict(env)
            with self._recorded(number not in quiet):
                self._block(body, inner)
            if not _leaves(body):
                ends.append(inner)
        for key in {key for end in ends for key in end}:
            values = [end.get(key) for end in ends]
            env[key] = values[0] if all(value is values[0] for value in values) else None

    def _context(self, node: ast.With | ast.AsyncWith, env: Env) -> None:
        with self._recorded():
            for item in node.items:
                self._expressions(item.context_expr, env, node)
                self.recorded = self.recorded and not is_no_grad(item.context_expr)
                if item.optional_vars is not None:
                    forget(env, target_keys([item.optional_vars]))
            self._block(node.body, env)

    def _try(self, node: Any, env: Env) -> None:
        before = dict(env)
        self._block([*node.body, *node.orelse], env)
        forget(before, assigned_keys(node.body))
        for handler in node.handlers:
            self._block(handler.body, dict(before))
        if not all(_leaves(handler.body) for handler in node.handlers):
            forget(env, assigned_keys([*node.body, *(line for handler in node.handlers for line in handler.body)]))
        self._block(node.finalbody, env)

    # --- what names stand for -----------------------------------------------------------------------------------------

    def _assign(self, node: ast.stmt, env: Env) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind(target, node.value, env)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._bind(node.target, node.value, env)
        elif isinstance(node, ast.AugAssign):
            self._bind_augmented(node, env)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self._bind_in_place(node.value, env)
        elif isinstance(node, ast.Delete):
            forget(env, target_keys(node.targets))

    def _bind(self, target: ast.expr, value: ast.expr, env: Env) -> None:
        pairs = _pairs(target, value) or [(target, value)]
        terms = [bind(part, env, self.module) for _, part in pairs]
        for (name, _), term in zip(pairs, terms, strict=True):
            forget(env, target_keys([name]))
            key = key_of(name)
            if key is not None and key not in self.module.shared:
                env[key] = term

    def _bind_augmented(self, node: ast.AugAssign, env: Env) -> None:
        key = key_of(node.target)
        if key is None or key in self.module.shared:
            forget(env, target_keys([node.target]))
            return
        old = ast.copy_location(ast.Name(key, ast.Load()), node.target)
        value = ast.copy_location(ast.BinOp(old, node.op, node.value), node)
        env[key] = Term(value, {**bindings(node.value, env), key: env.get(key)}, self.module)

    def _bind_in_place(self, call: ast.Call, env: Env) -> None:
        """`x.clamp_(0, 1)` as a statement gives x a new value, not through `x.data`; `torch.add(x, 1, out=x)` an unknown one."""
        forget(env, target_keys(keyword.value for keyword in call.keywords if keyword.arg == "out"))
        if isinstance(call.func, ast.Attribute) and changes_in_place(call.func.attr):
            key = key_of(call.func.value)
            if key is not None and not key.endswith(".data"):
                env[key] = bind(call, env, self.module)

    # --- expressions --------------------------------------------------------------------------------------------------

    def _expressions(self, root: ast.AST, env: Env, statement: ast.AST) -> None:
        hidden = list(bound_inside(root))
        inner = {**env, **dict.fromkeys(hidden)} if hidden else env
        is_recorded = self.recorded and not isinstance(root, ast.Assert)
        self._visit(root, inner, (statement,) if root is not statement else (), is_recorded)

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
    if not isinstance(target, (ast.Tuple, ast.List)) or _has_star(target.elts):
        return []
    if isinstance(value, ast.Call):
        return [(element, _item(value, at)) for at, element in enumerate(target.elts)]
    if not isinstance(value, (ast.Tuple, ast.List)) or _has_star(value.elts) or len(target.elts) != len(value.elts):
        return []
    return list(zip(target.elts, value.elts, strict=True))


def _has_star(nodes: Iterable[ast.expr]) -> bool:
    return any(isinstance(node, ast.Starred) for node in nodes)


def _item(value: ast.expr, at: int) -> ast.expr:
    return ast.copy_location(ast.Subscript(value, ast.copy_location(ast.Constant(at), value), ast.Load()), value)
