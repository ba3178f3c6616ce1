"""Is a part of a custom Function plainly a function of what it is given? Read from its source, which is not run for that.

What is not understood is not pure: a straight-through estimator mostly is, a backward that counts, draws, caches or sends is not. The
source is believed where it compiles to the code that the function has: a file may have been edited since it was imported.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import math
import textwrap
from functools import lru_cache
from types import BuiltinFunctionType, CodeType, FunctionType, MethodDescriptorType, ModuleType

import torch
from torch.nn import functional

_BUILTINS = {
    *(
        "abs",
        "all",
        "any",
        "bool",
        "enumerate",
        "float",
        "int",
        "isinstance",
        "len",
        "list",
        "max",
        "min",
        "range",
        "round",
        "sum",
    ),
    *("tuple", "zip"),
}
_MODULES = (torch, functional, math)
_FRESH = {
    "clone",
    "zeros_like",
    "ones_like",
    "empty_like",
    "full_like",
    "new_zeros",
    "new_ones",
    "new_empty",
    "new_full",
}
# Of torch's functions and methods these draw, keep, or change something; so do those that end with "_".
_NOT_PURE = (
    "backward",
    "drop",
    "hook",
    "rand",
    "seed",
    "norm_stats",
    "set_",
    "batch_norm",
    "instance_norm",
    "rrelu",
    "gumbel",
)
_NOT_PURE_ALONE = {
    *(
        "bernoulli",
        "normal",
        "multinomial",
        "poisson",
        "save",
        "load",
        "from_file",
        "compile",
        "data",
        "grad",
        "numpy",
        "share_memory",
    ),
    *("retain_grad", "storage", "untyped_storage", "data_ptr", "apply", "map", "tolist", "cond", "while_loop"),
}
_STATEMENTS = (
    ast.Assign,
    ast.AnnAssign,
    ast.AugAssign,
    ast.Return,
    ast.If,
    ast.For,
    ast.Expr,
    ast.Pass,
    ast.Assert,
    ast.Raise,
)
_EXPRESSIONS = (
    *(
        ast.Name,
        ast.Constant,
        ast.Attribute,
        ast.Call,
        ast.Subscript,
        ast.Slice,
        ast.Tuple,
        ast.List,
        ast.BinOp,
        ast.UnaryOp,
    ),
    *(
        ast.BoolOp,
        ast.Compare,
        ast.IfExp,
        ast.Starred,
        ast.JoinedStr,
        ast.FormattedValue,
        ast.ListComp,
        ast.GeneratorExp,
    ),
    *(ast.comprehension, ast.keyword, ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)
_VALUES = (bool, int, float, complex, str, tuple, type(None), torch.dtype, torch.device)
_DEEPEST = 3  # functions that call others


_KEEPING = {
    "save_for_backward",
    "mark_non_differentiable",
    "mark_dirty",
    "set_materialize_grads",
}  # methods of ctx in a forward
PLAIN, BACKWARD, FORWARD = "plain", "backward", "forward"


def is_pure(backward: object) -> bool:
    """A backward(ctx, *grads), whose gradients may be changed in place: they are copies."""
    return _is_pure(_without_torchs(backward), BACKWARD, _DEEPEST)


def is_pure_forward(forward: object, has_ctx: bool = True) -> bool:
    """A forward(ctx, *inputs), or a setup_context, which may keep things in its ctx; or one without a ctx."""
    return _is_pure(_without_torchs(forward), FORWARD if has_ctx else PLAIN, _DEEPEST)


def _without_torchs(function: object) -> object:
    """What once_differentiable, custom_fwd and custom_bwd wrap."""
    while hasattr(function, "__wrapped__") and getattr(function, "__globals__", {}).get("__name__", "").startswith(
        "torch."
    ):
        function = function.__wrapped__
    return function


@lru_cache(maxsize=256)
def _is_pure(function: object, part: str, deepest: int) -> bool:
    if not isinstance(function, FunctionType) or not deepest:
        return False
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
        if not isinstance(tree, ast.FunctionDef) or not _is_as_written(function):
            return False
    except (OSError, TypeError, ValueError, SyntaxError):
        return False
    return _Reading(function, tree, part, deepest).is_pure()


def _is_as_written(function: FunctionType) -> bool:
    """Does the file, compiled, hold the code that the function has?"""
    code = function.__code__
    made = _compiled("".join(linecache.getlines(code.co_filename, function.__globals__)))
    same = (one for one in made if (one.co_name, one.co_firstlineno) == (code.co_name, code.co_firstlineno))
    return any(all(getattr(one, name) == getattr(code, name) for name in _CODE) for one in same)


_CODE = ("co_code", "co_names", "co_varnames", "co_freevars")


@lru_cache(maxsize=32)
def _compiled(source: str) -> tuple[CodeType, ...]:
    """Every code that a file holds."""
    found = [compile(source, "<source>", "exec", dont_inherit=True)]
    for one in found:
        found += [inner for inner in one.co_consts if isinstance(inner, CodeType)]
    return tuple(found)


class _Reading:
    """One function that is read."""

    def __init__(self, function: FunctionType, tree: ast.FunctionDef, part: str, deepest: int) -> None:
        self._tree = tree
        self._deepest = deepest
        names = [*(one.arg for one in tree.args.posonlyargs + tree.args.args)]
        self._ctx = names[0] if part != PLAIN and names else None
        self._may_keep = part == FORWARD
        many = [tree.args.vararg.arg] if tree.args.vararg else []
        body = [node for statement in tree.body for node in ast.walk(statement)]
        stored = {node.id for node in body if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        self._locals = {*names, *many, *(one.arg for one in tree.args.kwonlyargs), *stored}
        self._fresh = set(names[1:]) if part == BACKWARD else set()
        self._fresh |= stored
        for node in body:
            self._drop_what_is_not_fresh(node)
        self._outer = {**vars(builtins), **function.__globals__}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                self._outer[name] = cell.cell_contents
            except ValueError:
                self._outer.pop(name, None)

    def _drop_what_is_not_fresh(self, node: ast.AST) -> None:
        """A name is fresh where each value that it gets was made here: nobody else has the tensor."""
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name) and _is_made_here(node.value):
                    continue
                self._fresh -= {
                    one.id for one in ast.walk(target) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
                }
        elif isinstance(node, (ast.For, ast.comprehension, ast.AnnAssign)):
            self._fresh -= {one.id for one in ast.walk(node.target) if isinstance(one, ast.Name)}

    def is_pure(self) -> bool:
        return all(self._is_statement(one) for one in self._tree.body)

    def _is_statement(self, node: ast.stmt) -> bool:
        if not isinstance(node, _STATEMENTS):
            return False
        inner = [*getattr(node, "body", ()), *getattr(node, "orelse", ())]
        if isinstance(node, ast.AnnAssign):  # what stands behind the colon is not run
            parts: list[ast.AST] = [node.target, *([node.value] if node.value else [])]
        else:
            parts = [one for one in ast.iter_child_nodes(node) if one not in inner]
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if hasattr(node, "target") else []
        if not all(self._is_target(one, isinstance(node, ast.AugAssign)) for one in targets):
            return False
        return all(map(self._is_expression, parts)) and all(map(self._is_statement, inner))

    def _is_target(self, target: object, is_in_place: bool) -> bool:
        if isinstance(target, ast.Name):
            return not is_in_place or target.id in self._fresh
        if isinstance(target, (ast.Tuple, ast.List)):
            return all(self._is_target(one, is_in_place) for one in target.elts)
        if isinstance(target, ast.Starred):
            return self._is_target(target.value, is_in_place)
        if isinstance(target, ast.Attribute):  # ctx.low = low
            is_kept = self._may_keep and not is_in_place and not target.attr.startswith("__")
            return is_kept and getattr(target.value, "id", None) == self._ctx
        return (
            isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name) and target.value.id in self._fresh
        )

    def _is_expression(self, node: object) -> bool:
        if not isinstance(node, _EXPRESSIONS):
            return False
        if isinstance(node, ast.Call):
            return self._is_call(node)
        if isinstance(node, ast.Name):
            return node.id in self._locals or self._is_value(self._outer.get(node.id, self))
        if isinstance(node, ast.Attribute) and self._known(node) is not self:
            return self._is_value(self._known(node))
        return all(map(self._is_expression, ast.iter_child_nodes(node)))

    def _is_value(self, value: object) -> bool:
        return isinstance(value, _VALUES) or value in (torch.Tensor, float, int, bool) or value in _MODULES

    def _is_call(self, node: ast.Call) -> bool:
        if any(one.arg in ("out", "inplace", None) for one in node.keywords):
            return False
        if not all(map(self._is_expression, [*node.args, *(one.value for one in node.keywords)])):
            return False
        known = self._known(node.func)
        if known is not self:
            return self._is_function(known)
        if not isinstance(node.func, ast.Attribute):
            return False
        if getattr(node.func.value, "id", None) == self._ctx:
            return self._may_keep and node.func.attr in _KEEPING
        method = getattr(torch.Tensor, node.func.attr, None)
        is_method = isinstance(method, (MethodDescriptorType, FunctionType)) and _is_pure_name(node.func.attr)
        return is_method and self._is_expression(node.func.value)

    def _known(self, node: ast.AST) -> object:
        """What a name outside the function, or an attribute of a module, stands for; `self` where that is not known."""
        if isinstance(node, ast.Name) and node.id not in self._locals:
            return self._outer.get(node.id, self)
        if isinstance(node, ast.Attribute):
            owner = self._known(node.value)
            if isinstance(owner, ModuleType) and (owner in _MODULES or owner.__name__ == "torch.nn"):
                return getattr(owner, node.attr, self)
        return self

    def _is_function(self, function: object) -> bool:
        name = getattr(function, "__name__", "")
        if function is getattr(builtins, name, None):
            return name in _BUILTINS
        module = getattr(function, "__module__", None) or ""
        if isinstance(function, BuiltinFunctionType) or module.startswith("torch.nn.functional"):
            # An op is of no module; what counts, sets or clears something in torch is of torch._C.
            is_op = getattr(torch, name, None) is function and getattr(function, "__self__", None) is None
            return _is_pure_name(name) and (is_op or function in _OF_MODULES)
        return _is_pure(function, PLAIN, self._deepest - 1)


_OF_MODULES = frozenset(one for module in (functional, math) for one in vars(module).values() if callable(one))


def _is_pure_name(name: str) -> bool:
    return not name.endswith("_") and name not in _NOT_PURE_ALONE and not any(part in name for part in _NOT_PURE)


def _is_made_here(value: ast.AST) -> bool:
    if isinstance(value, ast.Call):
        name = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
        return name in _FRESH
    return isinstance(value, (ast.BinOp, ast.UnaryOp, ast.Compare))
