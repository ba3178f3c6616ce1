"""A value that starts exactly at a bound: the convention there decides if it ever learns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ....ops.bound_rules import DEFAULT_RULE
from ....torch_table.eras import installed_era
from ....torch_table.forms import shares_at_the_edge
from ....wording import percent
from ...count.values import Values
from ...records import Finding, Site
from ...sites import ASCENT, COMPARE
from .. import advice
from .edge import ISSUE, is_cut_behind
from .kind import Evidence, Kind


def _find(evidence: Evidence) -> Iterator[Finding]:
    for value in evidence.values:
        if not value.upstream or not value.starts_on_a_bound or value.is_rewritten:
            continue
        sites = [site for site in evidence.sites if (site.where, site.expression) == advice.line_of(value)]
        leaf = evidence.leaves.single(value.leaf)
        if not sites:
            continue  # no gradient arrives, as at a baseline that is detached
        if any(
            (leaf and site.is_floor_of_loss) or site.is_subtracted or is_cut_behind(site, evidence) for site in sites
        ):
            continue
        shares = shares_at_the_edge(value.form, value.has_tensor_bound)
        if value.is_pinned:
            shares = {era: share for era, share in shares.items() if era == installed_era()}
        name = None if leaf is None else leaf.name
        if all(share == 1 for share in shares.values()) or (name and evidence.deliberate.parameter(name)):
            continue
        alike = {other.location for other in evidence.values if other.leaf == value.leaf and other.starts_on_a_bound}
        is_only_way = leaf is not None and (leaf.starves or not leaf.read_at - alike)
        if leaf is not None and not is_only_way and not shares[installed_era()]:
            continue  # it trains by another line
        causes = [record.cause for record in evidence.starved if record.parameter == name and record.cause is not None]
        is_cut_first = any((cause.where, cause.expression) != advice.line_of(value) for cause in causes)
        clip = advice.clip_parameter(sites[0], evidence) if not is_cut_first else None
        climbs = " with maximize=True" if any(site.direction == ASCENT for site in sites) else ""
        yield KIND.call_finding(
            value.location,
            f"{_describe(value, shares, name, is_only_way)}; {DEFAULT_RULE}{climbs} passes a gradient that leads inside",
            "it was initialised there"
            if name
            else "its input is computed to be the bound, as by a last layer of zeros",
            clip or _advise(shares, name or "it", sites, evidence),
            issue=ISSUE if len(set(shares.values())) > 1 else None,
            is_muted=evidence.deliberate.location(value.location),
        )


def _advise(shares: dict[str, float], name: str, sites: Sequence[Site], evidence: Evidence) -> str:
    start = f"start {name} inside the range, not at the bound"
    better = [era for era, share in shares.items() if share > shares.get(installed_era(), 1.0)]
    if better and advice.guard_against(better[0], evidence) is None:
        return f"with pseudograd.pin_edge({better[0]!r}): ...  # or {start}{COMPARE}"
    return advice.pin(sites[0], better[0], evidence) if better else f"{start[0].upper()}{start[1:]}{COMPARE}."


def _describe(value: Values, shares: dict[str, float], name: str | None, is_only_way: bool) -> str:
    """shares: the share of grad that passes at the bound, by era. name: the parameter, if the value is one. is_only_way: does the parameter
    get a gradient through such ops alone?
    """
    effects = [
        f"{era} passes {percent(share)} there" + (", so it never trains" if share == 0 and is_only_way else "")
        for era, share in shares.items()
    ]
    what = f"Every entry of {name}" if name else "Every element that enters"
    return f"{what} ({value.elements:,}) starts exactly at {value.bounds_text} of this {value.op}: {'; '.join(effects)}"


KIND = Kind("PG202", order=20, find=_find)
