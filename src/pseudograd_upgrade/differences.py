"""Where two runs part first, beyond rounding.

A difference is a relative one, of the sums that stand for a tensor. What is rounding is known three ways: the precision of the dtype, how
far the same event parted when sums went in another order, and how far the events before it have parted already: rounding grows from
step to step, and never by much in one event.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from .recorded import LEAF, Digested, Event, Recorded

_EPSILON = {"float64": 2.3e-16, "float32": 1.2e-7, "float16": 9.8e-4, "bfloat16": 7.9e-3, "complex64": 1.2e-7}
PLAIN = 16  # roundings of one element each, that a sum may be away
COMPILED = 128  # where a compiler has joined loops: it keeps other sums in the dtype, and does not in others
LARGEST = 0.15  # that so many roundings may make: of bfloat16 a single one is nearly a hundredth
_OF_NOISE, _OF_LEVEL = 10, 30
_OF_LEAVES = 1e-6  # times _OF_NOISE: of a whole step of rounding
ALIKE = 1e-5  # relative: losses no further apart are alike
_NOTHING = 1e-12  # relative: our own sums, in another order
_RECENT = 200


@dataclass(frozen=True)
class Difference:
    """The first event whose values differ; of the older run, and of the newer one. only_old, only_new: events between the last that agreed
    and it, which the other run has not. is_reordered: both have the same events around it, in another order.
    """

    step: int
    old: Event
    new: Event
    distance: float
    only_old: tuple[Event, ...] = ()
    only_new: tuple[Event, ...] = ()
    is_reordered: bool = False


@dataclass(frozen=True)
class Comparison:
    """first: None where all that parts is rounding. largest: how far what is rounding parts at most. events: how many were compared."""

    first: Difference | None
    largest: float
    events: int
    other_ops: tuple[str, ...] = ()  # lines at which the two have other ops of the same values


class Level:
    """How far recent events have parted: three of four no further."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, distance: float) -> None:
        if len(self._recent) == _RECENT:
            self._sorted.remove(self._recent.popleft())
        self._recent.append(distance)
        insort(self._sorted, distance)

    @property
    def value(self) -> float:
        return self._sorted[len(self._sorted) * 3 // 4] if self._sorted else 0.0


def distance(one: Digested, other: Digested) -> float:
    """Relative to the sum of magnitudes; infinite where shape or dtype differ, or one of them is not finite."""
    if one.shape != other.shape:
        return math.inf
    if one.digest == other.digest:
        return 0.0
    scale = max(one.digest[1], other.digest[1])
    apart = [abs(a - b) for a, b in zip(one.digest[:3], other.digest[:3], strict=True) if not _same(a, b)]
    if any(map(math.isnan, apart)) or not math.isfinite(scale):
        return math.inf if apart else 0.0
    found = max(apart, default=0.0) / scale if scale else 0.0
    return found if found > _NOTHING else 0.0


def _same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def paired(old: list[Event], new: list[Event]) -> Iterator[tuple[Event, Event | None]]:
    by_key = {event.key: event for event in new}
    for event in old:
        if event.site.kind != LEAF:
            yield event, by_key.get(event.key)


def distances(old: Event, new: Event) -> list[float]:
    if len(old.tensors) != len(new.tensors):
        return [math.inf]
    return [distance(one, other) for one, other in zip(old.tensors, new.tensors, strict=True)]


Noise = dict[object, float]


def runs_of(noise: Recorded | None) -> tuple[Recorded, ...]:
    return () if noise is None else (noise, *noise.more)


def compare(old: Recorded, new: Recorded, other_order: Recorded | None = None, roundings: int = PLAIN) -> Comparison:
    """What differs first in the steps that both have kept. other_order: the older run again, its sums in another order. roundings: how many
    of one element each a sum may be away.
    """
    noise: Noise = {}
    level, largest, events = Level(), 0.0, 0
    other_ops: dict[str, None] = {}
    for step in sorted(old.steps.keys() & new.steps.keys()):
        for other in runs_of(other_order):
            _learn(noise, old.steps[step], other.steps.get(step, []))
        before: list[Event] = []
        place, position = 0, {event.key: at for at, event in enumerate(new.steps[step])}
        matched = {event.key for event in old.steps[step]} & position.keys()
        for one, two in paired(old.steps[step], new.steps[step]):
            if two is None:
                before.append(one)
                continue
            events += 1
            at = position[two.key]
            apart = distances(one, two)
            if any(
                beyond(far, kept, noise.get(one.key, 0.0), level.value, roundings) for far, kept in _with(apart, one)
            ):
                passed = [event for event in new.steps[step][place:at] if event.site.kind != LEAF]
                between = [event for event in passed if event.key not in matched]
                is_reordered = at < place or len(between) < len(passed)
                found = Difference(step, one, two, max(apart), tuple(before), tuple(between), is_reordered)
                return Comparison(found, largest, events, tuple(other_ops))
            for far in apart:
                if math.isfinite(far):
                    level.add(far)
                    largest = max(largest, far)
            other_ops.update(dict.fromkeys(event.site.where for event in before))
            before, place = [], at + 1
    return Comparison(None, largest, events, tuple(other_ops))


def _with(apart: list[float], event: Event) -> Iterator[tuple[float, Digested | None]]:
    for at, far in enumerate(apart):
        yield far, event.tensors[at] if at < len(event.tensors) else None


def _learn(noise: Noise, one: list[Event], other: list[Event]) -> None:
    for old, new in paired(one, other):
        if new is not None:
            noise[old.key] = max(noise.get(old.key, 0.0), *distances(old, new), 0.0)


def beyond(far: float, kept: Digested | None, noise: float, level: float, roundings: int = PLAIN) -> bool:
    """Is that more than rounding? Integers are exact, until what they are computed from has been rounded otherwise."""
    if far == 0.0:
        return False
    epsilon = _EPSILON.get(kept.shape.split()[0]) if kept is not None else None
    if epsilon is None:
        return level == 0.0 and far > _OF_NOISE * noise
    of_dtype = max(PLAIN * epsilon, min(roundings * epsilon, LARGEST))
    return far > max(of_dtype, _OF_NOISE * noise, _OF_LEVEL * level)


# --- losses, which every step has -------------------------------------------------------------------------------------


def loss_distances(old: Recorded, new: Recorded) -> list[float]:
    """By step, as far as both went; infinite at the first step that one of them lacks."""
    found = []
    for one, two in zip(old.losses, new.losses, strict=False):
        pairs = [(a, b) for a, b in zip(one, two, strict=False) if not _same(a, b)]
        apart = [abs(a - b) / max(abs(a), abs(b)) for a, b in pairs]
        found.append(max((math.inf if math.isnan(far) else far for far in apart), default=0.0))
    return found if len(old.losses) == len(new.losses) else [*found, math.inf]


def first_loss(
    old: Recorded, new: Recorded, other_order: Recorded | None = None, of_level: float = _OF_LEVEL
) -> int | None:
    """The first step whose losses differ by more than rounding; from 1 on. of_level: by so much they may grow from step to step."""
    apart = loss_distances(old, new)
    noises = [loss_distances(old, other) for other in runs_of(other_order)]
    level = worst = 0.0
    for at, far in enumerate(apart):
        worst = max(worst, *(noise[at] for noise in noises if at < len(noise)), 0.0)
        if far > max(ALIKE, _OF_NOISE * worst, of_level * level):
            return at + 1
        level = max(level, far)
    return None


def same_leaves(old: Recorded, new: Recorded, other_order: Recorded | None = None, roundings: int = PLAIN) -> bool:
    """Did the parameters get the same gradients, in the steps that both have kept?"""
    return all(
        _same_leaves(_leaves(old, step), _leaves(new, step), _leaves(other_order or old, step), roundings)
        for step in old.steps.keys() & new.steps.keys()
    )


def _same_leaves(old: list[Digested], new: list[Digested], other_order: list[Digested], roundings: int) -> bool:
    """Another op inside may change the order in which they come."""
    noise = [distance(a, b) for a, b in zip(old, other_order, strict=False)]
    noise += [0.0] * (len(old) - len(noise))
    if [kept.shape for kept in old] != [kept.shape for kept in new]:
        order = sorted(range(len(old)), key=lambda at: _size(old[at]))
        old, noise, new = [old[at] for at in order], [noise[at] for at in order], sorted(new, key=_size)
    return len(old) == len(new) and not any(
        beyond(distance(a, b), a, max(far, _OF_LEAVES), 0.0, roundings)
        for a, b, far in zip(old, new, noise, strict=True)
    )


def _leaves(run: Recorded, step: int) -> list[Digested]:
    return [kept for event in run.steps.get(step, []) if event.site.kind == LEAF for kept in event.tensors]


def _size(kept: Digested) -> tuple[str, str]:
    return kept.shape, f"{kept.digest[1]:.3e}"
