"""Steps of torch's own optimisers: of what these compute a diagnosis needs nothing, so its mode is off torch's stack meanwhile.

Half of the calls of a training step are made there. What they do with the program's values is known without hearing them: each parameter
is changed by its gradient.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...listen.frames import is_torchs
from ...torch_table.private import PARTS_OF_A_STEP, mode_count, mode_stack, pop_mode, push_mode, step_hooks

_PLAIN = (Tensor, torch.nn.Parameter)
_OURS_ALONE = [1, 1, 0, 0]


def can_rest(optimizer: Optimizer, args: Any, kwargs: object) -> bool:
    """Does nothing run in this step but torch's own code, if its tensors are plain? No closure, no hook of somebody else."""
    if kwargs or (len(args) > 1 and any(one is not None for one in args[1:])):
        return False
    kind: Any = type(optimizer)
    if not _is_torchs_own(kind, kind.step) or optimizer.defaults.get("differentiable"):
        return False
    return list(map(len, step_hooks(optimizer))) == _OURS_ALONE and PARTS_OF_A_STEP.isdisjoint(vars(optimizer))


def are_plain(optimizer: Optimizer) -> bool:
    """No tensor with code of its own."""
    return all(type(one) in _PLAIN for group in optimizer.param_groups for one in group["params"])


@functools.lru_cache(maxsize=64)
def _is_torchs_own(kind: object, step: Callable[..., object]) -> bool:
    """step: it may be replaced in its class."""
    function: object = step
    while function is not None:
        code = getattr(function, "__code__", None)
        if not isinstance(code, CodeType) or not is_torchs(code.co_filename):
            return False
        function = getattr(function, "__wrapped__", None)
    return kind.__module__.startswith("torch.optim.")


class Rest:
    """Of one mode: it is off the stack between `begin` and `end`. Where a step raises, nobody calls `end`: whoever hears of the program
    next does, and nothing is put back above a mode that was entered since.
    """

    def __init__(self, mode: object) -> None:
        self._mode = mode
        self._below: list[Any] | None = None  # what was under it on the stack, while it is off
        self._thread = 0

    @property
    def is_on(self) -> bool:
        return self._below is not None

    def begin(self) -> None:
        """What is noted comes before what is done, here and below: whatever raises between, the next `end` puts it right."""
        if self._below is not None:
            return
        stack = mode_stack()
        if stack and stack[-1] is self._mode:
            self._below, self._thread = stack[:-1], threading.get_ident()
            pop_mode()

    def end(self, is_last: bool = False) -> None:
        """In another thread, whose stack is another one, it does nothing. is_last: the context ends, and torch takes off what lies on top,
        which must not be somebody else's.
        """
        below = self._below
        if below is None or self._thread != threading.get_ident():
            return
        stack = mode_stack() if below or mode_count() else below
        if any(one is self._mode for one in stack):
            self._below = None
        elif is_last or (len(stack) == len(below) and all(a is b for a, b in zip(stack, below, strict=True))):
            push_mode(self._mode)
            self._below = None
