"""Entries of a parameter that never get a gradient: the op that hands them nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ...listen.nodes import GraphNode
from .grads import Leaving, are_readable
from .leaf import Leaf
from .leaves import LOOKUPS, Leaves
from .tally import Tally

MATRIX_PRODUCTS = ("Mm", "Bmm", "Addmm", "Baddbmm", "Addbmm", "Mv", "Dot", "Convolution")
PRODUCTS = ("Mul", "Prod", "Linear", *MATRIX_PRODUCTS)
CUTS, MULTIPLIES, READS_OTHERS = "cuts what arrives for them", "multiplies them with 0", "reads others alone"
_NEAR = 12  # nodes behind an op among which its parameter is looked for
_MOST_NEAR = 3  # parameters behind an op
_MORE_DROPPED = 1.5  # an op that drops more than so many times the entries in question drops for another reason


class Drop(NamedTuple):
    """An op that hands nothing to the entries of a leaf that never had a gradient."""

    tally: Tally
    how: str


class _Passing(NamedTuple):
    """The gradient towards a leaf at an op near it: where did one arrive, in the shape of what left, and where did one leave?

    is_next: is the leaf an input of the op?
    """

    bit: int
    leaf: Leaf
    tally: Tally
    is_next: bool
    arrived: Tensor | None
    left: Tensor


class Drops:
    """The ops at which the entries of a parameter that never had a gradient lose it. Each look at a backward replaces the one before."""

    def __init__(self, leaves: Leaves, key: str) -> None:
        self._leaves, self._key, self._rerun = leaves, key, f"{key}: may run again"
        # By the set with the leaf: the backward, and its drops in the order of the backward.
        self._drops: dict[int, tuple[int, dict[Drop, None]]] = {}
        self._pending: list[_Passing] = []  # of the running backward
        self._read: dict[int, int] = {}  # by that set: the last backward in which a lookup read one of the entries

    def of(self, leaf: int) -> list[Drop]:
        """The drop next to the leaf in the last backward looked at; all lookups if it is one, and none of them reads the entries."""
        backward, drops = self._drops.get(leaf, (0, {}))
        is_read = self._read.get(leaf) == backward
        nearest_first = [drop for drop in reversed(drops) if not (is_read and drop.how == READS_OTHERS)]
        nearest = [drop for drop in nearest_first if drop.how != MULTIPLIES] or nearest_first
        if not nearest or nearest[0].how != READS_OTHERS:
            return nearest[:1]
        return [drop for drop in nearest if drop.how == READS_OTHERS]

    def begin(self, node: GraphNode, may_run_again: bool) -> None:
        """A node was made whose backward is looked at. may_run_again: no hook of the program hands out what it has saved."""
        node.metadata[self._rerun] = may_run_again

    def look(self, node: GraphNode | None, leaving: Leaving, arriving: Leaving, partial: int) -> None:
        """A node ran. partial: the set of leaves of which some entries never had a gradient."""
        tally = None if node is None else node.metadata.get(self._key)
        may_run_again = None if node is None else node.metadata.get(self._rerun)
        if node is None or not isinstance(tally, Tally) or may_run_again is None:
            return
        if not are_readable((*arriving, *leaving)):
            return
        is_lookup = tally.op in LOOKUPS
        if is_lookup and not may_run_again:
            return
        if not is_lookup and not any(grad is not None and bool(torch.count_nonzero(grad)) for grad in arriving):
            return
        if may_run_again and (is_lookup or not tally.may_move):
            arriving = [None if grad is None else torch.ones_like(grad) for grad in arriving]
            leaving = _rerun(node, arriving)
        for (other, _), left in zip(node.next_functions, leaving, strict=False):
            if other is None or left is None or not self._leaves.upstream(other) & partial:
                continue
            for bit, leaf, is_next in self._near(other, partial):
                if left.layout is torch.strided:
                    arrived = None if is_lookup else _reduced(arriving[0], left)
                    self._pending.append(_Passing(bit, leaf, tally, is_next, arrived, left != 0))

    def look_at_hook(self, leaf: int, tally: Tally, arrived: Tensor, left: Tensor) -> None:
        """A hook of a parameter ran."""
        known = self._leaves.single(leaf)
        if known is not None and are_readable((arrived, left)):
            self._pending.append(_Passing(leaf, known, tally, False, arrived != 0, left != 0))

    def end(self, backward: int) -> None:
        """A backward that was looked at has ended: judge by the entries that have had no gradient until now."""
        pending, self._pending = self._pending, []
        for passing in pending:
            had = passing.leaf.entries.mask
            if had is None or had.device != passing.left.device:
                continue
            if self._drops.get(passing.bit, (0, {}))[0] != backward:
                self._drops[passing.bit] = backward, {}
            how = _judge(passing, ~had)
            if how:
                self._drops[passing.bit][1][Drop(passing.tally, how)] = None
            elif passing.tally.op in LOOKUPS and _may_concern(passing.left, ~had):
                self._read[passing.bit] = backward

    def _near(self, start: GraphNode, partial: int) -> Iterator[tuple[int, Leaf, bool]]:
        """The leaves that are reached first from here, as sets; is it an input of the node itself?"""
        queue, met, count = [(start, 0)], {start}, 0
        for node, depth in queue:
            if hasattr(node, "variable"):
                bit = self._leaves.upstream(node) & partial
                leaf = self._leaves.single(bit)
                if leaf is not None:
                    yield bit, leaf, depth < 2
                    count += 1
            if count == _MOST_NEAR or len(queue) > _NEAR:
                return
            for other, _ in node.next_functions:
                if other is not None and other not in met:
                    met.add(other)
                    queue.append((other, depth + 1))


def _rerun(node: GraphNode, arriving: Leaving) -> Leaving:
    """The gradients that leave a node of torch for these; nothing if it cannot be asked."""
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
    arrived, left = passing.arrived, passing.left
    if passing.tally.op in LOOKUPS:
        return READS_OTHERS if _covers(~left, missing) else ""
    # The gradients on the two sides of a matrix product have the same shape by chance alone.
    is_matrix = passing.tally.op.startswith(("Linear", *MATRIX_PRODUCTS))
    if arrived is not None and not is_matrix and _covers(arrived & ~left, missing, arrived, left):
        return CUTS
    is_product = passing.is_next and passing.tally.op.startswith(PRODUCTS)
    if not (is_product and missing.dim() > 1 and _covers(~left, missing)):
        return ""
    columns = missing.flatten(2).all(2) if missing.dim() > 2 else missing
    return MULTIPLIES if bool((columns == columns.all(0)).all()) else ""


def _reduced(grad: Tensor | None, like: Tensor) -> Tensor | None:
    """Where a gradient arrives, in the shape of one that leaves: an op that broadcasts its input sums the gradient again."""
    if grad is None or like.dim() > grad.dim():
        return None
    shape = (1,) * (grad.dim() - like.dim()) + tuple(like.shape)
    if any(small not in (1, large) for small, large in zip(shape, grad.shape, strict=True)):
        return None
    dims = [dim for dim, small in enumerate(shape) if small == 1 and grad.shape[dim] != 1]
    arrives = grad != 0
    return (arrives.any(dims, keepdim=True) if dims else arrives).reshape(like.shape)


def _covers(dropped: Tensor, missing: Tensor, arrived: Tensor | None = None, left: Tensor | None = None) -> bool:
    """Are the missing entries, or the rows or columns that they make up, among the dropped ones, and hardly others?

    arrived, left: of a row, some entry must have arrived and none have left; without them all of its entries must be dropped.
    """
    ways = (missing, missing.transpose(0, 1)) if missing.dim() > 1 else (missing,)
    if dropped.numel() == missing.numel():
        are_in = [_is_within(way.reshape(dropped.shape), dropped, is_lookup=arrived is None) for way in ways]
        if any(are_in):
            return True
    for units in (_flags_along(way, range(1)).all(1) for way in ways):
        if int(units.sum()) * (missing.numel() // units.numel()) != int(missing.sum()):
            continue
        for dims in _dims_of(dropped, units.numel()):
            if arrived is None or left is None:
                gone = _flags_along(dropped, dims).all(1)
            else:
                gone = _flags_along(arrived, dims).any(1) & ~_flags_along(left, dims).any(1)
            if _is_within(units, gone):
                return True
    return False


def _may_concern(flags: Tensor, missing: Tensor) -> bool:
    """Has the gradient the shape of the leaf, or a dimension for its missing rows or columns?"""
    ways = (missing, missing.transpose(0, 1)) if missing.dim() > 1 else (missing,)
    counts = [len(way) for way in ways if bool(_flags_along(way, range(1)).all(1).any())]
    return flags.numel() == missing.numel() or any(True for count in counts for _ in _dims_of(flags, count))


def _dims_of(flags: Tensor, count: int) -> Iterator[range]:
    """Each dimension of so many indices, and each run of dimensions that count together as many, such as heads and their features."""
    for first in range(flags.dim()):
        for end in range(first + 1, flags.dim() + 1):
            if math.prod(flags.shape[first:end]) == count:
                yield range(first, end)


def _flags_along(flags: Tensor, dims: range) -> Tensor:
    order = [*dims, *(dim for dim in range(flags.dim()) if dim not in dims)]
    return flags.permute(order).reshape(math.prod(flags.shape[dim] for dim in dims), -1)


def _is_within(missing: Tensor, dropped: Tensor, is_lookup: bool = False) -> bool:
    """is_lookup: the op is asked for single entries, and may drop whatever else it does not read in this step."""
    count = int(missing.sum())
    are_few = is_lookup or int(dropped.sum()) <= _MORE_DROPPED * count
    return count > 0 and are_few and not bool((missing & ~dropped).any())
