"""Does a custom Function only compute? The answer comes from its source, which is read and not run.

Whatever this reader does not understand counts as impure: a backward that counts, draws, caches or sends does more than compute. The
source is believed only where it compiles to the code that the function has: a file may have been edited since it was imported.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import inspect
import linecache
import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from types import BuiltinFunctionType, CodeType, FunctionType, MethodDescriptorType, ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..torch_table.private import outside_of_transforms, without_dispatch_modes, without_torch_function


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _nodes(names: str) -> tuple[type, ...]:
    return tuple(getattr(ast, name) for name in names.split())


_BUILTINS = _words("abs all any bool enumerate float int isinstance len list max min range round sum tuple zip")
_MODULES = (torch, functional, math)
# Functions and methods whose tensor nobody else has.
_FRESH = _words("clone zeros_like ones_like empty_like full_like new_zeros new_ones new_empty new_full")
# Functions and methods of torch that draw, keep or change something, by a part of their name or by all of it; a final "_" says so, too.
_IMPURE_PARTS = _words("backward drop hook rand seed norm_stats set_ batch_norm instance_norm rrelu gumbel")
_IMPURE = _words(
    "bernoulli normal multinomial poisson save load from_file compile data grad numpy share_memory retain_grad storage "
    "untyped_storage data_ptr apply map tolist cond while_loop"
)
_STATEMENTS = _nodes("Assign AnnAssign AugAssign Return If For Expr Pass Assert Raise")
_EXPRESSIONS = _nodes(
    "Name Constant Attribute Call Subscript Slice Tuple List BinOp UnaryOp BoolOp Compare IfExp Starred JoinedStr "
    "FormattedValue ListComp GeneratorExp comprehension keyword expr_context operator unaryop boolop cmpop"
)
_VALUES = (bool, int, float, complex, str, tuple, type(None), torch.dtype, torch.device)
_KEEPING = ("save_for_backward", "mark_non_differentiable", "mark_dirty", "set_materialize_grads")  # methods of ctx
_DEEPEST = 3  # functions that call others
_PLAIN, _BACKWARD, _FORWARD = "plain", "backward", "forward"


def is_pure(backward: object) -> bool:
    """Does a backward(ctx, *grads) only compute? It may change its gradients in place: they are copies."""
    return _is_pure(_unwrap(backward), _BACKWARD, _DEEPEST)


# --- a call without autograd ----------------------------------------------------------------------------------------

Compute = Callable[[Sequence[Any], Tensor], tuple[Tensor, tuple[Any, ...]]]  # inputs, grad -> y, gradients


class _Context:
    """Keeps what a forward saves for its backward."""

    saved_tensors: tuple[Any, ...] = ()

    def __init__(self, inputs: int) -> None:
        self.needs_input_grad = (True,) * inputs

    def save_for_backward(self, *tensors: object) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: object) -> None:
        pass

    mark_dirty = set_materialize_grads = mark_non_differentiable


def compute_alone(cls: Any) -> Compute | None:
    """The forward and the backward of a Function as a single function of numbers. None where the class may do more than compute."""
    base = torch.autograd.Function
    has_setup = cls.setup_context is not base.setup_context
    forward = _is_pure(_unwrap(cls.forward), _PLAIN if has_setup else _FORWARD, _DEEPEST)
    setup = not has_setup or _is_pure(_unwrap(cls.setup_context), _FORWARD, _DEEPEST)
    if cls.vjp is not base.vjp or not (forward and setup and is_pure(cls.backward)):
        return None

    def compute(inputs: Sequence[Any], grad: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        ctx = _Context(len(inputs))
        if has_setup:
            y = cls.forward(*inputs)
            cls.setup_context(ctx, tuple(inputs), y)
        else:
            y = cls.forward(ctx, *inputs)
        gradients = cls.backward(ctx, grad)
        return y, gradients if isinstance(gradients, tuple) else (gradients,)

    return compute


@contextlib.contextmanager
def outside_of_everything() -> Iterator[None]:
    """No graph is made, and no mode and no transform of the program sees a call."""
    with torch.no_grad(), without_torch_function(), without_dispatch_modes(), outside_of_transforms():
        yield


# --- the source -----------------------------------------------------------------------------------------------------


def _unwrap(function: object) -> object:
    """The function behind once_differentiable, custom_fwd and custom_bwd."""
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
        if not isinstance(tree, ast.FunctionDef) or not _has_code_of_file(function):
            return False
    except (OSError, TypeError, ValueError, SyntaxError):
        return False
    reader = _Reader(function, tree, part, deepest)
    return all(map(reader.is_statement, tree.body))


_CODE = ("co_name", "co_firstlineno", "co_code", "co_names", "co_varnames", "co_freevars")


def _has_code_of_file(function: FunctionType) -> bool:
    code = function.__code__
    codes = _compile("".join(linecache.getlines(code.co_filename, function.__globals__)))
    return any(all(getattr(other, name) == getattr(code, name) for name in _CODE) for other in codes)


@lru_cache(maxsize=32)
def _compile(source: str) -> tuple[CodeType, ...]:
    """Every code object of a file."""
    codes = [compile(source, "<source>", "exec", dont_inherit=True)]
    for code in codes:
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return tuple(codes)


class _Reader:
    """Reads one function. A name is fresh where each of its values was made here: nobody else has the tensor."""

    def __init__(self, function: FunctionType, tree: ast.FunctionDef, part: str, deepest: int) -> None:
        self._deepest = deepest
        arguments = [argument.arg for argument in tree.args.posonlyargs + tree.args.args]
        self._ctx = arguments[0] if part != _PLAIN and arguments else None
        self._may_keep = part == _FORWARD
        body = [node for statement in tree.body for node in ast.walk(statement)]
        stored = {name for node in body for name in _stored_names(node)}
        others = [argument.arg for argument in (*tree.args.kwonlyargs, tree.args.vararg) if argument]
        self._locals = {*arguments, *others, *stored}
        self._fresh = stored | (set(arguments[1:]) if part == _BACKWARD else set())
        for node in body:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if not (isinstance(target, ast.Name) and _is_fresh(node.value)):
                        self._fresh -= {name for inner in ast.walk(target) for name in _stored_names(inner)}
            elif isinstance(node, (ast.For, ast.comprehension, ast.AnnAssign)):
                self._fresh -= {name for inner in ast.walk(node.target) for name in _stored_names(inner)}
        self._outer = {**vars(builtins), **function.__globals__}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):
                self._outer.pop(name, None)
                self._outer[name] = cell.cell_contents

    def is_statement(self, node: ast.stmt) -> bool:
        if not isinstance(node, _STATEMENTS):
            return False
        inner = [*getattr(node, "body", ()), *getattr(node, "orelse", ())]
        if isinstance(node, ast.AnnAssign):  # the annotation is not run
            parts: list[ast.AST] = [node.target, *([node.value] if node.value else [])]
        else:
            parts = [child for child in ast.iter_child_nodes(node) if child not in inner]
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if hasattr(node, "target") else []
        return (
            all(self._is_target(target, isinstance(node, ast.AugAssign)) for target in targets)
            and all(map(self._is_expression, parts))
            and all(map(self.is_statement, inner))
        )

    def _is_target(self, target: object, is_in_place: bool) -> bool:
        if isinstance(target, ast.Name):
            return not is_in_place or target.id in self._fresh
        if isinstance(target, (ast.Tuple, ast.List)):
            return all(self._is_target(element, is_in_place) for element in target.elts)
        if isinstance(target, ast.Starred):
            return self._is_target(target.value, is_in_place)
        if isinstance(target, ast.Attribute):  # ctx.low = low
            may_keep = self._may_keep and not is_in_place and not target.attr.startswith("__")
            return may_keep and getattr(target.value, "id", None) == self._ctx
        return isinstance(target, ast.Subscript) and getattr(target.value, "id", None) in self._fresh

    def _is_expression(self, node: object) -> bool:
        if not isinstance(node, ast.AST) or not isinstance(node, _EXPRESSIONS):
            return False
        if isinstance(node, ast.Call):
            return self._is_call(node)
        if isinstance(node, ast.Name):
            return node.id in self._locals or self._is_value(self._outer.get(node.id, self))
        if isinstance(node, ast.Attribute) and self._resolve(node) is not self:
            return self._is_value(self._resolve(node))
        return all(map(self._is_expression, ast.iter_child_nodes(node)))

    def _is_value(self, value: object) -> bool:
        return isinstance(value, _VALUES) or value in (torch.Tensor, float, int, bool) or value in _MODULES

    def _is_call(self, node: ast.Call) -> bool:
        if any(keyword.arg in ("out", "inplace", None) for keyword in node.keywords):
            return False
        if not all(map(self._is_expression, [*node.args, *(keyword.value for keyword in node.keywords)])):
            return False
        function = self._resolve(node.func)
        if function is not self:
            return self._is_function(function)
        if not isinstance(node.func, ast.Attribute):
            return False
        if getattr(node.func.value, "id", None) == self._ctx:
            return self._may_keep and node.func.attr in _KEEPING
        method = getattr(torch.Tensor, node.func.attr, None)
        is_method = isinstance(method, (MethodDescriptorType, FunctionType)) and _has_pure_name(node.func.attr)
        return is_method and self._is_expression(node.func.value)

    def _resolve(self, node: ast.AST) -> object:
        """The value of a name outside the function, or of an attribute of a module; `self` where it is not known."""
        if isinstance(node, ast.Name) and node.id not in self._locals:
            return self._outer.get(node.id, self)
        if isinstance(node, ast.Attribute):
            owner = self._resolve(node.value)
            if isinstance(owner, ModuleType) and (owner in _MODULES or owner.__name__ == "torch.nn"):
                return getattr(owner, node.attr, self)
        return self

    def _is_function(self, function: object) -> bool:
        name = getattr(function, "__name__", "")
        if function is getattr(builtins, name, None):
            return name in _BUILTINS
        module = getattr(function, "__module__", None) or ""
        if isinstance(function, BuiltinFunctionType) or module.startswith("torch.nn.functional"):
            # An op has no module. What counts, sets or clears something in torch is in torch._C.
            is_op = getattr(torch, name, None) is function and getattr(function, "__self__", None) is None
            return _has_pure_name(name) and (is_op or function in _IN_MODULES)
        return _is_pure(function, _PLAIN, self._deepest - 1)


_IN_MODULES = frozenset(value for module in (functional, math) for value in vars(module).values() if callable(value))


def _has_pure_name(name: str) -> bool:
    return not name.endswith("_") and name not in _IMPURE and not any(part in name for part in _IMPURE_PARTS)


def _is_fresh(value: ast.AST) -> bool:
    if isinstance(value, ast.Call):
        name = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
        return name in _FRESH
    return isinstance(value, (ast.BinOp, ast.UnaryOp, ast.Compare))


def _stored_names(node: ast.AST) -> tuple[str, ...]:
    return (node.id,) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else ()
