"""Could a gradient come back through a value? The code around it, its inputs and its uses say that.

`lint` is silent under no_grad, where a name says that nothing learns, and about a value that is compared or detached on the same line.
"""

from __future__ import annotations

import ast
import math
import os
import re
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import PurePath
from typing import NamedTuple

from .calls import read_call
from .names import FUNCTIONS, Module, ends_with_exit, find_keyword, is_constant, is_same, key_of, last_name, words
from .values import number, strip_views

# Names of code that runs before training, writes text, or runs without a gradient: schedules, samplers, metrics, bookkeeping, inference.
_QUIET_CLASSES = re.compile(
    r".*(Scheduler|Pipeline|Solver|Sampler|Env|Metrics?|Assigner|Optimizer|Processor|Dataset|Quantizer|Tracker|NonDifferentiable)"
)
_QUIET_NAMES = re.compile(
    r"_*(step|update(?=_)|select|sample|initiali[sz]e|diagnostics|log(?!_(prob|lik|haz|det|dens|sum|pdf))|plot|evaluate|calibrate|predict|infer|inference|generate"
    r"|preprocess|visuali[sz]e|draw|validate|test)(_.*)?|.*_(state|stats|std|metrics?)|.*reward.*"
    r"|__(init|repr|str)__|extra_repr|_?reset(_parameters)?|_?init_weights"
)
_QUIET_FOLDERS = words(
    "metrics optim optimizer optimizers trackers tracking datasets preprocessing evaluation eval inference visualization tests "
    "benchmarks"
)


def is_quiet_folder(path: str) -> bool:
    """Does a folder of the path, below the current one, say that nothing learns there?"""
    return not _QUIET_FOLDERS.isdisjoint(PurePath(path.removeprefix(os.getcwd())).parts[:-1])


def is_trained(module: Module, node: ast.AST) -> bool:
    """Could a gradient come back through the node, as far as the code around it says?"""
    return module.is_recorded and is_recorded(module, node) and not is_detached(module, node)


def is_recorded(module: Module, node: ast.AST, by_name: bool = True) -> bool:
    """Could autograd record the node? by_name: may the name of a function or class around it say that it is not recorded?"""
    child = node
    for parent in module.parents(node):
        is_off = False
        if isinstance(parent, ast.If) and child is not parent.test:
            is_off = _branch_that_learns(parent.test) is (child in parent.orelse)
        elif isinstance(parent, (ast.With, ast.AsyncWith)) and child in parent.body:
            is_off = any(_is_no_grad(item.context_expr) for item in parent.items)
        if is_off or isinstance(parent, ast.Assert) or (by_name and is_quiet_scope(module, parent)):
            return False
        if isinstance(child, ast.stmt) and _is_after_training(module, child):
            return False
        child = parent
    return True


def _is_after_training(module: Module, statement: ast.stmt) -> bool:
    """Does an earlier statement leave the function in training, as `if self.training: return loss` does?"""
    return any(_branch_that_learns(other.test) and ends_with_exit(other.body) for other in module.ifs_above(statement))


def is_quiet_scope(module: Module, node: ast.AST) -> bool:
    if isinstance(node, ast.ClassDef):
        return is_function_of_autograd(module, node) or any(map(_QUIET_CLASSES.fullmatch, class_names(node)))
    if not isinstance(node, FUNCTIONS):
        return False
    return _QUIET_NAMES.fullmatch(node.name) is not None or any(map(_is_no_grad, node.decorator_list))


def class_names(node: ast.ClassDef) -> list[str]:
    """The names of the class and of its bases, without their modules."""
    return [node.name, *(last_name(base) for base in node.bases)]


def is_function_of_autograd(module: Module, node: ast.AST) -> bool:
    bases = node.bases if isinstance(node, ast.ClassDef) else []
    return any(module.full_name(base).startswith("torch.autograd") for base in bases)


def _is_no_grad(node: ast.expr) -> bool:
    if last_name(node) == "set_grad_enabled" and isinstance(node, ast.Call) and node.args:
        return is_constant(node.args[0], False)
    return last_name(node) in ("no_grad", "inference_mode")


def _branch_that_learns(test: ast.expr) -> bool | None:
    """The value in training of the test `self.training` or `torch.is_grad_enabled()`, or of its negation. None for another test."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _branch_that_learns(test.operand)
        return None if inner is None else not inner
    test = test.func if isinstance(test, ast.Call) and not test.args else test
    return True if isinstance(test, ast.Attribute) and test.attr in ("training", "is_grad_enabled") else None


_INDICES = words("argmax argmin argsort bincount nonzero")
_LEAVES_THE_GRAPH = _INDICES | words(
    "detach item tolist numpy long int bool short byte char size dim numel isnan isinf isfinite all any eq ne lt gt le ge sign "
    "multinomial allclose isclose equal searchsorted bucketize argwhere indices"
)
_DETACHED_ATTRIBUTES = _LEAVES_THE_GRAPH | words("data shape")
_TAKES_A_VALUE = _LEAVES_THE_GRAPH | words("copy_ fill_ register_buffer Parameter info debug")
_MADE_OF_NOTHING = words(
    "register_buffer arange linspace logspace zeros ones full empty tensor as_tensor rand randn randint randperm zeros_like ones_like "
    "full_like rand_like randn_like empty_like eye from_numpy tril_indices triu_indices bernoulli hann_window hamming_window finfo iinfo "
    "load"
)
_PYTHON = words("float int bool len print str round format isinstance repr range")


def may_learn(module: Module, node: ast.expr, depth: int = 8) -> bool:
    """Could the value need a gradient? False for a number, for a new tensor such as `zeros(3)`, and for a value that left the graph."""
    node = strip_views(module, node)
    if depth == 0:
        return True
    if number(module, node) is not None:
        return False
    if isinstance(node, (ast.Constant, ast.Compare, ast.JoinedStr, ast.Dict)):
        return False
    if isinstance(node, ast.Attribute):
        return node.attr not in ("shape", "data", "grad", "ndim")
    if isinstance(node, ast.Call):
        return _call_may_learn(module, node, depth)
    parts: list[ast.expr] = []
    if isinstance(node, ast.BinOp):
        parts = [node.left, node.right]
    elif isinstance(node, ast.UnaryOp):
        parts = [node.operand]
    elif isinstance(node, (ast.List, ast.Tuple)):
        return any(may_learn(module, part, depth - 1) for part in node.elts)
    elif isinstance(node, ast.IfExp):  # `x.detach() if x.requires_grad else x` never learns
        test = node.test
        is_flag = isinstance(test, ast.Attribute) and test.attr == "requires_grad" and is_same(test.value, node.orelse)
        parts = [node.body] if is_flag else [node.body, node.orelse]
    return not parts or any(may_learn(module, part, depth - 1) for part in parts)


def _call_may_learn(module: Module, node: ast.Call, depth: int) -> bool:
    if isinstance(node.func, ast.Name) and node.func.id in _PYTHON:
        return False
    call = read_call(module, node)
    if call is None:
        name = module.called_name(node)
        return not name.startswith(("math.", "numpy.", "scipy.")) and name.rpartition(".")[2] not in _MADE_OF_NOTHING
    if call.name in _MADE_OF_NOTHING:
        flag = find_keyword(node, "requires_grad")
        return flag is not None and not is_constant(flag, False)
    if call.name in (_LEAVES_THE_GRAPH if call.is_method else _INDICES):
        return False
    return any(may_learn(module, part, depth - 1) for part in (*call.arguments, *call.keywords.values()))


_MOST_USES = 100  # of a value that are followed
_LOSS = re.compile(
    r"(?!.*(weights?|scale|mask)$)((.*[._])?[^._]*(loss(es)?|criterion|penalty|penalties|nll|elbo|regulari[sz]er|regularization)([._].*)?"
    r"|.*(cross_entropy|kl_div).*)"
)
_BESIDE_LOSS = words("fn func type name")
_LOSS_CLASS = re.compile(r".*(Loss(es)?|Criterion|Penalty|Regulari[sz]\w*)([A-Z0-9_].*)?")


def is_detached(module: Module, node: ast.AST) -> bool:
    """Does the code around the node take its value out of the graph, as `.detach()`, a comparison, an index or `print` do?"""
    for parent in module.parents(node):
        if _detaches(parent, node):
            return True
        if isinstance(parent, ast.stmt):
            break
        node = parent
    return False


def _detaches(parent: ast.AST, node: ast.AST) -> bool:
    if isinstance(parent, ast.Attribute):
        return parent.attr in _DETACHED_ATTRIBUTES
    if isinstance(parent, ast.Subscript):
        return node is parent.slice
    if isinstance(parent, ast.Call) and node is not parent.func:
        return last_name(parent) in (_PYTHON if isinstance(parent.func, ast.Name) else _TAKES_A_VALUE)
    if isinstance(parent, ast.Assign):
        return any(last_name(target) in ("data", "grad") for target in parent.targets)
    is_test = isinstance(parent, (ast.IfExp, ast.While, ast.If)) and node is parent.test
    return is_test or isinstance(parent, (ast.Compare, ast.FormattedValue, ast.Assert))


class _Use(NamedTuple):
    """A node that a value reaches."""

    line: int
    targets: list[ast.expr]  # of the assignment around the node
    function: ast.FunctionDef | ast.AsyncFunctionDef | None  # the function around the node
    is_detached: bool
    is_returned: bool
    is_loss: bool


def reaches_loss(module: Module, node: ast.AST) -> bool:
    """Does the value, also through calls, reach a target that is named as a loss, or a function with such a name or its result?"""
    return any(use.is_loss and not use.is_detached for use in _uses(module, node))


def _uses(module: Module, node: ast.AST) -> Iterator[_Use]:
    """The nodes that a value reaches, each once: the node itself, reads of the names that it is assigned to, and calls that return it."""
    stack, visited = [node], {node}
    while stack:
        node = stack.pop()
        if node not in module.uses:  # many values of a module may reach the same node
            module.uses[node] = _make_use(module, node)
        use = module.uses[node]
        assert isinstance(use, _Use)
        yield use
        more: list[ast.AST] = []
        for name in {target.id for target in use.targets if isinstance(target, ast.Name)}:
            more += _reads_below(module, name, use)
        function = use.function.name if use.function is not None and use.is_returned else ""
        if function != "forward" and not function.endswith("__"):
            calls = (module.parent[load] for load in module.loads[function])
            more += [call for call in calls if isinstance(call, ast.Call) and last_name(call) == function]
        for other in more:
            if not use.is_detached and other not in visited and len(visited) < _MOST_USES:
                visited.add(other)
                stack.append(other)


def _reads_below(module: Module, name: str, use: _Use) -> list[ast.Name]:
    """The reads of a name from this line on, in the function of the use; without a function, in the whole module."""
    loads = module.loads[name]
    start = bisect_left(loads, use.line, key=lambda load: load.lineno)
    last = getattr(use.function, "end_lineno", None) or math.inf
    return [load for load in loads[start : start + _MOST_USES] if isinstance(load, ast.Name) and load.lineno <= last]


def _make_use(module: Module, node: ast.AST) -> _Use:
    parents = list(module.parents(node))
    statement = next((parent for parent in parents if isinstance(parent, ast.stmt)), None)
    function = next((parent for parent in parents if isinstance(parent, FUNCTIONS)), None)
    owner = module.owner(node)
    targets: list[ast.expr] = []
    if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
            targets += target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
    is_returned = isinstance(statement, ast.Return)
    names = [] if owner is None else class_names(owner)
    is_loss = (
        any(map(_is_loss_target, targets))
        or any(map(_is_call_of_loss, parents[: parents.index(statement)] if statement in parents else parents))
        or (is_returned and (_says_loss(getattr(function, "name", "")) or any(map(_LOSS_CLASS.fullmatch, names))))
    )
    return _Use(getattr(node, "lineno", 0), targets, function, is_detached(module, node), is_returned, is_loss)


def _is_loss_target(target: ast.expr) -> bool:
    while isinstance(target, ast.Subscript):
        target = target.value
    name = key_of(target) or ""
    return _says_loss(name) and re.split(r"[._]", name.lower())[-1] not in _BESIDE_LOSS


def _says_loss(name: str) -> bool:
    return _LOSS.fullmatch(name.lower()) is not None


def _is_call_of_loss(node: ast.AST) -> bool:
    """`criterion(value, y)`, `losses.append(value)`, `value.backward()`"""
    if not isinstance(node, ast.Call):
        return False
    name = key_of(node.func) or last_name(node)
    return _says_loss(name) or f".{name}".endswith((".backward", "autograd.grad"))
