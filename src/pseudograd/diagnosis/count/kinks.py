"""The nodes of autograd at a kink or a tie, and the gradients that would leave them under another known convention."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ... import formula
from ...listen.nodes import GraphNode, node_of
from ...rewrite import entered_contexts
from ...rewrite.mode import Rewrite
from ...rewrite.other_conventions import POOL, other_of
from ...rewrite.pins import call_of, prepare, run_pinned
from ...rule import Call
from ...torch_table.conventions import text_of
from ...torch_table.eras import installed_era
from ...torch_table.forms import FAMILIES, KINKED, Kinked, SavedValues, kink_of_node, read_saved
from ...torch_table.private import input_metadata, saved, wrapped_node
from ...torch_table.records import Arguments, Function, Keywords
from .further_backward import CHECKPOINT, REENTRANT, why_not_unpacked
from .grads import Gradients
from .leaf import has_numbers
from .norms import PLAIN
from .replaced_nodes import pull_under
from .tally import SLICE_NODE, form_of_slice

_POOL_NODE = "MaxPool2DWithIndicesBackward"  # a pool of one dimension makes this node, too
NOTED = "pseudograd: at a kink"  # in the metadata of a node: a Tie, or of a relu the elements at which x is 0


class KinkNode(NamedTuple):
    """A node of which some elements are at a kink.

    leave(gradients that leave, gradient that arrives): the gradients that would leave under the other convention.
    """

    node: GraphNode
    family: str
    at_kink: int
    elements: int
    leave: Callable[[Gradients, Tensor], Gradients]


class Tie(NamedTuple):
    """A call made again under the other convention, on a copy of x. Its graph computes the gradient that would leave the node."""

    x: Tensor
    y: Tensor
    family: str
    at_kink: int  # the number of elements at the tie


def find_kinks(behind: Iterable[GraphNode]) -> Iterator[KinkNode]:
    """The nodes with elements at a kink, if another convention is known for it."""
    for node in behind:
        name = node.name()
        if name.startswith(_POOL_NODE):
            kink = _pool_kink(node)
        elif (noted := node.metadata.get(NOTED)) is not None:
            kink = _noted_kink(node, noted)
        else:
            kinked = kink_of_node(name)
            kink = None if kinked is None or kinked.kink.is_noted else _kink(node, kinked)
        if kink is not None and kink.at_kink:
            yield kink


def why_hidden(behind: Iterable[GraphNode]) -> set[str]:
    """The reasons why nodes that may be at a kink cannot be measured."""
    reasons = set()
    for node in behind:
        name = node.name()
        if name == SLICE_NODE:
            if op := _op_in_slice(node):
                reasons.add(f"{op} in place on a part of a tensor hides its node; write it out of place to ask")
        elif name == REENTRANT:
            reasons.add(CHECKPOINT)
        elif name.startswith("ReluBackward") and NOTED not in node.metadata:
            where = "in TorchScript, C++ or vmap, or in a step before"
            reasons.add(f"a relu keeps its result alone, and nobody saw the call: {where}")
        elif name.startswith(_POOL_NODE) or ((kinked := kink_of_node(name)) and not kinked.kink.is_noted):
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
    """The saved inputs. A call in place saves its result in place of x: both have the same sign if the slope below 0 is positive."""
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


def _noted_kink(node: GraphNode, noted: Tie | Tensor) -> KinkNode:
    if isinstance(noted, Tie):
        return KinkNode(node, noted.family, noted.at_kink, noted.x.numel(), partial(leave_tie, noted))
    other = other_of("relu")
    assert other is not None, "the table has it"
    share = float(other.convention)

    def leave(leaving: Gradients, grad: Tensor) -> Gradients:
        return leaving if leaving[0] is None else (torch.where(noted, grad * share, leaving[0]),)

    return KinkNode(node, "relu", int(noted.sum()), noted.numel(), leave)


# --- max pools: torch, JAX and TensorFlow give the gradient to the first of equal entries, the other convention to the last ------------


def _pool_kink(node: GraphNode) -> KinkNode | None:
    """The last of equal entries is the first in the mirrored pool. None in ceil mode, where windows reach over the end."""
    x, first = saved(node, "self").detach(), saved(node, "result1")
    size, step, pad, spread = (_pair(saved(node, name)) for name in ("kernel_size", "stride", "padding", "dilation"))
    if saved(node, "ceil_mode") or not x.numel():
        return None
    step = step or size
    # Behind the last window some rows and columns may be left over. In the mirrored pool they would come first.
    windows = zip(first.shape[-2:], step, spread, size, strict=True)
    height, width = ((count - 1) * steps + gap * (length - 1) + 1 for count, steps, gap, length in windows)
    wide = functional.pad(x, (pad[1], pad[1], pad[0], pad[0]), value=-math.inf)[..., :height, :width]
    _, mirrored = functional.max_pool2d_with_indices(wide.flip(-2, -1), size, step, (0, 0), spread)
    at = height * width - 1 - mirrored.flip(-2, -1)
    last = (at // width - pad[0]) * x.shape[-1] + at % width - pad[1]

    def leave(leaving: Gradients, grad: Tensor) -> Gradients:
        if leaving[0] is None:
            return leaving
        grad_x = torch.zeros_like(leaving[0]).flatten(-2)
        grad_x.scatter_add_(-1, last.flatten(-2), grad.flatten(-2))
        return (grad_x.reshape(leaving[0].shape), *leaving[1:])

    return KinkNode(node, POOL, int((last != first).sum()), last.numel(), leave)


def _pair(value: Iterable[int]) -> tuple[int, ...]:
    pair = tuple(value)
    return pair * 2 if len(pair) == 1 else pair


# --- kinks and ties that a node does not keep: they are noted in its metadata when its call is made --------------------


def _is_noted(kinked: Kinked) -> bool:
    """Must the kink be noted when the call is made? Not that of a quantile: its sort is another node, behind the result."""
    return kinked.kink.is_noted or (kinked.kink.write is not None and kinked.family != "quantile")


NOTED_CALLS = {func for func, rows in KINKED.items() if any(map(_is_noted, rows))} | {Tensor.norm}


def note_before(func: Function, args: Arguments, kwargs: Keywords) -> object:
    """Before a call: the elements of a relu at which x is 0, because its node keeps only the result; or the ties of a sort and its like."""
    if func is Tensor.norm:  # it calls torch.norm
        func = torch.norm
    for kinked in filter(_is_noted, KINKED.get(func, ())):
        values = kinked.spelling.values(args, kwargs)
        if values is None or not _is_plain(values[0]) or entered_contexts.is_pinned(kinked.family):
            continue
        return values[0].detach() == 0 if kinked.kink.is_noted else _find_tie(kinked, func, args, kwargs, values[0])
    return None


def _is_plain(x: object) -> bool:
    """Has it a gradient, and numbers that can be read?"""
    if not isinstance(x, Tensor) or type(x) not in PLAIN:
        return False
    return x.requires_grad and x.layout is torch.strided and not x.is_nested and has_numbers(x)


def _find_tie(kinked: Kinked, func: Function, args: Arguments, kwargs: Keywords, x: Tensor) -> Tie | None:
    """The tie of this call; None if there is none, or if the pin leaves the call to torch."""
    other = other_of(kinked.family)
    if x.dim() == 0 or not x.is_floating_point() or not args or args[0] is not x or other is None:
        return None
    copy = x.detach().requires_grad_()
    with torch.enable_grad():
        pins = prepare({kinked.family: other.convention})
        pinned = run_pinned(Rewrite({}, None, pins), func, (copy, *args[1:]), kwargs)
        if pinned is None:
            return None
        results = (pinned, func(copy, *args[1:], **kwargs))
        y, own = (result if isinstance(result, Tensor) else result[0] for result in results)
        weights = torch.arange(1, y.numel() + 1, dtype=y.dtype, device=y.device).reshape(y.shape)
        (new,) = torch.autograd.grad(y, copy, weights, retain_graph=True)
        (old,) = torch.autograd.grad(own, copy, weights)
    at_kink = int(((new != old) & ~(new.isnan() & old.isnan())).sum())
    return Tie(copy, y, kinked.family, at_kink) if at_kink else None


def note_after(noted: object, args: Arguments, result: object) -> None:
    """After the call: note the result of `note_before` at the node, if no other node is between x and the result."""
    first = result[0] if isinstance(result, tuple) else result
    node = node_of(first) if isinstance(first, Tensor) else None
    if node is None:
        return
    if isinstance(noted, Tie):
        before = node.next_functions[0][0] if node.next_functions else None
        if before is not None and (before is args[0].grad_fn or getattr(before, "variable", None) is args[0]):
            node.metadata[NOTED] = noted
    elif node.name().startswith("ReluBackward"):
        node.metadata[NOTED] = noted


def leave_tie(noted: Tie, leaving: Gradients, grad: Tensor) -> Gradients:
    if leaving[0] is None:
        return leaving
    (grad_x,) = torch.autograd.grad(noted.y, noted.x, grad, retain_graph=True)
    return (grad_x.to(leaving[0].dtype), *leaving[1:])
