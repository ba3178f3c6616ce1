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
    own = set()
    for site in evidence.sites:
        if site.is_own:
            cuts[site.where, site.expression] += site.cut
            own.add((site.where, site.expression))
        elif site.arrived:  # torch's own clamp passes nothing outside
            cuts[site.where, site.expression] += site.elements
    # Classes that have the default rule by another name: the clamp in their forward needs no other rule.
    passing = {record.where for record in evidence.copied if f'"{DEFAULT_RULE}"' in record.meaning}
    for value in evidence.values:
        call, climb, line = value.location.call, value.climb, advice.line_of(value)
        if not (value.leaf or value.detached or line in own):
            continue  # a clamp behind detach, as of an importance weight, need not be the value of a straight-through gradient
        passes = call is not None and format_location(call.code, call.code.co_firstlineno) in passing
        if passes or not value.runs_away or cuts[line] > 0.5 * int(value.outside):
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
