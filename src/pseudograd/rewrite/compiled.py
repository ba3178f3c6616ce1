"""Prepare Dynamo for rewritings in compiled code, after its first import."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from .. import dynamo
from ..listen import patches
from ..torch_table import forms as torch_forms
from ..torch_table import private as torch_private
from .entered_contexts import Entered


def _prepare_dynamo(imported: object) -> None:
    # Dynamo does not dispatch F.hardsigmoid and torch.relu_ to modes, as eager code does.
    torch_private.let_dynamo_dispatch(imported, {**torch_forms.SPELLINGS, **torch_forms.KINKED})
    # Dynamo hands a checkpoint or a scan to a mode as one call, during which the mode is off: what it runs would keep torch's rules.
    # In eager code no mode sees a checkpoint itself. nested_compile_region stays as it is: it accepts no mode inside.
    for patch in patches.CALLS_IN_COMPILED_CODE:
        for variable in torch_private.higher_order_variables(patch.name.split(".")[-2]):
            patch.apply(partial(_undispatched, variable.call_function))


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
