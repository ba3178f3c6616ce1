"""An op from which no gradient leaves, or hardly any."""

from __future__ import annotations

from collections.abc import Iterator

from ....wording import counted
from ...count.recorder import HOOK
from ...records import Finding, Site
from .. import advice
from .kind import Evidence, Kind

DEAD_SHARE = 0.999  # of what arrives at any op
_FAMILIES_OF_CUT = ("clamp", "round", "sign", "fake_quantize")  # families that `cut` judges


def count_cut(site: Site) -> str:
    """A clause that says how many of the arriving gradients are cut; "all" if no gradient passes."""
    cut = "all" if site.cut == site.arrived else f"{site.cut:,}"
    return f"{cut} of {site.arrived:,} arriving gradients are cut"


def _name_slope(site: Site) -> str:
    if site.op == HOOK:
        return "the hook returns"
    if site.op[0].islower():
        return f"the slope of this {site.op} is"
    return f"the backward of {site.op.removesuffix('Backward')} returns"  # a custom Function has the name of its class


def _find(evidence: Evidence) -> Iterator[Finding]:
    """The ops that pass nothing, except those that should: a penalty that nothing violates, or a second derivative, as that of abs."""
    for site in (site for site in evidence.suspects if not site.is_second_order):
        is_meant = site.reuses_input or evidence.is_penalty(site) or site.elsewhere or site.family in _FAMILIES_OF_CUT
        if site.cut_share >= DEAD_SHARE and not is_meant:
            them = "each of them" if site.cut == site.arrived else "nearly all of them"
            yield KIND.site_finding(
                site,
                f"{count_cut(site)} in {counted(site.calls, 'call')}",
                f"{_name_slope(site)} 0 for {them}",
                advice.advise(site, evidence),
                site.cut_share,
            )


KIND = Kind("PG205", order=50, find=_find)
