"""The gradients that arrive at parameters, read from `.grad` when a backward ends, where that tells the same as a hook of each.

It does where `.grad` was None before and no code in Python has run in between. Such code calls torch to change a gradient, and a listener
hears it: before that call is made, what has arrived by then is counted, and the rest gets hooks.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ...kernels import native
from ...torch_table.private import current_node, hooks_after_accumulation
from .leaf import Leaf
from .norms import Number, norms_at_once

_HAS_DISTRIBUTED = torch.distributed.is_available()


class Arrivals:
    """Of the outermost backward that runs. expected: by the leaf, the node that adds to its gradient, kept until the backward ends."""

    def __init__(self) -> None:
        self.expected: dict[Leaf, Any] = {}

    def expect(self, leaf: Leaf, node: Any) -> bool:
        """Returns whether it needs no hook. Its first gradient is counted by one, in the order in which gradients come."""
        tensor = node.variable
        if not leaf.gradients or leaf in self.expected or leaf.tensor() is not tensor:
            return False
        if type(tensor) is not torch.nn.Parameter or tensor.grad is not None or not tensor.is_cpu:
            return False
        if hooks_after_accumulation(tensor):
            return False
        self.expected[leaf] = node
        return True

    def count_before(self, leaf: Leaf) -> None:
        """Something is about to be added to it by a node that has a hook."""
        if self.expected.pop(leaf, None):
            _count([leaf])

    def hand_over(self, attach: Callable[[Any, Leaf], None]) -> None:
        """The program runs. It may do so in a hook of a node that adds, which then calls none that is attached now: that leaf stays
        expected.
        """
        nodes = self.end()
        running = current_node()
        for leaf, node in nodes.items():
            if getattr(leaf.tensor(), "grad", None) is None:
                attach(node, leaf)
                if node is running:
                    self.expected[leaf] = node

    def end(self) -> dict[Leaf, Any]:
        """Count what has come. Returns what was expected."""
        nodes, self.expected = self.expected, {}
        _count(nodes)
        return nodes


def nobody_else_runs() -> bool:
    """No other thread, and nothing of C++ that changes gradients, as DistributedDataParallel does."""
    return threading.active_count() == 1 and not (_HAS_DISTRIBUTED and torch.distributed.is_initialized())


def _count(leaves: Iterable[Leaf]) -> None:
    rest, grads = [], []
    for leaf in leaves:
        tensor = leaf.tensor()
        grad = None if tensor is None else tensor.grad
        if grad is not None and not leaf.arrived_again(grad):
            rest.append(leaf)
            grads.append(grad)
    if not rest:
        return
    is_measured = rest[0].sizes is not None and native.operators is None
    norms: Iterable[Number | None] = norms_at_once(grads) if is_measured else itertools.repeat(None)
    for leaf, grad, norm in zip(rest, grads, norms, strict=False):
        leaf.arrived(grad, norm)
