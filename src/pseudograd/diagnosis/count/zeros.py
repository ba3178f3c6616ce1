"""Where a gradient that is nothing but zeros became so, if no op cuts it element by element: a product with zeros, or a reduction.

These nodes are looked at from the second backward on, and only those that hand something to a parameter that has got zeros alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.autograd.graph import Node

from ..records import Site, site_of
from .leaves import Leaves
from .tally import Tally

FIRST = 4  # backward passes after which it is asked which parameters have got zeros alone
_NEAR = 16  # nodes to look at, for what made the other factor


class Zeros:
    """Of one diagnosis."""

    def __init__(self, leaves: Leaves, key: str, passing: frozenset[str]) -> None:
        self.suspects = 0  # leaves that have got zeros alone
        self._leaves = leaves
        self._key = key  # under which a node holds its tally
        self._passing = passing
        self._made: dict[int, tuple[Tally, dict[int, Tally]]] = {}

    def end_backward(self, backwards: int) -> None:
        if backwards <= FIRST:
            self.suspects = sum(1 << bit for bit, leaf in self._leaves if leaf.gradients and not leaf.moved)

    def concern(self, node: Node) -> bool:
        """Does a node hand something to one of them alone?"""
        if not self.suspects:
            return False
        behind = (self._leaves.upstream(other) for other, _ in node.next_functions if other is not None)
        return any(some & self.suspects and not some & (some - 1) for some in behind)

    def look(self, to: Tally, node: Node, leaving: Sequence[Any], arriving: Sequence[Any]) -> None:
        """A node ran: which leaves does it hand zeros alone?"""
        if node is None or not any(one is not None and bool(torch.count_nonzero(one)) for one in arriving):
            return
        _, factors = self._made.setdefault(id(to), (to, {}))
        for (other, _), grad in zip(node.next_functions, leaving, strict=False):
            if other is None or grad is None:
                continue
            some = self._leaves.upstream(other)
            if bool(torch.count_nonzero(grad)):
                to.passed |= some
            elif some & self.suspects:
                to.zeroed |= some
                for one in self._near([before for before, _ in node.next_functions if before not in (None, other)]):
                    factors[id(one)] = one

    def _near(self, nodes: list[Any]) -> Iterable[Tally]:
        """What made the other inputs, past the nodes that hand on."""
        for _ in range(_NEAR):
            if not nodes:
                return
            node = nodes.pop(0)
            found = node.metadata.get(self._key)
            if isinstance(found, Tally):
                yield found
            if node.name() in self._passing:
                nodes += [before for before, _ in node.next_functions if before is not None]

    def cause(self, leaf: int, sites: Sequence[Site]) -> tuple[Site, str] | None:
        """Of the zeros of this leaf: an op whose result is 0 everywhere, or the product itself."""
        for to, factors in self._made.values():
            if not to.zeroed & leaf or to.passed & leaf:
                continue
            places = {(made.where, made.expression) for made in map(site_of, factors.values())}
            for site in sites:
                if (site.where, site.expression) in places and site.arrived and site.cut == site.arrived:
                    return site, f"it is multiplied with what {site.op} gives, which is 0 everywhere"
            found = site_of(to)
            return found, f"{found.op} hands it zeros alone: its other factor is 0, or what it reads decides nothing"
        return None


def fading(leaf: int, sites: Sequence[Site], backwards: int) -> tuple[Site, str] | None:
    """An op that cuts most each time, and that the gradient passes several times in a backward."""
    some = [one for one in sites if one.upstream & leaf and one.calls > backwards and one.cut_share > 0.5]
    if not some:
        return None
    site = max(some, key=lambda one: one.cut_share)
    times = site.calls // max(backwards, 1)
    return site, f"it passes {site.op} {times} times in a backward, which cuts {100 * site.cut_share:.1f} % in the mean"
