"""A further backward pass that runs no hook and no checkpoint of the program, and no custom Function that may have side effects.

Torch's engine would run this code once more, and the code may keep, draw or change something. So the nodes are called one by one, in the
order of that engine. A graph with a node that itself runs such code is refused.
"""

from __future__ import annotations

import dis
import heapq
import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...listen import nodes
from ...listen.frames import Location, file_and_line
from ...listen.nodes import LEAF, GraphNode, NextFunctions
from ...look.purity import is_pure
from ...torch_table.private import (
    function_of,
    hooks_of,
    input_metadata,
    local,
    number_of,
    saved_tensors_hooks,
    saved_variables,
    tells_unpack_hooks,
)
from .grads import Gradients

REENTRANT = "CheckpointFunctionBackward"
CHECKPOINT = "a checkpoint would run its forward once more, which moves buffers and random numbers; ask without it"
_MOST_ROUNDING = 32  # times eps: two gradients that differ by more are not the same
_UNPACK = "pseudograd: unpacked by"  # in the metadata of a node
_HOOKED = "pseudograd: hooked"  # in the metadata of a node: the owner of a hook of the tensor that the node made
_KNOWN = ("torch::autograd::CopySlices", "torch::autograd::CopyBackwards", "CopySlices", "vision::ops::")
_MOST_NODES_BEHIND = 12  # that may cut what a clamp passes at its bound

# (node, gradients that leave, gradients that arrive) -> gradients to hand on
Leave = Callable[[GraphNode, Gradients, Gradients], Gradients]


class RefusalError(Exception):
    """A further pass would have side effects, or would not be exact. Its text is a sentence for the report."""


def refusal(behind: Iterable[GraphNode]) -> str | None:
    """Why the graph of these nodes cannot be run once more; None if it can."""
    return next((why for node in behind if (why := _why_not(node)) is not None), None)


def _why_not(node: GraphNode) -> str | None:
    name = node.name()
    if name == LEAF:
        return None
    function = function_of(node)
    if function is not None and not function.__module__.startswith("pseudograd."):
        if name == REENTRANT:
            return CHECKPOINT
        if name == "BackwardHookFunctionBackward":
            return "the backward hook of a module would run once more; ask without it"
        if function.vjp is not torch.autograd.Function.vjp or not is_pure(function.backward):
            why = "would run once more, and may keep, draw or change something; ask without it"
            return f"the backward of {function.__module__}.{function.__qualname__} {why}"
    if function is None and not name[-1].isdigit() and not any(known in name for known in _KNOWN):
        return f"nobody knows what {name} of an extension does when it runs twice"
    return why_not_unpacked(node)


def why_not_unpacked(node: GraphNode) -> str | None:
    """Why the values that a node saves cannot be read without running code of the program; None if they can."""
    hooks = [getattr(variable, "unpack_hook", None) for variable in saved_variables(node)]
    for hook in filter(None, [node.metadata.get(_UNPACK), *hooks]):
        module = getattr(hook, "__module__", None) or ""
        hook_name = getattr(hook, "__qualname__", type(hook).__name__)
        if module == "torch.utils.checkpoint":
            return CHECKPOINT
        if not (module == "torch.autograd.graph" and hook_name.startswith("save_on_cpu")):
            return f"the saved-tensor hook {hook_name} of the program would run once more"
    return None


def ends_behind(node: GraphNode, grad: Tensor) -> bool:
    """Would the next few nodes cut all of this gradient, if it left a node towards its first input? False if nobody knows."""
    queue: list[tuple[tuple[GraphNode | None, int], Tensor]] = [(node.next_functions[0], grad)]
    for count, ((other, at), arrived) in enumerate(queue):
        if other is None:
            continue
        if not tells_unpack_hooks or count == _MOST_NODES_BEHIND or other.name() == LEAF or _why_not(other) is not None:
            return False
        metadata, inputs = input_metadata(other), tuple(other.next_functions)
        try:
            arriving = tuple(_cast(arrived, row) if number == at else None for number, row in enumerate(metadata))
            leaving = _call(other, arriving, inputs)
        except (RuntimeError, TypeError, RefusalError):
            return False
        rest = zip(inputs, leaving, strict=False)
        queue += [(target, left) for target, left in rest if left is not None and bool(torch.count_nonzero(left))]
    return True


def note_unpack_hook(result: object) -> None:
    """Note the saved-tensor hooks in force at a call just made, on a torch whose nodes do not tell them."""
    hooks = saved_tensors_hooks(False)
    if hooks is not None:
        for node in nodes.nodes_of(result):
            node.metadata[_UNPACK] = hooks[1]


def note_hook(tensor: Tensor, hook: object, location: Location) -> None:
    """Note a hook that may change a gradient at the node of its tensor: the node itself does not tell its hooks."""
    node = nodes.node_of(tensor)
    if node is not None and _may_change(hook):
        module = getattr(hook, "__module__", None) or ""
        node.metadata[_HOOKED] = f"of {module}" if module.startswith("torch.") else f"at {file_and_line(location.call)}"


def why_hooks_forbid(behind: Sequence[GraphNode]) -> str | None:
    """Why hooks forbid a further pass; None if they do not. A hook would change the gradient of another rule too, and nobody knows how."""
    for node in behind:
        owner = node.metadata.get(_HOOKED)
        if owner is None and node.name() == LEAF and any(map(_may_change, hooks_of(node.variable).values())):
            owner = "of a parameter"
        if owner is not None:
            return f"the hook {owner} may change gradients; ask without it, or let it return nothing at its end"
    return None


def _may_change(hook: object) -> bool:
    """May it return another gradient? Not if it is a function that always returns None."""
    code = getattr(getattr(hook, "__func__", hook), "__code__", None)
    if code is None or code.co_flags & inspect.CO_GENERATOR:
        return True
    before: tuple[str, object] = "", None
    for step in dis.get_instructions(code):
        is_none = step.opname == "RETURN_CONST" and step.argval is None
        is_none |= step.opname == "RETURN_VALUE" and before == ("LOAD_CONST", None)
        if step.opname.startswith("RETURN") and step.opname != "RETURN_GENERATOR" and not is_none:
            return True
        before = step.opname, step.argval
    return False


class Graph:
    """The graph behind some roots. It can be run any number of times."""

    def __init__(self, roots: Sequence[Any], grads: Sequence[Tensor | None], behind: Sequence[GraphNode]) -> None:
        pairs = zip(nodes.starts(roots), roots, grads, strict=True)
        self._roots = [(node, root.output_nr, grad) for node, root, grad in pairs]
        self._inputs: dict[GraphNode, NextFunctions] = {node: tuple(node.next_functions) for node in behind}
        self._awaits = dict.fromkeys(behind, 0)  # by node: the number of gradients that it waits for
        ahead = [other for inputs in self._inputs.values() for other, _ in inputs]
        for node in (*ahead, *(node for node, _, _ in self._roots)):
            if node is not None:
                self._awaits[node] += 1

    def run(self, leave: Leave) -> dict[GraphNode, Tensor]:
        """The gradient that arrives at each leaf, by its node. Call it under no_grad."""
        awaits, gradients = dict(self._awaits), dict[GraphNode, Tensor]()
        buffers: dict[GraphNode, list[Tensor | None]] = {}
        ready: list[tuple[int, int, GraphNode]] = []
        count = itertools.count()

        def hand_on(inputs: Iterable[tuple[GraphNode | None, int]], grads: Iterable[Tensor | None]) -> None:
            for (node, at), grad in zip(inputs, grads, strict=False):
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
            inputs = self._inputs[node]
            if not any(grad is not None for grad in arriving):
                hand_on(inputs, [None] * len(inputs))
            elif node.name() != LEAF:
                hand_on(inputs, leave(node, _call(node, arriving, inputs), arriving))
            elif arriving[0] is not None:
                gradients[node] = arriving[0]
        return gradients


def _call(node: Any, arriving: Gradients, inputs: NextFunctions) -> Gradients:
    """The gradients that leave the node, one for each of its inputs. No hook runs: only torch's engine calls hooks."""
    for grad in arriving:
        if grad is not None and type(grad) is not Tensor:
            raise RefusalError(f"tensors of the class {type(grad).__name__} run code of their own")
    if function_of(node) is None:
        leaving = node(*arriving)
        return leaving if isinstance(leaving, tuple) else (leaving,)
    # Only the Function itself knows whether it takes None or zeros for a gradient that did not arrive.
    if any(grad is None for grad in arriving):
        raise RefusalError(f"{node.name()} has several results, of which only some got a gradient")
    # A backward may change the gradients that it gets, so it gets copies.
    leaving = node.apply(*(grad.clone() for grad in arriving if grad is not None))
    leaving = leaving if isinstance(leaving, tuple) else (leaving,)
    wanted = iter([grad for grad, is_wanted in zip(leaving, node.needs_input_grad, strict=False) if is_wanted])
    return tuple(None if other is None else next(wanted, None) for other, _ in inputs)


def _cast(grad: Tensor, expected: Any) -> Tensor:
    """The gradient in the shape, dtype and device that a node expects, as the engine makes it between two nodes."""
    if not (grad.is_nested or expected.is_nested_tensor) and grad.shape != torch.Size(expected.shape):
        grad = grad.sum_to_size(tuple(expected.shape))
    if grad.dtype != expected.dtype:
        grad = (grad.real if grad.is_complex() and not expected.dtype.is_complex else grad).to(expected.dtype)
    return grad if grad.device == expected.device or grad.dim() else grad.to(expected.device)


def _add(total: Tensor | None, grad: Tensor) -> Tensor:
    if total is None:
        return grad
    return grad + total if total.is_sparse and not grad.is_sparse else total + grad


# --- two gradients of one parameter -----------------------------------------------------------------------------------


class Comparison(NamedTuple):
    """A gradient beside the program's own gradient of the same parameter. The last four numbers add up over parameters."""

    zero: float = 0.0  # the share of zeros in the gradient
    norm: float = 0.0
    square: float = 0.0  # of the norm
    own: float = 0.0  # the square of the norm of the program's gradient
    product: float = 0.0  # of the two gradients
    apart: float = 0.0  # the square of the norm of their difference

    @property
    def cosine(self) -> float:
        return self.product / math.sqrt(self.own) / math.sqrt(self.square) if self.own and self.square else math.nan

    @property
    def share(self) -> float:
        """|g_other - g| / |g|"""
        return math.sqrt(self.apart / self.own) if self.own else math.inf if self.apart else 0.0


def compare_gradients(grad: Tensor | None, own: Tensor) -> Comparison:
    """A gradient, of which None means zeros, beside the program's own."""
    mine = _dense(own)
    other = torch.zeros_like(mine) if grad is None else mine if grad is own else _dense(grad)
    apart = other - mine
    zero = float((other == 0).double().mean()) if other.numel() else 0.0
    squares = (float(first @ second) for first, second in ((other, other), (mine, mine), (mine, other), (apart, apart)))
    return Comparison(zero, float(other.norm()), *squares)


def are_same(expected: Tensor, grad: Tensor) -> bool:
    """Are two gradients equal, up to the rounding of sums, which a device may form in another order?"""
    if expected.shape != grad.shape or expected.dtype != grad.dtype:
        return False
    first, second = _dense(expected), _dense(grad)
    if not torch.equal(first.isnan(), second.isnan()):
        return False
    first, second = first.nan_to_num(), second.nan_to_num()
    return float((first - second).norm()) <= _MOST_ROUNDING * torch.finfo(expected.dtype).eps * float(second.norm())


def _dense(grad: Tensor) -> Tensor:
    """The numbers of a gradient of any layout, in float64 and one dimension; two for each complex number."""
    values = local(grad.detach())
    values = values if values.layout is torch.strided else values.to_dense()
    return (torch.view_as_real(values.resolve_conj()) if values.is_complex() else values).double().flatten()
