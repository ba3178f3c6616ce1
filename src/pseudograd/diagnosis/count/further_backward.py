"""A further backward pass that runs no code of the program: no hook of a tensor, a node or a leaf, no custom Function, no checkpoint.

Torch's own engine would run all of them once more, and what they keep, draw or change in place would be other than without us. So the nodes
are called one by one, in the order in which that engine calls them. A graph with a node that runs code of the program is refused.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...listen import nodes
from ...listen.nodes import LEAF
from ...look.purity import is_pure
from ...torch_table.private import function_of, input_metadata, number_of, saved_tensors_hooks, saved_variables

REENTRANT = "CheckpointFunctionBackward"
CHECKPOINT = (
    "a checkpoint would run its forward once more, which moves buffers and random numbers; ask without the checkpoint"
)
_UNPACK = "pseudograd: unpacked by"  # in the metadata of a node
_KNOWN = ("torch::autograd::CopySlices", "torch::autograd::CopyBackwards", "CopySlices", "vision::ops::")

Instead = Callable[[object, tuple[object, ...], tuple[object, ...]], tuple[object, ...]]


class RefusalError(Exception):
    """Why a further pass would not be free of side effects, or not exact: a sentence for the report."""


def refusal(behind: Iterable[object]) -> str | None:
    """Why the graph of these nodes cannot be run once more; None where it can."""
    for node in behind:
        why = _why_not(node)
        if why is not None:
            return why
    return None


def _why_not(node: Any) -> str | None:
    name = node.name()
    if name == LEAF:
        return None
    function = function_of(node)
    if function is not None and not function.__module__.startswith("pseudograd."):
        why = _why_not_function(name, function)
        if why is not None:
            return why
    if function is None and not name.endswith(_DIGITS) and not any(known in name for known in _KNOWN):
        return f"nobody knows what {name} of an extension does when it runs twice"
    for hook in _unpack_hooks(node):
        module = getattr(hook, "__module__", None) or ""
        named = getattr(hook, "__qualname__", type(hook).__name__)
        if module == "torch.utils.checkpoint":
            return CHECKPOINT
        if not (module == "torch.autograd.graph" and named.startswith("save_on_cpu")):
            return f"the saved-tensor hook {named} of the program would run once more"
    return None


_DIGITS = tuple("0123456789")


def _why_not_function(name: str, function: Any) -> str | None:
    if name == REENTRANT:
        return CHECKPOINT
    if name == "BackwardHookFunctionBackward":
        return "the backward hook of a module would run once more; ask without it"
    if function.vjp is torch.autograd.Function.vjp and is_pure(function.backward):
        return None
    where = f"{function.__module__}.{function.__qualname__}"
    return f"the backward of {where} would run once more, and may keep, draw or change something; ask without it"


def note_unpack_hook(result: object) -> None:
    """Of a call of torch just made, on a torch whose nodes do not tell with which hooks they save."""
    hooks = saved_tensors_hooks(False)
    if hooks is not None:
        for node in nodes.nodes_of(result):
            node.metadata[_UNPACK] = hooks[1]  # type: ignore[index]


def _unpack_hooks(node: Any) -> list[object]:
    hooks = [
        node.metadata.get(_UNPACK),
        *(getattr(variable, "unpack_hook", None) for variable in saved_variables(node)),
    ]
    return [hook for hook in hooks if hook is not None]


class Graph:
    """The graph behind some roots, to be run as often as wanted."""

    def __init__(self, roots: Sequence[Any], grads: Sequence[object], behind: Sequence[Any]) -> None:
        self._roots = [
            (root.grad_fn if isinstance(root, Tensor) else root.node, root.output_nr, grad)
            for root, grad in zip(roots, grads, strict=True)
        ]
        self._edges = {node: tuple(node.next_functions) for node in behind}
        self._awaits = dict.fromkeys(behind, 0)
        for edges in self._edges.values():
            for other, _ in edges:
                if other is not None:
                    self._awaits[other] += 1
        for node, _, _ in self._roots:
            if node is not None:
                self._awaits[node] += 1

    def run(self, instead: Instead) -> dict[object, Tensor]:
        """What arrives at each leaf, by its node. instead(node, leaving, arriving) gives what leaves a node. Under no_grad."""
        awaits, buffers, gradients = dict(self._awaits), dict[Any, list[Any]](), dict[Any, Tensor]()
        ready: list[tuple[int, int, Any]] = []
        count = itertools.count()

        def hand_on(edges: Iterable[tuple[Any, int]], grads: Iterable[Any]) -> None:
            for (node, at), grad in zip(edges, grads, strict=False):
                if node is None:
                    continue
                if grad is not None:
                    metadata = input_metadata(node)
                    arriving = buffers.setdefault(node, [None] * len(metadata))
                    arriving[at] = _add(arriving[at], _cast(grad, metadata[at]))
                awaits[node] -= 1
                if not awaits[node]:  # the node with the highest number first, as in the engine
                    heapq.heappush(ready, (-number_of(node), next(count), node))

        for node, at, grad in self._roots:
            hand_on([(node, at)], [grad])
        while ready:
            node = heapq.heappop(ready)[2]
            arriving = tuple(buffers.pop(node, ()))
            edges = self._edges[node]
            if not any(grad is not None for grad in arriving):
                hand_on(edges, [None] * len(edges))
            elif node.name() == LEAF:
                gradients[node] = arriving[0]
            else:
                hand_on(edges, instead(node, _call(node, arriving, edges), arriving))
        return gradients


def _call(node: Any, arriving: tuple[Any, ...], edges: Any) -> tuple[object, ...]:
    """What leaves the node, one for each of its edges. No hook runs where nobody but us calls it."""
    for grad in arriving:
        if grad is not None and type(grad) is not Tensor:
            raise RefusalError(f"tensors of the class {type(grad).__name__} run code of their own")
    if function_of(node) is None:
        leaving = node(*arriving)
        return leaving if isinstance(leaving, tuple) else (leaving,)
    # Whether a Function takes None or zeros for what did not arrive, nobody but itself can read.
    if any(grad is None for grad in arriving):
        raise RefusalError(f"{node.name()} has several results, of which only some got a gradient")
    leaving = node.apply(*(grad.clone() for grad in arriving))  # copies, which a backward may change
    leaving = leaving if isinstance(leaving, tuple) else (leaving,)
    wanted = iter([grad for grad, is_wanted in zip(leaving, node.needs_input_grad, strict=False) if is_wanted])
    return tuple(None if other is None else next(wanted, None) for other, _ in edges)


def _cast(grad: Tensor, expected: Any) -> Tensor:
    """Summed and cast, as the engine does between two nodes."""
    if not (grad.is_nested or expected.is_nested_tensor) and grad.shape != torch.Size(expected.shape):
        grad = grad.sum_to_size(tuple(expected.shape))
    if grad.dtype != expected.dtype:
        grad = grad.real if grad.is_complex() and not expected.dtype.is_complex else grad
        grad = grad.to(expected.dtype)
    return grad if grad.device == expected.device or grad.dim() else grad.to(expected.device)


def _add(total: Tensor | None, grad: Tensor) -> Tensor:
    if total is None:
        return grad
    return grad + total if total.is_sparse and not grad.is_sparse else total + grad
