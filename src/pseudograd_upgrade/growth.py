"""Rounding that a training magnifies, by a hard threshold or by chaos; runs of one torch in which rounding alone differs show it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .differences import ALIKE, Comparison, first_loss, loss_distances, runs_of
from .recording import OTHER_ORDER, SHAKEN, Recording


@dataclass(frozen=True)
class Growth:
    """is_rounding: do losses part as far where rounding alone differs? why, next_steps: of the answer."""

    is_rounding: bool
    why: tuple[str, ...]
    next_steps: tuple[str, ...] = ()


def may_have_grown(
    old: Recording, new: Recording, noise: Recording | None, comparison: Comparison, step: int | None
) -> bool:
    """Does the difference begin behind the first update, or do losses part little by little and further than rounding is known to?"""
    steps = ([] if step is None else [step]) + ([] if comparison.first is None else [comparison.first.step])
    return min(steps) > 1 if steps else first_loss(old, new, noise, growth=0.0) is not None


def explain_growth(old: Recording, new: Recording, noise: Recording | None) -> Growth | None:
    """Of two runs in which no call stands out; None where their losses are alike, or nothing is known of rounding."""
    parting = _parting(old, new)
    if parting is None or noise is None:
        return None
    step, most = parting
    summary = f"the losses of the two part from step {step} on, by up to {most}"
    if first_loss(old, new, noise, growth=0.0) is not None:
        why = f"{summary}, little by little: no call stands out, and rounding alone does not part them so far"
        return Growth(False, (why,)) if noise.more else None
    partings = [(name, _parting(old, run)) for name, run in zip((OTHER_ORDER, SHAKEN), runs_of(noise), strict=False)]
    alone = [f"with {name} from step {part[0]} on, by up to {part[1]}" for name, part in partings if part is not None]
    if not alone:
        return None
    why = f"under torch {old.torch} alone they do, too: {'; '.join(alone)}"
    alike = f"before step {step} they are alike to {ALIKE:.0e}; " if step > 1 else ""
    limit = f"{alike}what else differs from step {step} on, and no further, cannot be told from this"
    next_step = "compare results over several seeds: those of a single run are decided by rounding"
    return Growth(True, (summary, why, limit), (next_step,))


def explain_equality(old: Recording, mended: Recording) -> str:
    """Of a run that trains as the older one: within what another order of sums makes, which can be much."""
    parting = _parting(old, mended)
    if parting is None:
        return "the losses are equal, and so are the gradients of the parameters"
    return f"losses and gradients differ no more than by another order of sums: the losses by up to {parting[1]}"


def _parting(old: Recording, new: Recording) -> tuple[int, str] | None:
    """The first step whose losses are not alike, and how far they part at most."""
    distances = loss_distances(old, new)
    first = next((at for at, distance in enumerate(distances, start=1) if distance > ALIKE), None)
    if first is None:
        return None
    most = max(filter(math.isfinite, distances), default=0.0)
    ending = "" if all(map(math.isfinite, distances)) else ", and then wholly"
    return first, f"{100 * most:.2g} %{ending}"
