"""Entries of a parameter that never got a gradient: the op that drops them. A `leaf_set` is the set of one leaf: an int with one bit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ...listen.nodes import GraphNode
from .grads import Gradients, are_readable
from .leaf import Leaf
from .leaves import LOOKUPS, Leaves
from .tally import Tally

MATRIX_PRODUCTS = ("Mm", "Bmm", "Addmm", "Baddbmm", "Addbmm", "Mv", "Dot", "Convolution")
PRODUCTS = ("Mul", "Prod", "Linear", *MATRIX_PRODUCTS)
# What an op does to the missing entries, in the words of the report: "slice at train.py:8 reads others alone".
CUTS, READS_OTHERS = "passes nothing on to them", "reads others alone"
_MOST_NODES = 12  # `_find_nearest` ends when it has found more nodes
_MOST_NEAR = 3  # leaves that `_find_nearest` returns
_MORE_DROPPED = 1.5  # an op that drops more than this multiple of the missing entries is not why they are missing


class Drop(NamedTuple):
    """An op that drops the entries of a leaf that never had a gradient."""

    tally: Tally
    how: str  # CUTS or READS_OTHERS


class _Passing(NamedTuple):
    """The gradient at an op near a leaf. Both masks have the shape of the gradient that left."""

    leaf_set: int
    leaf: Leaf
    tally: Tally
    arrived: Tensor  # the entries at which a gradient arrived
    left: Tensor  # the entries at which a gradient left


class Drops:
    """The ops that drop entries which never had a gradient. Each backward that is looked at replaces the results of an earlier one."""

    def __init__(self, leaves: Leaves, key: str) -> None:
        self._leaves, self._key, self._rerun = leaves, key, f"{key}: may run again"
        self._drops: dict[int, dict[Drop, None]] = {}  # by `leaf_set`, in the order of the backward
        self._pending: list[_Passing] = []  # of the running backward
        self._read: set[int] = set()  # each `leaf_set` with missing entries that a lookup read

    def of(self, leaf_set: int) -> list[Drop]:
        """The drop nearest to the leaf; if that is a lookup, all lookups. No lookup counts if one of them read some of the entries."""
        drops = reversed(self._drops.get(leaf_set, {}))
        nearest = [drop for drop in drops if not (leaf_set in self._read and drop.how == READS_OTHERS)]
        if nearest and nearest[0].how == READS_OTHERS:
            return [drop for drop in nearest if drop.how == READS_OTHERS]
        return nearest[:1]

    def begin(self, node: GraphNode, may_run_again: bool) -> None:
        """A node was made, in a step whose backward is looked at. may_run_again: no saved-tensor hook of the program is in force."""
        node.metadata[self._rerun] = may_run_again

    def look(self, node: GraphNode | None, leaving: Gradients, arriving: Gradients, partial: int) -> None:
        """A node ran. partial: the set of leaves of which some entries never had a gradient."""
        tally = None if node is None else node.metadata.get(self._key)
        may_run_again = None if node is None else node.metadata.get(self._rerun)
        if node is None or tally is None or may_run_again is None:
            return
        if not are_readable((*arriving, *leaving)):
            return
        is_lookup = tally.op in LOOKUPS
        if is_lookup and not may_run_again:
            return
        if not is_lookup and not any(grad is not None and bool(torch.count_nonzero(grad)) for grad in arriving):
            return
        # The node runs again on ones: an entry that gets 0 from ones is dropped by the op, and not 0 by chance. An op that may move or mix
        # elements does not run again, unless it is a lookup.
        if may_run_again and (is_lookup or not tally.may_move):
            arriving = [None if grad is None else torch.ones_like(grad) for grad in arriving]
            leaving = _rerun(node, arriving)
        for (other, _), left in zip(node.next_functions, leaving, strict=False):
            if other is None or left is None or not self._leaves.upstream(other) & partial:
                continue
            if left.layout is torch.strided:
                arrived = torch.ones_like(left, dtype=torch.bool) if is_lookup else _reduce(arriving[0], left)
                if arrived is not None:
                    near = self._find_nearest(other, partial)
                    self._pending += [_Passing(leaf_set, leaf, tally, arrived, left != 0) for leaf_set, leaf in near]

    def end(self) -> None:
        """A backward that was looked at has ended: compare its gradients with the entries that are still missing one."""
        pending, self._pending = self._pending, []
        reached = {passing.leaf_set for passing in pending}
        self._drops |= {leaf_set: {} for leaf_set in reached}
        self._read -= reached
        for passing in pending:
            had = passing.leaf.entries.mask
            if had is None or had.device != passing.left.device:
                continue
            how = _judge(passing, ~had)
            if how:
                self._drops[passing.leaf_set][Drop(passing.tally, how)] = None
            elif passing.tally.op in LOOKUPS and _may_concern(passing.left, ~had):
                self._read.add(passing.leaf_set)

    def _find_nearest(self, start: GraphNode, partial: int) -> Iterator[tuple[int, Leaf]]:
        """The leaves nearest to a node, each after its `leaf_set`."""
        queue, count = [start], 0
        for node in queue:
            leaf_set = self._leaves.upstream(node) & partial if hasattr(node, "variable") else 0
            leaf = self._leaves.single(leaf_set)
            if leaf is not None:
                yield leaf_set, leaf
                count += 1
            if count == _MOST_NEAR or len(queue) > _MOST_NODES:
                return
            for other, _ in node.next_functions:
                if other is not None and other not in queue:
                    queue.append(other)


def _rerun(node: GraphNode, arriving: Gradients) -> Gradients:
    """The gradients that leave a node of torch if these arrive; empty if the node cannot be called again."""
    if any(type(grad) is not Tensor for grad in arriving if grad is not None):
        return ()  # it may run code of its own
    try:
        with torch.no_grad():
            result = node(*arriving)
    except (RuntimeError, TypeError):
        return ()
    return result if isinstance(result, tuple) else (result,)


def _judge(passing: _Passing, missing: Tensor) -> str:
    """How an op drops the missing entries of a leaf; "" if it does not."""
    # The gradients on the two sides of a matrix product have the same shape by chance alone.
    if passing.tally.op.startswith(("Linear", *MATRIX_PRODUCTS)):
        return ""
    is_lookup = passing.tally.op in LOOKUPS
    is_covered = _covers(passing.arrived, passing.left, missing, is_lookup)
    how = READS_OTHERS if is_lookup else CUTS
    return how if is_covered else ""


def _reduce(grad: Tensor | None, like: Tensor) -> Tensor | None:
    """Where grad is not 0, reduced to the shape of `like` as the backward of a broadcast sums grad; None if the shapes do not fit."""
    if grad is None or like.dim() > grad.dim():
        return None
    shape = (1,) * (grad.dim() - like.dim()) + tuple(like.shape)
    if any(small not in (1, large) for small, large in zip(shape, grad.shape, strict=True)):
        return None
    dims = [dim for dim, small in enumerate(shape) if small == 1 and grad.shape[dim] != 1]
    arrives = grad != 0
    return (arrives.any(dims, keepdim=True) if dims else arrives).reshape(like.shape)


def _covers(arrived: Tensor, left: Tensor, missing: Tensor, is_lookup: bool) -> bool:
    """Does the op drop all missing entries, and few others? It drops an entry if a gradient arrives there and none leaves.

    If the missing entries make up whole rows or columns, some dimension of the gradient may stand for these rows or columns.
    is_lookup: the op reads single entries, so it may drop any number of others in this step.
    """
    if left.numel() == missing.numel():
        dropped = arrived & ~left
        if any(_is_within(mask.reshape(left.shape), dropped, is_lookup) for mask in _rows_and_columns(missing)):
            return True
    for mask in _rows_and_columns(missing):
        units = _flags_along(mask, range(1)).all(1)  # the rows, or the columns, that miss a gradient everywhere
        is_made_of_units = int(units.sum()) * (missing.numel() // units.numel()) == int(missing.sum())
        for dims in _dims_of(left, units.numel()) if is_made_of_units else ():
            if _is_within(units, _flags_along(arrived, dims).any(1) & ~_flags_along(left, dims).any(1)):
                return True
    return False


def _may_concern(flags: Tensor, missing: Tensor) -> bool:
    """Has the gradient the shape of the leaf, or a dimension for its missing rows or columns?"""
    counts = [len(mask) for mask in _rows_and_columns(missing) if bool(_flags_along(mask, range(1)).all(1).any())]
    return flags.numel() == missing.numel() or any(list(_dims_of(flags, count)) for count in counts)


def _rows_and_columns(mask: Tensor) -> list[Tensor]:
    return [mask, mask.transpose(0, 1)] if mask.dim() > 1 else [mask]


def _dims_of(flags: Tensor, count: int) -> Iterator[range]:
    """Each dimension with `count` indices; also neighbouring dimensions with so many together, as heads and their features."""
    for first in range(flags.dim()):
        for end in range(first + 1, flags.dim() + 1):
            if math.prod(flags.shape[first:end]) == count:
                yield range(first, end)


def _flags_along(flags: Tensor, dims: range) -> Tensor:
    """The flags as a matrix, with a row for each index of these dimensions."""
    order = [*dims, *(dim for dim in range(flags.dim()) if dim not in dims)]
    return flags.permute(order).reshape(math.prod(flags.shape[dim] for dim in dims), -1)


def _is_within(missing: Tensor, dropped: Tensor, may_be_more: bool = False) -> bool:
    """Are all missing entries dropped, and few others unless there may be more?"""
    count = int(missing.sum())
    are_few = may_be_more or int(dropped.sum()) <= _MORE_DROPPED * count
    return are_few and not bool((missing & ~dropped).any())
