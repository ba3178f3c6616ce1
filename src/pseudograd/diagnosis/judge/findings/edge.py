"""A clamp with many values exactly at its bound. `site.eras` has the share of these that each era of torch passes."""

from __future__ import annotations

from collections.abc import Iterator

from ....torch_table.eras import installed_era
from ....wording import percent
from ...records import Finding, Site
from .. import advice
from .kind import Evidence, Kind

AT_BOUND_SHARE = 1e-3  # the least share of the entries that arrive at a clamp which makes a finding
ISSUE = "https://github.com/pytorch/pytorch/pull/191142"


def is_at_an_edge(site: Site) -> bool:
    """Do enough of the arriving gradients stand exactly at a bound where the eras differ?"""
    return len(set(site.eras.values())) > 1 and site.at_bound_share >= AT_BOUND_SHARE and not site.has_guards_alone


def is_cut_by_its_era(site: Site) -> bool:
    """Are all cut entries exactly at a bound, where another era passes more than the installed one?"""
    if not site.eras or not site.cut or site.cut != site.at_bound:
        return False
    return site.eras[passing_era(site)] > site.eras[installed_era()]


def passing_era(site: Site) -> str:
    """The era that passes most at the bound."""
    return max(site.eras, key=site.eras.__getitem__)


def is_cut_behind(site: Site, evidence: Evidence) -> bool:
    """Do the leaves get the same in every era? Yes if an op behind, which is nearer to the leaves, cuts what passes here. Also
    if all leaves starve, and either the installed era passes most or there is a `step_behind`.
    """
    leaves = evidence.leaves.unpack(site.upstream)
    passes_most = 0 < site.eras.get(installed_era(), 0) == max(site.eras.values())
    gains_nothing = passes_most or step_behind(site, evidence) is not None
    return site.next_cuts_at_bound or (gains_nothing and len(leaves) > 0 and all(leaf.starves for leaf in leaves))


def step_behind(site: Site, evidence: Evidence) -> Site | None:
    """A round or sign between this op and all its leaves that passes nothing, whatever the era."""
    for step in evidence.sites:
        is_between = step.order > site.order and step.upstream & site.upstream == site.upstream
        # torch's own round and sign always pass 0; an op of this library may have another rule.
        cuts_all = step.cut == step.arrived and (step.arrived or not step.is_own)
        if is_between and step.family in ("round", "sign") and cuts_all:
            return step
    return None


def _find(evidence: Evidence) -> Iterator[Finding]:
    for site in filter(is_at_an_edge, evidence.suspects):
        breaks = site.nonfinite and evidence.nonfinite is not None and evidence.nonfinite.is_finding
        if breaks or is_cut_behind(site, evidence):
            continue
        era, cutting = installed_era(), min(site.eras, key=site.eras.__getitem__)
        does = "; ".join(f"{name} passes {percent(share)} of it" for name, share in site.eras.items())
        yield KIND.site_finding(
            site,
            f"{percent(site.at_bound_share)} of {site.arrived:,} arriving gradients stand exactly at a bound: {does}",
            f"this torch is of the era {era}" + (", which cuts there" if cutting == era else f"; {cutting} cuts there"),
            advice.clip_parameter(site, evidence) or advice.pin(site, passing_era(site), evidence),
            site.at_bound_share,
            issue=ISSUE,
        )


KIND = Kind("PG206", order=60, find=_find)
