"""The nodes of autograd at a kink, and the gradients that would leave them under another known convention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ... import formula
from ...listen.nodes import GraphNode, node_of
from ...rewrite import entered_contexts
from ...rewrite.other_conventions import other_of
from ...rewrite.pins import call_of, prepare
from ...rule import Call
from ...torch_table.conventions import text_of
from ...torch_table.eras import installed_era
from ...torch_table.forms import FAMILIES, KINKED, Kinked, SavedValues, kink_of_node, read_saved
from ...torch_table.private import input_metadata, wrapped_node
from ...torch_table.records import Arguments, Function, Keywords
from .further_backward import CHECKPOINT, REENTRANT, why_not_unpacked
from .grads import Gradients
from .leaf import has_numbers
from .norms import PLAIN
from .replaced_nodes import pull_under
from .tally import SLICE_NODE, form_of_slice

NOTED = "pseudograd: at a kink"  # in the metadata of the node of a relu: the elements at which x is 0


class KinkNode(NamedTuple):
    """A node of which some elements are at a kink."""

    node: GraphNode
    family: str
    at_kink: int  # the number of its elements at the kink
    elements: int  # the number of all its elements
    # leave(gradients that leave, gradient that arrives): the gradients that would leave under the other convention
    leave: Callable[[Gradients, Tensor], Gradients]


def find_kinks(nodes: Iterable[GraphNode]) -> Iterator[KinkNode]:
    """The nodes among these with elements at a kink for which another convention is known."""
    for node in nodes:
        if (noted := node.metadata.get(NOTED)) is not None:
            kink: KinkNode | None = _noted_kink(node, noted)
        else:
            kinked = kink_of_node(node.name())
            kink = None if kinked is None or kinked.kink.is_noted else _kink(node, kinked)
        if kink is not None and kink.at_kink:
            yield kink


def find_obstacles(nodes: Iterable[GraphNode]) -> set[str]:
    """The reasons why some of these nodes, which may be at a kink, cannot be measured."""
    reasons = set()
    for node in nodes:
        name = node.name()
        if name == SLICE_NODE:
            if op := _op_in_slice(node):
                reasons.add(f"{op} in place on a part of a tensor hides its node; write it out of place to ask")
        elif name == REENTRANT:
            reasons.add(CHECKPOINT)
        elif name.startswith("ReluBackward") and NOTED not in node.metadata:
            where = "in TorchScript, C++ or vmap, or in a step before"
            reasons.add(f"a relu keeps its result alone, and nobody saw the call: {where}")
        elif (kinked := kink_of_node(name)) and not kinked.kink.is_noted:
            reasons.update(filter(None, [why_not_unpacked(node)]))
    return reasons


def _op_in_slice(node: GraphNode) -> str:
    form, inner = form_of_slice(node), wrapped_node(node)
    if form is None and inner is not None:
        kinked = kink_of_node(inner.name())
        form = None if kinked is None else kinked.spelling.form
    return "" if form is None else form.names[0]


def _kink(node: GraphNode, kinked: Kinked) -> KinkNode | None:
    values = _saved_values(node, kinked)
    if values is None or not all(has_numbers(value) for value in values.inputs if isinstance(value, Tensor)):
        return None
    family: str | None = kinked.family
    if kinked.kink.pick is not None:  # a node may serve several families
        family, primitive = kinked.kink.pick(node, values.inputs) or (None, "")
        values = values._replace(primitive=primitive)
    other = None if family is None else other_of(family)
    if family is None or other is None:
        return None
    texts = (text_of(FAMILIES[family].torch_convention(installed_era())), other.convention)
    calls = (call_of(text, values.primitive, values.inputs) if prepare({family: text}) else None for text in texts)
    own_call, other_call = calls
    if own_call is None or other_call is None:
        return None
    differs = _differing(node, values, own_call, other_call)
    leave = partial(pull_under, other_call, values, values.inputs)
    return KinkNode(node, family, int(differs.sum()), differs.numel(), leave)


def _saved_values(node: GraphNode, kinked: Kinked) -> SavedValues | None:
    """The saved inputs. A call in place saves its result as x: the result has the sign of x if the slope below 0 is positive."""
    form, arrange = kinked.spelling.form, kinked.spelling.arrange
    values = read_saved(node, form.saved, arrange)
    if values is not None:
        return values
    values = read_saved(node, form.saved_in_place, arrange)
    return None if values is None or not values.values[1] > 0 else values


def _differing(node: GraphNode, values: SavedValues, own_call: Call, other_call: Call) -> Tensor:
    """The elements at which the two calls have different slopes."""
    metadata = input_metadata(node)[0]
    ones = torch.ones(tuple(metadata.shape), dtype=metadata.dtype, device=metadata.device)
    inputs = [value.detach() if isinstance(value, Tensor) else value for value in values.inputs]
    wants = tuple(isinstance(value, Tensor) for value in inputs)
    differs = torch.zeros_like(ones, dtype=torch.bool)
    slopes = (formula.pull(ones, inputs, wants, call) for call in (own_call, other_call))
    for own, other in zip(*slopes, strict=True):
        if own is not None and other is not None:
            differs |= (own != other) & ~(own.isnan() & other.isnan())
    return differs


def _noted_kink(node: GraphNode, noted: Tensor) -> KinkNode:
    other = other_of("relu")
    assert other is not None, "the table has it"
    slope_at_0 = float(other.convention)

    def leave(leaving: Gradients, grad: Tensor) -> Gradients:
        return leaving if leaving[0] is None else (torch.where(noted, grad * slope_at_0, leaving[0]),)

    return KinkNode(node, "relu", int(noted.sum()), noted.numel(), leave)


# --- the kink of a relu, whose node keeps only the result: it is noted when the call is made ---------------------------

NOTED_CALLS = {func for func, rows in KINKED.items() if any(kinked.kink.is_noted for kinked in rows)}


def note_before(func: Function, args: Arguments, kwargs: Keywords) -> Tensor | None:
    """Before a call of a relu: the elements at which x is 0."""
    for kinked in KINKED[func]:
        values = kinked.spelling.values(args, kwargs) if kinked.kink.is_noted else None
        if values is not None and _is_plain(values[0]) and not entered_contexts.is_pinned(kinked.family):
            at_kink: Tensor = values[0].detach() == 0
            return at_kink
    return None


def _is_plain(x: object) -> bool:
    """Does x require a gradient, and can its numbers be read?"""
    if not isinstance(x, Tensor) or not x.requires_grad:
        return False
    return type(x) in PLAIN and x.layout is torch.strided and not x.is_nested and has_numbers(x)


def note_after(at_kink: Tensor, result: object) -> None:
    """After the call: note the result of `note_before` at the node, unless other code than torch's made the result."""
    node = node_of(result) if isinstance(result, Tensor) else None
    if node is not None and node.name().startswith("ReluBackward"):
        node.metadata[NOTED] = at_kink
