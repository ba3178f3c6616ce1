"""Which nodes of autograd stand at a kink or a tie, and what they would hand on under another known convention there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ... import formula
from ...rewrite.pins import call_of, prepare
from ...rule import Call
from ...torch_table.conventions import text_of
from ...torch_table.eras import installed_era
from ...torch_table.forms import FAMILIES, Kinked, SavedValues, kink_of_node, read_saved
from ...torch_table.private import input_metadata, saved, wrapped_node
from .further_backward import CHECKPOINT, REENTRANT
from .noted_kinks import NOTED, Tied, leave_tied
from .other_conventions import POOL, other_of
from .replaced_nodes import pull_under
from .tally import SLICE_NODE, form_of_slice

_POOL_NODE = "MaxPool2DWithIndicesBackward"  # of one dimension, too

Leaving = tuple[Any, ...]
Left = Callable[[Leaving, Leaving], Leaving]  # of what leaves a node and what arrives there: what would leave it


class AtKink(NamedTuple):
    """A node of which some entries stand at a kink. left(leaving, arriving): what leaves it under the other convention."""

    node: Any
    family: str
    entries: int
    elements: int
    left: Left


def find_kinks(behind: Iterable[Any]) -> Iterator[AtKink]:
    """Of these nodes, those that stand at a kink of which another convention is known."""
    for node in behind:
        name = node.name()
        if name.startswith(_POOL_NODE):
            at_kink = _pool_at_kink(node)
        elif (noted := node.metadata.get(NOTED)) is not None:
            at_kink = _noted_at_kink(node, noted)
        else:
            kinked = kink_of_node(name)
            at_kink = None if kinked is None or kinked.kink.is_noted else _node_at_kink(node, kinked)
        if at_kink is not None:
            yield at_kink


def hidden(behind: Iterable[Any]) -> set[str]:
    """Why something that may stand at a kink among these cannot be asked about."""
    reasons = set()
    for node in behind:
        name = node.name()
        if name == SLICE_NODE:
            op = _op_in_slice(node)
            if op:
                reasons.add(f"{op} in place on a part of a tensor hides its node; write it out of place to ask")
        elif name == REENTRANT:
            reasons.add(CHECKPOINT)
        elif name.startswith("ReluBackward") and NOTED not in node.metadata:
            reasons.add(
                "a relu keeps its result alone, and nobody saw the call: in TorchScript, C++ or vmap, or in a step before"
            )
    return reasons


def _op_in_slice(node: Any) -> str:
    form = form_of_slice(node)
    if form is not None:
        return form.names[0]
    inner = wrapped_node(node)
    kinked = None if inner is None else kink_of_node(inner.name())
    return "" if kinked is None else kinked.spelling.form.names[0]


def _node_at_kink(node: object, kinked: Kinked) -> AtKink | None:
    values = _saved_values(node, kinked)
    family = None if values is None else kinked.family
    if values is not None and kinked.kink.pick is not None:  # a node may serve several families
        family, primitive = kinked.kink.pick(node, values.inputs) or (None, "")
        values = values._replace(primitive=primitive)
    other = None if family is None else other_of(family)
    if values is None or family is None or other is None:
        return None
    conventions = (text_of(FAMILIES[family].torch_convention(installed_era())), other.convention)
    own_call, other_call = (
        call_of(text, values.primitive, values.inputs) if prepare({family: text}) else None for text in conventions
    )
    if own_call is None or other_call is None:
        return None
    entries, elements = _entries(node, values, own_call, other_call)
    if not entries:
        return None
    leave = partial(_leave_under, other_call, values)
    return AtKink(node, family, entries, elements, leave)


def _leave_under(call: Call, values: SavedValues, leaving: Leaving, arriving: Leaving) -> Leaving:
    return pull_under(call, values, values.inputs, leaving, arriving[0])


def _saved_values(node: object, kinked: Kinked) -> SavedValues | None:
    """In place the result is saved: it is 0 where x is, and has its sign, if the slope below 0 is positive."""
    form, arrange = kinked.spelling.form, kinked.spelling.arrange
    values = read_saved(node, form.saved, arrange)
    if values is not None:
        return values
    values = read_saved(node, form.saved_in_place, arrange)
    return None if values is None or not values.values[1] > 0 else values


def _entries(node: object, values: SavedValues, own_call: Call, other_call: Call) -> tuple[int, int]:
    """How many stand where the two differ, and how many there are."""
    metadata = input_metadata(node)[0]
    ones = torch.ones(tuple(metadata.shape), dtype=metadata.dtype, device=metadata.device)
    inputs = [value.detach() if isinstance(value, Tensor) else value for value in values.inputs]
    wants = tuple(isinstance(value, Tensor) for value in inputs)
    differs = torch.zeros_like(ones, dtype=torch.bool)
    slopes = (formula.pull(ones, inputs, wants, call) for call in (own_call, other_call))
    for own, other in zip(*slopes, strict=True):
        if own is not None and other is not None:
            differs |= (own != other) & ~(own.isnan() & other.isnan())
    return int(differs.sum()), ones.numel()


def _noted_at_kink(node: object, noted: Any) -> AtKink:
    if isinstance(noted, Tied):
        return AtKink(node, noted.family, noted.entries, noted.x.numel(), partial(leave_tied, noted))
    other = other_of("relu")
    assert other is not None, "the table has it"
    share = float(other.convention)

    def leave(leaving: Leaving, arriving: Leaving) -> Leaving:
        return (torch.where(noted, arriving[0] * share, leaving[0]),) if leaving[0] is not None else leaving

    return AtKink(node, "relu", int(noted.sum()), noted.numel(), leave)


# --- max pools: torch, JAX and TensorFlow give all of the gradient to the first of equal entries, the other convention to the last -------


def _pool_at_kink(node: object) -> AtKink | None:
    """None without a tie, and in ceil mode, where windows reach over the end."""
    x, first = saved(node, "self").detach(), saved(node, "result1")
    size, step, pad, spread = (_pair(saved(node, name)) for name in ("kernel_size", "stride", "padding", "dilation"))
    if saved(node, "ceil_mode") or not x.numel():
        return None
    planes = x.reshape(-1, 1, *x.shape[-2:])
    wide = functional.pad(planes.float(), (pad[1], pad[1], pad[0], pad[0]), value=-math.inf)
    windows = functional.unfold(wide, size, spread, 0, step or size)
    is_tied = (windows == windows.amax(1, keepdim=True)).sum(1) > 1
    if not bool(is_tied.any()):
        return None
    at = windows.shape[1] - 1 - windows.flip(1).argmax(1)  # the last of equal ones: the first from the end
    columns = first.shape[-1]
    window = torch.arange(windows.shape[-1], device=x.device)
    row = (window // columns) * (step or size)[0] + (at // size[1]) * spread[0] - pad[0]
    column = (window % columns) * (step or size)[1] + (at % size[1]) * spread[1] - pad[1]
    indices = torch.where(
        is_tied.reshape(first.shape), (row * x.shape[-1] + column).reshape(first.shape), first
    ).flatten(-2)

    def leave(leaving: Leaving, arriving: Leaving) -> Leaving:
        if leaving[0] is None:
            return leaving
        grad_x = torch.zeros_like(leaving[0]).flatten(-2)
        grad_x.scatter_add_(-1, indices, arriving[0].flatten(-2))
        return (grad_x.reshape(leaving[0].shape), *leaving[1:])

    return AtKink(node, POOL, int(is_tied.sum()), is_tied.numel(), leave)


def _pair(value: Iterable[int]) -> tuple[int, ...]:
    pair = tuple(value)
    return pair * 2 if len(pair) == 1 else pair
