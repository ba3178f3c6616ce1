"""Trainings side by side: does a program end with another loss if the calls of one line follow the other convention?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf, isfinite

from ..listen.program.follow import Part, Run
from .judge.findings.convention import BESIDE, MAY_DECIDE, UNMEASURED, pin_text
from .records import Finding

_MOST_LINES = 4  # lines that get a training of their own: those with the largest shares
_LEAST_STEPS, _LEAST_LAST_STEPS = 8, 3
# Two losses are apart if their distance is more than each of these three:
_LEAST_OF_SMALLER = 0.01  # of the smaller one of the two losses
_LEAST_OF_LARGEST = 0.001  # of the largest loss of the training
_LEAST_OF_NOISE = 10.0  # times the distance of two runs of the program as it is
Pin = tuple[str, str | float]  # the argument of pin_edge, and its value


def train_side_by_side(done: Run, run_again: Callable[[Pin | None, str, int], Run], steps: int | None) -> Run:
    """Run the program once more as it is, and once for each line under the other convention. The findings of the result say how each ended.

    done: the first run.
    run_again(pin, where, number of backward passes): runs the program.
    steps: the number of backward passes after which the first run was ended; None if it was not.
    """
    active = [part for part in done.parts if part.content["backwards"]]
    findings = [finding for part in active for finding in part.content["findings"] if UNMEASURED in finding.evidence]
    if not findings:
        return done
    in_doubt = sorted([finding for finding in findings if finding.other_pin], key=lambda finding: -finding.share)
    again = own = active[0].content["losses"]
    why_no_training = _why_not_comparable(done, active)
    if in_doubt and not why_no_training:
        again, failure = _losses_of(run_again(None, "", len(own)), len(own))
        if not failure and _distance(own[0], again[0]):
            failure = f"begins with a loss of {again[0]:.6g}, not {own[0]:.6g}, so the program does not repeat"
        why_no_training = failure and f"a second run as it is {failure}"
    extent = "this training" if steps is None or len(own) < steps else f"the first {len(own):,} steps"

    def add_training(finding: Finding) -> Finding:
        evidence, advice, other = finding.evidence, finding.next_step, own
        if MAY_DECIDE not in evidence:
            return finding
        pin = "" if finding.other_pin is None else f"pin_edge({pin_text(finding.other_pin)}) at this line"
        why = why_no_training
        if not pin:
            why = "no pin reaches this call"
        elif finding not in in_doubt[:_MOST_LINES]:
            why = f"only the {_MOST_LINES} lines with the largest shares get a training"
        elif not why:
            other, failure = _losses_of(run_again(finding.other_pin, finding.where, len(own)), len(own))
            why = failure and f"the program under {pin} {failure}"
        if why:
            measured = f"where a training under the other convention ends cannot be compared, as {why}"
            return replace(finding, evidence=evidence.replace(UNMEASURED, measured))
        ends_differ, measured = compare_losses(own, again, other, pin)
        if ends_differ is not None:
            head = f"It decides {extent}: " if ends_differ else f"It did not decide {extent}, though "
            evidence = evidence.replace(f"{MAY_DECIDE}: ", head)
            is_better = ends_differ and other[-1] < own[-1]
            advice = advice.replace("the same seeds", "more seeds") if is_better else advice.partition(BESIDE)[0]
        return replace(finding, evidence=evidence.replace(UNMEASURED, measured), next_step=advice)

    def add_trainings(part: Part) -> Part:
        return replace(part, content={**part.content, "findings": [*map(add_training, part.content["findings"])]})

    return replace(done, parts=tuple(add_trainings(part) if part in active else part for part in done.parts))


def _why_not_comparable(done: Run, active: Sequence[Part]) -> str:
    """Why the losses of this run cannot be compared with those of another run; "" if they can."""
    losses = active[0].content["losses"]
    if done.status:
        return f"the program ended with status {done.status}"
    if len(active) > 1:
        return f"{len(active)} processes made backward passes"
    if len(losses) < _LEAST_STEPS:
        return f"it needs {_LEAST_STEPS} backward passes, and there were {len(losses)}"
    return "a GradScaler multiplies its losses by a number of its own" if active[0].content["is_scaled"] else ""


def _losses_of(run: Run, steps: int) -> tuple[list[float], str]:
    """The losses of a run, and a clause that says why they cannot be compared; "" if they can."""
    contents = [part.content for part in run.parts if part.content["backwards"]]
    losses = contents[0]["losses"] if len(contents) == 1 else []
    if run.status or len(losses) != steps:
        return losses, f"ended with status {run.status} after {len(losses):,} of {steps:,} backward passes"
    return losses, "" if contents[0]["is_pinned"] else "has calls that no pin reaches"


def compare_losses(
    own: Sequence[float], again: Sequence[float], other: Sequence[float], pin: str
) -> tuple[bool | None, str]:
    """Does the training end with other losses under the pin, and a clause that says so. None instead of an answer: it is not clear.

    own, again: the losses of two runs of the program as it is.
    other: the losses of a run under the pin.
    """
    count = max(_LEAST_LAST_STEPS, len(own) // 4)
    pairs = list(zip(own, other, strict=True))
    noise = max(map(_distance, own[-count:], again[-count:]))
    least = max([_LEAST_OF_NOISE * noise, *(_LEAST_OF_LARGEST * abs(loss) for loss in own if isfinite(loss))])
    are_apart = [_distance(*pair) > max(least, _LEAST_OF_SMALLER * min(map(abs, pair))) for pair in pairs]
    last_pairs, last_are_apart = pairs[-count:], are_apart[-count:]
    repeats = f"at most {noise:.1g} from a second run" if noise else "in two runs, to the bit"
    measured = f"the loss of the last backward is {own[-1]:.6g} as it is ({repeats}) and {other[-1]:.6g} under {pin}"
    is_larger = {pinned > loss for loss, pinned in last_pairs if isfinite(loss - pinned)}
    if all(last_are_apart) and len(is_larger) <= 1:  # the same run has the larger loss in each of them
        return True, f"{measured}, and apart in each of the last {count:,} backward passes"
    if not any(last_are_apart) and all(map(isfinite, (noise, *own[-count:]))):
        constant = [name for name, losses in (("as it is", own), (f"under {pin}", other)) if len({*losses}) == 1]
        if len(constant) == 1 and any(are_apart):
            return None, f"{measured}; {constant[0]} it never changes, so equal ends do not mean that both learned"
        return False, measured
    return None, f"{measured}, and not clearly apart in each of the last {count:,} backward passes"


def _distance(loss: float, other: float) -> float:
    """The distance of two losses: 0 if neither is finite, inf if one is not."""
    if not (isfinite(loss) or isfinite(other)):
        return 0.0
    return abs(loss - other) if isfinite(loss - other) else inf
