"""A diagnosis as a flat dict of floats, which every logger takes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from ..judge.findings import KINDS
from ..records import Site

PREFIX = "pseudograd"
_USUAL = "relu"  # a family that cuts on purpose: half of what arrives, at every layer


def metrics_of(diagnosis: Any) -> dict[str, float]:
    """Counts first, then a share for each line and a norm for each parameter. Several ops at one line are counted together."""
    findings = [one.code for one in diagnosis.findings]
    found = {
        "backwards": diagnosis.backwards,
        "findings": len(findings),
        **{f"findings/{kind.code}": findings.count(kind.code) for kind in KINDS},
        "starved": len(diagnosis.starved),
        "partly": len(diagnosis.partly),
        "errors": len(diagnosis.errors),
    }
    for line, sites in _by_line(diagnosis.sites).items():
        arrived, cut = (sum(getattr(site, name) for site in sites) for name in ("arrived", "cut"))
        found[f"cut/{line}"] = cut / arrived
        if all(site.recoverable is not None for site in sites):
            found[f"recoverable/{line}"] = sum(site.recoverable or 0 for site in sites) / cut if cut else 0.0
            found[f"at_bound/{line}"] = sum(site.at_bound or 0 for site in sites) / arrived
    found |= {f"dead_units/{one.parameter}": one.share for one in diagnosis.partly}
    found |= {f"norm/{one.parameter}": one.norm for one in diagnosis.norms}
    found |= {f"stalled/{one.parameter}": one.by_step[-1][1] for one in diagnosis.stalled if one.by_step}
    for one in diagnosis.sensitivity:
        if one.where is None:
            found[f"sensitivity/{one.family}" + (f"/{one.parameter}" if one.parameter else "")] = one.last
    return {f"{PREFIX}/{name}": float(value) for name, value in found.items()}


def _by_line(sites: Iterable[Site]) -> dict[str, list[Site]]:
    """Those that a person would watch: clamps, steps and quantisers, where a gradient arrived."""
    found: dict[str, list[Site]] = {}
    for site in sites:
        if site.arrived and site.family not in (None, _USUAL):
            found.setdefault(_short(site.where), []).append(site)
    return found


def _short(where: str) -> str:
    """A path from the root of the disk says which machine it is; its last two parts say which file."""
    parts = where.replace(os.sep, "/").split("/")
    return "/".join(parts[-2:]) if os.path.isabs(where) else "/".join(parts)
