"""The first event in which two runs differ by more than rounding.

Distances are relative, between the sums that stand for a tensor. Three figures say what rounding is: the precision of the dtype, how far
the same event moves when sums go in another order, and how far the events before it differ already. Rounding grows from step to step, and
never by much in one event.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from dataclasses import dataclass

from .recording import LEAF, Digest, Event, Recording

_EPSILON = {"float64": 2.3e-16, "float32": 1.2e-7, "float16": 9.8e-4, "bfloat16": 7.9e-3, "complex64": 1.2e-7}
PLAIN = 16  # roundings of one element that a sum may be away
COMPILED = 128  # the same where a compiler has joined loops: it keeps some sums in the dtype that eager mode does not
LARGEST = 0.15  # that so many roundings may make: of bfloat16 a single one is nearly a hundredth
_NOISE, _LEVEL = 10, 30  # times the figure of another order of sums, and of the events before
_LEAVES = 1e-6  # times _NOISE: of a whole step of rounding
ALIKE = 1e-5  # relative: losses no further apart are alike
_NOTHING = 1e-12  # relative: our own sums, in another order
_RECENT = 200  # events


@dataclass(frozen=True)
class Difference:
    """The first event whose values differ, of the older run and of the newer one. only_old, only_new: events between the last that agreed
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
    """first: None where every difference is rounding. largest: how far rounding moves an event at most. events: how many were compared.
    other_ops: lines at which the two have other ops of the same values.
    """

    first: Difference | None
    largest: float
    events: int
    other_ops: tuple[str, ...] = ()


class _Level:
    """How far three of four recent events differ at most."""

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


def compare_events(
    old: Recording, new: Recording, noise: Recording | None = None, roundings: int = PLAIN
) -> Comparison:
    """The first difference in the steps that both have kept.

    noise: the older run again, its sums in another order. roundings: of one element, that a sum may be away.
    """
    moves: dict[object, float] = {}
    level, largest, count = _Level(), 0.0, 0
    other_ops: dict[str, None] = {}
    for step in sorted(old.steps.keys() & new.steps.keys()):
        for other in runs_of(noise):
            _learn_moves(moves, old.steps[step], other.steps.get(step, []))
        by_key = {event.key: (at, event) for at, event in enumerate(new.steps[step])}
        common = {event.key for event in old.steps[step]} & by_key.keys()
        only_old: list[Event] = []
        position = 0
        for event in old.steps[step]:
            if event.origin.kind == LEAF:
                continue
            if event.key not in by_key:
                only_old.append(event)
                continue
            count += 1
            at, other_event = by_key[event.key]
            distances = _distances(event, other_event)
            if _is_beyond(event, distances, moves.get(event.key, 0.0), level.value, roundings):
                passed = [event for event in new.steps[step][position:at] if event.origin.kind != LEAF]
                only_new = tuple(event for event in passed if event.key not in common)
                is_reordered = at < position or len(only_new) < len(passed)
                first = Difference(step, event, other_event, max(distances), tuple(only_old), only_new, is_reordered)
                return Comparison(first, largest, count, tuple(other_ops))
            for distance in filter(math.isfinite, distances):
                level.add(distance)
                largest = max(largest, distance)
            other_ops.update(dict.fromkeys(event.origin.where for event in only_old))
            only_old, position = [], at + 1
    return Comparison(None, largest, count, tuple(other_ops))


def runs_of(noise: Recording | None) -> tuple[Recording, ...]:
    return () if noise is None else (noise, *noise.more)


def _learn_moves(moves: dict[object, float], events: list[Event], others: list[Event]) -> None:
    by_key = {event.key: event for event in others}
    for event in events:
        if event.origin.kind != LEAF and event.key in by_key:
            moves[event.key] = max(moves.get(event.key, 0.0), *_distances(event, by_key[event.key]), 0.0)


def _distances(old: Event, new: Event) -> list[float]:
    if len(old.tensors) != len(new.tensors):
        return [math.inf]
    return [digest_distance(a, b) for a, b in zip(old.tensors, new.tensors, strict=True)]


def digest_distance(old: Digest, new: Digest) -> float:
    """Relative to the sum of magnitudes; infinite where shape or dtype differ, or one of them is not finite."""
    if old.shape != new.shape:
        return math.inf
    if old.numbers == new.numbers:
        return 0.0
    scale = max(old.numbers[1], new.numbers[1])
    gaps = [abs(a - b) for a, b in zip(old.numbers[:3], new.numbers[:3], strict=True) if not _is_same(a, b)]
    if any(map(math.isnan, gaps)) or not math.isfinite(scale):
        return math.inf if gaps else 0.0
    distance = max(gaps, default=0.0) / scale if scale else 0.0
    return distance if distance > _NOTHING else 0.0


def _is_same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def _is_beyond(event: Event, distances: list[float], noise: float, level: float, roundings: int) -> bool:
    dtypes = [digest.shape.split()[0] for digest in event.tensors]
    dtypes += [""] * (len(distances) - len(dtypes))
    pairs = zip(distances, dtypes, strict=False)
    return any(is_beyond_rounding(distance, dtype, noise, level, roundings) for distance, dtype in pairs)


def is_beyond_rounding(distance: float, dtype: str, noise: float, level: float, roundings: int = PLAIN) -> bool:
    """Integers are exact, until what they are computed from has been rounded otherwise."""
    if distance == 0.0:
        return False
    epsilon = _EPSILON.get(dtype)
    if epsilon is None:
        return level == 0.0 and distance > _NOISE * noise
    precision = max(PLAIN * epsilon, min(roundings * epsilon, LARGEST))
    return distance > max(precision, _NOISE * noise, _LEVEL * level)


# --- losses, which every step has -------------------------------------------------------------------------------------


def loss_distances(old: Recording, new: Recording) -> list[float]:
    """By step, as far as both went; infinite at the first step that one of them lacks."""
    distances = []
    for losses, others in zip(old.losses, new.losses, strict=False):
        pairs = [(a, b) for a, b in zip(losses, others, strict=False) if not _is_same(a, b)]
        relative = [abs(a - b) / max(abs(a), abs(b)) for a, b in pairs]
        distances.append(max((math.inf if math.isnan(far) else far for far in relative), default=0.0))
    return distances if len(old.losses) == len(new.losses) else [*distances, math.inf]


def first_loss(old: Recording, new: Recording, noise: Recording | None = None, growth: float = _LEVEL) -> int | None:
    """The first step whose losses differ by more than rounding, from 1 on. growth: by so much rounding may grow from step to step."""
    noises = [loss_distances(old, other) for other in runs_of(noise)]
    level = worst = 0.0
    for at, distance in enumerate(loss_distances(old, new)):
        worst = max(worst, *(moves[at] for moves in noises if at < len(moves)), 0.0)
        if distance > max(ALIKE, _NOISE * worst, growth * level):
            return at + 1
        level = max(level, distance)
    return None


def train_alike(old: Recording, new: Recording, noise: Recording | None = None, roundings: int = PLAIN) -> bool:
    """Are losses and gradients of parameters the same? Values that nothing came of, such as unwritten memory, do not count."""
    if old.losses or new.losses:
        return first_loss(old, new, noise) is None and same_leaves(old, new, noise, roundings)
    return compare_events(old, new, noise, roundings).first is None


def same_leaves(old: Recording, new: Recording, noise: Recording | None = None, roundings: int = PLAIN) -> bool:
    """Did the parameters get the same gradients, in the steps that both have kept?"""
    return all(
        _are_same(_leaves(old, step), _leaves(new, step), _leaves(noise or old, step), roundings)
        for step in old.steps.keys() & new.steps.keys()
    )


def _are_same(old: list[Digest], new: list[Digest], others: list[Digest], roundings: int) -> bool:
    """Another op inside may change the order in which they come."""
    moves = [digest_distance(a, b) for a, b in zip(old, others, strict=False)]
    rows = list(zip(old, [*moves, *[0.0] * (len(old) - len(moves))], strict=True))
    if [digest.shape for digest in old] != [digest.shape for digest in new]:
        rows, new = sorted(rows, key=lambda row: _size(row[0])), sorted(new, key=_size)
    return len(rows) == len(new) and not any(
        is_beyond_rounding(digest_distance(a, b), a.shape.split()[0], max(move, _LEAVES), 0.0, roundings)
        for (a, move), b in zip(rows, new, strict=True)
    )


def _leaves(run: Recording, step: int) -> list[Digest]:
    return [digest for event in run.steps.get(step, []) if event.origin.kind == LEAF for digest in event.tensors]


def _size(digest: Digest) -> tuple[str, str]:
    return digest.shape, f"{digest.numbers[1]:.3e}"
