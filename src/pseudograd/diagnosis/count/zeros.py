"""Parameters that get nothing but zeros, and those of which a part gets nothing: what makes it so.

A gradient becomes zeros where an op cuts it element by element; or at a product with zeros, or at a reduction. The nodes of these are
looked at from the second backward on, and only those that hand something to a parameter that has got zeros alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.autograd.graph import Node

from ..records import Partly, Site, site_of
from .leaves import Leaves
from .tally import Tally

FIRST = 4  # backward passes after which the parameters that have got zeros alone are searched
_NEAR = 16  # nodes to look at, for what made the other factor


class Zeros:
    """Of one diagnosis. key: under which a node holds its tally. passing: names of nodes that hand on what they get."""

    def __init__(self, leaves: Leaves, key: str, passing: frozenset[str]) -> None:
        self.suspects = 0  # leaves that have got zeros alone
        self._leaves, self._key, self._passing = leaves, key, passing
        self._factors: dict[
            int, tuple[Tally, dict[int, Tally]]
        ] = {}  # by a tally that handed zeros: what made its other inputs

    def end_backward(self, backwards: int) -> None:
        if backwards <= FIRST:
            self.suspects = sum(1 << bit for bit, leaf in self._leaves if leaf.gradients and not leaf.moved)

    def concern(self, node: Node) -> bool:
        """Does a node hand something to one of them alone?"""
        if not self.suspects:
            return False
        behind = (self._leaves.upstream(other) for other, _ in node.next_functions if other is not None)
        return any(leaves & self.suspects and not leaves & (leaves - 1) for leaves in behind)

    def look(self, tally: Tally, node: Any, leaving: Sequence[Any], arriving: Sequence[Any]) -> None:
        """A node ran: which leaves does it hand zeros alone?"""
        if node is None or not any(grad is not None and bool(torch.count_nonzero(grad)) for grad in arriving):
            return
        _, factors = self._factors.setdefault(id(tally), (tally, {}))
        for (other, _), grad in zip(node.next_functions, leaving, strict=False):
            if other is None or grad is None:
                continue
            leaves = self._leaves.upstream(other)
            if bool(torch.count_nonzero(grad)):
                tally.passed |= leaves
            elif leaves & self.suspects:
                tally.zeroed |= leaves
                for factor in self._near([before for before, _ in node.next_functions if before not in (None, other)]):
                    factors[id(factor)] = factor

    def _near(self, nodes: list[Any]) -> Iterable[Tally]:
        """What made the other inputs, past the nodes that hand on."""
        for _ in range(_NEAR):
            if not nodes:
                return
            node = nodes.pop(0)
            tally = node.metadata.get(self._key)
            if isinstance(tally, Tally):
                yield tally
            if node.name() in self._passing:
                nodes += [before for before, _ in node.next_functions if before is not None]

    def cause(self, leaf: int, sites: Sequence[Site]) -> tuple[Site, str] | None:
        """Of the zeros of this leaf: an op whose result is 0 everywhere, or the product itself."""
        for tally, factors in self._factors.values():
            if not tally.zeroed & leaf or tally.passed & leaf:
                continue
            lines = {(factor.where, factor.expression) for factor in map(site_of, factors.values())}
            for site in sites:
                if (site.where, site.expression) in lines and site.arrived and site.cut == site.arrived:
                    return site, f"it is multiplied with what {site.op} gives, which is 0 everywhere"
            product = site_of(tally)
            return (
                product,
                f"{product.op} hands it zeros alone: its other factor is 0, or what it reads decides nothing",
            )
        return None


def fading(leaf: int, sites: Sequence[Site], backwards: int) -> tuple[Site, str] | None:
    """An op that cuts most each time, and that the gradient passes several times in a backward."""
    repeated = [site for site in sites if site.upstream & leaf and site.calls > backwards and site.cut_share > 0.5]
    if not repeated:
        return None
    site = max(repeated, key=lambda site: site.cut_share)
    times = site.calls // max(backwards, 1)
    return site, f"it passes {site.op} {times} times in a backward, which cuts {100 * site.cut_share:.1f} % in the mean"


# --- parameters that get a gradient in part ---------------------------------------------------------------------------

# Of the units. Ten linear layers as torch initialises them, each with a relu and no norm behind it, have up to 0.72 dead in the first ten
# steps and learn all the same; with He's initialisation or a norm it is at most 0.35.
MOST = 0.75
_FEW = 8  # units: of fewer, most of them is chance
_SHORT = 3  # backward passes
_CHANCES = 128  # gradients that could have come to each unit
_LISTED = 4  # parameters in a line
# Their slope is 0 over a range, so a unit can stay there. A mask or a choice of rows is no such op.
_SATURATE = ("relu", "clamp", "sign", "heaviside", "jumprelu", "round")


def are_dead(partly: Partly) -> bool:
    """Is it a finding? Most of the units, behind an op that can hold them where its slope is 0, after enough chances."""
    site = partly.cause
    if partly.is_looked_up or site is None or partly.units < _FEW or partly.backwards < _SHORT or partly.share < MOST:
        return False
    is_function = site.is_own or not site.op[:1].islower()  # a custom Function keeps the name of its class
    saturates = is_function or (site.family in _SATURATE and site.cut_share >= MOST * partly.share)
    return saturates and site.elements / partly.units >= _CHANCES


def calm_of(partly: Sequence[Partly]) -> list[str]:
    """One line for the rows that no batch asked for, one for what else got nothing in part."""
    looked_up = [row for row in partly if row.is_looked_up]
    others = [row for row in partly if not row.is_looked_up and not are_dead(row) and row.without / row.entries >= 0.5]
    lines = []
    if looked_up:
        or_padding = " or padding" if any(row.padding is not None for row in looked_up) else ""
        lines.append(f"not looked up{or_padding}, so without a gradient: {_list(looked_up, True)}")
    if others:
        lines.append(f"without a gradient in part, no finding: {_list(others, False)}")
    return lines


def _list(partly: Sequence[Partly], are_rows: bool) -> str:
    texts = []
    for row in sorted(partly, key=lambda row: -row.without / row.entries)[:_LISTED]:
        counts_rows = are_rows and row.dead_units
        without, all_of_it, what = (
            (row.dead_units, row.units, "rows") if counts_rows else (row.without, row.entries, "entries")
        )
        padding = "" if row.padding is None else f" (row {row.padding} is its padding)"
        texts.append(f"{without:,} of {all_of_it:,} {what} of {row.parameter}{padding}")
    more = f" and of {len(partly) - _LISTED} more" if len(partly) > _LISTED else ""
    return ", ".join(texts) + more


def grouped(partly: Iterable[Partly]) -> list[list[Partly]]:
    """Those that one op holds, together: weight and bias of a layer."""
    groups: dict[object, list[Partly]] = {}
    for row in partly:
        if are_dead(row) and row.cause is not None:
            key = (row.cause.where, row.cause.expression, row.cause.module, row.dead_units, row.units)
            groups.setdefault(key, []).append(row)
    return list(groups.values())
