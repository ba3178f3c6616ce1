"""Where a call stands: the line, the module path and the bounds, for `report()` and for rules chosen by site."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch

from .. import torch_forms
from . import entered

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_PACKAGES = f"{os.sep}site-packages{os.sep}"
COMPILED = "in compiled code"


@dataclass(frozen=True)
class Site:
    """A call that a rule may be chosen for. Inside torch.compile `where` and `module` are not known."""

    op: str
    family: str
    where: str
    module: str | None
    min: Any
    max: Any


class RuleBySite:
    """A user's function from a Site to a rule, or to None for torch's own."""

    def __init__(self, function: Callable[[Site], Any]) -> None:
        self.function = function

    def rule(self, spelling: Any, primitive: str, inputs: tuple[Any, ...]) -> Any:
        low, high = _bounds(primitive, inputs)
        family = spelling.form.switches[0]
        if torch.compiler.is_compiling():
            return self.function(Site(spelling.name, family, COMPILED, None, low, high))
        frame = user_frame(2)
        where = shown(frame.f_code, frame.f_lineno) if frame else "?"
        return self.function(Site(spelling.name, family, where, _module_path(), low, high))


def _bounds(primitive: str, inputs: tuple[Any, ...]) -> tuple[Any, Any]:
    if len(inputs) != 2 or not primitive.startswith(("torch.minimum", "torch.maximum")):
        return (inputs[1], inputs[2]) if len(inputs) == 3 else (None, None)
    bound = _bound_of_two(*inputs)
    return (None, bound) if primitive.startswith("torch.minimum") else (bound, None)


def _bound_of_two(x: Any, other: Any) -> Any:
    """What a transform has wrapped is not the bound; compiled code does not tell."""
    if torch.compiler.is_compiling() and torch_forms.only_backward_tells():
        return None
    return x if torch_forms.is_constant(x) else other


def user_frame(depth: int) -> FrameType | None:
    """The innermost frame that is neither torch's nor this package's."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_TORCH) and not file.startswith(_OURS):
            return frame
        frame = frame.f_back
    return None


def shown(code: CodeType | str, line: int) -> str:
    """file:line, from site-packages or the current folder on."""
    file = code if isinstance(code, str) else code.co_filename
    if _PACKAGES in file:
        file = file.rsplit(_PACKAGES, 1)[1]
    else:
        inside = os.path.relpath(file) if os.path.isabs(file) and os.path.splitdrive(file)[0] == "" else file
        file = file if inside.startswith(os.pardir) else inside
    return f"{file}:{line}"


_paths: weakref.WeakKeyDictionary[torch.nn.Module, dict[int, str]] = weakref.WeakKeyDictionary()


def _module_path() -> str | None:
    """The dotted path of the innermost running module in the outermost one; None outside any module."""
    running = _running_modules(sys._getframe(2))
    if not running:
        return None
    innermost, root = running[0], running[-1]
    paths = _paths.get(root)
    if paths is None or id(innermost) not in paths:
        paths = _paths[root] = {id(module): path for path, module in root.named_modules()}
    return paths.get(id(innermost))


def _running_modules(frame: FrameType | None) -> list[torch.nn.Module]:
    call = torch.nn.Module._call_impl.__code__
    found: list[torch.nn.Module] = []
    while frame is not None:
        if frame.f_code is call and (not found or found[-1] is not frame.f_locals["self"]):
            found.append(frame.f_locals["self"])
        frame = frame.f_back
    return found


def note_compiled(op: str, switches: tuple[str, ...], label: str, why: str | None) -> None:
    """Runs while Dynamo traces, once for each call in the graph: the calls of the graph itself cannot be counted."""
    for mode in reversed(entered.modes()):
        if any(switch in mode.replacements for switch in switches) and mode.log is not None:
            stack = torch._guards.TracingContext.extract_stack()
            lines = [f for f in stack if not f.filename.startswith((_TORCH, _OURS))]
            where = shown(lines[-1].filename, lines[-1].lineno or 0) if lines else "?"
            mode.log.count_compiled(op, label, where, why)
            return


note_compiled._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as torch.compiler.assume_constant_result, without its import
