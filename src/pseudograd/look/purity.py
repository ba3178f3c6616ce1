"""Does an autograd.Function only compute? A backward that counts, draws, caches or sends does more. The answer comes from the source.

The source is read and not run. Whatever the reader does not understand counts as impure. The source is believed only if it compiles to the
code that the function has: somebody may have edited the file after the import.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import inspect
import linecache
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from types import BuiltinFunctionType, CodeType, FunctionType, MethodDescriptorType, ModuleType

import torch
from torch import Tensor
from torch.nn import functional

from ..torch_table.private import outside_of_transforms, without_dispatch_modes, without_torch_function


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BUILTINS = _words("abs all any bool enumerate float int isinstance len list max min range round sum tuple zip")
_MODULES = (torch, torch.nn, functional, math)
# Functions and methods that return a tensor of their own, which nobody else has.
_FRESH = _words("clone zeros_like ones_like empty_like full_like new_zeros new_ones new_empty new_full")
# Functions and methods of torch that draw, keep or change something: by a part of their name, and by the whole name. Those whose name ends
# in "_" do so, too.
_IMPURE_PARTS = _words("backward drop hook rand seed norm_stats set_ batch_norm instance_norm rrelu gumbel")
_IMPURE = _words(
    "bernoulli normal multinomial poisson save load from_file compile data grad numpy share_memory retain_grad storage "
    "untyped_storage data_ptr apply map tolist cond while_loop"
)
_NODES = _words(
    "Assign AnnAssign AugAssign Return If For Expr Pass Assert Raise Name Constant Attribute Call Subscript Slice Tuple "
    "List BinOp UnaryOp BoolOp Compare IfExp Starred JoinedStr FormattedValue ListComp GeneratorExp comprehension keyword"
)
_PARTS_OF_NODES = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
_CONSTANTS = (bool, int, float, complex, str, tuple, type(None), torch.dtype, torch.device)
_CTX_METHODS = ("save_for_backward", "set_materialize_grads")  # the others change what autograd makes of the values
_DEPTH = 3  # of calls: the method of the Function, a function that it calls, and a function that this one calls
# The roles of a function: the backward of the Function, its method that saves values in the ctx, or another function, without a ctx.
_PLAIN, _BACKWARD, _FORWARD = "plain", "backward", "forward"


def is_pure(backward: object) -> bool:
    """Does a backward(ctx, *grads) only compute? It may change its gradients in place: they are copies."""
    return _is_pure(_unwrap(backward), _BACKWARD, _DEPTH)


Compute = Callable[[Sequence[object], Tensor], tuple[Tensor, tuple[Tensor | None, ...]]]  # inputs, grad -> y, gradients


class _Context:
    """Stands for the ctx of a Function: has what a forward saves for its backward."""

    saved_tensors: tuple[object, ...] = ()

    def __init__(self, inputs: Sequence[object]) -> None:
        self.needs_input_grad = tuple(isinstance(value, Tensor) for value in inputs)

    def save_for_backward(self, *tensors: object) -> None:
        self.saved_tensors = tensors

    def set_materialize_grads(self, value: bool) -> None:
        pass


def compute_alone(cls: type[torch.autograd.Function]) -> Compute | None:
    """The forward and the backward of a Function as a single function of numbers. None where the class may do more than compute."""
    base = torch.autograd.Function
    has_setup = cls.setup_context is not base.setup_context
    methods = [(cls.forward, _PLAIN if has_setup else _FORWARD), (cls.backward, _BACKWARD)]
    methods += [(cls.setup_context, _FORWARD)] if has_setup else []
    if cls.vjp is not base.vjp or not all(_is_pure(_unwrap(method), role, _DEPTH) for method, role in methods):
        return None

    def compute(inputs: Sequence[object], grad: Tensor) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        ctx = _Context(inputs)
        y = cls.forward(*inputs) if has_setup else cls.forward(ctx, *inputs)
        if has_setup:
            cls.setup_context(ctx, tuple(inputs), y)
        gradients = cls.backward(ctx, grad)
        return y, gradients if isinstance(gradients, tuple) else (gradients,)

    return compute


@contextlib.contextmanager
def unseen_by_program() -> Iterator[None]:
    """Inside, calls make no graph, and no mode and no transform of the program sees them."""
    with torch.no_grad(), without_torch_function(), without_dispatch_modes(), outside_of_transforms():
        yield


def _unwrap(function: object) -> object:
    """The function behind once_differentiable, custom_fwd and custom_bwd; None where autocast casts the inputs."""
    while hasattr(function, "__wrapped__") and getattr(function, "__globals__", {}).get("__name__", "").startswith(
        "torch."
    ):
        if inspect.getclosurevars(function).nonlocals.get("cast_inputs") is not None:  # type: ignore[arg-type]
            return None
        function = function.__wrapped__
    return function


@lru_cache(maxsize=256)
def _is_pure(function: object, role: str, depth: int) -> bool:
    if not isinstance(function, FunctionType) or not depth:
        return False
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
        if not isinstance(tree, ast.FunctionDef) or not _has_code_of_file(function):
            return False
    except (OSError, TypeError, ValueError, SyntaxError):
        return False
    return _Reader(function, tree, role, depth).is_pure()


_identity_of = attrgetter("co_name", "co_firstlineno", "co_code", "co_names", "co_varnames", "co_freevars")


def _has_code_of_file(function: FunctionType) -> bool:
    source = "".join(linecache.getlines(function.__code__.co_filename, function.__globals__))
    return _identity_of(function.__code__) in map(_identity_of, _compile(source))


@lru_cache(maxsize=32)
def _compile(source: str) -> tuple[CodeType, ...]:
    """Every code object of a file."""
    codes = [compile(source, "<source>", "exec", dont_inherit=True)]
    for code in codes:
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return tuple(codes)


_UNKNOWN = object()


class _Reader:
    """Reads one function. A name is fresh if each of its values was made in the function: nobody else has the tensor.

    depth: the number of functions that may be read, each called by the one before it; this one counts, too.
    """

    def __init__(self, function: FunctionType, tree: ast.FunctionDef, role: str, depth: int) -> None:
        self._depth = depth
        arguments = [argument.arg for argument in tree.args.posonlyargs + tree.args.args]
        self._ctx = arguments[0] if role != _PLAIN and arguments else None
        self._may_save = role == _FORWARD
        nodes = [node for statement in tree.body for node in ast.walk(statement)]
        annotations = [node.annotation for node in nodes if isinstance(node, ast.AnnAssign)]  # which do not run
        ignored = {id(node) for annotation in annotations for node in ast.walk(annotation)}
        self._nodes = [node for node in nodes if id(node) not in ignored]
        self._callees = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        stored = _stored_names(nodes)
        others = [argument.arg for argument in (*tree.args.kwonlyargs, tree.args.vararg) if argument]
        self._locals = {*arguments, *others, *stored}
        self._fresh = stored | (set(arguments[1:]) if role == _BACKWARD else set())
        for node in nodes:
            if isinstance(node, ast.Assign):
                is_name = isinstance(node.targets[0], ast.Name) and len(node.targets) == 1
                targets = [] if is_name and _is_fresh(node.value) else node.targets
            elif isinstance(node, (ast.For, ast.comprehension, ast.AnnAssign)):
                targets = [node.target]
            else:
                continue
            self._fresh -= _stored_names(inner for target in targets for inner in ast.walk(target))
        self._outer = {**vars(builtins), **function.__globals__}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):
                self._outer.pop(name, None)
                self._outer[name] = cell.cell_contents

    def is_pure(self) -> bool:
        return all(map(self._is_harmless, self._nodes))

    def _is_harmless(self, node: ast.AST) -> bool:
        """Is the node itself harmless? Its parts are nodes, too, and are checked by themselves."""
        if type(node).__name__ not in _NODES and not isinstance(node, _PARTS_OF_NODES):
            return False
        if isinstance(node, ast.Call):
            return self._is_harmless_call(node)
        if isinstance(node, ast.AugAssign):  # the target of x[0] += 1 is a Subscript, which is checked as a node
            return isinstance(node.target, ast.Subscript) or getattr(node.target, "id", None) in self._fresh
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
            owner = getattr(node.value, "id", None)
            if isinstance(node, ast.Subscript):
                return owner in self._fresh
            return self._may_save and owner == self._ctx and not node.attr.startswith("__")  # ctx.low = low
        if isinstance(node, (ast.Name, ast.Attribute)) and id(node) not in self._callees:
            if isinstance(node, ast.Name) and node.id in self._locals:
                return True
            value = self._resolve(node)
            if isinstance(node, ast.Attribute) and value is _UNKNOWN:  # of a tensor or of ctx
                return True
            return value in (torch.Tensor, float, int, bool, *_MODULES) or isinstance(value, _CONSTANTS)
        return True

    def _is_harmless_call(self, node: ast.Call) -> bool:
        if any(keyword.arg in ("out", "inplace", None) for keyword in node.keywords):
            return False
        function = self._resolve(node.func)
        if function is not _UNKNOWN:
            return self._is_pure_function(function)
        if not isinstance(node.func, ast.Attribute):
            return False
        # It is a method of ctx or of a tensor.
        if self._ctx is not None and getattr(node.func.value, "id", None) == self._ctx:
            return self._may_save and node.func.attr in _CTX_METHODS
        method = getattr(torch.Tensor, node.func.attr, None)
        return isinstance(method, (MethodDescriptorType, FunctionType)) and _has_pure_name(node.func.attr)

    def _resolve(self, node: ast.AST) -> object:
        """The value of a name outside the function, or of an attribute of a module; _UNKNOWN for all others."""
        if isinstance(node, ast.Name) and node.id not in self._locals:
            return self._outer.get(node.id, _UNKNOWN)
        if isinstance(node, ast.Attribute):
            owner = self._resolve(node.value)
            if isinstance(owner, ModuleType) and owner in _MODULES:
                return getattr(owner, node.attr, _UNKNOWN)
        return _UNKNOWN

    def _is_pure_function(self, function: object) -> bool:
        name = getattr(function, "__name__", "")
        if function is getattr(builtins, name, None):
            return name in _BUILTINS
        module = getattr(function, "__module__", None) or ""
        if isinstance(function, BuiltinFunctionType) or module.startswith("torch.nn.functional"):
            # An op has no module. Functions that count, set or clear something in torch are in torch._C.
            is_op = getattr(torch, name, None) is function and getattr(function, "__self__", None) is None
            return _has_pure_name(name) and (is_op or function in _IN_MODULES)
        return _is_pure(function, _PLAIN, self._depth - 1)


_IN_MODULES = frozenset(value for module in (functional, math) for value in vars(module).values() if callable(value))


def _has_pure_name(name: str) -> bool:
    return not name.endswith("_") and name not in _IMPURE and not any(part in name for part in _IMPURE_PARTS)


def _is_fresh(value: ast.AST) -> bool:
    if isinstance(value, ast.Call):
        name = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
        return name in _FRESH
    return isinstance(value, (ast.BinOp, ast.UnaryOp, ast.Compare))


def _stored_names(nodes: Iterable[ast.AST]) -> set[str]:
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
