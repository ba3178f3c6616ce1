"""Parameters that get only zeros: the op that makes the zeros.

It may cut the gradient element by element, multiply it by zeros, or hand nothing on, as a reduction may. From the second backward on, this
looks at the nodes that hand a gradient to a parameter that has got only zeros so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ...listen.nodes import GraphNode
from ..records import Reason, Site
from .drops import PRODUCTS, Drops
from .grads import Gradients, are_readable
from .leaf import is_nonzero
from .leaves import Leaves
from .tally import Tally

_NODES_LOOKED_AT = 16  # in the search for the op that made the other factor
_CHOICES = ("Where", "Maximum", "Minimum", "Fmax", "Fmin")
_JOINS = ("Stack", "Cat")  # the op that reads their result decides which of their inputs gets zeros


class MakerOfZeros(NamedTuple):
    """The op that makes the zeros of a leaf, and a sentence about it."""

    site: Site
    why: str
    reason: Reason = "zeros alone"


class Zeros:
    """The nodes that hand zeros to suspects, which are leaves that got only zeros.

    key: a node has its tally under this key of its metadata. passing: the names of nodes that only hand gradients on.
    """

    def __init__(self, leaves: Leaves, key: str, passing: frozenset[str]) -> None:
        self._leaves, self._key, self._passing = leaves, key, passing
        self._begun = f"{key}: zeros"
        self.drops = Drops(leaves, key)
        # By the tally of an op that handed zeros on: the tallies of its other inputs.
        self._factors: dict[Tally, set[Tally]] = {}

    def begin(self, node: GraphNode) -> bool:
        """Does this node need a hook that calls `look`? Returns True only once, and only if the call that made the node was seen."""
        is_new = self._begun not in node.metadata and self._key in node.metadata
        if is_new:
            node.metadata[self._begun] = True
        return is_new

    def look(self, node: GraphNode | None, leaving: Gradients, arriving: Gradients, suspects: int) -> None:
        """A node ran: note the leaves to which it handed only zeros."""
        tally = None if node is None else node.metadata.get(self._key)
        if node is None or tally is None or not are_readable(arriving):
            return
        if not any(grad is not None and bool(is_nonzero(grad)) for grad in arriving):
            return
        factors = self._factors.setdefault(tally, set())
        for (other, _), grad in zip(node.next_functions, leaving, strict=False):
            if other is None or grad is None:
                continue
            tally_behind = other.metadata.get(self._key)
            if tally_behind is not None:
                tally_behind.reader = tally
            leaves = self._leaves.upstream(other)
            if bool(is_nonzero(grad)):
                tally.passed |= leaves
            elif leaves & suspects:
                tally.zeroed |= leaves
                factors.update(
                    self._tallies_behind([before for before, _ in node.next_functions if before not in (None, other)])
                )

    def _tallies_behind(self, nodes: list[GraphNode]) -> Iterable[Tally]:
        """The tallies of these nodes, and of the inputs of those that only hand gradients on."""
        for _ in range(_NODES_LOOKED_AT):
            if not nodes:
                return
            node = nodes.pop(0)
            tally = node.metadata.get(self._key)
            if tally is not None:
                yield tally
            if node.name() in self._passing:
                nodes += [before for before, _ in node.next_functions if before is not None]

    def cause(self, leaf_set: int, sites: Sequence[Site], site_of: Callable[[Tally], Site]) -> MakerOfZeros | None:
        """The op that makes the zeros of a leaf: a factor that is 0 everywhere, else the op that hands the zeros on."""
        for tally, factors in self._factors.items():
            if not tally.zeroed & leaf_set or tally.passed & leaf_set:
                continue
            lines = {(factor.where, factor.expression) for factor in map(site_of, factors)}
            for site in sites if tally.op.startswith(PRODUCTS) else ():
                if (site.where, site.expression) in lines and site.arrived and site.cut == site.arrived:
                    return MakerOfZeros(site, f"it is multiplied with what {site.op} gives, which is 0 everywhere", "")
            if tally.op.startswith(_JOINS) and tally.reader is not None:
                site = site_of(tally.reader)
                return MakerOfZeros(site, f"{site.op} hands back zeros alone for its part")
            site = site_of(tally)
            reason: Reason = "zeros alone"
            why = ": its slope towards this parameter is 0, or a hook of the program sets the gradient to 0"
            if tally.op.startswith(_CHOICES):
                why = ": it never chooses a value of this parameter"
            elif "Copy" in tally.op:
                why = ": its values are overwritten"
            elif tally.op.startswith(PRODUCTS):
                why, reason = ": its other factor is 0, or what arrives adds up to 0", "adds up to 0"
            return MakerOfZeros(site, f"{site.op} hands it zeros alone{why}", reason)
        return None
