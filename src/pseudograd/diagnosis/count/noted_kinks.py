"""Kinks and ties that a node of autograd does not keep: noted when its call is made, in the metadata of the node."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...rewrite import entered_contexts
from ...rewrite.mode import Rewrite
from ...rewrite.pins import prepare, run_pinned
from ...torch_table.forms import KINKED, Kinked
from ...torch_table.private import is_batched, is_fake, is_wrapped, saved
from ...torch_table.records import Arguments, Function, Keywords
from .other_conventions import other_of

NOTED = "pseudograd: at a kink"  # in the metadata of a node: what was noted of its call, None where nothing stands at a kink
NOTHING = object()  # of a relu: nothing that enters it is 0


class Tied(NamedTuple):
    """A call once more, under the other convention, on an x of its own: what its graph gives to x is what would leave the node."""

    x: Tensor
    y: Tensor
    family: str
    entries: int


class Sorted(NamedTuple):
    """What a quantile sorts, along its last dimension; and its result under the other convention."""

    x: Tensor
    pinned: Tensor


def _is_noted(kinked: Kinked) -> bool:
    return kinked.kink.is_noted or kinked.kink.write is not None


NOTED_CALLS = {func for func, rows in KINKED.items() if any(map(_is_noted, rows))} | {Tensor.norm}


def note_before(func: Function, args: Arguments, kwargs: Keywords) -> object:
    """Where x of a relu is 0, whose node keeps the result alone; and where a sort, a maximum over a dimension and the like have ties."""
    if func is Tensor.norm:  # a function in Python
        func = torch.norm
    for kinked in KINKED.get(func, ()):
        values = kinked.spelling.values(args, kwargs)
        if values is None or not _is_plain(values[0]) or entered_contexts.pin(kinked.family):
            continue
        if kinked.kink.is_noted:
            zero = values[0].detach() == 0
            return zero if bool(zero.any()) else NOTHING
        if kinked.family == "quantile":
            return _find_sorted(kinked, func, args, kwargs, values)
        if kinked.kink.write is not None:
            return _find_ties(kinked, func, args, kwargs, values[0])
    return None


def _is_plain(x: Any) -> bool:
    """Can its numbers be read here, and has it a gradient?"""
    if type(x) not in (Tensor, torch.nn.Parameter) or not x.requires_grad or x.layout is not torch.strided:
        return False
    return not (x.is_meta or x.is_nested or is_wrapped(x) or is_batched(x) or is_fake(x))


def _find_ties(kinked: Kinked, func: Function, args: Arguments, kwargs: Keywords, x: Tensor) -> Tied | None:
    if x.dim() == 0 or not x.is_floating_point() or not args or args[0] is not x:
        return None
    mine = x.detach().requires_grad_()
    pinned = _pinned(kinked, func, (mine, *args[1:]), kwargs)
    if pinned is None:
        return None
    with torch.enable_grad():
        y, own = _first(pinned), _first(func(mine, *args[1:], **kwargs))
        weights = torch.arange(1, y.numel() + 1, dtype=y.dtype, device=y.device).reshape(y.shape)
        (new,) = torch.autograd.grad(y, mine, weights, retain_graph=True)
        (old,) = torch.autograd.grad(own, mine, weights)
    differs = (new != old) & ~(new.isnan() & old.isnan())
    return Tied(mine, y, kinked.family, int(differs.sum())) if bool(differs.any()) else None


def _find_sorted(kinked: Kinked, func: Function, args: Arguments, kwargs: Keywords, values: list[Any]) -> Sorted | None:
    x, dim = values[0].detach(), values[2]
    if dim is not None and x.dim() - dim % max(x.dim(), 1) > 2:  # torch and the pin bring it to the end in other orders
        return None
    flat = x.reshape(-1) if dim is None or x.dim() == 0 else x.transpose(dim, -1)
    ordered = flat.sort(dim=-1).values
    if not bool((ordered[..., 1:] == ordered[..., :-1]).any()) or not args or args[0] is not values[0]:
        return None
    pinned = _pinned(kinked, func, (x.requires_grad_(), *args[1:]), kwargs)
    return None if pinned is None else Sorted(flat.detach(), pinned)


def _pinned(kinked: Kinked, func: Function, args: Arguments, kwargs: Keywords) -> Any:
    """The result of a call under the other convention; None where the pin leaves it to torch."""
    other = other_of(kinked.family)
    if other is None:
        return None
    with torch.enable_grad():
        return run_pinned(Rewrite({}, None, prepare({kinked.family: other.convention})), func, args, kwargs)


def _note_sort(noted: Sorted, node: object) -> None:
    """The sort of a quantile is a node behind the result; JAX and torch 2.13 leave equal ones in their order there."""
    sort = _node_behind(node, "SortBackward")
    if sort is None:
        _note_ranks(noted, node)
        return
    index, x = saved(sort, "indices"), noted.x
    if index.shape != x.shape:
        x = x.reshape(index.shape) if index.numel() == x.numel() else x
    stable = x.sort(dim=-1, stable=True)
    if index.shape == x.shape and torch.equal(x.gather(-1, index), stable.values):
        _note_indices(sort, x, index, stable.indices)


def _note_indices(node: Any, x: Tensor, own: Tensor, other: Tensor) -> None:
    """Torch's gradient goes to the entries of x at `own`, that of the other convention to the entries at `other`."""
    entries = int((own != other).sum())
    if entries:
        with torch.enable_grad():
            mine = x.detach().requires_grad_()
            node.metadata[NOTED] = Tied(mine, mine.gather(-1, other), "quantile", entries)


def _node_behind(node: Any, start: str) -> Any:
    """The next node of this name, by the first input of each."""
    for _ in range(8):
        if node is None or node.name().startswith(start):
            return node
        node = next((other for other, _ in node.next_functions if other is not None), None)
    return None


def _note_ranks(noted: Sorted, node: object) -> None:
    """Since 2.14 torch keeps no sort but the entries themselves at the two ranks: those of the other convention stand in its own graph."""
    own, pinned = _node_behind(node, "LerpBackward"), _node_behind(noted.pinned.grad_fn, "LerpBackward")
    if own is None or pinned is None:
        return
    for (gather, _), (ranks, _) in zip(own.next_functions, pinned.next_functions, strict=True):
        order: Any = ranks.next_functions[0][0] if ranks is not None and ranks.next_functions else None
        if not all(other is not None and other.name().startswith("GatherBackward") for other in (gather, ranks, order)):
            return
        index, other = saved(gather, "index"), saved(order, "index").gather(-1, saved(ranks, "index"))
        if index.numel() != other.numel():
            return
        other, x = other.reshape(index.shape), noted.x.reshape(*index.shape[:-1], -1)
        if not torch.equal(x.gather(-1, index), x.gather(-1, other)):
            return
        _note_indices(gather, x, index, other)


def _first(result: Any) -> Tensor:
    return result if isinstance(result, Tensor) else result[0]  # type: ignore[no-any-return]


def note_after(noted: object, args: Any, result: Any) -> None:
    """At the node that the call made, where it stands alone between x and the result."""
    first = result if isinstance(result, Tensor) else result[0] if isinstance(result, tuple) else None
    node: Any = first.grad_fn if isinstance(first, Tensor) else None
    if node is None:
        return
    if isinstance(noted, Sorted):
        _note_sort(noted, node)
    elif isinstance(noted, Tied):
        before = node.next_functions[0][0] if node.next_functions else None
        if before is not None and (before is args[0].grad_fn or getattr(before, "variable", None) is args[0]):
            node.metadata[NOTED] = noted
    elif node.name().startswith("ReluBackward"):
        node.metadata[NOTED] = None if noted is NOTHING else noted


def leave_tied(noted: Tied, leaving: tuple[Any, ...], arriving: tuple[Any, ...]) -> tuple[Any, ...]:
    if leaving[0] is None:
        return leaving
    (grad,) = torch.autograd.grad(noted.y, noted.x, arriving[0], retain_graph=True)
    return (grad.to(leaving[0].dtype), *leaving[1:])
