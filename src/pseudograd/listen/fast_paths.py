"""Attention and transformers in evaluation keep torch's fast path under a mode of ours.

torch takes its slow path wherever a mode of functions is on the stack, and that path returns other values for padded positions. Without
derivatives there is nothing to rewrite or to count inside them, so our modes see each of these modules as one call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.overrides import handle_torch_function

from ..torch_table.private import mode_count, mode_stack
from . import patches


@functools.cache
def _dispatch(forward: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(forward)
    def call(module: nn.Module, *args: object, **kwargs: object) -> object:
        is_dispatched = not (is_compiling() or module.training) and mode_count() and _all_modes_are_ours()
        if not is_dispatched or _records(module, (*args, *kwargs.values())):
            return forward(module, *args, **kwargs)
        return handle_torch_function(
            call, (), module, *args, **kwargs
        )  # calls this again, with a mode less on the stack

    return call


def _all_modes_are_ours() -> bool:
    return all(type(mode).__module__.startswith("pseudograd") for mode in mode_stack())


def _records(module: nn.Module, values: tuple[object, ...]) -> bool:
    """Does the call record derivatives?"""
    return torch.is_grad_enabled() and any(
        isinstance(value, Tensor) and value.requires_grad for value in (*values, *module.parameters())
    )


patches.in_contexts.replacements.update(dict.fromkeys(patches.FAST_PATHS, _dispatch))
