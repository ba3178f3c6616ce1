"""Which nodes of autograd stand at a kink or a tie, and what they would hand on under another known convention there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import formula
from ...rewrite.conventions import call_of, prepared
from ...rule import Call
from ...torch_table.conventions import FAMILIES, Kinked, of_node, text_of
from ...torch_table.eras import installed_era
from ...torch_table.forms import SavedValues, kept_by
from ...torch_table.private import input_metadata, saved, saves, wrapped_node
from . import pools, slices
from .further_backward import CHECKPOINT, REENTRANT
from .noted_kinks import NOTED, Tied, left_by_tied
from .other_conventions import other_of
from .replaced_nodes import under

_SELU = 1.0507009873554804934193349852946


class AtKink(NamedTuple):
    """A node of which some entries stand at a kink. left(leaving, arriving): what leaves it under the other convention."""

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
            found = _of_pool(node)
        elif (noted := node.metadata.get(NOTED)) is not None:
            found = _of_noted(node, noted)
        else:
            kinked = of_node(name)
            found = None if kinked is None or kinked.family == "relu" else _read(node, kinked)
        if found is not None:
            yield found


def hidden(behind: Iterable[Any]) -> set[str]:
    """Why something that may stand at a kink among these cannot be asked about."""
    reasons = set()
    for node in behind:
        name = node.name()
        if name == slices.NODE:
            inner, form = wrapped_node(node), slices.form_of(node)
            kinked = of_node(inner.name()) if inner is not None else None
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


def _of_pool(node: object) -> AtKink | None:
    tied = pools.tied(node)
    if tied is None:
        return None
    last, entries, elements = tied
    return AtKink(
        node, pools.FAMILY, entries, elements, lambda leaving, arriving: pools.left(last, leaving, arriving[0])
    )


def _read(node: object, kinked: Kinked) -> AtKink | None:
    kept = kept_by(kinked.spelling.form, node) or _kept_in_place(node, kinked)
    family = None if kept is None else _family(node, kinked.family, kept)
    if kept is not None and family == "relu6":
        kept = kept._replace(primitive="torch.relu6")
    other = None if family is None else other_of(family)
    if kept is None or family is None or other is None:
        return None
    here, there = (
        call_of(text, kept.primitive, kept.inputs)
        for text in (text_of(FAMILIES[family].of_torch(installed_era())), other.convention)
        if prepared({family: text})
    )
    if here is None or there is None:
        return None
    entries, elements = _entries(node, kept, here, there)
    if not entries:
        return None

    def left(leaving: tuple[object, ...], arriving: tuple[Any, ...]) -> tuple[object, ...]:
        return under(there, kept, kept.inputs, leaving, arriving[0])  # type: ignore[no-any-return]

    return AtKink(node, family, entries, elements, left)


def _kept_in_place(node: Any, kinked: Kinked) -> SavedValues | None:
    """Of a leaky relu in place the result is kept, which is 0 where x is, and of its sign."""
    if kinked.family != "leaky_relu" or not saves(node, "result") or not saved(node, "negative_slope") > 0:
        return None
    values = [saved(node, "result"), saved(node, "negative_slope")]
    read = kinked.spelling.form.arrange(*values)
    return None if read is None else SavedValues(values, *read)


def _family(node: Any, family: str, kept: SavedValues) -> str | None:
    """One node serves relu6 and hardtanh, and another selu and elu."""
    if family == "hardtanh" and tuple(kept.inputs[1:]) == (0.0, 6.0):
        return "relu6"
    if family == "selu" and abs(saved(node, "scale") - _SELU) > 1e-6:
        return None
    return family


def _entries(node: Any, kept: SavedValues, here: Call, other: Call) -> tuple[int, int]:
    """How many stand where the two differ, and how many there are."""
    metadata = input_metadata(node)[0]
    ones = torch.ones(tuple(metadata.shape), dtype=metadata.dtype, device=metadata.device)
    inputs = [one.detach() if isinstance(one, Tensor) else one for one in kept.inputs]
    wants = tuple(isinstance(one, Tensor) for one in inputs)
    differs = torch.zeros_like(ones, dtype=torch.bool)
    for one, two in zip(formula.pull(ones, inputs, wants, here), formula.pull(ones, inputs, wants, other), strict=True):
        if one is not None and two is not None:
            differs |= (one != two) & ~(one.isnan() & two.isnan())
    return int(differs.sum()), ones.numel()


def _of_noted(node: object, noted: Any) -> AtKink | None:
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

    def left(leaving: tuple[Any, ...], arriving: tuple[Any, ...]) -> tuple[object, ...]:
        return (torch.where(noted, arriving[0] * share, leaving[0]),) if leaving[0] is not None else leaving

    return AtKink(node, "relu", int(noted.sum()), noted.numel(), left)
