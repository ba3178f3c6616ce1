"""What of a program is compiled: each of it is one block, whether it is compiled or not.

That is what the program hands to torch.compile; and where it has handed it nothing so far, each call of a module from outside of any other.
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
    """From `install` to the end of the process, for the thread that calls it. mode: what hears calls; it does not hear those in a block.

    is_asked: has the program called torch.compile?
    """

    def __init__(self, heard: BlockHeard, mode: object, segments: Segments) -> None:
        self.heard, self.mode, self.segments = heard, mode, segments
        self.is_asked = False
        self._is_inside = False
        self._thread = threading.get_ident()
        self._compile: Any = torch.compile
        self._call = nn.Module.__call__
        self._any_module: object = None  # their common call, compiled: it holds none of them

    def install(self) -> None:
        @functools.wraps(self._compile)
        def compile(model: object = None, **options: object) -> Any:
            return self._compiled(model, **options)

        patches.COMPILE.apply(lambda hidden: compile)
        self._patch()

    def _patch(self) -> None:
        regions = self

        def __call__(self: nn.Module, *args: object, **kwargs: object) -> object:  # noqa: N807  (it stands for torch's)
            return regions._of_module(self)(*args, **kwargs)

        patches.MODULE_CALL.apply(lambda hidden: __call__)

    # --- what becomes a block -------------------------------------------------------------------------------------------

    def _compiled(self, model: object = None, **options: object) -> object:
        """In place of torch.compile: with the backend of the route."""
        if model is None:
            return lambda model: self._compiled(model, **options)
        if options.get("disable"):
            return self._compile(model, **options)
        self.is_asked = True
        found = self._by_route(model, **options)
        if isinstance(model, nn.Module):
            found.__dict__["forward"] = self._block(found.forward, type(model).__name__)
            return found
        return self._block(found, _name(model))

    def _by_route(self, model: object, **options: object) -> Any:
        for name in ("backend", "mode", "options"):
            options.pop(name, None)
        return self._compile(model, backend=self.segments, **options)

    def _of_module(self, module: nn.Module) -> Callable[..., object]:
        """What a call of it calls."""
        if self._is_inside or self.is_asked or is_compiling() or threading.get_ident() != self._thread:
            return functools.partial(self._call, module)
        if isinstance(module, torch.jit.ScriptModule) or hasattr(module, "_infer_parameters"):
            return functools.partial(self._call, module)
        if self._any_module is None:
            allow_recompilations(_RECOMPILATIONS)
            self._any_module = self._by_route(_outside_of_torch(self._call))
        return functools.partial(self._block(self._any_module, type(module).__name__), module)

    # --- one block ------------------------------------------------------------------------------------------------------

    def _block(self, function: Any, name: str) -> Any:
        @functools.wraps(function)
        def block(*args: object, **kwargs: object) -> object:
            if self._is_inside or is_compiling() or threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            before = self.heard.number_of_next()
            self.segments.called_at(frames.place(1))
            with self._inside():
                result = function(*args, **kwargs)
            self.heard.end_block(name, before, result)
            return result

        return block

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Dynamo would trace a mode, and a patch of modules: inside torch is as it was."""
        is_heard = any(mode is self.mode for mode in mode_stack())
        if is_heard:
            take_off_the_stack(self.mode)
        self._is_inside = True
        patches.MODULE_CALL.remove()
        try:
            yield
        finally:
            self._is_inside = False
            self._patch()
            if is_heard:
                push_mode(self.mode)


def _outside_of_torch(call: Any) -> object:
    """Dynamo skips functions of torch's own files that it is given, and compiles what they call one by one, if at all."""

    def module_call(module: nn.Module, *args: object, **kwargs: object) -> object:
        return call(module, *args, **kwargs)

    return module_call


def _name(function: object) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__)).rpartition(">.")[2]
