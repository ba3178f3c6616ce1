"""A graph that Dynamo has captured, compiled as a whole, without some lines, or each line alone with what passes between them heard."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.split_module import split_module

from pseudograd.listen import frames
from pseudograd.listen.quietly import quietly

_FRAME = re.compile(r'^\s*File "(.+)", line (\d+), in .*$\n?(?:^\s+(?!File ")(.*)$)?', re.MULTILINE)
_MOVED = 1e-2  # relative, off the point at which a tensor stands
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
    whose inputs are moved a little, so that a value that stands at a point of no slope stands there no more. graphs: how many came.
    """

    def __init__(
        self, heard: Any, compiler: Compiler | None, *, is_cut: bool, out: Sequence[str], moved: Sequence[str]
    ) -> None:
        self.heard, self.compiler = heard, compiler
        self.graphs, self._place = 0, frames.NOWHERE
        self.is_cut, self.out, self.moved = is_cut, frozenset(out), frozenset(moved)

    def called_at(self, place: frames.Place) -> None:
        """The line that calls what is compiled next: of code of torch alone it is all that is known."""
        self._place = place

    def __call__(self, graph: fx.GraphModule, inputs: Sequence[object], **_: object) -> object:
        self.graphs += 1
        lines = _lines(graph, _line_of(self._place))
        if not self.is_cut and self.out.isdisjoint(line.where for line in lines.values()):
            return graph.forward if self.compiler is None else self.compiler(graph, inputs)
        return self._split(graph, lines)

    def _split(self, graph: fx.GraphModule, lines: Mapping[fx.Node, Line]) -> object:
        numbers, kinds = _numbered(graph, {node: self._kind(line) for node, line in lines.items()})
        parts = split_module(graph, graph, numbers.__getitem__, keep_original_order=True)  # type: ignore[arg-type]
        ops: dict[int, list[str]] = {}
        for node, number in numbers.items():
            ops.setdefault(number, []).append(_op(node))
        for name, part in list(parts.named_children()):
            found = re.fullmatch(r"submod_(\d+)", name)
            if found is not None:
                number = int(found[1])
                parts.add_submodule(name, Segment(self, part, kinds[number], _named(ops[number])))
        return parts.forward

    def _kind(self, line: Line) -> Line | bool:
        """What must be equal in nodes that stay together."""
        return line if self.is_cut else line.where in self.out


class Segment(nn.Module):
    """Neighbours in a graph that are compiled as one, when they are first called with inputs of these kinds."""

    def __init__(self, segments: Segments, part: Any, kind: Any, op: str) -> None:
        super().__init__()
        self.segments, self.kind, self.op = segments, kind, op
        self.part, self.has = part, _output_as_tuple(part)
        self._made: dict[object, object] = {}

    def forward(self, *inputs: object) -> object:
        if not self.segments.is_cut:
            return self._run(inputs)
        line: Line = self.kind
        taken = tuple(_apart(one) for one in inputs)
        given = tuple(_moved(one, at) for at, one in enumerate(taken)) if line.where in self.segments.moved else taken
        result = self._run(given)
        self.segments.heard.passed((self.op, *line), taken, result)
        return result

    def _run(self, inputs: Sequence[object]) -> object:
        result = self._compiled(inputs)(*inputs)
        return result[0] if self.has == "one" else result

    def _compiled(self, inputs: Sequence[object]) -> Any:
        key = tuple(map(_kind_of, inputs)), torch.is_grad_enabled()
        if key not in self._made:
            compiler = self.segments.compiler
            is_out = self.kind.where in self.segments.out if self.segments.is_cut else self.kind
            is_eager = is_out or self.has == "nothing"
            made = self.part.forward if compiler is None or is_eager else compiler(self.part, list(inputs))
            self._made[key] = made
        return self._made[key]


def _output_as_tuple(part: Any) -> str:
    """Compilers ask for one. Returns what it was before: nothing, one value, or many."""
    node = next(iter(reversed(part.graph.nodes)))
    (value,) = node.args
    if value is None or isinstance(value, (tuple, list)):
        return "many" if value else "nothing"
    node.args = ((value,),)
    part.recompile()
    return "one"


def _kind_of(one: object) -> object:
    if isinstance(one, Tensor):
        return one.dtype, one.device, tuple(one.shape), one.stride(), one.requires_grad
    return one if isinstance(one, (int, float, bool, str, type(None))) else type(one)


def _apart(one: object) -> object:
    """The same under another name, so that the gradient from this segment alone is seen."""
    if isinstance(one, Tensor) and one.requires_grad and torch.is_grad_enabled():
        return one.view_as(one)
    return one


def _moved(one: object, at: int) -> object:
    if not isinstance(one, Tensor) or not one.is_floating_point():
        return one
    with quietly():
        draw = torch.Generator().manual_seed(at)
        noise = torch.randn(one.shape, generator=draw, dtype=torch.float64).to(one.device, one.dtype)
        noise = noise * (one.detach().abs() + 1) * _MOVED
    return one + noise


# --- the lines of a graph ---------------------------------------------------------------------------------------------


def _line_of(place: frames.Place) -> Line:
    expression = "" if place.call is None else place.call.expression
    return _placed(frames.named(place.call), frames.named(place.program), expression, "")


def _lines(graph: fx.GraphModule, caller: Line) -> dict[fx.Node, Line]:
    """Of each node that computes; one of which nothing is known belongs to the line before it. caller: of the whole."""
    found, last = {}, caller
    for node in graph.graph.nodes:
        if node.op not in ("placeholder", "output", "get_attr"):
            last = found[node] = _line(node.stack_trace or "", _module(node), caller) or last
    return found


def _line(trace: str, module: str, caller: Line) -> Line | None:
    """From the text of a traceback, whose last frame is the innermost."""
    calls = [(file, int(line), text) for file, line, text in _FRAME.findall(trace) if frames.is_users(file)]
    if not calls:
        return _placed(*caller, module) if module else None
    file, number, text = calls[-1]
    own = next(((file, line) for file, line, _ in reversed(calls) if not frames.is_of_a_package(file)), None)
    return _placed(
        frames.format_location(file, number),
        "?" if own is None else frames.format_location(*own),
        (text or "").strip(),
        module,
    )


def _placed(where: str, user_where: str, expression: str, module: str) -> Line:
    named = f"{where}, {module}" if module else where
    return Line(named, "?" if user_where == where else user_where, expression)


def _module(node: fx.Node) -> str:
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


def _numbered(graph: fx.GraphModule, kinds: Mapping[fx.Node, object]) -> tuple[dict[fx.Node, int], list[object]]:
    """Neighbours of one kind get one number."""
    numbers: dict[fx.Node, int] = {}
    found: list[object] = []
    for node in graph.graph.nodes:
        if node in kinds:
            if not found or found[-1] != kinds[node]:
                found.append(kinds[node])
            numbers[node] = len(found) - 1
    return numbers, found


def _op(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else str(getattr(node.target, "__name__", node.target))


def _named(ops: Sequence[str]) -> str:
    some = list(dict.fromkeys(op for op in ops if op != "getitem"))
    return ", ".join(some[:_OPS]) + (", ..." if len(some) > _OPS else "")
