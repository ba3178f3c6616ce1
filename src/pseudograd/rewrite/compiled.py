"""Prepare Dynamo for rewritings in compiled code, after its first import."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from .. import dynamo, engine
from ..listen import frames, hooks, nodes, patches
from ..torch_table import forms as torch_forms
from ..torch_table import private as torch_private
from . import edges, entered_contexts, known_calls, mode, pins, report, sites, stand_ins
from .entered_contexts import Entered

_CALLED_BY_TORCH = (
    *(known_calls, edges, entered_contexts, mode, pins, report, sites, stand_ins, engine, frames, hooks, nodes),
    *(module for name, module in sys.modules.items() if name.startswith("pseudograd.torch_table.")),
)


def _prepare_dynamo(imported: object) -> None:
    # Dynamo does not dispatch F.hardsigmoid and torch.relu_ to modes, as eager code does.
    torch_private.let_dynamo_dispatch(imported, {**torch_forms.SPELLINGS, **torch_forms.KINKED})
    # Dynamo hands a checkpoint or a scan to a mode as one call, during which the mode is off: what it runs would keep torch's rules.
    # In eager code no mode sees a checkpoint itself. nested_compile_region stays as it is: it accepts no mode inside.
    for patch in patches.CALLS_IN_COMPILED_CODE:
        for variable in torch_private.higher_order_variables(patch.name.split(".")[-2]):
            patch.apply(partial(_undispatched, variable.call_function))
    # Where compiled code leaves its graph, as for a backward, torch calls our modes and hooks. They are no code of the program: compiled by
    # themselves, they would use up the program's recompilations. Inside a graph Dynamo traces them as before.
    for module in _CALLED_BY_TORCH:
        for code in _codes_of(vars(module).values(), module.__name__):
            torch_private.let_dynamo_skip(code)


def _codes_of(parts: Iterable[object], module: str) -> Iterator[CodeType]:
    """The code of the functions of a module and of its classes, and of those inside them."""
    for part in parts:
        if isinstance(part, type) and part.__module__ == module:
            yield from _codes_of(vars(part).values(), module)
        function = getattr(part, "__func__", part)
        if isinstance(function, FunctionType) and function.__module__ == module:
            yield function.__code__
            yield from (code for code in function.__code__.co_consts if isinstance(code, CodeType))


_MODES_INSIDE = (Entered,) if torch_private.DeviceContext is None else (Entered, torch_private.DeviceContext)


def _undispatched(call_function: Any, hidden: object = None) -> Callable[..., object]:
    """`call_function` of a variable of Dynamo, but if only these modes are active, they see what the call runs and not the call itself."""

    def call(self: Any, tx: Any, args: object, kwargs: object) -> object:
        modes = [mode.value for mode in tx.symbolic_torch_function_state.mode_stack]
        # None: the default device, set in the compiled code itself.
        if modes and all(mode is None or isinstance(mode, _MODES_INSIDE) for mode in modes):
            return torch_private.call_undispatched(self, tx, args, kwargs)
        return call_function(self, tx, args, kwargs)

    return call


dynamo.when_dynamo_arrives(_prepare_dynamo)
