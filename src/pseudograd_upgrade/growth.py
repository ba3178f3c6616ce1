"""Rounding that a training magnifies: by a hard threshold, or by chaos. Told by runs of one torch in which rounding alone is another."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .differences import ALIKE, Comparison, first_loss, loss_distances, runs_of
from .recorded import OTHER_ORDER, SHAKEN, Recorded


@dataclass(frozen=True)
class Growth:
    """is_rounding: do losses part as far where rounding alone is another? why, next_steps: of the answer."""

    is_rounding: bool
    why: tuple[str, ...]
    next_steps: tuple[str, ...] = ()


def may_have_grown(old: Recorded, new: Recorded, noise: Recorded | None, found: Comparison, step: int | None) -> bool:
    """Does what differs begin behind the first update, or do losses part little by little and further than is known of rounding?"""
    steps = ([] if step is None else [step]) + ([] if found.first is None else [found.first.step])
    return min(steps) > 1 if steps else first_loss(old, new, noise, of_level=0.0) is not None


def how_it_grew(old: Recorded, new: Recorded, noise: Recorded | None) -> Growth | None:
    """Of two runs in which no call stands out; None where their losses are alike, or nothing is known of rounding."""
    between = _parting(old, new)
    if between is None or noise is None:
        return None
    said = f"the losses of the two part from step {between[0]} on, by up to {between[1]}"
    if first_loss(old, new, noise, of_level=0.0) is not None:
        why = f"{said}, little by little: no call stands out, and rounding alone does not part them so far"
        return Growth(False, (why,)) if noise.more else None
    found = [(name, _parting(old, run)) for name, run in zip((OTHER_ORDER, SHAKEN), runs_of(noise), strict=False)]
    alone = [f"with {name} from step {part[0]} on, by up to {part[1]}" for name, part in found if part is not None]
    if not alone:
        return None
    why = f"under torch {old.torch} alone they do, too: {'; '.join(alone)}"
    alike = f"before step {between[0]} they are alike to {ALIKE:.0e}; " if between[0] > 1 else ""
    limit = f"{alike}what else differs from step {between[0]} on, and no further, cannot be told from this"
    next_step = "compare results over several seeds: those of a single run are decided by rounding"
    return Growth(True, (said, why, limit), (next_step,))


def how_equal(old: Recorded, mended: Recorded) -> str:
    """Of a run that trains as the older one: within what another order of sums makes, which can be much."""
    parting = _parting(old, mended)
    if parting is None:
        return "the losses are equal, and so are the gradients of the parameters"
    return f"losses and gradients differ no more than by another order of sums: the losses by up to {parting[1]}"


def _parting(one: Recorded, other: Recorded) -> tuple[int, str] | None:
    """The first step whose losses are not alike, and how far they part at most."""
    apart = loss_distances(one, other)
    first = next((at for at, far in enumerate(apart, start=1) if far > ALIKE), None)
    if first is None:
        return None
    most = max((far for far in apart if math.isfinite(far)), default=0.0)
    ending = "" if all(map(math.isfinite, apart)) else ", and then wholly"
    return first, f"{100 * most:.2g} %{ending}"
