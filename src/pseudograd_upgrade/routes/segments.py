"""A graph that Dynamo has captured: compiled as a whole, without some lines, or each line alone with what passes between them heard."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.split_module import split_module

from pseudograd.listen import frames
from pseudograd.listen.quietly import quietly

_FRAME = re.compile(r'^\s*File "(.+)", line (\d+), in .*$\n?(?:^\s+(?!File ")(.*)$)?', re.MULTILINE)
_MOVE = 1e-2  # relative, off the point at which a tensor stands
_OPS = 3  # that a segment is named by

Compiler = Callable[..., object]


class Line(NamedTuple):
    """where: the line that calls torch, and the module of torch that it calls; user_where: the program's own; expression: its source."""

    where: str
    user_where: str
    expression: str


class Segments:
    """A backend of torch.compile.

    compiler: of the route; None: nothing is compiled. is_cut: each line alone, and heard. out: lines that are not compiled. moved: lines
    whose inputs are moved a little, off a point at which a function has no slope. graphs: how many came. caller: of what is compiled next;
    where Dynamo names no line, it is all that is known.
    """

    def __init__(
        self, heard: Any, compiler: Compiler | None, *, is_cut: bool, out: Sequence[str], moved: Sequence[str]
    ) -> None:
        self.heard, self.compiler = heard, compiler
        self.graphs, self.caller = 0, frames.NOWHERE
        self.is_cut, self.out, self.moved = is_cut, frozenset(out), frozenset(moved)

    def __call__(self, graph: fx.GraphModule, inputs: Sequence[object], **_: object) -> object:
        self.graphs += 1
        lines = _find_lines(graph, self.caller)
        if not self.is_cut and self.out.isdisjoint(line.where for line in lines.values()):
            return graph.forward if self.compiler is None else self.compiler(graph, inputs)
        kinds: list[Line | bool] = []  # equal in neighbours that stay together
        ops: list[list[str]] = []
        numbers: dict[fx.Node, int] = {}
        for node, line in lines.items():
            kind = line if self.is_cut else line.where in self.out
            if not kinds or kinds[-1] != kind:
                kinds.append(kind)
                ops.append([])
            numbers[node] = len(kinds) - 1
            ops[-1].append(
                node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
            )
        parts = split_module(graph, graph, numbers.__getitem__, keep_original_order=True)  # type: ignore[arg-type]
        for name, part in list(parts.named_children()):
            match = re.fullmatch(r"submod_(\d+)", name)
            if match is not None:
                number = int(match[1])
                parts.add_submodule(name, Segment(self, part, kinds[number], _join_ops(ops[number])))
        return parts.forward


def _join_ops(ops: Sequence[str]) -> str:
    names = list(dict.fromkeys(op for op in ops if op != "getitem"))
    return ", ".join(names[:_OPS]) + (", ..." if len(names) > _OPS else "")


class Segment(nn.Module):
    """Neighbours in a graph that are compiled as one, when they are first called with inputs of these kinds."""

    def __init__(self, segments: Segments, part: Any, kind: Any, op: str) -> None:
        super().__init__()
        self.segments, self.kind, self.op, self.part = segments, kind, op, part
        output = next(iter(reversed(part.graph.nodes)))
        (value,) = output.args
        self.returns_nothing = value is None or value in ((), [])
        self.returns_one = not self.returns_nothing and not isinstance(value, (tuple, list))
        if self.returns_one:  # compilers ask for a tuple
            output.args = ((value,),)
            part.recompile()
        self._compiled: dict[object, Any] = {}

    def forward(self, *inputs: object) -> object:
        if not self.segments.is_cut:
            return self._run(inputs)
        line: Line = self.kind
        inputs = tuple(map(_rename, inputs))
        is_moved = line.where in self.segments.moved
        result = self._run([_move(value, at) for at, value in enumerate(inputs)] if is_moved else inputs)
        self.segments.heard.passed((self.op, *line), inputs, result)
        return result

    def _run(self, inputs: Sequence[object]) -> object:
        key = tuple(map(_kind_of, inputs)), torch.is_grad_enabled()
        if key not in self._compiled:
            segments = self.segments
            is_out = self.kind.where in segments.out if segments.is_cut else self.kind
            is_eager = segments.compiler is None or is_out or self.returns_nothing
            self._compiled[key] = self.part.forward if is_eager else segments.compiler(self.part, list(inputs))  # type: ignore[misc]
        result = self._compiled[key](*inputs)
        return result[0] if self.returns_one else result


def _kind_of(value: object) -> object:
    if isinstance(value, Tensor):
        return value.dtype, value.device, tuple(value.shape), value.stride(), value.requires_grad
    return value if isinstance(value, (int, float, bool, str, type(None))) else type(value)


def _rename(value: object) -> object:
    """The same tensor under another name, so that the gradient from this segment alone is heard."""
    if isinstance(value, Tensor) and value.requires_grad and torch.is_grad_enabled():
        return value.view_as(value)
    return value


def _move(value: object, seed: int) -> object:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    with quietly():
        draw = torch.Generator().manual_seed(seed)
        noise = torch.randn(value.shape, generator=draw, dtype=torch.float64).to(value.device, value.dtype)
        noise = noise * (value.detach().abs() + 1) * _MOVE
    return value + noise


# --- the lines of a graph ---------------------------------------------------------------------------------------------


def _find_lines(graph: fx.GraphModule, caller: frames.Place) -> dict[fx.Node, Line]:
    """The line of each node that computes; a node of which nothing is known belongs to the line before it."""
    expression = "" if caller.call is None else caller.call.expression
    known = last = _line(frames.named(caller.call), frames.named(caller.program), expression, "")
    lines = {}
    for node in graph.graph.nodes:
        if node.op not in ("placeholder", "output", "get_attr"):
            last = lines[node] = _load_trace(node.stack_trace or "", _find_module(node), known) or last
    return lines


def _load_trace(trace: str, module: str, caller: Line) -> Line | None:
    """From the text of a traceback, whose last frame is the innermost."""
    calls = [(file, int(line), text) for file, line, text in _FRAME.findall(trace) if frames.is_users(file)]
    if not calls:
        return _line(*caller, module) if module else None
    file, number, text = calls[-1]
    own = next(
        (frames.format_location(*call[:2]) for call in reversed(calls) if not frames.is_of_a_package(call[0])), "?"
    )
    return _line(frames.format_location(file, number), own, (text or "").strip(), module)


def _line(where: str, user_where: str, expression: str, module: str) -> Line:
    named = f"{where}, {module}" if module else where
    return Line(named, "?" if user_where == where else user_where, expression)


def _find_module(node: fx.Node) -> str:
    """The module of torch that a node belongs to, named from the innermost module of somebody else on; empty where there is none."""
    stack = [(str(path), kind) for path, kind in node.meta.get("nn_module_stack", {}).values()]
    if not stack or not _is_torchs(stack[-1][1]):
        return ""
    root = stack[0][0].rpartition(".")[0] or stack[0][0]  # of the outermost module Dynamo may say nothing
    outer = next((path for path, kind in reversed(stack) if not _is_torchs(kind)), root)
    path = stack[-1][0].removeprefix(outer).strip(".")
    return f"module {path}" if path else ""


def _is_torchs(kind: object) -> bool:
    return str(kind if isinstance(kind, str) else kind.__module__).startswith("torch.")
