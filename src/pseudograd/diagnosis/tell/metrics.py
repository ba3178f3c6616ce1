"""A diagnosis as a flat dict of floats, which every logger takes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence

from ..judge.findings import KINDS
from ..records import Report, Site

_USUAL_FAMILY = "relu"  # it cuts on purpose: half of the gradients, at every layer


def metrics_of(report: Report) -> dict[str, float]:
    """Counts first, then a share for each line and a norm for each parameter. Several ops at one line are counted together."""
    codes = Counter(finding.code for finding in report.findings)
    metrics = {
        "backwards": report.backwards,
        "findings": len(report.findings),
        **{f"findings/{kind.code}": codes[kind.code] for kind in KINDS},
        **{name: len(getattr(report, name)) for name in ("starved", "partly", "errors")},
        **dict(_line_shares(report.sites)),
        **{f"dead_units/{record.parameter}": record.share for record in report.partly},
        **{f"norm/{record.parameter}": record.norm for record in report.norms},
        **{f"stalled/{record.parameter}": record.by_step[-1][1] for record in report.stalled if record.by_step},
    }
    for record in report.sensitivity:
        if record.where is None:
            metrics["/".join(["sensitivity", record.family, *filter(None, [record.parameter])])] = record.last
    return {f"pseudograd/{name}": float(value) for name, value in metrics.items()}


def _line_shares(sites: Sequence[Site]) -> Iterator[tuple[str, float]]:
    """The shares at clamps, steps and quantisers where a gradient arrived, by line."""
    lines: dict[str, list[Site]] = {}
    for site in sites:
        if site.arrived and site.family not in (None, _USUAL_FAMILY):
            lines.setdefault(_short(site.where), []).append(site)
    for line, group in lines.items():
        arrived, cut = sum(site.arrived for site in group), sum(site.cut for site in group)
        yield f"cut/{line}", cut / arrived
        if all(site.recoverable is not None for site in group):
            yield f"recoverable/{line}", sum(site.recoverable or 0 for site in group) / cut if cut else 0.0
            yield f"at_bound/{line}", sum(site.at_bound or 0 for site in group) / arrived


def _short(where: str) -> str:
    """The last two parts of an absolute path, which name the file and no machine."""
    parts = where.replace(os.sep, "/").split("/")
    return "/".join(parts[-2:]) if os.path.isabs(where) else "/".join(parts)
