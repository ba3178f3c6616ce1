"""What Dynamo has to be told, so that a rewriting holds in compiled code: when it is first imported, for importing it costs 0.7 s."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from .. import dynamo
from ..listen import patches
from ..torch_table import forms as torch_forms
from ..torch_table import private as torch_private
from .entered_contexts import Entered

# Dynamo hands these to a mode as one call, during which the mode is off: what they run would keep torch's rules.
# Left alone: nested_compile_region, which accepts no mode inside.


def _tell(imported: object) -> None:
    # F.hardsigmoid and torch.relu_ are not among those that Dynamo dispatches; eager code dispatches them.
    torch_private.let_dynamo_dispatch(imported, {**torch_forms.SPELLINGS, **torch_forms.KINKED})
    # A checkpoint is no function of torch in eager code, and no mode sees it there; so must it be in compiled code.
    for patch in patches.CALLS_IN_COMPILED_CODE:
        for variable in torch_private.higher_order_variables(patch.name.split(".")[-2]):
            patch.apply(partial(_undispatched, variable.call_function))


_LET_THROUGH = (Entered,) if torch_private.DeviceContext is None else (Entered, torch_private.DeviceContext)


def _undispatched(call_function: Any, hidden: object = None) -> Callable[..., object]:
    def call(self: Any, tx: Any, args: object, kwargs: object) -> object:
        modes = [mode.value for mode in tx.symbolic_torch_function_state.mode_stack]
        # None: the default device, set in the compiled code itself.
        if modes and all(mode is None or isinstance(mode, _LET_THROUGH) for mode in modes):
            return torch_private.call_undispatched(self, tx, args, kwargs)
        return call_function(self, tx, args, kwargs)

    return call


dynamo.when_dynamo_arrives(_tell)
