"""The share of a gradient that is convention, |g_other - g| / |g|. g_other comes from a further backward pass, in which one family follows
the convention of another torch, of JAX or of TensorFlow at its kinks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...errors import must
from ...listen.frames import NOWHERE, Location, file_and_line
from ...listen.nodes import GraphNode
from ...rewrite.other_conventions import other_of, within
from ...torch_table.private import local
from .further_backward import Comparison, Graph, compare_gradients
from .grads import Gradients
from .kinks import KinkNode, find_kinks, find_obstacles
from .leaf import Leaf
from .norms import Series, Steps, numbers_of, sample
from .tally import Tally

HIGH_SHARE = 0.1  # no training has been seen that depends on a smaller share
_MOST_LINES = 8  # lines of one family that get a pass of their own: those with most elements at a kink
_Key = tuple[str, Location | None]  # a family, and one of its lines; None for all its lines


def check_sensitivity(value: object) -> int:
    """The argument `sensitivity` of `diagnose` as a number n, for every n-th backward; 0 for no backward."""
    if isinstance(value, bool):
        return int(value)
    if not isinstance(value, int) or value < 1:
        raise ValueError(must("diagnose", "sensitivity", "be True, False, or n for every n-th backward", value))
    return value


@dataclass(frozen=True)
class Sensitivity:
    """How much of the gradient is the convention of one family of functions.

    A share is |g_other - g| / |g|, and infinite if only the other convention gives a gradient.
    """

    family: str
    other: str  # the framework whose convention replaces torch's
    where: str | None  # the line; None for all lines of the family
    parameter: str | None  # None for all parameters together
    share: float  # in the mean over the steps
    first: float  # the share in the first step
    last: float  # the share in the last step
    cosine: float  # of the two gradients, in the last step; NaN if one of them is 0
    at_kink: tuple[float, float]  # the share of elements at a kink in the first and the last step
    steps: Steps  # the shares by step, thinned out
    moved: float  # the distance that the parameter moved, as a share of its first norm
    stops: bool = False  # would the parameter get nothing in the first step under the other convention?
    expression: str = ""
    within: str | None = None  # the function that the line calls, if a pin does not reach what it runs
    is_muted: bool = field(default=False, repr=False)  # the program declares the line deliberate

    @property
    def level(self) -> float:
        """The median share in the second half of the steps."""
        shares = sorted([share for _, share in self.steps[len(self.steps) // 2 :]])
        return shares[(len(shares) - 1) // 2]

    @property
    def peak(self) -> float:
        return max(share for _, share in self.steps)


@dataclass(frozen=True)
class Answer:
    """The measurement of one step for a family, or for one line of it. comparisons: g_other beside g, for each leaf."""

    at_kink: int  # how many of the elements are at a kink
    elements: int
    comparisons: Mapping[Leaf, Comparison]


Answers = dict[_Key, Answer]
# From the gradients that a pass brings to the nodes of leaves, those of the leaves.
ByLeaf = Callable[[Mapping[GraphNode, Tensor]], dict[Leaf, Tensor]]


class _Shares:
    """The shares of one parameter, or of all together, over the steps."""

    def __init__(self) -> None:
        self.series: Series[float] = Series()
        self.total = 0.0
        self.count = 0
        self.cosine = math.nan
        self.stops = False  # does the other convention bring no gradient in the first step?

    def add(self, step: int, comparison: Comparison) -> None:
        # own and square: the squares of |g| and |g_other|
        self.stops |= not self.count and comparison.own > 0 and not comparison.square
        self.series.add(step, comparison.share)
        self.total += comparison.share
        self.count += 1
        self.cosine = comparison.cosine

    @property
    def order(self) -> float:
        """The key for sorting: the largest sum of shares comes first."""
        return 0.0 if math.isnan(self.total) else -self.total


class _FamilyShares:
    """The shares of one family, or of one line of it, for all parameters together and for each."""

    def __init__(self) -> None:
        self.all = _Shares()
        self.leaves: dict[Leaf, _Shares] = {}
        self.at_kink: list[float] = []  # in the first step and the last

    def add(self, step: int, answer: Answer, arrived: Collection[Leaf]) -> None:
        comparisons = {leaf: comparison for leaf, comparison in answer.comparisons.items() if leaf in arrived}
        sums = map(sum, zip(*comparisons.values(), strict=True))  # field by field
        self.all.add(step, Comparison(*sums))
        # A leaf is measured from the first step in which its two gradients differ.
        differing = [leaf for leaf, comparison in comparisons.items() if comparison.apart]
        for leaf in dict.fromkeys([*self.leaves, *differing]):
            self.leaves.setdefault(leaf, _Shares()).add(step, comparisons.get(leaf, Comparison()))
        self.at_kink = [*self.at_kink[:1], answer.at_kink / answer.elements if answer.elements else 0.0]


class SensitivityMeter:
    """Measures the sensitivity in every n-th backward. `WhatIfMeter` checks that a further pass gives the program's own gradients."""

    def __init__(
        self, interval: int, tally_of: Callable[[GraphNode], Tally | None], is_deliberate: Callable[[Location], bool]
    ) -> None:
        self.interval = interval
        self.refused: dict[str, int] = {}  # by reason: the number of backward passes that were not measured
        self._tally_of, self._is_deliberate = tally_of, is_deliberate
        self._within: dict[_Key, str | None] = {}
        self._measured: dict[_Key, _FamilyShares] = {}
        self._samples: dict[Leaf, list[Tensor]] = {}  # of a parameter: the first and the last

    def is_due(self, number: int) -> bool:
        """Is the backward with this number, from 1, measured?"""
        return (number - 1) % self.interval == 0

    def find_kinks(self, behind: Sequence[GraphNode]) -> list[KinkNode]:
        """The nodes at a kink whose convention no pin has chosen. behind: the nodes that the backward can reach."""
        # Under some pins the installed torch computes by itself what the pin asks for. Those kinks are left out, too.
        self._refuse(find_obstacles(behind))
        tallies = [(kink, self._tally_of(kink.node)) for kink in find_kinks(behind)]
        return [kink for kink, tally in tallies if tally is None or kink.family not in tally.left_to_torch]

    def answers(self, graph: Graph, kinks: Sequence[KinkNode], own: Mapping[Leaf, Tensor], by_leaf: ByLeaf) -> Answers:
        """Run a further pass for each family. If a family has several lines and a high share, also one for each line."""

        def run(kinks: Sequence[KinkNode]) -> Answer:
            by_node = {kink.node: kink for kink in kinks}

            def leave(node: GraphNode, leaving: Gradients, arriving: Gradients) -> Gradients:
                kink = by_node.get(node)
                return leaving if kink is None or arriving[0] is None else kink.leave(leaving, arriving[0])

            other = by_leaf(graph.run(leave))
            comparisons = {leaf: compare_gradients(other.get(leaf), grad) for leaf, grad in own.items()}
            return Answer(sum(kink.at_kink for kink in kinks), sum(kink.elements for kink in kinks), comparisons)

        answers: Answers = {}
        for family in dict.fromkeys(kink.family for kink in kinks):
            lines: dict[Location, list[KinkNode]] = {}
            for kink in kinks:
                if kink.family == family:
                    lines.setdefault(self._line(kink), []).append(kink)
            answers[family, None] = answer = run([kink for line in lines.values() for kink in line])
            if len(lines) == 1:
                answers[family, next(iter(lines))] = answer
            elif any(comparison.share >= HIGH_SHARE for comparison in answer.comparisons.values()):
                most = sorted(lines.items(), key=lambda item: -sum(kink.at_kink for kink in item[1]))[:_MOST_LINES]
                answers |= {(family, location): run(line) for location, line in most}
        return answers

    def _line(self, kink: KinkNode) -> Location:
        tally = self._tally_of(kink.node)
        if tally is None:
            return NOWHERE
        self._within[kink.family, tally.location] = within(kink.family, tally.caller)
        return tally.location

    def end(self, step: int, reasons: Collection[str], answers: Answers, arrived: Collection[Leaf]) -> None:
        """A backward of the program has ended: add its answers. A family that was measured before and is at no kink now adds 0."""
        if reasons:
            self._refuse(reasons)
            return
        for key in answers:
            self._measured.setdefault(key, _FamilyShares())
        for (family, line), measured in self._measured.items():
            # If the family had a pass and this line had none, the share of the line is not known.
            if (family, line) in answers or (family, None) not in answers:
                measured.add(step, answers.get((family, line), Answer(0, 0, {})), arrived)
            for leaf in measured.leaves:
                if (tensor := leaf.tensor()) is not None:
                    now = sample(local(tensor))
                    first = self._samples.get(leaf, [now])[0]
                    self._samples[leaf] = [first if first.shape == now.shape else now, now]

    def _refuse(self, reasons: Iterable[str]) -> None:
        for reason in reasons:
            self.refused[reason] = self.refused.get(reason, 0) + 1

    def _relative_distance(self, leaf: Leaf | None) -> float:
        """|last - first| / |first| of a sample of a parameter; infinite if it started at 0, NaN if it was not seen."""
        if leaf not in self._samples:
            return math.nan
        first, last = (tensor.double() for tensor in self._samples[leaf])
        norm, apart = float(torch.linalg.vector_norm(first)), float(torch.linalg.vector_norm(last - first))
        return apart / norm if norm else math.inf if apart else 0.0

    def records(self) -> list[Sensitivity]:
        """The families, then the lines, each sorted by share; for each, first all parameters together, then single ones."""
        records = []
        by_share = sorted(self._measured.items(), key=lambda item: (item[0][1] is not None, item[1].all.order))
        for key, measured in by_share:
            leaves = sorted(measured.leaves.items(), key=lambda item: item[1].order)
            records += [self._record(key, measured, leaf, shares) for leaf, shares in ((None, measured.all), *leaves)]
        return records

    def _record(self, key: _Key, measured: _FamilyShares, leaf: Leaf | None, shares: _Shares) -> Sensitivity:
        (family, line), steps = key, numbers_of(shares.series)
        other = other_of(family)
        return Sensitivity(
            family=family,
            other="" if other is None else other.whose,
            where=None if line is None else file_and_line(line.call),
            parameter=None if leaf is None else leaf.name,
            share=shares.total / shares.count,
            first=steps[0][1],
            last=steps[-1][1],
            cosine=shares.cosine,
            at_kink=(measured.at_kink[0], measured.at_kink[-1]),
            steps=steps,
            moved=self._relative_distance(leaf),
            stops=shares.stops,
            expression="" if line is None or line.call is None else line.call.expression,
            within=self._within.get(key),
            is_muted=line is not None and self._is_deliberate(line),
        )
