"""Pins the newer torch to the conventions of the older torch: which lines need the pin, and is the pinned training the better one?"""

from __future__ import annotations

import itertools
import math
import re
import shlex
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pseudograd.listen.frames import NO_LINE
from pseudograd.torch_table.eras import era_of
from pseudograd.wording import counted

from .differences import ALIKE_LOSSES, Difference, digest_distance, last_loss, leaves_of
from .recording import BACKWARD, UPDATE, Event, Origin, Recording
from .runs import parse_version

_MOST_LINES = 3  # at most so many lines are pinned together
# The nodes, or calls, whose gradient a version of torch changed; the version; the points.
_CHANGES = (
    (re.compile(r"(Clamp|Fmin|Fmax)\w*Backward"), (2, 14), "at a bound or a tie"),
    (re.compile(r"(nan)?quantile"), (2, 14), "of equal entries"),
    (re.compile(r"(Fmin|Fmax)Backward"), (2, 15), "of NaN"),
    (re.compile(r"Atan2Backward"), (2, 10), "at (0, 0)"),
)
_UP, _DOWN = "up", "down"
_FEWEST_MOVES = 2  # more moves along the gradient than against it, or the other way round
_QUANTILE_NODES = ("Gather", "Sort", "Topk", "Lerp")  # the nodes that quantile makes
# The functions that may make one of the nodes of `_CHANGES`.
_MAY_CALL_CHANGED = re.compile(r"clamp|clip|fmin|fmax|quantile|_loss|normalize|similarity", re.IGNORECASE)


class Pinned(NamedTuple):
    """A run of the newer torch, pinned to the older torch at these lines; without lines, everywhere."""

    lines: tuple[str, ...]
    run: Recording
    is_mended: bool  # does the pinned run train as the older torch?

    def scope(self, line: str) -> str:
        """The pinned lines, in words. line: the line of the first difference, or ""."""
        if not self.lines:
            return f"pinned everywhere{', as this line alone is not enough' if line else ''}"
        return f"{'this line' if self.lines == (line,) else ' and '.join(self.lines)} pinned"


def is_at_line(difference: Difference | None) -> bool:
    """Is the difference in the backward of a call whose line is known, so that a pin at this line can reach it?"""
    return difference is not None and difference.old.origin.kind == BACKWARD and difference.old.origin.where != NO_LINE


def may_hide_convention(run: Recording) -> bool:
    """Did the run call a function that has a point at which a version of torch changed the gradient?"""
    return any(_MAY_CALL_CHANGED.search(event.origin.op) for events in run.steps.values() for event in events)


def known_change(origin: Origin, old: Recording, new: Recording) -> str:
    """Name the version of torch between these two that changed the gradient of this node, and the points. Empty if there is none."""
    op = origin.op
    if op.startswith(_QUANTILE_NODES):
        events = (event.origin for events in old.steps.values() for event in events)
        op = next((event.op for event in events if event.where == origin.where and "quantile" in event.op), op)
    old_version, new_version = (parse_version(run.torch) for run in (old, new))
    for node, since, points in _CHANGES:
        if node.match(op) and (old_version < since) != (new_version < since):
            return f"torch {since[0]}.{since[1]} changed this gradient {points}"
    return ""


def may_be_pinned(old: Recording, new: Recording) -> bool:
    """Can a pin to the older torch change a gradient of the newer one? On 2.14 it gives fmin and fmax of NaN the gradient of 2.15."""
    old_version, new_version = (parse_version(run.torch) for run in (old, new))
    return era_of(old.torch) != era_of(new.torch) or new_version == (2, 14) < old_version


def find_kink(old: Recording, new: Recording, pinned: Recording) -> Difference | None:
    """The first node whose convention torch changed, and which returns another gradient under the pin though it gets the same one.

    new, pinned: runs of the newer torch, without and with the pin.
    """
    for step in sorted(new.steps.keys() & pinned.steps.keys()):
        pinned_events: dict[object, list[Event]] = {}
        for event in reversed(pinned.steps[step]):  # so that `pop` returns the earliest
            pinned_events.setdefault(_place(event), []).append(event)
        for event in new.steps[step]:
            same_place = pinned_events.get(_place(event))
            other = same_place.pop() if same_place else None
            if other is None:
                continue
            gets_same = other.tensors[0] == event.tensors[0]  # the first tensor is the gradient that arrives
            if gets_same and known_change(event.origin, old, new):
                distance = max(map(digest_distance, event.tensors, other.tensors))
                if distance:
                    return Difference(step, event, other, distance)
    return None


def _place(event: Event) -> object:
    """A key that is equal for a call and the same call under the pin, whose node has another name."""
    return event.origin.kind, event.line, *(tensor.shape for tensor in event.tensors)


def find_pin(
    first: Difference | None,
    run_pinned: Callable[[tuple[str, ...]], Pinned],
    find_rest: Callable[[Recording], Difference | None],
) -> Pinned:
    """Try the pin at the first line that differs, then at up to three lines, then everywhere, until the pin mends the training.

    find_rest: the first difference between the older torch and a pinned run.
    """
    if first is None or not is_at_line(first):
        return run_pinned(())
    pinned = run_pinned((first.new.origin.where,))
    if pinned.is_mended:
        return pinned
    everywhere = run_pinned(())
    while everywhere.is_mended and len(pinned.lines) < _MOST_LINES:
        rest = find_rest(pinned.run)
        if rest is None or not is_at_line(rest) or rest.new.origin.where in pinned.lines:
            break
        pinned = run_pinned((*pinned.lines, rest.new.origin.where))
        if pinned.is_mended:
            for line in pinned.lines[:-1]:  # the last line is needed: without it the pin did not mend
                fewer = run_pinned(tuple(other for other in pinned.lines if other != line))
                pinned = fewer if fewer.is_mended else pinned
            return pinned
    return everywhere


def pin_steps(old: Recording, new: Recording, lines: Sequence[str], program: Sequence[str]) -> list[str]:
    """The next steps: to pin to the torch whose training `find_better` names; if it names none, the reason why."""
    better, reason = find_better(old, new)
    if better is None:
        return [reason]
    era = era_of(better.torch)
    if better is new:
        keep = f"with pseudograd.pin_edge({era!r}): ...  # keeps what torch {new.torch} does"
        return [f"{reason} keep its convention", keep]
    around = _program_lines(new, lines)
    steps = [f"with pseudograd.pin_edge({era!r}): ...  # around {' and '.join(around)}"] if around else []
    return [*steps, f"unedited: pseudograd run --pin {shlex.quote(era)} {shlex.join(program)}"]


def unpinned_steps(old: Recording, new: Recording, change: str, where: str) -> list[str]:
    """The next steps if no pin takes back the change of torch at this line. They name the newer torch if its losses end better."""
    better, reason = find_better(old, new)
    if better is new:
        return [f"{change}; {reason} stay with torch {new.torch}"]
    return [f"{change}, and no pin mends it here: {where}", *([] if better is old else [reason])]


def _program_lines(run: Recording, lines: Sequence[str]) -> list[str]:
    """The lines to edit. For a line of a package, these are all lines of the program that lead to it.

    A checkpoint has two such lines: that of its forward, which needs the pin, and that of the backward, in which it runs again.
    """
    origins = [event.origin for events in run.steps.values() for event in events]
    pairs = [(origin.where, origin.user_where) for line in lines for origin in origins if origin.where == line]
    return list(dict.fromkeys(where if user == NO_LINE else user for where, user in pairs))


def find_better(old: Recording, new: Recording) -> tuple[Recording | None, str]:
    """The run to keep, or None if that is unclear; and the reason, before an advice with its colon or condition. To keep the older run
    needs no reason. If the losses end alike, the older run is kept.
    """
    old_fault, new_fault = _describe_fault(old), _describe_fault(new)
    if old_fault and new_fault:
        return None, f"{old_fault} under torch {old.torch}, and {new_fault} under torch {new.torch}: no pin mends that"
    if old_fault:
        return new, f"{old_fault} under torch {old.torch} and not under torch {new.torch}:"
    if new_fault or not (old.losses and new.losses):
        return old, ""
    directions = _directions(old) | _directions(new)
    is_ascent = directions == {_UP}
    sign = -1 if is_ascent else 1
    old_levels, new_levels = ([sign * level for level in _loss_levels(run)] for run in (old, new))
    ends = [*zip(old_levels[1:], new_levels[1:], strict=True)]
    is_old_better = any(_is_lower(old_end, new_end) for old_end, new_end in ends)
    is_new_better = any(_is_lower(new_end, old_end) for old_end, new_end in ends)
    old_broken, new_broken = _count_broken_steps(old), _count_broken_steps(new)
    unclear, better = "", new if is_new_better else old
    if old_broken > new_broken:
        better = new
        counts = f"{counted(old_broken, 'recorded step')} under torch {old.torch} and in {new_broken} under torch {new.torch}"
        reason = f"gradients of parameters are not finite in {counts}:"
        if is_old_better:
            unclear = f"{reason[:-1]}, and the loss ends better under torch {old.torch}"
    elif not (is_old_better or is_new_better):
        return old, ""
    else:
        # The lower loss may be the worse training: a reward falls, or a constraint is no longer enforced.
        ending = f"the loss ends {'higher' if is_ascent else 'lower'} under torch {new.torch}"
        reason = f"{ending}; if this loss is what you judge by,"
        other = old if better is new else new
        if not _has_gradient(better) and _has_gradient(other):
            unclear = f"the losses end better under torch {better.torch}, but no parameter gets a gradient there"
        elif len(directions) > 1:
            unclear = "some parameters go down the loss, and others up"
        elif _trains_in_turn(old):
            unclear = "several losses are trained in turn"
        elif (levels := new_levels if better is new else old_levels)[2] >= levels[0]:
            # As in an attack that ascends by hand, in which the other torch may be the one that trains.
            unclear = (
                f"the loss does not {'rise' if is_ascent else 'fall'} under torch {better.torch}, where it ends better"
            )
        elif is_old_better and is_new_better:
            unclear = "the losses cross"
        elif _is_cut_short(better, other, sign):  # as by a program that stops at nan
            unclear = f"the program stops earlier under torch {better.torch}, and is not ahead there"
    if unclear:
        advice = "so they do not say which is better: judge by a figure of your own before you pin anything"
        return None, f"{unclear}, {advice}"
    return better, "" if better is old else reason


def _describe_fault(run: Recording) -> str:
    """Why this run is no good training: it failed, or its last loss is not finite. Empty if there is no such fault."""
    if run.status:
        return f"it ends with status {run.status}"
    last = last_loss(run)
    return "" if last is None or math.isfinite(last) else f"the last loss is {last}"


def _count_broken_steps(run: Recording) -> int:
    """The number of recorded steps in which a parameter got a gradient that is not finite."""
    return sum(not all(math.isfinite(leaf.magnitude) for leaf in leaves_of(run, step)) for step in run.steps)


def _has_gradient(run: Recording) -> bool:
    """Did a parameter get a gradient that is not 0, in the recorded steps?"""
    return any(leaf.magnitude != 0 for step in run.steps for leaf in leaves_of(run, step))


def _loss_levels(run: Recording) -> tuple[float, float, float]:
    """The means of the first and of the last quarter of the losses, and the last loss."""
    totals = [sum(losses) for losses in run.losses]
    quarter = max(1, len(totals) // 4)
    finite = [list(filter(math.isfinite, part)) for part in (totals[:quarter], totals[-quarter:])]
    start, end = (sum(part) / len(part) if part else math.inf for part in finite)
    return start, end, totals[-1]


def _is_cut_short(run: Recording, other: Recording, sign: int) -> bool:
    """Has the run fewer losses, and no lower loss at its end than the other run in the same pass?"""
    count = len(run.losses)
    return count < len(other.losses) and not _is_lower(sign * sum(run.losses[-1]), sign * sum(other.losses[count - 1]))


def _is_lower(a: float, b: float) -> bool:
    """Is loss a lower than loss b, by so much that they are not alike?"""
    return b - a > ALIKE_LOSSES * max(abs(a), abs(b))


def _updates(run: Recording) -> list[tuple[int, Event]]:
    """The steps of optimisers, each with the backward pass that it follows."""
    return [(step, event) for step, events in run.steps.items() for event in events if event.origin.kind == UPDATE]


def _held_shapes(run: Recording) -> set[str]:
    """The dtypes and shapes of the parameters that optimisers step."""
    return {tensor.shape for _, event in _updates(run) for tensor in event.tensors}


def _directions(run: Recording) -> set[str]:
    """Do parameters go down the loss or up: by their optimiser, or by hand?"""
    texts = [re.search(r"maximize=([\w/]+)", event.options) for _, event in _updates(run)]
    values = {value for text in texts for value in (text[1] if text else "False").split("/")}
    held, moves = _held_shapes(run), run.raw.get("moves", {})
    by_hand = [count for shape, count in moves.items() if shape not in held and abs(count) >= _FEWEST_MOVES]
    return {_UP if value == "True" else _DOWN for value in values} | {_UP if count > 0 else _DOWN for count in by_hand}


def _trains_in_turn(run: Recording) -> bool:
    """Do different optimisers step after different backward passes, as in an adversarial training, or are some passes for no parameter that
    an optimiser steps, as those of an attack?
    """
    steps: dict[object, set[int]] = {}
    for step, event in _updates(run):
        steps.setdefault((event.origin, *(tensor.shape for tensor in event.tensors)), set()).add(step)
    # A backward that makes a graph computes a part of a loss.
    passes = [step for step in run.steps if step <= len(run.losses) and step not in run.raw.get("graph_steps", ())]
    held = _held_shapes(run)
    leaves = [{leaf.shape for leaf in leaves_of(run, step)} for step in passes]
    has_others = {bool(shapes) and frozenset(shapes - held) for shapes in leaves} if held else set()
    return len(has_others) > 1 or any(a.isdisjoint(b) for a, b in itertools.combinations(steps.values(), 2))
