"""An update of which a large share is convention: another torch or framework chose another gradient at a kink."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ....rewrite.other_conventions import OtherConvention, other_of
from ....torch_table.conventions import FRAMEWORKS, text_of
from ....torch_table.eras import ERAS, installed_era
from ....torch_table.forms import FAMILIES
from ....wording import listed, percent, shortened
from ...count.sensitivity import HIGH_SHARE, Sensitivity
from ...records import Finding
from .. import advice
from .kind import Evidence, Kind

DECISIVE_SHARE = 0.5  # of the update, in the median of the later steps
_STILL_DISTANCE = 1e-3  # of its norm: a parameter that came no further does not move
_MIN_STEPS = 5  # with fewer steps nobody can say how the share goes on
_PINNED_BY_ERA = ("clamp", "fmax", "fmin")


def verdict(line: Sensitivity, parameters: Sequence[Sensitivity]) -> str:
    """How much the convention at a line matters; "" if its share never reached a tenth. "unknown": there were too few steps.

    "decides": the share stays high in the update, or on a parameter that does not move; or a parameter would not begin to move under the
    other convention. One training does not prove it. "falls": the share was high and no longer is. "some": between these two.
    """
    if max(record.peak for record in (line, *parameters)) < HIGH_SHARE:
        return ""
    stopped = _stopped_parameters(parameters)
    if line.level >= DECISIVE_SHARE or _stuck_parameters(parameters) or stopped:
        return "decides" if len(line.steps) >= _MIN_STEPS or stopped else "unknown"
    if len(line.steps) < _MIN_STEPS:
        return "unknown"
    is_some = line.level >= HIGH_SHARE or any(record.level >= DECISIVE_SHARE for record in parameters)
    return "some" if is_some else "falls"


def _stuck_parameters(parameters: Sequence[Sensitivity]) -> list[str]:
    """The names of those that do not move, and whose gradient is mostly convention."""
    rows = [row for row in parameters if row.level >= DECISIVE_SHARE and row.moved < _STILL_DISTANCE]
    return [row.parameter or "" for row in rows]


def _stopped_parameters(parameters: Sequence[Sensitivity]) -> list[str]:
    """The names of those that would get nothing in the first step under the other convention."""
    return [record.parameter or "" for record in parameters if record.stops]


def group_by_line(records: Sequence[Sensitivity]) -> dict[tuple[str, str], list[Sensitivity]]:
    """The records by family and line: first the record of the line, then those of its parameters."""
    lines: dict[tuple[str, str], list[Sensitivity]] = {}
    for record in records:
        if record.where is not None:
            lines.setdefault((record.family, record.where), []).append(record)
    return lines


def _find(evidence: Evidence) -> Iterator[Finding]:
    has_nan = evidence.nonfinite is not None and bool(evidence.nonfinite.reached)
    has_stepped = evidence.recorder.optimisers.have_stepped
    for (family, where), (line, *parameters) in group_by_line(evidence.sensitivity).items():
        parameters = [record for record in parameters if not evidence.deliberate.parameter(record.parameter or "")]
        if has_nan and not math.isfinite(line.share):
            continue  # a pin would keep the nan, of which the findings `nonfinite` and `guard` tell
        held = {leaf.name for _, leaf in evidence.leaves if leaf.is_in_optimizer or not has_stepped}
        trained = [record for record in parameters if record.moved or record.parameter in held]
        if len(trained) < len(parameters) and max((record.peak for record in trained), default=0.0) < HIGH_SHARE:
            continue  # no optimiser steps what it changes
        parameters = trained
        if any(site.is_guard and site.where == where for site in evidence.sites):
            continue  # the finding `guard` tells which convention keeps the nan away
        judged, other = verdict(line, parameters), other_of(family)
        if judged and other is not None:
            is_tried = judged == "decides" and line.within is None
            yield KIND.finding(
                where,
                line.expression,
                f"{_amount(judged, line, parameters)} at line {where.rpartition(':')[2]}: {disagree(other)}. "
                f"{_matters(judged, line, parameters, other)}",
                f"{percent(max(line.at_kink))} of what enters {family} stands exactly at a kink or a tie, where it has no slope",
                _MEND_FIRST if has_nan else _next_step(judged, line, other),
                share=min(line.level, 1.0) if judged in ("decides", "some") else 0.0,
                is_muted=line.is_muted,
                other_pin=_pin(family, other.whose, other.convention) if is_tried else None,
            )


def _amount(judged: str, line: Sensitivity, parameters: Sequence[Sensitivity]) -> str:
    """A clause with the share of the line; or with the largest share of a parameter, if that of the line is small."""

    def share_of(record: Sensitivity) -> float:
        return record.level if judged in ("decides", "some") and record.level >= HIGH_SHARE else record.peak

    whose, most = "this update", line
    if share_of(line) < HIGH_SHARE:
        most = max(parameters, key=share_of, default=line)
        whose = f"the update of {most.parameter}"
    share = share_of(most)
    if share <= 1:
        return f"{percent(share)} of {whose} is convention"
    times = f" (another one changes it by {share:,.2g} times its size)" if math.isfinite(share) else ""
    return f"All of {whose} is convention{times}"


MAY_DECIDE = "It may decide this training"
BESIDE = ". Train with "
_MEND_FIRST = "First mend what is not finite, and then train with each convention, from the same seeds."
UNMEASURED = "where a training under the other convention ends was not measured"
_NAMES = {era: era.replace("torch<=", "torch up to ").replace("torch>=", "torch since ") for era in ERAS}
_NAMES |= {"jax": "JAX", "tensorflow": "TensorFlow"}


def disagree(other: OtherConvention) -> str:
    """A clause that says which framework passes how much at the kink."""
    groups: dict[float, list[str]] = {}
    for name, share in other.passes.items():
        groups.setdefault(share, []).append(_NAMES.get(name, name))
    eras = {_NAMES[era] for era in ERAS}
    who = [
        " / ".join(["torch", *(name for name in names if name not in eras)] if eras <= set(names) else names)
        for names in groups.values()
    ]
    return f"{listed(who)} disagree there, which multiply a gradient by {listed([f'{share:g}' for share in groups])}"


def _matters(judged: str, line: Sensitivity, parameters: Sequence[Sensitivity], other: OtherConvention) -> str:
    if judged == "unknown":
        count = len(line.steps)
        return f"{count} {'step is' if count == 1 else 'steps are'} too few to say whether it matters"
    if judged == "falls":
        return f"Later it is mostly {percent(line.level)}; {UNMEASURED}"
    if judged == "some":
        return f"The rest of the update moves these parameters, too; {UNMEASURED}"
    whose = _NAMES.get(other.whose, other.whose)
    stuck, stopped = _stuck_parameters(parameters), _stopped_parameters(parameters)
    if stuck or not stopped:
        most = f"most of the update of {shortened(stuck)} is convention"
        stays = "its share stays high" if line.level >= DECISIVE_SHARE else most
        stays += f", and {shortened(stuck)} {'does' if len(stuck) == 1 else 'do'} not move" if stuck else ""
    else:
        stays = f"in the first step {shortened(stopped)} would get nothing as in {whose}"
    return f"{MAY_DECIDE}: {stays}; {UNMEASURED}"


def _next_step(judged: str, line: Sensitivity, other: OtherConvention) -> str:
    family = line.family
    if line.within is not None:
        return advice.write_out("pin_edge", family, line.within)
    era = installed_era()
    kept = pin_text(_pin(family, era, text_of(FAMILIES[family].torch_convention(era))))
    step = f"with pseudograd.pin_edge({kept}): ...  # keeps it so on every torch"
    if judged != "decides":
        return step
    # Nobody knows where the parameters end under the other convention: it may be worse, or NaN.
    return f"{step}{BESIDE}{pin_text(_pin(family, other.whose, other.convention))} beside it, from the same seeds, before you choose"


def _pin(family: str, whose: str, convention: str) -> tuple[str, str | float]:
    """The argument of pin_edge that gives a family this convention, and its value."""
    if family in _PINNED_BY_ERA and whose in ERAS:
        return "edge", whose
    return family, whose if whose in ERAS or whose in FRAMEWORKS else float(convention)


def pin_text(pin: tuple[str, str | float]) -> str:
    name, value = pin
    return repr(value) if name == "edge" else f"{name}={value!r}"


KIND = Kind("PG210", order=55, find=_find, is_alone=True)
