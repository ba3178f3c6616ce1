"""A clamp, a round, a sign or a quantiser that cuts much of the gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ....torch_table.eras import installed_era
from ....wording import percent
from ...records import Finding, Site
from ...sites import UNKNOWN
from .. import advice
from .dead import DEAD_SHARE, count_cut
from .edge import is_at_an_edge
from .kind import Evidence, Kind

CUT_SHARE = 0.05  # of the gradients at a clamp: from here on it is a finding
CLIPPED_SHARE = 0.5  # of the gradients at a quantiser: less clipping may be right, and a learned scale finds how much


def _find(evidence: Evidence) -> Iterator[Finding]:
    for site in evidence.suspects:
        share = site.cut_share
        if site.family in ("round", "sign") and share > DEAD_SHARE and not site.reuses_input:
            cause = f"{site.op} is a step: its true gradient is 0"
            yield KIND.site_finding(site, count_cut(site), cause, advice.advise(site, evidence), share)
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
                text += ", if the program subtracts this gradient" if site.direction == UNKNOWN else ""
            yield KIND.site_finding(site, text, _sides(site), advice.advise(site, evidence), share)
        elif site.family == "fake_quantize" and share >= CLIPPED_SHARE:
            yield KIND.site_finding(
                site,
                f"{percent(share)} of {site.arrived:,} arriving gradients are cut: so much stands outside the grid of this quantiser",
                "its scale is too small for what it quantises, its zero point lies apart, or it cuts one side on purpose, as a relu does",
                "None, if one side is cut on purpose. Else compare a training with a larger scale: x.detach().abs().max() / quant_max "
                "reaches all of x, for a grid around 0.",
                share,
            )


def _share_of_others(site: Site) -> float:
    """The share that this torch cuts exactly at the bound, if the finding `edge` reports it, and at x that are nan."""
    at_bound = site.at_bound_share if is_at_an_edge(site) and site.eras[installed_era()] == 0 else 0.0
    return at_bound + site.cut_at_nan / site.arrived


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
