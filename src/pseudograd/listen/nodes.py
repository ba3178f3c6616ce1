"""Which nodes of autograd a stretch of code made. Torch numbers them in order, in each thread."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.utils.hooks import RemovableHandle

from ..torch_table.private import levels_of, node_number, number_of

LEAF = "torch::autograd::AccumulateGrad"  # the node that adds to the gradient of a leaf
_MOST_SPANS = 16  # of unseen nodes

Span = tuple[int, int]  # the first number of a node, and the number behind the last one
# For each input of a node: the node that made the input, or None, and the index of the input among the results of that node.
NextFunctions = tuple[tuple[Any, int], ...]


class GraphNode(Protocol):
    """A node of autograd. Torch's own type takes `metadata` for a method."""

    variable: Tensor  # of a leaf's node
    metadata: dict[str, Any]
    next_functions: NextFunctions

    def __call__(self, *grads: Tensor | None) -> Any: ...
    def name(self) -> str: ...
    def register_hook(self, hook: Callable[..., object]) -> RemovableHandle: ...
    def register_prehook(self, hook: Callable[..., object]) -> RemovableHandle: ...


class Ranges:
    """Finds nodes of one thread: the nodes that a call made which we saw, and the *unseen* nodes, made between two such calls."""

    def __init__(self) -> None:
        self.unseen: list[Span] = []
        self.seen_up_to = node_number()

    def start_afresh(self) -> None:
        self.unseen = []
        self.mark_all_seen()

    def mark_all_seen(self) -> None:
        """Count all nodes that were made so far as seen."""
        self.seen_up_to = node_number()

    def may_hide_some(self) -> bool:
        """May `unseen_behind` find a node?"""
        return bool(self.unseen) or node_number() != self.seen_up_to

    def since(self, before: int, result: object) -> list[GraphNode]:
        """The nodes of a call that has returned `result`. before: the number of the next node when the call began."""
        after = node_number()
        if waiting:
            end_waiting()
        if after == before:
            return []
        self.seen_up_to = after
        node = node_of(result) if isinstance(result, Tensor) else None
        if node is not None and after - before == 1:  # the same result in less time
            if not before % STRIDE:
                break_chain(node)
            return [node] if number_of(node) == before else []
        return find_within((result,), [(before, after)])

    def unseen_behind(self, values: Iterable[object]) -> list[GraphNode]:
        """The unseen nodes behind these values. Each is found once."""
        now = node_number()
        if now != self.seen_up_to:
            self.unseen = [*self.unseen[1 - _MOST_SPANS :], (self.seen_up_to, now)]
            self.seen_up_to = now
        if not self.unseen:
            return []
        nodes = find_within(values, self.unseen)
        if nodes:
            numbers = [number_of(node) for node in nodes]
            self.unseen = [
                (start, end) for start, end in self.unseen if not any(start <= number < end for number in numbers)
            ]
        return nodes


_names: dict[type, str] = {}  # by the class of torch's own nodes


def name_of(node: GraphNode) -> str:
    """`node.name()`, remembered for each class: torch makes a new text for each call."""
    kind = type(node)
    name = _names.get(kind)
    if name is None:
        name = node.name()
        # Another class may have nodes of several names.
        if kind.__module__ == "builtins" and name.endswith(kind.__name__):
            _names[kind] = name
    return name


def has_one_name(kind: type) -> bool:
    """Do all nodes of this class have the same name? For a class of which `name_of` has named a node."""
    return kind in _names


def find_within(values: Iterable[object], spans: list[Span]) -> list[GraphNode]:
    """The nodes behind these values whose numbers are in the spans, as far as a path inside the spans leads."""
    ahead: list[GraphNode | None] = [node for value in values for node in nodes_of(value)]
    within: dict[GraphNode, None] = {}
    most = sum(end - start for start, end in spans)
    while ahead and len(within) < most:
        node = ahead.pop()
        if node is None or node in within:
            continue
        number = number_of(node)
        if any(start <= number < end for start, end in spans):
            within[node] = None
            if not number % STRIDE:
                break_chain(node)
            ahead += [other for other, _ in node.next_functions]
    return list(within)


# --- long chains ------------------------------------------------------------------------------------------------------

# Since torch 2.13, a node that Python has seen ends inside the end of the node behind it, so the end of a chain of 40,000 such nodes
# overflows the stack. One node in a thousand therefore has a token in its metadata. When the token ends, `waiting` gets the nodes in front,
# which live until `end_waiting` is called. A number without small factors meets each of several chains that grow side by side.
STRIDE = 1021
# Alive at once: so many thousand nodes may end inside each other, and no node of a smaller graph lives longer.
_PLAIN_TOKENS = 8


class _Token:
    pass


class _NodesInFront(weakref.ref[_Token]):
    nodes: NextFunctions = ()


_tokens: list[weakref.ref[_Token]] = []
waiting: list[weakref.ref[_Token]] = []


def end_waiting() -> None:
    """Let the nodes end whose tokens have ended."""
    while waiting:
        waiting.clear()  # may add others


def break_chain(node: GraphNode) -> None:
    """Let the nodes in front of this node end later than it, if many nodes are alive."""
    end_waiting()
    token = _Token()
    _tokens[:] = [other for other in _tokens if other() is not None]
    is_plain = len(_tokens) < _PLAIN_TOKENS
    _tokens.append(weakref.ref(token))
    # The callback is in C: a handler of a signal that raised in a callback in Python would be ignored.
    front = _NodesInFront(token, waiting.append)
    front.nodes = () if is_plain else node.next_functions
    node.metadata["pseudograd: token"] = front, token  # a tuple drops its last item first


def node_of(tensor: Tensor) -> GraphNode | None:
    """The node that made the tensor; None for a leaf. Torch raises for a view made under no_grad whose base was changed in place."""
    try:
        return cast("GraphNode | None", tensor.grad_fn)
    except RuntimeError:
        return None


def nodes_of(value: object) -> list[GraphNode]:
    """The nodes that made a tensor, or the tensors of a list. A call makes one node at each level of nested transforms."""
    if isinstance(value, torch.Tensor):
        return [node for level in levels_of(value) if (node := node_of(level)) is not None]
    return [node for item in value for node in nodes_of(item)] if isinstance(value, (tuple, list)) else []


def starts(roots: Iterable[Tensor | GradientEdge]) -> list[GraphNode | None]:
    """The nodes at which a backward from these roots begins; None for a leaf."""
    nodes = [root.grad_fn if isinstance(root, torch.Tensor) else root.node for root in roots]
    return cast("list[GraphNode | None]", nodes)


def reachable_from(roots: Iterable[Tensor | GradientEdge]) -> list[GraphNode]:
    """All nodes that a backward from these roots can reach, in an order that depends on the graph alone."""
    reached: dict[GraphNode, None] = {}
    ahead = starts(roots)[::-1]
    while ahead:
        node = ahead.pop()
        if node is not None and node not in reached:
            reached[node] = None
            ahead += [other for other, _ in reversed(node.next_functions)]
    return list(reached)
