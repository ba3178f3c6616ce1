"""A value that moves further and further outside its bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ....listen.frames import format_location
from ....ops.bound_rules import DEFAULT_RULE
from ...records import Finding
from .. import advice
from .kind import Evidence, Kind


def _find(evidence: Evidence) -> Iterator[Finding]:
    cuts: Counter[tuple[str, str]] = Counter()
    for site in evidence.sites:
        if site.is_own:
            cuts[site.where, site.expression] += site.cut
        elif site.arrived:  # torch's own clamp passes nothing outside
            cuts[site.where, site.expression] += site.elements
    # Classes that have the default rule by another name: the clamp in their forward needs no other rule.
    passing = {record.where for record in evidence.copied if f'"{DEFAULT_RULE}"' in record.meaning}
    for value in evidence.values:
        call, climb = value.location.call, value.climb
        passes = call is not None and format_location(call.code, call.code.co_firstlineno) in passing
        if passes or not value.runs_away or cuts[advice.line_of(value)] > 0.5 * int(value.outside):
            continue
        yield KIND.call_finding(
            value.location,
            f"over {int(climb.longest) + 1:,} steps the values that enter moved further outside, from {float(climb.first):.3g} to "
            f"{float(climb.last):.3g} on average",
            "the gradient passes outside while the forward saturates, so nothing leads back",
            advice.lead_inside(value, evidence),
            is_muted=evidence.deliberate.location(value.location),
        )


KIND = Kind("PG207", order=70, find=_find)
