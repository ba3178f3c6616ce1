"""Hooks that a program registers on a tensor: what arrives there before the program's hook, and what is left behind it."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ...listen.frames import Place, named
from ...listen.harmless import Errors, harmless
from ...listen.nodes import LEAF
from ...listen.quietly import unheard
from ...torch_table.private import hooks_of

NAME = "hook"
Count = Callable[[Tensor, Tensor], None]  # of what arrives and what leaves


class Hooks:
    """All of one diagnosis."""

    def __init__(self, noted: Errors, is_on: Callable[[], bool]) -> None:
        self.noted, self.is_on = noted, is_on
        self.handles: list[Any] = []  # of leaves; those of other tensors go with their graph

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()


class Pair:
    """Two hooks of ours around one of the program's, which torch calls in the order in which they were registered."""

    def __init__(self, hooks: Hooks, tensor: Tensor) -> None:
        self.noted = hooks.noted
        self._hooks = hooks
        self._before: Tensor | None = None
        self._count: Count | None = None
        self._handles = [tensor.register_hook(self._arrives)]

    def close(self, tensor: Tensor, count: Count) -> None:
        """The program's own is there now."""
        self._count = count
        self._handles.append(tensor.register_hook(self._leaves))
        if tensor.is_leaf:
            self._hooks.handles += self._handles

    def _hears(self) -> bool:
        return self._hooks.is_on() and not unheard.depth

    @harmless("the gradients at a hook")
    def _arrives(self, grad: Tensor) -> None:
        if self._hears():
            self._before = grad

    @harmless("the gradients at a hook")
    def _leaves(self, grad: Tensor) -> None:
        before, self._before = self._before, None
        if before is not None and self._count is not None and self._hears():
            self._count(before, grad)


# --- hooks that a further backward pass would leave out ---------------------------------------------------------------

_HOOKED = "pseudograd: hooked"  # in the metadata of a node: who registered a hook at the tensor that the node made


def note_hook(tensor: Tensor, hook: object, place: Place) -> None:
    """A node does not say that its tensor has a hook."""
    if tensor.grad_fn is not None and _may_change(hook):
        module = getattr(hook, "__module__", None) or ""
        owner = f"of {module}" if module.startswith("torch.") else f"at {named(place.call)}"
        tensor.grad_fn.metadata[_HOOKED] = owner  # type: ignore[index]


def why_hooks_forbid(behind: Sequence[Any]) -> str | None:
    """A hook that changes a gradient would change that of another rule too, in a way that nobody can know."""
    for node in behind:
        owner = node.metadata.get(_HOOKED)
        if owner is None and node.name() == LEAF and any(map(_may_change, hooks_of(node.variable).values())):
            owner = "of a parameter"
        if owner is not None:
            return f"the hook {owner} may change gradients; ask without it, or let it return nothing at its end"
    return None


def _may_change(hook: object) -> bool:
    """False for a function that always returns None."""
    code = getattr(getattr(hook, "__func__", hook), "__code__", None)
    if code is None or code.co_flags & inspect.CO_GENERATOR:
        return True
    before = None
    for step in dis.get_instructions(code):
        is_none = step.opname == "RETURN_CONST" and step.argval is None
        is_none |= step.opname == "RETURN_VALUE" and before is not None and before == ("LOAD_CONST", None)
        if step.opname.startswith("RETURN") and step.opname != "RETURN_GENERATOR" and not is_none:
            return True
        before = step.opname, step.argval
    return False
