"""Where nothing learns: under no_grad, where a name says so, and in what is only called from there."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import NamedTuple

from .terms import FUNCTIONS, Module, key_of, last_name, words

# What runs before training, or writes text.
QUIET_FUNCTIONS = words(
    "__init__ __repr__ __str__ extra_repr reset_parameters _reset_parameters init_weights _init_weights reset initialize"
)
# By their names these run without a gradient: schedules, samplers, environments, metrics, bookkeeping, inference.
_QUIET_CLASSES = re.compile(
    r".*(Scheduler|Pipeline|Solver|Sampler|Env|Metrics?|Assigner|Optimizer|Processor|Dataset|Quantizer|Tracker|NonDifferentiable)"
)
_QUIET_NAMES = re.compile(
    r"_*(step|update|select|sample|initiali[sz]e|diagnostics|log|plot|evaluate|calibrate|predict|infer|inference|generate"
    r"|preprocess|visuali[sz]e|draw|validate|test)(_.*)?|.*_(state|stats|std|metrics?)|.*reward.*"
)
_QUIET_FOLDERS = words(
    "metrics optim optimizer optimizers trackers tracking datasets preprocessing evaluation eval inference visualization tests "
    "benchmarks"
)


def is_quiet_folder(path: str) -> bool:
    """Does a folder of the path, below the current one, say that nothing learns there?"""
    try:
        relative = os.path.relpath(path) if os.path.isabs(path) else path
    except ValueError:  # another drive
        relative = path
    return not _QUIET_FOLDERS.isdisjoint(PurePath(relative).parts[:-1])


def class_names(node: ast.ClassDef) -> list[str]:
    """Its own name and the last parts of those of its bases."""
    return [node.name, *((key_of(base) or "").rpartition(".")[2] for base in node.bases)]


def is_quiet_class(node: ast.ClassDef, module: Module) -> bool:
    """What an autograd.Function does inside is its own business; the others by their names."""
    return is_function_of_autograd(node, module) or any(map(_QUIET_CLASSES.fullmatch, class_names(node)))


def is_function_of_autograd(node: ast.AST, module: Module) -> bool:
    bases = node.bases if isinstance(node, ast.ClassDef) else []
    return any(module.full_name(base, {}).startswith("torch.autograd") for base in bases)


def is_quiet_function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    is_named = node.name in QUIET_FUNCTIONS or _QUIET_NAMES.fullmatch(node.name) is not None
    return is_named or any(map(is_no_grad, node.decorator_list))


def is_no_grad(node: ast.expr) -> bool:
    if last_name(node) == "set_grad_enabled" and isinstance(node, ast.Call) and node.args:
        return isinstance(node.args[0], ast.Constant) and node.args[0].value is False
    return last_name(node) in ("no_grad", "inference_mode")


def branch_that_learns(test: ast.expr) -> bool | None:
    """The value of `self.training` or `torch.is_grad_enabled()` where something learns; None for other questions."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = branch_that_learns(test.operand)
        return None if inner is None else not inner
    test = test.func if isinstance(test, ast.Call) and not test.args else test
    return True if isinstance(test, ast.Attribute) and test.attr in ("training", "is_grad_enabled") else None


# --- what is only called from there -----------------------------------------------------------------------------------


class _Read(NamedTuple):
    """A name that is read. caller: the function that reads it. is_loud: may something learn there, or is the name handed on, not called?
    is_inside: of an autograd.Function. is_plain: a name, and no attribute.
    """

    name: str
    caller: str
    is_loud: bool
    is_inside: bool
    is_plain: bool


def quiet_helpers(tree: ast.Module, module: Module) -> set[str]:
    """Private functions that this module calls only where nothing learns, and functions that only an autograd.Function calls."""
    reads = [read for read in _reads(tree, module) if read.name != read.caller]
    private = {read.name for read in reads if read.name.startswith("_") and not read.name.endswith("__")}
    quiet: set[str] = set()
    while (more := private - {read.name for read in reads if read.is_loud and read.caller not in quiet}) != quiet:
        quiet = more
    plain = [read for read in reads if read.is_plain]
    outside = {read.name for read in plain if not read.is_inside}
    return quiet | {read.name for read in plain if read.is_inside} - outside


def _reads(tree: ast.Module, module: Module) -> Iterator[_Read]:
    called: set[ast.AST] = set()
    stack: list[tuple[ast.AST, str, bool, bool]] = [(tree, "", True, False)]
    while stack:
        node, caller, is_loud, is_inside = stack.pop()
        if isinstance(node, FUNCTIONS):
            caller, is_loud = node.name, is_loud and not is_quiet_function(node)
        elif isinstance(node, ast.ClassDef):
            is_inside = is_inside or is_function_of_autograd(node, module)
            is_loud = is_loud and not is_quiet_class(node, module)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            is_loud = is_loud and not any(is_no_grad(item.context_expr) for item in node.items)
        elif isinstance(node, ast.Call):
            called.add(node.func)
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            is_plain = isinstance(node, ast.Name)
            yield _Read(last_name(node), caller, is_loud or node not in called, is_inside, is_plain)
        stack.extend((child, caller, is_loud, is_inside) for child in ast.iter_child_nodes(node))
