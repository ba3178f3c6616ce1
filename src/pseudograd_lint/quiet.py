"""Where nothing learns: under no_grad, where a name says so, and in what is only called from there."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import NamedTuple

from .places import FUNCTIONS
from .terms import Module, key_of

_NO_GRAD = ("no_grad", "inference_mode")
# What runs before training, or writes text.
QUIET_FUNCTIONS = frozenset((
    "__init__", "__repr__", "__str__", "extra_repr", "reset_parameters", "_reset_parameters", "init_weights", "_init_weights", "reset",
    "initialize",
))  # fmt: skip
# By their names these run without a gradient: schedules, samplers, environments, metrics, bookkeeping, inference.
_QUIET_CLASSES = re.compile(
    r".*(Scheduler|Pipeline|Solver|Sampler|Env|Metrics?|Assigner|Optimizer|Processor|Dataset|Quantizer|Tracker|NonDifferentiable)"
)
_QUIET_NAMES = re.compile(
    r"_*(step|update|select|sample|initiali[sz]e|diagnostics|log|plot|evaluate|calibrate|predict|infer|inference|generate"
    r"|preprocess|visuali[sz]e|draw|validate|test)(_.*)?|.*_(state|stats|std|metrics?)|.*reward.*"
)
_QUIET_FOLDERS = frozenset((
    "metrics", "optim", "optimizer", "optimizers", "trackers", "tracking", "datasets", "preprocessing", "evaluation", "eval", "inference",
    "visualization", "tests", "benchmarks",
))  # fmt: skip


def is_quiet(path: str) -> bool:
    """Does a folder of it, below the one that one is in, say that nothing learns there?"""
    try:
        inside = os.path.relpath(path) if os.path.isabs(path) else path
    except ValueError:  # another drive
        inside = path
    return not _QUIET_FOLDERS.isdisjoint(PurePath(inside).parts[:-1])


def is_quiet_class(node: ast.ClassDef, module: Module) -> bool:
    """What an autograd.Function does inside is its own business; the others by their names."""
    names = (node.name, *((key_of(base) or "").rpartition(".")[2] for base in node.bases))
    return is_function_of_autograd(node, module) or any(map(_QUIET_CLASSES.fullmatch, names))


def is_function_of_autograd(node: ast.AST, module: Module) -> bool:
    return isinstance(node, ast.ClassDef) and any(
        (module.dotted(base, {}) or "").startswith("torch.autograd") for base in node.bases
    )


def is_quiet_function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    named = node.name in QUIET_FUNCTIONS or _QUIET_NAMES.fullmatch(node.name) is not None
    return named or any(map(is_no_grad, node.decorator_list))


def is_no_grad(node: ast.expr) -> bool:
    called = node.func if isinstance(node, ast.Call) else node
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    if name == "set_grad_enabled" and isinstance(node, ast.Call) and node.args:
        return isinstance(node.args[0], ast.Constant) and node.args[0].value is False
    return name in _NO_GRAD


def branch_that_learns(test: ast.expr) -> bool | None:
    """The value of `self.training` or `torch.is_grad_enabled()` where something learns; None for other questions."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = branch_that_learns(test.operand)
        return None if inner is None else not inner
    asked = test.func if isinstance(test, ast.Call) and not test.args else test
    is_asked = isinstance(asked, ast.Attribute) and asked.attr in ("training", "is_grad_enabled")
    return True if is_asked else None


# --- what is only called from there -----------------------------------------------------------------------------------


class _Read(NamedTuple):
    """A name that is read. caller: by which function. is_loud: may something learn there, or is it not called but handed on?"""

    name: str
    caller: str
    is_loud: bool
    in_function: bool  # of autograd
    is_plain: bool  # and no attribute


def only_called_there(tree: ast.Module, module: Module) -> set[str]:
    """Private functions that this module calls only where nothing learns, and functions that only an autograd.Function calls."""
    reads = [one for one in _reads(tree, module) if one.name != one.caller]
    private = {one.name for one in reads if one.name.startswith("_") and not one.name.endswith("__")}
    quiet: set[str] = set()
    while True:
        new = private - {one.name for one in reads if one.is_loud and one.caller not in quiet}
        if new == quiet:
            break
        quiet = new
    plain = [one for one in reads if one.is_plain]
    return quiet | {one.name for one in plain if one.in_function} - {one.name for one in plain if not one.in_function}


def _reads(tree: ast.Module, module: Module) -> Iterator[_Read]:
    called: set[int] = set()
    stack: list[tuple[ast.AST, str, bool, bool]] = [(tree, "", True, False)]
    while stack:
        node, caller, is_loud, in_function = stack.pop()
        if isinstance(node, FUNCTIONS):
            caller, is_loud = node.name, is_loud and not is_quiet_function(node)
        elif isinstance(node, ast.ClassDef):
            in_function = in_function or is_function_of_autograd(node, module)
            is_loud = is_loud and not is_quiet_class(node, module)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            is_loud = is_loud and not any(is_no_grad(item.context_expr) for item in node.items)
        elif isinstance(node, ast.Call):
            called.add(id(node.func))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield _Read(node.id, caller, is_loud or id(node) not in called, in_function, True)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield _Read(node.attr, caller, is_loud or id(node) not in called, in_function, False)
        stack.extend((child, caller, is_loud, in_function) for child in ast.iter_child_nodes(node))
