"""What Dynamo has to be told, so that a rewriting holds in compiled code: when it is first imported, for importing it costs 0.7 s."""

from __future__ import annotations

from typing import Any

from torch.utils._device import DeviceContext

from .. import engine, torch_forms
from .entered import Entered

# Dynamo hands these to a mode as one call, during which the mode is off: what they run would keep torch's rules.
# Variable of Dynamo: its torch function. Left alone: nested_compile_region, which accepts no mode inside.
_RUN_OTHERS = ("CheckpointHigherOrderVariable", "ScanHigherOrderVariable")


def _tell(dynamo: Any) -> None:
    _let_it_dispatch(dynamo)
    _let_modes_into_what_runs_others()


def _let_it_dispatch(dynamo: Any) -> None:
    """Dynamo dispatches only what torch.overrides lists; F.hardsigmoid and torch.relu_ are missing there, eager dispatches them."""
    dynamo.variables.torch.get_overridable_functions().update(torch_forms.SPELLINGS)


def _let_modes_into_what_runs_others() -> None:
    """A checkpoint is no function of torch in eager code, and no mode sees it there; so must it be in compiled code."""
    from torch._dynamo.variables import higher_order_ops

    for name in _RUN_OTHERS:
        variable = getattr(higher_order_ops, name, None)
        if variable is not None and hasattr(variable, "_call_function"):
            variable.call_function = _undispatched(variable.call_function)


def _undispatched(call_function: Any) -> Any:
    def call(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        modes = [mode.value for mode in tx.symbolic_torch_function_state.mode_stack]
        # None: the default device, set in the compiled code itself.
        if modes and all(mode is None or isinstance(mode, (Entered, DeviceContext)) for mode in modes):
            return self._call_function(tx, args, kwargs)
        return call_function(self, tx, args, kwargs)

    return call


engine.when_dynamo_arrives(_tell)
