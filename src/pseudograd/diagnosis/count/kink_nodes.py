"""The nodes of autograd that stand at a kink or a tie, and what they would hand on under another known convention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import formula
from ...rewrite.pins import call_of, prepare
from ...rule import Call
from ...torch_table.conventions import text_of
from ...torch_table.eras import installed_era
from ...torch_table.forms import FAMILIES, Kinked, SavedValues, kink_of_node, read_saved
from ...torch_table.private import input_metadata, wrapped_node
from . import pools, slices
from .further_backward import CHECKPOINT, REENTRANT
from .noted_kinks import NOTED, Tied, left_by_tied
from .other_conventions import other_of
from .replaced_nodes import under


class AtKink(NamedTuple):
    """A node some entries of which stand at a kink. left(leaving, arriving): what leaves it under the other convention."""

    node: Any
    family: str
    entries: int
    elements: int
    left: Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]]


def at_kinks(behind: Any) -> Iterator[AtKink]:
    """Of these nodes, those that stand at a kink of which another convention is known."""
    for node in behind:
        name = node.name()
        if name.startswith(pools.NODE):
            at_kink = _read_pool(node)
        elif (noted := node.metadata.get(NOTED)) is not None:
            at_kink = _read_noted(node, noted)
        else:
            kinked = kink_of_node(name)
            at_kink = None if kinked is None or kinked.kink.is_noted else _read(node, kinked)
        if at_kink is not None:
            yield at_kink


def hidden(behind: Iterable[Any]) -> set[str]:
    """Why something that may stand at a kink among these cannot be asked about."""
    reasons = set()
    for node in behind:
        name = node.name()
        if name == slices.NODE:
            inner, form = wrapped_node(node), slices.form_of(node)
            kinked = kink_of_node(inner.name()) if inner is not None else None
            op = form.names[0] if form is not None else kinked.spelling.form.names[0] if kinked is not None else ""
            if op:
                reasons.add(f"{op} in place on a part of a tensor hides its node; write it out of place to ask")
        elif name == REENTRANT:
            reasons.add(CHECKPOINT)
        elif name.startswith("ReluBackward") and NOTED not in node.metadata:
            reasons.add(
                "a relu keeps its result alone, and nobody saw the call: in TorchScript, C++ or vmap, or in a step before"
            )
    return reasons


def _read_pool(node: object) -> AtKink | None:
    tied = pools.tied(node)
    if tied is None:
        return None
    last, entries, elements = tied
    return AtKink(
        node, pools.FAMILY, entries, elements, lambda leaving, arriving: pools.left(last, leaving, arriving[0])
    )


def _read(node: object, kinked: Kinked) -> AtKink | None:
    saved = _read_values(node, kinked)
    family = None if saved is None else kinked.family
    if saved is not None and kinked.kink.pick is not None:
        family, primitive = kinked.kink.pick(node, saved.inputs) or (None, "")
        saved = saved._replace(primitive=primitive)
    other = None if family is None else other_of(family)
    if saved is None or family is None or other is None:
        return None
    own_call, other_call = (
        call_of(text, saved.primitive, saved.inputs)
        for text in (text_of(FAMILIES[family].torch_convention(installed_era())), other.convention)
        if prepare({family: text})
    )
    if own_call is None or other_call is None:
        return None
    entries, elements = _count_entries(node, saved, own_call, other_call)
    if not entries:
        return None

    def leave(leaving: tuple[object, ...], arriving: tuple[Any, ...]) -> tuple[object, ...]:
        return under(other_call, saved, saved.inputs, leaving, arriving[0])  # type: ignore[no-any-return]

    return AtKink(node, family, entries, elements, leave)


def _read_values(node: object, kinked: Kinked) -> SavedValues | None:
    form_node, arrange = kinked.spelling.form.node, kinked.spelling.arrange
    return read_saved(node, form_node.saved, arrange) or _read_values_in_place(node, kinked)


def _read_values_in_place(node: object, kinked: Kinked) -> SavedValues | None:
    """The result, which is 0 where x is, and has its sign, if the slope below 0 is positive."""
    saved = read_saved(node, kinked.spelling.form.node.saved_in_place, kinked.spelling.arrange)
    return None if saved is None or not saved.values[1] > 0 else saved


def _count_entries(node: object, saved: SavedValues, own_call: Call, other_call: Call) -> tuple[int, int]:
    """How many entries the two calls give different gradients, and how many there are."""
    metadata = input_metadata(node)[0]
    ones = torch.ones(tuple(metadata.shape), dtype=metadata.dtype, device=metadata.device)
    inputs = [value.detach() if isinstance(value, Tensor) else value for value in saved.inputs]
    wants = tuple(isinstance(value, Tensor) for value in inputs)
    differs = torch.zeros_like(ones, dtype=torch.bool)
    grads = zip(formula.pull(ones, inputs, wants, own_call), formula.pull(ones, inputs, wants, other_call), strict=True)
    for mine, theirs in grads:
        if mine is not None and theirs is not None:
            differs |= (mine != theirs) & ~(mine.isnan() & theirs.isnan())
    return int(differs.sum()), ones.numel()


def _read_noted(node: object, noted: Any) -> AtKink | None:
    if isinstance(noted, Tied):
        return AtKink(
            node,
            noted.family,
            noted.entries,
            noted.x.numel(),
            lambda leaving, arriving: left_by_tied(noted, leaving, arriving),
        )
    other = other_of("relu")
    assert other is not None, "the table has it"
    share = float(other.convention)

    def leave(leaving: tuple[Any, ...], arriving: tuple[Any, ...]) -> tuple[object, ...]:
        return (torch.where(noted, arriving[0] * share, leaving[0]),) if leaving[0] is not None else leaving

    return AtKink(node, "relu", int(noted.sum()), noted.numel(), leave)
