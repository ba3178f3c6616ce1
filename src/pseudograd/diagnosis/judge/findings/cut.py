"""A clamp, a round, a sign or a quantiser that cuts much of the gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ....ops.bound_rules import DEFAULT_RULE
from ....torch_table.eras import installed_era
from ....wording import percent
from ...records import Finding, Site
from ...sites import ASCENT
from .. import advice
from .dead import DEAD_SHARE, count_cut
from .edge import is_at_an_edge
from .kind import Evidence, Kind

CUT_SHARE = 0.05  # of the gradients at a clamp: from here on it is a finding
CLIPPED_SHARE = 0.5  # of the gradients at a quantiser: less clipping may be right, and a learned scale finds how much
RECOVERABLE_SHARE = 0.05  # of the cut gradients, those that lead back inside: if fewer do, no rule is advised


def _find(evidence: Evidence) -> Iterator[Finding]:
    for site in evidence.suspects:
        share = site.cut_share
        if site.family in ("round", "sign") and share > DEAD_SHARE and not site.reuses_input:
            cause, advised = f"{site.op} is a step: its true gradient is 0", advice.try_rule(site) or ""
            yield KIND.site_finding(site, count_cut(site), cause, advised, share)
        elif (
            site.family == "clamp"
            and not (site.is_calm_clip or site.stops_overflow)
            and share - _share_of_others(site) >= CUT_SHARE
        ):
            text = f"{percent(share)} of {site.arrived:,} arriving gradients are cut"
            if site.magnitude and math.isfinite(site.magnitude):  # `counts` has no sizes
                text += f", {percent(site.cut_magnitude_share)} of their size"
            if site.recoverable is not None:
                text += f"; {percent(site.recoverable_share)} of that would lead back inside"
            may_help = site.recoverable is None or site.recoverable_share >= RECOVERABLE_SHARE
            may_help = may_help and not (site.has_guard_bound and site.guards_next_op)
            advised = (may_help and advice.clip_parameter(site, evidence)) or advise_clamp(site)
            yield KIND.site_finding(site, text, _sides(site), advised, share)
        elif site.family == "fake_quantize" and share >= CLIPPED_SHARE:
            yield KIND.site_finding(
                site,
                f"{percent(share)} of {site.arrived:,} arriving gradients are cut: so much stands outside the grid of this quantiser",
                "its scale is too small for what it quantises, or its zero point lies apart",
                "scale = x.detach().abs().max() / quant_max  # x is what it quantises; for a grid around 0",
                share,
            )


def _share_of_others(site: Site) -> float:
    """The share that this torch cuts exactly at the bound, if the finding `edge` reports it, and at x that are nan."""
    at_bound = site.at_bound_share if is_at_an_edge(site) and site.eras[installed_era()] == 0 else 0.0
    return at_bound + site.cut_at_nan / site.arrived


def advise_clamp(site: Site) -> str:
    """The next step at a clamp, by what was measured there."""
    if site.recoverable is None and not (site.steep_op or site.guards_next_op):
        guard = "; nothing, if it guards the op that follows, such as sqrt, log or a division"
        is_known = site.has_known_bounds and not site.has_only_lower_bound  # else 0 may guard a root
        return advice.override(site, DEFAULT_RULE, "" if is_known else guard)
    if site.recoverable == 0:
        return (
            "None, if the clip is meant: what is cut would only lead further outside, as with free bits, or in the clipped loss of a "
            "policy. There pseudograd.policy.clip_report(log_ratio, advantage) says which tokens, by the sign of their advantage."
        )
    if site.recoverable is not None and site.recoverable_share < RECOVERABLE_SHARE:
        ascends = ", maximize=True" if site.direction == ASCENT else ""
        return (
            f"Widen the range, or rescale what enters or what it is compared with: the target lies outside the range. "
            f"rule={DEFAULT_RULE!r}{ascends} would bring back {percent(site.recoverable_share)} of what is cut. "
            "Leave it if the clip is meant."
        )
    if site.steep_op:
        return (
            f"pseudograd.clamp what enters this {site.steep_op}, not its result: outside, the slope of {site.steep_op} grows without end, "
            "and so would the gradients that a rule passes here."
        )
    if site.guards_next_op:
        return (
            "None, if it guards the op that follows, such as sqrt, log, exp or a division: a rule would pass gradients of the steep slope "
            "there, and they throw the parameters far off. With a bound further from there they are smaller."
        )
    effect = f": it passes {percent(site.recoverable_share)} of what is cut"
    if site.is_before_pole:
        effect += "; compare a training with it, as the slope of the log, root or division that follows grows towards 0"
    return advice.override(site, DEFAULT_RULE, effect)


def _sides(site: Site) -> str:
    if site.below is None or site.above is None:
        return f"{site.op} cuts outside its range"
    sides = (site.below, "below"), (site.above, "above"), (site.cut_at_nan, "that are nan")
    parts = [f"{count:,} {side}" for count, side in sides if count]
    return "outside its range stand " + " and ".join(parts) if parts else f"{site.op} cuts at its bound"


def _every_clamp(sites: Sequence[Site]) -> Iterator[tuple[Site, float]]:
    """All clamps with their share, also those that cut too little for a finding, and those under a pin."""
    return ((site, site.cut_share) for site in sites if _is_clamp(site) and not site.is_deliberate)


def _is_clamp(site: Site) -> bool:
    return site.family == "clamp" or site.op.startswith("torch.clamp as pinned")


KIND = Kind("PG204", order=40, find=_find, places=_every_clamp)
