"""A graph that Dynamo has captured: compiled as a whole, without some lines, or line by line with the values between lines recorded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.split_module import split_module

from pseudograd.listen import frames
from pseudograd.listen.harmless import quietly

EAGER = "eager"
_FRAME = re.compile(r'^\s*File "(.+)", line (\d+), in .*$\n?(?:^\s+(?!File ")(.*)$)?', re.MULTILINE)
_MOVE = 1e-2  # the relative distance by which an input is moved
_MOST_OPS = 3  # in the name of a segment

Compiler = Callable[..., Any]


class Line(NamedTuple):
    """A line of a graph."""

    where: str  # the line that calls torch, and the module of torch that it calls
    user_where: str  # the line of the program
    expression: str  # the source text


class Segments:
    """A backend of torch.compile.

    end_segment: called after each recorded segment, with its op and line, its inputs and its result.
    compiler: the compiler of the route; None if nothing is compiled.
    is_cut: each line is a segment and is recorded.
    out: lines that are not compiled.
    moved: lines whose inputs are moved a little, because the function may have a kink there.
    graphs: the number of captured graphs.
    caller: the line that calls the block, for nodes without a line of their own.
    """

    def __init__(
        self,
        end_segment: Callable[[tuple[str, ...], Sequence[object], object], None],
        compiler: Compiler | None,
        is_cut: bool = False,
        out: Iterable[str] = (),
        moved: Iterable[str] = (),
    ) -> None:
        self.end_segment, self.compiler = end_segment, compiler
        self.graphs, self.caller = 0, frames.NOWHERE
        self.is_cut, self.out, self.moved = is_cut, frozenset(out), frozenset(moved)

    def __deepcopy__(self, memo: object) -> Segments:
        """No copy, because Lightning copies what a program hands to torch.compile."""
        return self

    def __call__(self, graph: fx.GraphModule, inputs: Sequence[object], **_: object) -> Any:
        self.graphs += 1
        lines = _find_lines(graph, self.caller)
        if not self.is_cut and self.out.isdisjoint(line.where for line in lines.values()):
            return graph.forward if self.compiler is None else self.compiler(graph, inputs)
        # If the graph is cut, the key of a segment is its line. Otherwise the key says whether its nodes are left out.
        groups = groupby(lines, lambda node: lines[node] if self.is_cut else lines[node].where in self.out)
        segments = [(key, list(nodes)) for key, nodes in groups]
        numbers = {node: number for number, (_, nodes) in enumerate(segments) for node in nodes}
        parts = split_module(graph, graph, numbers.__getitem__, keep_original_order=True)
        for name, part in list(parts.named_children()):
            match = re.fullmatch(r"submod_(\d+)", name)
            if match is not None:
                key, nodes = segments[int(match[1])]
                line = key if isinstance(key, Line) else None
                is_out = line.where in self.out if line else bool(key)
                parts.add_submodule(name, Segment(self, part, line, is_out, _name_ops(nodes)))
        return parts.forward


def _name_ops(nodes: Iterable[fx.Node]) -> str:
    targets = (node.target for node in nodes)
    ops = (target if isinstance(target, str) else getattr(target, "__name__", str(target)) for target in targets)
    names = list(dict.fromkeys(op for op in ops if op != "getitem"))
    return ", ".join(names[:_MOST_OPS]) + (", ..." if len(names) > _MOST_OPS else "")


class Segment(nn.Module):
    """Neighbouring nodes of a graph, compiled together: once for each kind of inputs.

    line: None if the segment is not recorded. is_out: the segment is not compiled.
    """

    def __init__(self, segments: Segments, part: Any, line: Line | None, is_out: bool, op: str) -> None:
        super().__init__()
        self.segments, self.part, self.line, self.op = segments, part, line, op
        output = next(iter(reversed(part.graph.nodes)))
        (value,) = output.args
        returns_nothing = value is None or value in ((), [])
        self.is_eager = segments.compiler is None or is_out or returns_nothing
        self.returns_tensor = not returns_nothing and not isinstance(value, (tuple, list))
        if self.returns_tensor:  # compilers need a tuple
            output.args = ((value,),)
            part.recompile()
        self._compiled: dict[object, Compiler] = {}

    def forward(self, *inputs: object) -> object:
        line = self.line
        if line is None:
            return self._run(inputs)
        inputs = tuple(map(_make_alias, inputs))
        is_moved = line.where in self.segments.moved
        result = self._run([_move(value, at) for at, value in enumerate(inputs)] if is_moved else inputs)
        self.segments.end_segment((self.op, *line), inputs, result)
        return result

    def _run(self, inputs: Sequence[object]) -> object:
        key = tuple(map(_describe_input, inputs)), torch.is_grad_enabled()
        if key not in self._compiled:
            compiler = self.segments.compiler
            if self.is_eager or compiler is None:
                self._compiled[key] = self.part.forward
            else:
                self._compiled[key] = compiler(self.part, list(inputs))
        result = self._compiled[key](*inputs)
        return result[0] if self.returns_tensor else result


def _describe_input(value: object) -> object:
    if isinstance(value, Tensor):
        return value.dtype, value.device, tuple(value.shape), value.stride(), value.requires_grad
    return value if isinstance(value, (int, float, bool, str, type(None))) else type(value)


def _make_alias(value: object) -> object:
    """A view of the whole tensor, whose gradient comes from this segment alone."""
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


def _find_lines(graph: fx.GraphModule, caller: frames.Location) -> dict[fx.Node, Line]:
    """The line of each node that computes. A node without information belongs to the line of the node before it."""
    expression = "" if caller.call is None else caller.call.expression
    outer = last = _make_line(frames.file_and_line(caller.call), frames.file_and_line(caller.program), expression, "")
    lines = {}
    for node in graph.graph.nodes:
        if node.op not in ("placeholder", "output", "get_attr"):
            last = lines[node] = _parse_trace(node.stack_trace or "", _find_module(node), outer) or last
    return lines


def _parse_trace(trace: str, module: str, caller: Line) -> Line | None:
    """The line in the text of a traceback, whose last frame is the innermost."""
    calls = [(file, int(line), text) for file, line, text in _FRAME.findall(trace) if frames.is_users(file)]
    if not calls:
        return _make_line(*caller, module) if module else None
    file, number, text = calls[-1]
    own = (call for call in reversed(calls) if not frames.is_of_a_package(call[0]))
    user_where = next((frames.format_location(*call[:2]) for call in own), frames.NO_LINE)
    return _make_line(frames.format_location(file, number), user_where, (text or "").strip(), module)


def _make_line(where: str, user_where: str, expression: str, module: str) -> Line:
    return Line(
        f"{where}, {module}" if module else where, frames.NO_LINE if user_where == where else user_where, expression
    )


def _find_module(node: fx.Node) -> str:
    """The name of the module of torch that a node belongs to, within the innermost module of the user; empty if there is none."""
    stack = [(str(path), kind) for path, kind in node.meta.get("nn_module_stack", {}).values()]
    if not stack or not _is_torchs(stack[-1][1]):
        return ""
    root = stack[0][0].rpartition(".")[0] or stack[0][0]  # Dynamo may leave out the outermost module
    outer = next((path for path, kind in reversed(stack) if not _is_torchs(kind)), root)
    path = stack[-1][0].removeprefix(outer).strip(".")
    return f"module {path}" if path else ""


def _is_torchs(kind: object) -> bool:
    return str(kind if isinstance(kind, str) else kind.__module__).startswith("torch.")
