"""What of a program is compiled. Each part is one block, whether a compiler takes it or not.

A block is a call of what the program hands to torch.compile; or, as long as it has handed over nothing, a call of a module from outside of
any other module.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling

from pseudograd.listen import frames, patches
from pseudograd.torch_table.private import allow_recompilations, mode_stack, push_mode, take_off_the_stack

from .hearing import BlockHeard
from .segments import Segments

_RECOMPILATIONS = 256  # of one code object: all modules share theirs


class Regions:
    """Patches torch.compile and the call of modules to the end of the process, for the thread that makes it.

    mode: hears calls, but none inside a block. is_asked: has the program called torch.compile?
    """

    def __init__(self, heard: BlockHeard, mode: object, segments: Segments) -> None:
        self.heard, self.mode, self.segments = heard, mode, segments
        self.is_asked = False
        self._is_inside = False
        self._thread = threading.get_ident()
        self._compile: Any = torch.compile
        self._call = nn.Module.__call__
        self._any_module: object = None  # the call of modules, compiled once: it holds none of them

    def install(self) -> None:
        @functools.wraps(self._compile)
        def compile(*model: object, **options: object) -> Any:
            return self._compile_block(*model, **options)

        patches.COMPILE.apply(lambda hidden: compile)
        self._patch_modules()

    def _patch_modules(self) -> None:
        regions = self

        def __call__(self: nn.Module, *args: object, **kwargs: object) -> object:  # noqa: N807  (it stands for torch's)
            return regions._call_of(self)(*args, **kwargs)

        patches.MODULE_CALL.apply(lambda hidden: __call__)

    def _compile_block(self, model: object = None, **options: object) -> Any:
        """In place of torch.compile: with the backend of the route."""
        if model is None:
            return lambda model: self._compile_block(model, **options)
        if options.get("disable"):
            return self._compile(model, **options)
        self.is_asked = True
        compiled = self._compile_by_route(model, **options)
        if isinstance(model, nn.Module):
            compiled.__dict__["forward"] = self.block(compiled.forward, type(model).__name__)
            return compiled
        name = str(getattr(model, "__qualname__", type(model).__name__)).rpartition(">.")[2]
        return self.block(compiled, name)

    def _compile_by_route(self, model: object, **options: object) -> Any:
        options = {name: value for name, value in options.items() if name not in ("backend", "mode", "options")}
        return self._compile(model, backend=self.segments, **options)

    def _call_of(self, module: nn.Module) -> Callable[..., object]:
        """What a call of this module calls."""
        is_left_alone = isinstance(module, torch.jit.ScriptModule) or hasattr(module, "_infer_parameters")
        if self.is_asked or is_left_alone or self._is_elsewhere():
            return functools.partial(self._call, module)
        if self._any_module is None:
            allow_recompilations(_RECOMPILATIONS)
            call = self._call

            def module_call(module: nn.Module, *args: object, **kwargs: object) -> object:
                return call(module, *args, **kwargs)  # Dynamo skips functions of torch's own files

            self._any_module = self._compile_by_route(module_call)
        return functools.partial(self.block(self._any_module, type(module).__name__), module)

    def _is_elsewhere(self) -> bool:
        """Inside a block, in a compiler, or in another thread."""
        return self._is_inside or is_compiling() or threading.get_ident() != self._thread

    def block(self, function: Any, name: str) -> Any:
        @functools.wraps(function)
        def block(*args: object, **kwargs: object) -> object:
            if self._is_elsewhere():
                return function(*args, **kwargs)
            before = self.heard.number_of_next()
            self.segments.caller = frames.place(1)
            with self._unpatched():
                result = function(*args, **kwargs)
            self.heard.end_block(name, before, result)
            return result

        return block

    @contextmanager
    def _unpatched(self) -> Iterator[None]:
        """Dynamo would trace a mode, and a patch of modules: inside of a block torch is as it was."""
        is_heard = any(mode is self.mode for mode in mode_stack())
        if is_heard:
            take_off_the_stack(self.mode)
        self._is_inside = True
        patches.MODULE_CALL.remove()
        try:
            yield
        finally:
            self._is_inside = False
            self._patch_modules()
            if is_heard:
                push_mode(self.mode)
