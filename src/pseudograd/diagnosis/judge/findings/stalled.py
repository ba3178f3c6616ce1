"""Steps of an optimiser that rounding swallows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import torch

from ....wording import counted, percent, shortened
from ...count.stalls import ParameterSteps
from ...records import Finding
from ...sites import COMPARE
from .kind import Evidence, Kind

STALLED_SHARE = 0.5  # of the entries of a parameter that have a gradient
_MIN_STEPS = 10  # with fewer steps nobody can say that an entry never moves
_MIN_ENTRIES = 8  # entries with a gradient that a parameter needs to be judged; all of them, if it is smaller
_STILL_STEPS = 5  # steps at a rate of 0, if all steps were so
_LAST_STILL_STEPS = 10  # steps at a rate of 0 after others: a schedule may end with some

_Row = tuple[ParameterSteps, float]  # a parameter, and the share of its entries that never moved


def _find(evidence: Evidence) -> Iterator[Finding]:
    """A finding for each dtype, and for each optimiser whose rate is 0."""
    yield from _find_still_optimisers(evidence)
    stalled: dict[torch.dtype, list[_Row]] = {}
    moving: Counter[torch.dtype] = Counter()
    for parameter in evidence.stalls.parameters():
        had, still = parameter.counts
        if parameter.steps < _MIN_STEPS or had < min(_MIN_ENTRIES, parameter.size):
            continue
        if still <= STALLED_SHARE * had:
            moving[parameter.dtype] += 1
        elif not (parameter.is_noise or parameter.moves_on_average or evidence.deliberate.parameter(parameter.name)):
            stalled.setdefault(parameter.dtype, []).append((parameter, still / had))
    for dtype, rows in stalled.items():
        yield _report(dtype, rows, moving[dtype], evidence)


def _find_still_optimisers(evidence: Evidence) -> Iterator[Finding]:
    for optimiser in evidence.recorder.optimisers.all:
        still, call = optimiser.still_steps, optimiser.still_at.call
        is_always = still == optimiser.steps
        if call is None or not any(leaf.had_gradient for leaf in optimiser.leaves):
            continue
        if still < (_STILL_STEPS if is_always else _LAST_STILL_STEPS):
            continue
        of_schedule = "a scheduler set it, by the number of its own steps"
        yield KIND.call_finding(
            optimiser.still_at,
            f"the rate of the optimiser is 0 in all {still:,} steps: nothing moves"
            if is_always
            else f"the rate of the optimiser is 0 in the last {still:,} of {optimiser.steps:,} steps: nothing moves any more",
            of_schedule if optimiser.has_schedule else "the program set it",
            "Give these steps a rate above 0, if they should train.",
            is_muted=evidence.deliberate.location(optimiser.still_at),
        )


def _report(dtype: torch.dtype, rows: Sequence[_Row], moving: int, evidence: Evidence) -> Finding:
    """The finding about the parameters of one dtype. moving: the number of other parameters of this dtype, which move."""
    parameters = [parameter for parameter, _ in rows]
    share = sum(parameter.size * part for parameter, part in rows) / sum(parameter.size for parameter in parameters)
    sampled = "sampled " if any(parameter.is_sampled for parameter in parameters) else ""
    fewest, most = (bound(parameter.steps for parameter in parameters) for bound in (min, max))
    steps = counted(most, "step") if fewest == most else f"{fewest:,} to {most:,} steps"
    verb = "moves" if moving == 1 else "move"
    beside = f"; {counted(moving, 'other parameter')} of this dtype {verb}" if moving else ""
    sizes = sorted([size for parameter in parameters if not math.isnan(size := parameter.record.size)])
    median = sizes[len(sizes) // 2] if sizes else None
    location, kind = evidence.stalls.location, str(dtype).removeprefix("torch.")
    of_it = (
        ". How large the steps of this optimizer are is not known: it may also hold these weights on purpose"
        if median is None
        else f": a step is {median:.2g} of that distance in the median"
    )
    return KIND.call_finding(
        location,
        f"{percent(share)} of the {sampled}entries that have a gradient never moved in {steps}: "
        f"{shortened([parameter.name for parameter in parameters])}{beside}",
        f"the weights are {kind}: a step smaller than half the distance to the next number is rounded away{of_it}",
        _advise(dtype, parameters[0].device.type, median, bool(moving), _net_of(parameters[0].name, evidence)),
        share=share,
        is_muted=evidence.deliberate.location(location),
    )


def _net_of(name: str, evidence: Evidence) -> str:
    """The variable that holds the net of a parameter."""
    owners = [evidence.leaves.names.owner_of(leaf) for _, leaf in evidence.leaves if leaf.name == name]
    return next((owner.variable for owner in owners if owner is not None), "") or "model"


def _advise(dtype: torch.dtype, device: str, median: float | None, others_move: bool, net: str) -> str:
    """The next step. It is no larger rate for all, if other parameters move at the present one."""
    if dtype in (torch.float32, torch.float64):
        larger = "a larger rate" if median is None else f"a rate {1 / max(median, 1e-9):,.0f} times as large"
        group = "these parameters a group of their own with" if others_move else "the optimizer"
        return f"Give {group} {larger}{COMPARE}."
    kind = str(dtype).removeprefix("torch.")
    return (
        f"{net}.float()  # before the optimizer is made; then the forward under torch.autocast({device!r}, torch.{kind}); "
        f"or an optimizer with compensated summation or stochastic rounding{COMPARE}."
    )


KIND = Kind("PG208", order=80, find=_find, is_alone=True)
