"""How much of a gradient is convention: a further backward in which the nodes of one family hand on what another torch, or JAX, or
TensorFlow gives at a kink. The sensitivity is |g_other - g| / |g|.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...errors import must
from ...listen.frames import NOWHERE, Place, named
from ..count.course import Course
from ..count.further_backward import Graph
from ..count.kink_nodes import AtKink, at_kinks, hidden
from ..count.leaves import Leaf
from ..count.motion import Motion
from ..count.numbers import numbers
from ..count.tally import Tally
from .other_conventions import other_of, within

HIGH = 0.1  # below a tenth nothing has ever been seen to depend on it
_LINES = 8  # lines of one family that are asked apart, those with most at a kink
Gradients = dict[Leaf, Tensor]


def every_of(asked: object) -> int:
    """Of diagnose(sensitivity=...): in every how many backward passes; 0 for none."""
    if isinstance(asked, bool):
        return int(asked)
    if not isinstance(asked, int) or asked < 1:
        raise ValueError(must("diagnose", "sensitivity", "be True, False, or n for every n-th backward", asked))
    return asked


@dataclass(frozen=True)
class Sensitivity:
    """How much of the gradient is the convention of one family of functions.

    family, other: what was asked, and whose convention instead. where: the line, None for all lines of the family. parameter: None for
    all parameters together. share: |g_other - g| / |g| in the mean over the steps, and in the first and last of them; infinite where
    the convention alone brings a gradient. cosine: of the two gradients, in the last step; NaN where one is 0. at_kink: of what enters
    these functions, the share that stood at a kink in the first and the last step. steps: the shares by step, thinned out.
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


class _Sums:
    """Of one family, line and parameter over the steps."""

    def __init__(self) -> None:
        self.course = Course()
        self.total = 0.0
        self.count = 0
        self.cosine = math.nan
        self.stops = False

    def add(self, step: int, row: _Row) -> None:
        self.stops |= not self.count and row.own > 0 and not row.other
        self.course.add(step, row.share)
        self.total += row.share
        self.count += 1
        self.cosine = row.cosine


@dataclass(frozen=True)
class _Row:
    """|g_other - g|, |g|, |g_other| and their product, squared norms all: they add up over parameters."""

    apart: float
    own: float
    other: float
    product: float

    def __add__(self, more: _Row) -> _Row:
        return _Row(*(one + two for one, two in zip(_parts(self), _parts(more), strict=True)))

    @property
    def share(self) -> float:
        if not self.own:
            return math.inf if self.apart else 0.0
        return math.sqrt(self.apart / self.own)

    @property
    def cosine(self) -> float:
        return self.product / math.sqrt(self.own * self.other) if self.own and self.other else math.nan


def _parts(row: _Row) -> tuple[float, ...]:
    return row.apart, row.own, row.other, row.product


@dataclass(frozen=True)
class _Answer:
    """Of one family, all its lines or one of them, in one step."""

    family: str
    where: Place | None
    entries: int
    elements: int
    rows: dict[Leaf, _Row]


class _Family:
    """What is known of one family, all its lines or one of them."""

    def __init__(self, family: str, where: Place | None) -> None:
        self.family = family
        self.where = where
        self.whole = _Sums()
        self.leaves: dict[Leaf, _Sums] = {}
        self.at_kink: list[float] = []  # in the first step and the last

    def add(self, step: int, answer: _Answer, came: Iterable[Leaf]) -> None:
        rows = {leaf: row for leaf, row in answer.rows.items() if leaf in came}
        self.whole.add(step, sum(rows.values(), start=_Row(0.0, 0.0, 0.0, 0.0)))
        for leaf in {**self.leaves, **{leaf: None for leaf, row in rows.items() if row.apart}}:
            sums = self.leaves.setdefault(leaf, _Sums())
            sums.add(step, rows.get(leaf, _Row(0.0, 0.0, 0.0, 0.0)))
        self.at_kink = [*self.at_kink[:1], answer.entries / answer.elements if answer.elements else 0.0]


class Sensing:
    """Asks in every n-th backward. It is called by `whatif.Asking`, which checks that a further pass gives the program's own gradients."""

    def __init__(
        self, every: int, tally_of: Callable[[object], Tally | None], is_deliberate: Callable[[Place], bool]
    ) -> None:
        self.every = every
        self.steps = 0  # that were answered
        self.refused: dict[str, int] = {}
        self._tally_of = tally_of
        self._is_deliberate = is_deliberate
        self._within: dict[tuple[str, Place], str | None] = {}
        self._all: dict[tuple[str, Place | None], _Family] = {}
        self._motions: dict[Leaf, Motion] = {}

    def is_asked(self, backwards: int) -> bool:
        """In the backward with this number, from 1 on?"""
        return (backwards - 1) % self.every == 0

    def standing(self, behind: Sequence[object]) -> list[AtKink]:
        """The nodes at a kink that no pin has settled. Where there are none, no further pass is needed."""
        self.refuse(hidden(behind))
        return [one for one in at_kinks(behind) if not self._is_pinned(one)]

    def _is_pinned(self, one: AtKink) -> bool:
        tally = self._tally_of(one.node)
        return tally is not None and one.family in tally.pinned

    def answers(self, graph: Graph, standing: Sequence[AtKink], own: Gradients, by_leaf: object) -> list[_Answer]:
        """One further pass for each family; one for each of its lines where they are several and it is above the threshold."""
        found = []
        for family in dict.fromkeys(one.family for one in standing):
            some = [one for one in standing if one.family == family]
            whole = self._answer(graph, family, None, some, own, by_leaf)
            found.append(whole)
            lines: dict[Place, list[AtKink]] = {}
            for one in some:
                lines.setdefault(self._line(one), []).append(one)
            if len(lines) == 1:
                found.append(_Answer(family, next(iter(lines)), whole.entries, whole.elements, whole.rows))
            elif _is_high(whole.rows):
                most = sorted(lines.items(), key=lambda item: -sum(one.entries for one in item[1]))[:_LINES]
                found += [self._answer(graph, family, place, at, own, by_leaf) for place, at in most]
        return found

    def _line(self, one: AtKink) -> Place:
        tally = self._tally_of(one.node)
        if tally is None:
            return NOWHERE
        self._within[one.family, tally.place] = within(one.family, tally.calling)
        return tally.place

    def _answer(
        self, graph: Graph, family: str, where: Place | None, some: Sequence[AtKink], own: Gradients, by_leaf: Any
    ) -> _Answer:
        at = {one.node: one for one in some}

        def instead(node: object, leaving: tuple[object, ...], arriving: tuple[object, ...]) -> tuple[object, ...]:
            return at[node].left(leaving, arriving) if node in at and arriving[0] is not None else leaving

        other = by_leaf(graph.run(instead))
        rows = {leaf: _row(grad, other.get(leaf)) for leaf, grad in own.items()}
        return _Answer(family, where, sum(one.entries for one in some), sum(one.elements for one in some), rows)

    def add(self, step: int, answers: Sequence[_Answer], came: Iterable[Leaf]) -> None:
        """What a whole backward of the program has confirmed. A family that has been met and is not at a kink now has 0 there."""
        self.steps += 1
        told = {(one.family, one.where) for one in answers}
        for one in answers:
            self._all.setdefault((one.family, one.where), _Family(one.family, one.where)).add(step, one, came)
        for key, known in self._all.items():
            if key not in told and (key[1] is None or (key[0], None) not in told):
                known.add(step, _Answer(*key, 0, 0, {}), came)
        for family in self._all.values():
            for leaf in family.leaves:
                self._motions.setdefault(leaf, Motion()).look(leaf.tensor())

    def refuse(self, reasons: Iterable[str]) -> None:
        for reason in reasons:
            self.refused[reason] = self.refused.get(reason, 0) + 1

    def records(self) -> list[Sensitivity]:
        """The family with most first, then its lines; each as a whole first, then by parameter."""
        families = sorted(self._all.values(), key=lambda one: (one.where is not None, -_order(one.whole.total)))
        return [
            self._record(one, leaf, sums)
            for one in families
            for leaf, sums in (
                (None, one.whole),
                *sorted(one.leaves.items(), key=lambda item: -_order(item[1].total)),
            )
        ]

    def _record(self, one: _Family, leaf: Leaf | None, sums: _Sums) -> Sensitivity:
        steps = sums.course.values
        other = other_of(one.family)
        motion = self._motions.get(leaf) if leaf is not None else None
        return Sensitivity(
            family=one.family,
            other="" if other is None else other.whose,
            where=None if one.where is None else named(one.where.call),
            parameter=None if leaf is None else leaf.name,
            share=sums.total / sums.count,
            first=steps[0][1],
            last=steps[-1][1],
            cosine=sums.cosine,
            at_kink=(one.at_kink[0], one.at_kink[-1]),
            steps=steps,
            moved=math.nan if motion is None else motion.far,
            stops=sums.stops,
            expression="" if one.where is None or one.where.call is None else one.where.call.expression,
            within=None if one.where is None else self._within.get((one.family, one.where)),
            is_muted=one.where is not None and self._is_deliberate(one.where),
        )


def _order(value: float) -> float:
    return value if not math.isnan(value) else 0.0


def _is_high(rows: dict[Leaf, _Row]) -> bool:
    return any(row.share >= HIGH for row in rows.values())


def _row(own: Tensor, other: Tensor | None) -> _Row:
    one = numbers(own)
    two = torch.zeros_like(one) if other is None else numbers(other)
    apart = two - one
    return _Row(float(apart @ apart), float(one @ one), float(two @ two), float(one @ two))
