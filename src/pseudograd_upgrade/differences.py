"""The first event in which two runs differ by more than rounding, and rounding that a training magnifies.

A distance is the relative difference of two losses, or of the digests (the sums) of two tensors. A distance is rounding if it is no larger
than the largest of three figures: the precision of the dtype, the distance that another order of sums causes at the same event, and the
usual distance of the events before it. Rounding grows from step to step, and never by much in one event.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .recording import FORWARD, LEAF, OTHER_ORDER, SHAKEN, Digest, Event, Recording

_EPSILON = {"float64": 2.3e-16, "float32": 1.2e-7, "float16": 9.8e-4, "bfloat16": 7.9e-3, "complex64": 1.2e-7}
ROUNDINGS = 16  # a sum may differ by this many times the epsilon of its dtype
ROUNDINGS_COMPILED = 128  # the same under a compiler, which joins loops and keeps some sums in another dtype
LARGEST_ROUNDING = 0.15  # the limit of these products: for bfloat16, 16 epsilons are 0.13 and 128 are 1
_NOISE_FACTOR = 10  # rounding may be this many times the distance that another order of sums causes
_USUAL_FACTOR = 30  # rounding may be this many times the usual distance of the events before
_LEAF_NOISE = 1e-6  # another order of sums moves a parameter's gradient at least by this distance
ALIKE_LOSSES = 1e-5  # losses up to this distance are alike
_SUM_ROUNDING = 1e-12  # a smaller distance comes from the sums of the digest themselves
_RECENT_EVENTS = 200


@dataclass(frozen=True)
class Difference:
    """The first event whose values differ, in the older and in the newer run.

    only_old, only_new: events that only one run has, after the last event that agrees and before this event.
    is_reordered: between the last event that agrees and this event, both runs have the same events in another order.
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
    """The result of comparing two runs."""

    first: Difference | None  # None if all differences are rounding
    largest: float  # the largest distance that is rounding
    events: int  # the number of compared events
    other_ops: tuple[str, ...] = ()  # lines where the two runs compute the same values with different ops


def compare_events(
    old: Recording, new: Recording, noises: Sequence[Recording] = (), roundings: int = ROUNDINGS, since: int = 0
) -> Comparison:
    """The first difference in the steps that both runs recorded, from step `since` on.

    noises: runs of the older torch in which rounding alone differs.
    """
    rounding = _Rounding(roundings)
    count, other_ops = 0, dict[str, None]()
    harmless: set[object] = set()  # events that only one run has, in a step whose other values agree
    for step in sorted(old.steps.keys() & new.steps.keys()):
        for run in noises:
            rounding.add_noise(old.steps[step], run.steps.get(step, []))
        in_new = {event.key: (at, event) for at, event in enumerate(new.steps[step])}
        in_both = {event.key for event in old.steps[step]} & in_new.keys()
        only_old: list[Event] = []  # since the last event that agrees
        # The events that only one run has, before the last event that agrees. If a later event of the same line agrees, they are dropped.
        earlier_extra: tuple[list[Event], list[Event]] = ([], [])
        unmatched, position = set[object](), 0
        for event in _drop_leaves(old.steps[step]):
            if event.key not in in_both:
                only_old.append(event)
                continue
            count += 1
            at, other = in_new[event.key]
            passed = _drop_leaves(new.steps[step][position:at])
            only_new = [each for each in passed if each.key not in in_both]
            distances = _distances(event, other)
            if rounding.is_exceeded(event, distances):
                if step < since:
                    continue
                is_reordered = at < position or len(only_new) < len(passed)
                extra = (only_old, only_new) if only_old or only_new or is_reordered else earlier_extra
                old_extra, new_extra = (tuple(each for each in events if each.key not in harmless) for events in extra)
                first = Difference(step, event, other, max(distances), old_extra, new_extra, is_reordered)
                return Comparison(first, rounding.largest, count, tuple(other_ops))
            rounding.add(distances)
            other_ops.update(dict.fromkeys(each.origin.where for each in only_old))
            unmatched.update(each.key for each in (*only_old, *only_new))
            for events, added in zip(earlier_extra, (only_old, only_new), strict=True):
                events[:] = [each for each in (*events, *added) if each.line != event.line]
            only_old, position = [], at + 1
        harmless |= unmatched
    return Comparison(None, rounding.largest, count, tuple(other_ops))


class _Rounding:
    """How far apart rounding alone drives the two runs, from the events that were compared so far."""

    def __init__(self, roundings: int) -> None:
        self.largest = 0.0
        self._roundings = roundings
        self._recent: deque[float] = deque(maxlen=_RECENT_EVENTS)
        self._noise_of: dict[object, float] = {}  # by the key of an event: what another order of sums does there

    def add_noise(self, events: Sequence[Event], others: Sequence[Event]) -> None:
        """others: the same step in a run in which rounding alone differs."""
        by_key = {event.key: event for event in others}
        for event in _drop_leaves(events):
            if event.key in by_key:
                noise = self._noise_of.get(event.key, 0.0)
                self._noise_of[event.key] = max(noise, *_distances(event, by_key[event.key]))

    def add(self, distances: Sequence[float]) -> None:
        finite = [distance for distance in distances if math.isfinite(distance)]
        self._recent.extend(finite)
        self.largest = max(self.largest, *finite, 0.0)

    def is_exceeded(self, event: Event, distances: Sequence[float]) -> bool:
        noise = self._noise_of.get(event.key, 0.0)
        usual = sorted(self._recent)[len(self._recent) * 3 // 4] if self._recent else 0.0  # three of four are no larger
        return any(
            is_beyond_rounding(distance, digest, noise, usual, self._roundings)
            for distance, digest in zip(distances, event.tensors, strict=True)
        )


def find_other_ops(old: Recording, new: Recording) -> Difference | None:
    """The last events of both runs, if they differ: after the last event that both have. For two runs without another difference."""
    steps = old.steps.keys() & new.steps.keys()
    if not steps:
        return None
    common = {event.key for event in old.steps[max(steps)]} & {event.key for event in new.steps[max(steps)]}
    ends: list[tuple[Event, ...]] = []
    for run in (old, new):
        events = _drop_leaves(run.steps[max(steps)])
        last_common = max((at for at, event in enumerate(events) if event.key in common), default=-1)
        ends.append(tuple(events[last_common + 1 :]))
    only_old, only_new = ends
    return Difference(max(steps), only_old[0], only_new[0], math.inf, only_old, only_new) if all(ends) else None


def find_added_calls(old: Recording, new: Recording, step: int) -> Difference | None:
    """The calls that only one run has, in this step and not before. For two runs whose other values agree up to this step."""
    ends: list[tuple[Event, ...]] = []
    for run, other in ((old, new), (new, old)):
        recorded = [*other.steps.values(), *(events for at, events in run.steps.items() if at < step)]
        known = {event.key for events in recorded for event in events}
        events = run.steps.get(step, [])
        ends.append(tuple(event for event in events if event.origin.kind == FORWARD and event.key not in known))
    only_old, only_new = ends
    first = next(iter((*only_old, *only_new)), None)
    return None if first is None else Difference(step, first, first, math.inf, only_old, only_new)


def _drop_leaves(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event.origin.kind != LEAF]


def _distances(old: Event, new: Event) -> list[float]:
    return [digest_distance(a, b) for a, b in zip(old.tensors, new.tensors, strict=True)]


def digest_distance(old: Digest, new: Digest) -> float:
    """The distance relative to the sum of magnitudes. Infinite if shapes or dtypes differ, or if only one of the two is finite."""
    if old.shape != new.shape:
        return math.inf
    if old.numbers == new.numbers:
        return 0.0
    scale = max(old.magnitude, new.magnitude)
    gaps = [abs(a - b) for a, b in zip(old.numbers[:3], new.numbers[:3], strict=True) if not _are_equal(a, b)]
    if any(map(math.isnan, gaps)) or not math.isfinite(scale):
        return math.inf if gaps else 0.0
    distance = max(gaps, default=0.0) / scale if scale else 0.0
    return distance if distance > _SUM_ROUNDING else 0.0


def _are_equal(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def is_beyond_rounding(distance: float, digest: Digest, noise: float, usual: float, roundings: int = ROUNDINGS) -> bool:
    """Is this distance larger than rounding? noise, usual: the distances that rounding causes at this event, and at earlier ones."""
    if distance == 0.0:
        return False
    epsilon = _EPSILON.get(digest.shape.split()[0])
    if epsilon is None:  # integers are exact as long as no earlier value was rounded differently
        return usual == 0.0 and distance > _NOISE_FACTOR * noise
    precision = max(ROUNDINGS * epsilon, min(roundings * epsilon, LARGEST_ROUNDING))
    return distance > max(precision, _NOISE_FACTOR * noise, _USUAL_FACTOR * usual)


def shorten(run: Recording, last: int | None) -> Recording:
    """The run up to step `last`, and the events of the next step, which may be incomplete. None for the whole run."""
    if last is None:
        return run
    steps = {step: events for step, events in run.steps.items() if step <= last + 1}
    return replace(run, losses=run.losses[:last], steps=steps)


# --- losses, which every step has -------------------------------------------------------------------------------------


def loss_distances(old: Recording, new: Recording) -> list[float]:
    """One distance for each step that both runs have. A step that only one run has adds an infinite distance."""
    distances = []
    for losses, others in zip(old.losses, new.losses, strict=False):
        pairs = [(a, b) for a, b in zip(losses, others, strict=False) if not _are_equal(a, b)]
        relative = [abs(a - b) / max(abs(a), abs(b)) for a, b in pairs]
        distances.append(max((math.inf if math.isnan(far) else far for far in relative), default=0.0))
    return distances if len(old.losses) == len(new.losses) else [*distances, math.inf]


def last_loss(run: Recording) -> float | None:
    """The loss of the last backward pass. None if there is none, or if it cannot be read, as in a transform of torch.func."""
    return sum(run.losses[-1]) if run.losses and run.losses[-1] else None


def first_differing_step(
    old: Recording, new: Recording, noises: Sequence[Recording] = (), growth: float = _USUAL_FACTOR
) -> int | None:
    """The first step, counted from 1, whose losses differ by more than rounding. growth: by this factor rounding may grow in a step."""
    noise_distances = [loss_distances(old, noise) for noise in noises]
    largest = largest_noise = 0.0
    for at, distance in enumerate(loss_distances(old, new)):
        largest_noise = max(largest_noise, *(noise[at] for noise in noise_distances if at < len(noise)), 0.0)
        if distance > max(ALIKE_LOSSES, _NOISE_FACTOR * largest_noise, growth * largest):
            return at + 1
        largest = max(largest, distance)
    return None


def train_alike(old: Recording, new: Recording, noises: Sequence[Recording] = (), roundings: int = ROUNDINGS) -> bool:
    """Are the losses and the parameters' gradients the same? Other values, such as unwritten memory, do not count.

    If no parameter keeps a gradient, for example because torch.func computes it, all values count.
    """
    if first_differing_step(old, new, noises) is not None:
        return False
    if keeps_gradients(old) or keeps_gradients(new):
        return same_leaves(old, new, noises, roundings)
    return compare_events(old, new, noises, roundings).first is None


def keeps_gradients(run: Recording) -> bool:
    return any(leaves_of(run, step) for step in run.steps)


def same_leaves(old: Recording, new: Recording, noises: Sequence[Recording] = (), roundings: int = ROUNDINGS) -> bool:
    """Did the parameters get the same gradients in the steps that both runs recorded?"""
    noise = noises[0] if noises else old
    return all(
        _are_same_leaves(leaves_of(old, step), leaves_of(new, step), leaves_of(noise, step), roundings)
        for step in old.steps.keys() & new.steps.keys()
    )


def _are_same_leaves(old: list[Digest], new: list[Digest], noise: list[Digest], roundings: int) -> bool:
    """Are the gradients of two runs the same? They may come in another order. noise: gradients of a run in which rounding alone differs."""
    noises = [digest_distance(a, b) for a, b in zip(old, noise, strict=False)]
    pairs = list(zip(old, [*noises, *[0.0] * (len(old) - len(noises))], strict=True))
    if [digest.shape for digest in old] != [digest.shape for digest in new]:
        pairs, new = sorted(pairs, key=lambda pair: _sort_key(pair[0])), sorted(new, key=_sort_key)
    return len(pairs) == len(new) and not any(
        is_beyond_rounding(digest_distance(a, b), a, max(noise_distance, _LEAF_NOISE), usual=0.0, roundings=roundings)
        for (a, noise_distance), b in zip(pairs, new, strict=True)
    )


def leaves_of(run: Recording, step: int) -> list[Digest]:
    """The gradients that arrived at parameters."""
    return [digest for event in run.steps.get(step, []) if event.origin.kind == LEAF for digest in event.tensors]


def _sort_key(digest: Digest) -> tuple[str, str]:
    return digest.shape, f"{digest.magnitude:.3e}"


# --- rounding that a training magnifies, by a hard threshold or by chaos ----------------------------------------------


def may_have_grown(
    old: Recording, new: Recording, noises: Sequence[Recording], comparison: Comparison, step: int | None
) -> bool:
    """Does the difference begin after the first update, or do the losses drift further apart than rounding alone drives them?"""
    steps = [] if step is None else [step]
    steps += [] if comparison.first is None else [comparison.first.step]
    return min(steps) > 1 if steps else first_differing_step(old, new, noises, growth=0.0) is not None


@dataclass(frozen=True)
class Growth:
    """is_rounding: rounding alone drives the losses about as far apart. why, next_steps: lines of the answer."""

    is_rounding: bool
    why: tuple[str, ...]
    next_steps: tuple[str, ...] = ()


def explain_growth(old: Recording, new: Recording, noises: Sequence[Recording]) -> Growth | None:
    """Explain different losses of two runs in which no single call differs by more than rounding.

    None if their losses are alike, or if no run shows the effect of rounding alone.
    """
    divergence = _find_divergence(old, new)
    if divergence is None or not noises:
        return None
    step, largest = divergence
    summary = f"the losses of the two runs differ from step {step} on, by up to {largest}"
    if first_differing_step(old, new, noises, growth=0.0) is not None:
        why = "No single call differs by more than rounding, and rounding alone makes the losses differ less"
        return Growth(False, (f"{summary}. {why}",)) if len(noises) > 1 else None
    alone = []
    for name, run in zip((OTHER_ORDER, SHAKEN), noises, strict=False):
        if (divergence := _find_divergence(old, run)) is not None:
            alone.append("with {} from step {} on, by up to {}".format(name, *divergence))
    if not alone:
        return None
    why = f"two runs under torch {old.torch} alone differ, too: {'; '.join(alone)}"
    alike = f"before step {step} the losses agree to {ALIKE_LOSSES:.0e}; " if step > 1 else ""
    limit = f"{alike}from step {step} on, a difference of this size may be rounding or have another cause"
    next_step = "compare results over several seeds: rounding decides the result of a single run"
    return Growth(True, (summary, why, limit), (next_step,))


def explain_equality(old: Recording, mended: Recording) -> str:
    """Say how equal two runs are that differ at most by the effect of another order of sums. This effect can be large."""
    divergence = _find_divergence(old, mended)
    if divergence is not None:
        _, largest = divergence
        return f"losses and gradients differ no more than with another order of sums: the losses by up to {largest}"
    if keeps_gradients(old):
        return "the losses are equal, and so are the gradients of the parameters"
    return f"{'the losses' if any(old.losses) else 'all values'} are equal, except for rounding"


def _find_divergence(old: Recording, new: Recording) -> tuple[int, str] | None:
    """The first step whose losses are not alike, and the largest distance, as text. None if the losses are alike in every step."""
    distances = loss_distances(old, new)
    first = next((step for step, distance in enumerate(distances, start=1) if distance > ALIKE_LOSSES), None)
    if first is None:
        return None
    largest = max(filter(math.isfinite, distances), default=0.0)
    note = "" if all(map(math.isfinite, distances)) else ", and in some steps only one run has a finite loss"
    return first, f"{100 * largest:.2g} %{note}"
