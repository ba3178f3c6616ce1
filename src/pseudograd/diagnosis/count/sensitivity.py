"""How much of a gradient is convention: a further backward in which the nodes of one family hand on what another torch, or JAX, or
TensorFlow gives at a kink. The sensitivity is |g_other - g| / |g|.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ...errors import must
from ...listen.frames import NOWHERE, Place, named
from .comparison import Comparison, compare_gradients
from .course import Course, Motion, numbers_of
from .further_backward import Graph
from .kinks import AtKink, find_kinks, hidden
from .leaf import Leaf
from .other_conventions import other_of, within
from .tally import Tally

HIGH = 0.1  # below a tenth nothing has ever been seen to depend on it
_LINES = 8  # lines of one family that are measured apart, those with most at a kink
_Key = tuple[str, Place | None]  # a family, and a line of it or None for all its lines


def check_sensitivity(value: object) -> int:
    """The argument of `diagnose`, as a number n for every n-th backward; 0 for none."""
    if isinstance(value, bool):
        return int(value)
    if not isinstance(value, int) or value < 1:
        raise ValueError(must("diagnose", "sensitivity", "be True, False, or n for every n-th backward", value))
    return value


@dataclass(frozen=True)
class Sensitivity:
    """How much of the gradient is the convention of one family of functions.

    family, other: the family, and whose convention stands in for torch's. where: the line, None for all lines of the family. parameter:
    None for all parameters together. share: |g_other - g| / |g| in the mean over the steps, and in the first and last of them; infinite
    where the convention alone brings a gradient. cosine: of the two gradients, in the last step; NaN where one is 0. at_kink: of what
    enters these functions, the share that stood at a kink in the first and the last step. steps: the shares by step, thinned out.
    moved: how far the parameter came from where it was, as a share of its norm then.
    """

    family: str
    other: str
    where: str | None
    parameter: str | None
    share: float
    first: float
    last: float
    cosine: float
    at_kink: tuple[float, float]
    steps: tuple[tuple[int, float], ...]
    moved: float
    stops: bool = False
    expression: str = ""
    within: str | None = None
    is_muted: bool = field(default=False, repr=False)

    @property
    def level(self) -> float:
        """The median share in the second half of the steps."""
        return statistics.median_low([share for _, share in self.steps[len(self.steps) // 2 :]])

    @property
    def peak(self) -> float:
        return max(share for _, share in self.steps)


@dataclass(frozen=True)
class Answer:
    """What one step says of a family, or of one line of it: how many of the elements that enter stand at a kink, and the gradients."""

    entries: int
    elements: int
    rows: Mapping[Leaf, Comparison]


Answers = dict[_Key, Answer]


class _Steps:
    """The shares of one parameter, or of all together, over the steps."""

    def __init__(self) -> None:
        self.course: Course[float] = Course()
        self.total = 0.0
        self.count = 0
        self.cosine = math.nan
        self.stops = False

    def add(self, step: int, row: Comparison) -> None:
        self.stops |= not self.count and row.own > 0 and not row.square
        self.course.add(step, row.share)
        self.total += row.share
        self.count += 1
        self.cosine = row.cosine

    @property
    def order(self) -> float:
        return 0.0 if math.isnan(self.total) else -self.total


class _Family:
    """The steps of one family, or of one line of it."""

    def __init__(self) -> None:
        self.all = _Steps()
        self.leaves: dict[Leaf, _Steps] = {}
        self.at_kink: list[float] = []  # in the first step and the last

    def add(self, step: int, answer: Answer, arrived: Collection[Leaf]) -> None:
        rows = {leaf: row for leaf, row in answer.rows.items() if leaf in arrived}
        self.all.add(step, Comparison(*map(sum, zip(*rows.values(), strict=True))) if rows else Comparison())
        for leaf in {**self.leaves, **{leaf: None for leaf, row in rows.items() if row.apart}}:
            self.leaves.setdefault(leaf, _Steps()).add(step, rows.get(leaf, Comparison()))
        self.at_kink = [*self.at_kink[:1], answer.entries / answer.elements if answer.elements else 0.0]


class Sensing:
    """Measures the sensitivity in every n-th backward, on behalf of `whatif.Asking`, which checks that a further pass gives the program's
    own gradients.
    """

    def __init__(
        self, every: int, tally_of: Callable[[object], Tally | None], is_deliberate: Callable[[Place], bool]
    ) -> None:
        self.every = every
        self.refused: dict[str, int] = {}  # backward passes by the reason
        self._tally_of = tally_of
        self._is_deliberate = is_deliberate
        self._within: dict[_Key, str | None] = {}
        self._families: dict[_Key, _Family] = {}
        self._motions: dict[Leaf, Motion] = {}

    def is_asked(self, backwards: int) -> bool:
        """In the backward with this number, from 1 on?"""
        return (backwards - 1) % self.every == 0

    def standing(self, behind: Sequence[object]) -> list[AtKink]:
        """The nodes at a kink that no pin has settled. Where there are none, no further pass is needed."""
        self._refuse(hidden(behind))
        tallies = [(node, self._tally_of(node.node)) for node in find_kinks(behind)]
        return [node for node, tally in tallies if tally is None or node.family not in tally.pinned]

    def answers(
        self,
        graph: Graph,
        standing: Sequence[AtKink],
        own: Mapping[Leaf, Tensor],
        by_leaf: Callable[[dict[object, Tensor]], dict[Leaf, Tensor]],
    ) -> Answers:
        """One further pass for each family; and one for each of its lines if they are several and the share is high."""

        def run(nodes: Sequence[AtKink]) -> Answer:
            at_kink = {node.node: node for node in nodes}

            def leave(node: object, leaving: tuple[object, ...], arriving: tuple[object, ...]) -> tuple[object, ...]:
                is_replaced = node in at_kink and arriving[0] is not None
                return at_kink[node].left(leaving, arriving) if is_replaced else leaving

            other = by_leaf(graph.run(leave))
            rows = {leaf: compare_gradients(other.get(leaf), grad) for leaf, grad in own.items()}
            return Answer(sum(node.entries for node in nodes), sum(node.elements for node in nodes), rows)

        answers: Answers = {}
        for family in dict.fromkeys(node.family for node in standing):
            lines: dict[Place, list[AtKink]] = {}
            for node in standing:
                if node.family == family:
                    lines.setdefault(self._line(node), []).append(node)
            answers[family, None] = answer = run([node for nodes in lines.values() for node in nodes])
            if len(lines) == 1:
                answers[family, next(iter(lines))] = answer
            elif any(row.share >= HIGH for row in answer.rows.values()):
                most = sorted(lines.items(), key=lambda item: -sum(node.entries for node in item[1]))[:_LINES]
                answers |= {(family, place): run(nodes) for place, nodes in most}
        return answers

    def _line(self, node: AtKink) -> Place:
        tally = self._tally_of(node.node)
        if tally is None:
            return NOWHERE
        self._within[node.family, tally.place] = within(node.family, tally.calling)
        return tally.place

    def end(self, step: int, reasons: Collection[str], answers: Answers, arrived: Collection[Leaf]) -> None:
        """A backward of the program has ended. A family that was met before and is not at a kink now has 0 there."""
        if reasons:
            self._refuse(reasons)
            return
        for key in answers:
            self._families.setdefault(key, _Family())
        for (family, line), known in self._families.items():
            if (family, line) in answers or line is None or (family, None) not in answers:
                known.add(step, answers.get((family, line), Answer(0, 0, {})), arrived)
            for leaf in known.leaves:
                self._motions.setdefault(leaf, Motion()).look(leaf.tensor())

    def _refuse(self, reasons: Iterable[str]) -> None:
        for reason in reasons:
            self.refused[reason] = self.refused.get(reason, 0) + 1

    def records(self) -> list[Sensitivity]:
        """The family with most first, then its lines; each as a whole first, then by parameter."""
        families = sorted(self._families.items(), key=lambda item: (item[0][1] is not None, item[1].all.order))
        records = []
        for key, family in families:
            records.append(self._record(key, family, None, family.all))
            by_order = sorted(family.leaves.items(), key=lambda item: item[1].order)
            records += [self._record(key, family, leaf, steps) for leaf, steps in by_order]
        return records

    def _record(self, key: _Key, known: _Family, leaf: Leaf | None, sums: _Steps) -> Sensitivity:
        (family, line), steps = key, numbers_of(sums.course)
        other = other_of(family)
        motion = self._motions.get(leaf) if leaf is not None else None
        return Sensitivity(
            family=family,
            other="" if other is None else other.whose,
            where=None if line is None else named(line.call),
            parameter=None if leaf is None else leaf.name,
            share=sums.total / sums.count,
            first=steps[0][1],
            last=steps[-1][1],
            cosine=sums.cosine,
            at_kink=(known.at_kink[0], known.at_kink[-1]),
            steps=steps,
            moved=math.nan if motion is None else motion.far,
            stops=sums.stops,
            expression="" if line is None or line.call is None else line.call.expression,
            within=self._within.get(key),
            is_muted=line is not None and self._is_deliberate(line),
        )
