"""A loss that stays as it is while the weights move."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ....listen.frames import Point
from ....wording import counted, shortened
from ...count.norms import Losses, numbers_of
from ...count.recorder import HOOK
from ...count.stalls import ParameterSteps
from ...records import Finding
from ..statements import find_assignment
from .kind import Evidence, Kind

_MIN_PASSES = 10  # backward passes: fewer losses may be equal by chance
_FEWEST_PASSES = 3
_LEAST_WAY = 2.0**-7  # share of its norm by which a weight moved: bfloat16 and some casts lose smaller differences
# Share of the loss by which its gradients say that it should have fallen. A loss that is normalised or saturated stays as it is, too, but
# its gradient is near 0.
_LEAST_FALL = 2.0**-7
_LONG_WAY = 0.1  # share of its norm: in the first steps of a slow training the outputs of a new layer are still alike
_NEARNESS = 1e-4  # relative distance to the loss of outputs that are all alike
# Families whose result is meant to ignore small changes of their input.
_IN_STEPS = ("round", "sign", "fake_quantize")


def _find(evidence: Evidence) -> Iterator[Finding]:
    moved = [
        steps
        for steps in evidence.stalls.parameters()
        if steps.leaf is not None and steps.leaf.had_gradient and steps.relative_distance > _LEAST_WAY
    ]
    if not moved:
        return
    is_smooth = _is_smooth(evidence)
    for location, losses in evidence.recorder.losses.items():
        values = [value for _, value in numbers_of(losses.values)]
        if losses.count < _FEWEST_PASSES or location.call is None or not all(map(math.isfinite, values)):
            continue
        upstream = evidence.leaves.unpack(losses.leaves)
        movers = [steps for steps in moved if steps.leaf in upstream]
        classes, passes = _find_classes(values, evidence)
        is_long = is_smooth and losses.count >= _MIN_PASSES
        if is_long and passes >= _MIN_PASSES and any(steps.relative_distance > _LONG_WAY for steps in movers):
            all_of = "all" if passes == len(values) else f"the last {passes:,} of"
            text = f"log({classes}) = {math.log(classes):.4f} in {all_of} {len(values):,} backward passes"
            cause = f"that is the loss of {classes} outputs that are all alike, whatever the input is"
            next_step = (
                "Print what each layer makes of two different inputs: behind the first one that makes the same of both nothing can be "
                "learned."
            )
        elif (
            is_long
            and len(set(values)) == 1
            and sum(steps.largest_loss_change for steps in movers) > _LEAST_FALL * abs(values[0]) > 0
        ):
            text = f"{values[0]:.6g}, the same to the last bit, in {_describe_passes(losses, values)}"
            cause, next_step = _explain_stale(location.call, losses)
        elif losses.stale >= _FEWEST_PASSES and movers:
            text = f"computed from old casts of weights in {losses.stale:,} of {losses.count:,} backward passes"
            cause, next_step = _explain_stale(location.call, losses)
        else:
            continue
        yield KIND.call_finding(
            location,
            f"the loss is {text}, {_describe_way(movers)}",
            cause,
            next_step,
            module=location.module,
            is_muted=evidence.deliberate.location(location),
        )


def _is_smooth(evidence: Evidence) -> bool:
    """Does the loss depend on the weights by smooth ops alone? No cut value decides it, and it contains no Function of the program."""
    if any(cut.reaches_loss for cut in evidence.structural):
        return False
    return not any(
        site.family in _IN_STEPS or site.is_own or site.op == HOOK or site.op.endswith("Backward")
        for site in evidence.sites
    )


def _describe_passes(losses: Losses, values: Sequence[float]) -> str:
    looked = "" if len(values) == losses.count else f" that were looked at, of {losses.count:,}"
    return f"all {len(values):,} backward passes{looked}"


def _describe_way(movers: Sequence[ParameterSteps]) -> str:
    most = max(steps.relative_distance for steps in movers)
    names = shortened([steps.name for steps in movers], 3)
    return f"while {counted(len(movers), 'parameter')} moved by up to {most:.2g} of their norm: {names}"


def _explain_stale(call: Point, losses: Losses) -> tuple[str, str]:
    """The cause, and the next step."""
    if losses.repeated:
        place = find_assignment(call, call.expression.partition(".backward")[0])
        making = place[1] if place else "loss = ..."
        return (
            "each pass goes again over the graph that the first one went over: the loss was not computed anew",
            f"{making}  # in the loop, before this line, which then needs no retain_graph",
        )
    if losses.cast is not None:
        device, dtype = losses.cast
        return (
            "all of them ran inside one torch.autocast, which casts each weight once and keeps the cast until it is left",
            f"torch.autocast({device!r}, {dtype}, cache_enabled=False)  # or enter it in each step, around the forward alone",
        )
    return (
        "what the loss is computed from does not follow the weights: a cast, a copy or a cache that was made before the loop",
        "Make casts, copies and stacks of weights anew in each step: print a weight and what is made of it, in two steps.",
    )


def _find_classes(values: Sequence[float], evidence: Evidence) -> tuple[int, int]:
    """The number of classes whose logarithm the last losses are, and how many last losses these are; (0, 0) if there is none."""
    # Candidates: 2, and the rows of each weight.
    rows = {2, *(leaf.shape[0] for _, leaf in evidence.leaves if leaf.is_parameter and len(leaf.shape) > 1)}
    for classes in sorted(rows - {0, 1}):
        are_near = [abs(value / math.log(classes) - 1) < _NEARNESS for value in reversed(values)]
        passes = next((number for number, is_near in enumerate(are_near) if not is_near), len(values))
        if passes:
            return classes, passes
    return 0, 0


KIND = Kind("PG214", order=85, find=_find, is_alone=True)
