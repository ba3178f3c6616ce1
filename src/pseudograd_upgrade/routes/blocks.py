"""Records a program on a route. Each compiled part is one block, also where nothing compiles it.

A block is a call of a function or module that the program has compiled with torch.compile. If the program compiles nothing, a block is a
call of a module from outside of all modules. Calls inside a block are no events. Its outputs and the gradients that arrive there are.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from pseudograd.dynamo import when_dynamo_arrives
from pseudograd.listen import frames, nodes, patches
from pseudograd.listen.harmless import harmless, quietly, unheard
from pseudograd.torch_table.private import (
    allow_recompilations,
    compiler_named,
    is_opaque,
    let_inductor_draw_as_eager_mode_does,
    mode_stack,
    push_mode,
    take_off_the_stack,
)

from .. import recorder
from ..recorder import ATTACHED, Recorder, Session, Settings
from ..recording import BACKWARD, FORWARD, Origin, Schedule
from .segments import EAGER, Segments

_DEPTH = 5  # of containers that a module returns
_RECOMPILATIONS = 256  # of one code object: all modules share theirs


class BlockRecorder(Recorder):
    """Records blocks and segments as well. A node without a known line is not an event: the other route may not have it."""

    def _attach_all(self, new_nodes: Iterable[nodes.GraphNode], location: frames.Location) -> None:
        if location is not frames.NOWHERE:
            super()._attach_all(new_nodes, location)

    def on_backward(self, roots: Any, grads: object, inputs: object) -> Callable[[object], object]:
        if any(map(is_opaque, roots)):  # the backward of a compiler, whose tensors have no values
            return lambda result: None
        return super().on_backward(roots, grads, inputs)

    def begin_block(self) -> int:
        """The number of the first node that the block can make."""
        if self._ranges.may_hide_some():
            self._ranges.unseen_behind(())
        return self._ranges.seen_up_to

    @harmless("a compiled block")
    def end_block(self, name: str, first_node: int, result: object) -> None:
        with quietly():
            tensors = list(_find_tensors(result))
            for node in self._ranges.since(first_node, tensors):
                node.metadata[ATTACHED] = True
            if self.is_on:
                location = self._locations.here()
                forward, backward = (self._origin(kind, f"{name}, all of it", location) for kind in (FORWARD, BACKWARD))
                self._add(forward, tensors)
                self._record_gradients(tensors, backward)

    @harmless("a segment of a graph")
    def end_segment(self, line: tuple[str, ...], inputs: Sequence[object], result: object) -> None:
        """line: the op, and the other fields of an Origin."""
        if not self.is_on:
            return
        with quietly():
            forward, backward = (Origin(kind, *line) for kind in (FORWARD, BACKWARD))
            tensors = list(_find_tensors(result))
            self._add(forward, tensors)
            self._record_gradients((*tensors, *inputs), backward)

    def _record_gradients(self, values: Iterable[object], origin: Origin) -> None:
        """Record the gradients that will arrive at these tensors."""
        for value in values:
            if isinstance(value, Tensor) and value.requires_grad and value.grad_fn is not None:
                value.register_hook(functools.partial(self._record_gradient, origin))

    @harmless("the gradient of a block")
    def _record_gradient(self, origin: Origin, grad: Tensor) -> None:
        if self.is_on and not unheard.depth:
            with quietly():
                self._add(origin, (grad,))


def _find_tensors(value: object, depth: int = 0) -> Iterator[Tensor]:
    """The tensors in the result of a module, also in containers and in dataclasses such as those of transformers."""
    if isinstance(value, Tensor):
        yield value
    elif depth < _DEPTH:
        inner: Iterable[object] = value if isinstance(value, (tuple, list)) else ()
        if isinstance(value, Mapping):
            inner = value.values()
        elif hasattr(value, "__dataclass_fields__"):
            inner = vars(value).values()
        for item in inner:
            yield from _find_tensors(item, depth + 1)


class Blocks:
    """Patches torch.compile and the call of modules until the process ends, for the thread that makes the Blocks.

    mode: the listener, which hears no call inside a block. is_asked: has the program called torch.compile?
    """

    def __init__(self, recorder: BlockRecorder, mode: object, segments: Segments) -> None:
        self.recorder, self.mode, self.segments = recorder, mode, segments
        self.is_asked = self._is_inside = False
        self._thread = threading.get_ident()
        self._compile: Callable[..., Any] = torch.compile
        self._call = nn.Module.__call__
        self._compiled_call: Callable[..., object] | None = None  # `self._call`, compiled once for all modules

    def install(self) -> None:
        @functools.wraps(self._compile)
        def compile(*model: object, **options: object) -> Any:
            return self._compile_block(*model, **options)

        patches.COMPILE.apply(lambda hidden: compile)
        self._patch_modules()

    def _patch_modules(self) -> None:
        blocks = self

        def __call__(self: nn.Module, *args: object, **kwargs: object) -> object:  # noqa: N807  (it stands for torch's)
            return blocks._find_call(self)(*args, **kwargs)

        patches.MODULE_CALL.apply(lambda hidden: __call__)

    def _compile_block(self, model: object = None, **options: object) -> Any:
        """Replaces torch.compile. Compiles with the backend of the route."""
        if model is None:
            return lambda model: self._compile_block(model, **options)
        if options.get("disable"):
            return self._compile(model, **options)
        self.is_asked = True
        compiled = self._compile_by_route(model, **options)
        if isinstance(model, nn.Module):
            compiled.__dict__["forward"] = self.make_block(compiled.forward, type(model).__name__)
            return compiled
        name = str(getattr(model, "__qualname__", type(model).__name__)).rpartition(">.")[2]
        return self.make_block(compiled, name)

    def _compile_by_route(self, model: object, **options: object) -> Any:
        options = {name: value for name, value in options.items() if name not in ("backend", "mode", "options")}
        return self._compile(model, backend=self.segments, **options)

    def _find_call(self, module: nn.Module) -> Callable[..., object]:
        """The function that a call of this module calls."""
        is_left_alone = isinstance(module, torch.jit.ScriptModule) or hasattr(module, "_infer_parameters")
        if self.is_asked or is_left_alone or self._is_elsewhere():
            return functools.partial(self._call, module)
        if self._compiled_call is None:
            allow_recompilations(_RECOMPILATIONS)
            call = self._call

            def module_call(module: nn.Module, *args: object, **kwargs: object) -> object:
                return call(module, *args, **kwargs)  # Dynamo skips functions of torch's own files

            self._compiled_call = self._compile_by_route(module_call)
        return functools.partial(self.make_block(self._compiled_call, type(module).__name__), module)

    def _is_elsewhere(self) -> bool:
        """Is this inside a block, in a compiler, or in another thread?"""
        return self._is_inside or is_compiling() or threading.get_ident() != self._thread

    def make_block(self, function: Callable[..., object], name: str) -> Callable[..., object]:
        @functools.wraps(function)
        def block(*args: object, **kwargs: object) -> object:
            if self._is_elsewhere():
                return function(*args, **kwargs)
            first_node = self.recorder.begin_block()
            self.segments.caller = frames.location()
            with self._unpatched():
                result = function(*args, **kwargs)
            self.recorder.end_block(name, first_node, result)
            return result

        return block

    @contextmanager
    def _unpatched(self) -> Iterator[None]:
        """Take off the mode and the patch of modules, because Dynamo would trace them."""
        is_on_stack = any(mode is self.mode for mode in mode_stack())
        if is_on_stack:
            take_off_the_stack(self.mode)
        self._is_inside = True
        patches.MODULE_CALL.remove()
        try:
            yield
        finally:
            self._is_inside = False
            self._patch_modules()
            if is_on_stack:
                push_mode(self.mode)


class _Session(Session):
    recorder: BlockRecorder
    hears_in_backward = False  # torch calls other functions there on each route
    reaches_threads = False

    def make_recorder(self, schedule: Schedule, settings: Settings) -> BlockRecorder:
        return BlockRecorder(schedule)

    def prepare(self, settings: Settings) -> None:
        is_compiled, is_cut = settings["route"] != EAGER, settings.get("is_cut", False)
        compiler = functools.partial(_compile_graph, settings["route"]) if is_compiled else None
        lines = (settings.get("out", ()), settings.get("moved", ()))
        if not is_compiled and not is_cut:
            when_dynamo_arrives(lambda dynamo: torch.compiler.set_stance("force_eager"))
        self.blocks = Blocks(self.recorder, self.mode, Segments(self.recorder.end_segment, compiler, is_cut, *lines))
        self.blocks.install()

    def content(self) -> dict[str, object]:
        graphs = self.blocks.segments.graphs
        return {**self.recorder.content(), "is_asked": self.blocks.is_asked, "graphs": graphs}


def _compile_graph(route: str, graph: object, inputs: Sequence[object]) -> object:
    """Compile by the backend of the route. It is looked up only here, because the import of Inductor takes seconds."""
    if route == "inductor":
        let_inductor_draw_as_eager_mode_does()
    return compiler_named(route)(graph, list(inputs))


begin = functools.partial(recorder.begin, session=_Session)
