"""The pin of the newer torch to the conventions of the older one: where it mends a training, and which of the two to advise."""

from __future__ import annotations

import itertools
import math
import re
import shlex
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pseudograd.torch_table.eras import era_of

from .differences import ALIKE_LOSSES, Difference, leaves_of
from .recording import BACKWARD, UPDATE, Recording

_MOST_LINES = 3  # that are pinned together
# The nodes whose gradient a version of torch changed, the version and the points; and calls that run one of 2.14's inside.
_CHANGES = (
    (re.compile(r"(Clamp|Fmin|Fmax)\w*Backward"), (2, 14), "at a bound or a tie"),
    (re.compile(r"(Fmin|Fmax)Backward"), (2, 15), "of NaN"),
    (re.compile(r"Atan2Backward"), (2, 10), "at (0, 0)"),
)
_MAY_HIDE_ONE = re.compile(r"clamp|clip|fmin|fmax|quantile|_loss|normalize|similarity", re.IGNORECASE)


class Pinned(NamedTuple):
    """A run of the newer torch under the pin to the older one, at these lines; without lines everywhere."""

    lines: tuple[str, ...]
    run: Recording
    is_mended: bool

    def scope(self, line: str) -> str:
        """line: of the first difference, if it is known."""
        if not self.lines:
            return f"pinned everywhere{', as this line alone is not enough' if line else ''}"
        return f"{'this line' if self.lines == (line,) else ' and '.join(self.lines)} pinned"


def is_at_line(difference: Difference | None) -> bool:
    """Is it a gradient of a call whose line is known, so that a pin reaches it there?"""
    return difference is not None and difference.old.origin.kind == BACKWARD and difference.old.origin.where != "?"


def may_be_convention(old: Recording, new: Recording, first: Difference | None) -> bool:
    """Do the two have other conventions, and can one of them be the cause?"""
    if era_of(old.torch) == era_of(new.torch):
        return False
    events = (event for events in new.steps.values() for event in events)
    return is_at_line(first) or any(_MAY_HIDE_ONE.search(event.origin.op) for event in events)


def known_change(op: str, old: Recording, new: Recording) -> str:
    """The version of torch that changed the gradient of this node, and the points; empty if none between these two did."""
    old_version, new_version = (tuple(map(int, run.torch.split("+")[0].split(".")[:2])) for run in (old, new))
    for node, since, points in _CHANGES:
        if node.match(op) and (old_version < since) != (new_version < since):
            return f"torch {since[0]}.{since[1]} changed this gradient {points}"
    return ""


def find_pin(
    first: Difference | None,
    run_pinned: Callable[[tuple[str, ...]], Pinned],
    find_rest: Callable[[Recording], Difference | None],
) -> Pinned:
    """The pin of the line that differs first if that mends the training; then of up to three lines; else everywhere.

    find_rest: the first difference between the older torch and a pinned run.
    """
    if first is None or not is_at_line(first):
        return run_pinned(())
    pinned = run_pinned((first.old.origin.where,))
    if pinned.is_mended:
        return pinned
    everywhere = run_pinned(())
    while everywhere.is_mended and len(pinned.lines) < _MOST_LINES:
        rest = find_rest(pinned.run)
        if rest is None or not is_at_line(rest) or rest.old.origin.where in pinned.lines:
            break
        pinned = run_pinned((*pinned.lines, rest.old.origin.where))
        if pinned.is_mended:
            for line in pinned.lines[:-1]:  # without the last one it was no mend
                fewer = run_pinned(tuple(other for other in pinned.lines if other != line))
                pinned = fewer if fewer.is_mended else pinned
            return pinned
    return everywhere


def pin_steps(old: Recording, new: Recording, lines: Sequence[str], program: Sequence[str]) -> list[str]:
    """The pin to the older torch, unless the training is worse there or not known to be better: the losses decide."""
    better, reason = find_better(old, new)
    if better is None:
        return [reason]
    era = era_of(better.torch)
    if better is new:
        return [f"{reason}: keep that", f"with pseudograd.pin_edge({era!r}): ...  # keeps what torch {new.torch} does"]
    around = _program_lines(new, lines)
    steps = [f"with pseudograd.pin_edge({era!r}): ...  # around {' and '.join(around)}"] if around else []
    return [*steps, f"unedited: pseudograd run --pin {shlex.quote(era)} {shlex.join(program)}"]


def _program_lines(run: Recording, lines: Sequence[str]) -> list[str]:
    """The lines to edit: in place of a line of a package all lines of the program that lead to it."""
    origins = [event.origin for events in run.steps.values() for event in events if event.origin.kind == BACKWARD]
    pairs = [(origin.where, origin.user_where) for line in lines for origin in origins if origin.where == line]
    return list(dict.fromkeys(where if user == "?" else user for where, user in pairs))


# --- which of the two trains better -----------------------------------------------------------------------------------


def find_better(old: Recording, new: Recording) -> tuple[Recording | None, str]:
    """The run to keep, and the reason unless it is the older one, which it is where the losses end alike. None if they do not say so."""
    faults = [_describe_fault(run) for run in (old, new)]
    if all(faults):
        return None, f"{faults[0]} under torch {old.torch}, and {faults[1]} under torch {new.torch}: no pin mends that"
    if any(faults) or not (old.losses and new.losses):
        return (
            (new, f"{faults[0]} under torch {old.torch}, and not under torch {new.torch}") if faults[0] else (old, "")
        )
    is_ascent = any("maximize=True" in event.options for events in old.steps.values() for event in events)
    sign = -1 if is_ascent else 1
    levels = [[sign * level for level in _loss_levels(run)] for run in (old, new)]
    votes = {_compare_sizes(*pair) for pair in zip(levels[0][1:], levels[1][1:], strict=True)} - {0}
    if not votes:
        return old, ""
    if _trains_in_turn(old):
        unclear = "several losses are trained in turn"
    elif all(last > start for start, _, last in levels):
        unclear = f"the last loss is {'below' if is_ascent else 'above'} the first under both"
    elif len(votes) == 2:
        unclear = "the losses cross"
    else:
        return (
            (new, f"the loss ends {'higher' if is_ascent else 'lower'} under torch {new.torch}")
            if 1 in votes
            else (old, "")
        )
    return None, f"{unclear}, so they do not say which is better: judge by a figure of your own before you pin anything"


def _describe_fault(run: Recording) -> str:
    """A sign that a run does not train. Of a gradient only in the last step: the losses show the effect of those before."""
    if run.status:
        return f"it ends with status {run.status}"
    if run.losses and not math.isfinite(sum(run.losses[-1])):
        return f"the last loss is {sum(run.losses[-1])}"
    leaves = leaves_of(run, len(run.losses))
    return (
        ""
        if all(math.isfinite(leaf.numbers[1]) for leaf in leaves)
        else "the last gradient of a parameter is not finite"
    )


def _loss_levels(run: Recording) -> tuple[float, float, float]:
    """The means of the first and of the last quarter of the losses, and the last loss."""
    totals = [sum(losses) for losses in run.losses]
    quarter = max(1, len(totals) // 4)
    finite = [list(filter(math.isfinite, part)) for part in (totals[:quarter], totals[-quarter:])]
    start, end = (sum(part) / len(part) if part else math.inf for part in finite)
    return start, end, totals[-1]


def _compare_sizes(a: float, b: float) -> int:
    """1 if a is larger than b, -1 if it is smaller, 0 if losses of these sizes are alike."""
    return 0 if abs(a - b) <= ALIKE_LOSSES * max(abs(a), abs(b)) else 1 if a > b else -1


def _trains_in_turn(run: Recording) -> bool:
    """Does another optimiser step after another backward, as in an adversarial training?"""
    steps: dict[object, set[int]] = {}
    for step, events in run.steps.items():
        for event in events:
            if event.origin.kind == UPDATE:
                steps.setdefault((event.origin, *(tensor.shape for tensor in event.tensors)), set()).add(step)
    return any(a.isdisjoint(b) for a, b in itertools.combinations(steps.values(), 2))
