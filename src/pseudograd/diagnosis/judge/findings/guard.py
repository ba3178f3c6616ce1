"""An op that stops infinite gradients before they reach the parameters."""

from __future__ import annotations

from collections.abc import Iterator

from ...records import Finding
from .kind import Evidence, Kind


def _find(evidence: Evidence) -> Iterator[Finding]:
    for site in evidence.sites:
        if site.is_guard:
            yield KIND.site_finding(
                site,
                f"{site.nonfinite:,} of {site.arrived:,} arriving gradients are not finite, {site.cut:,} are cut",
                "this op keeps infinite gradients from the parameters",
                "Leave it alone: no override, no pin here. Look at what makes the gradient infinite.",
                site.nonfinite / max(site.arrived, 1),
            )


KIND = Kind(
    code="guard",
    number="PG201",
    order=10,
    find=_find,
    meaning="gradients that are not finite arrive, and this op stops them",
    next_step="leave it alone: no override there",
    protects=True,
    bad="""\
x = torch.tensor([-1.0, 4.0], requires_grad=True)
with diagnose() as d:
    x.clamp(min=0.0).sqrt().sum().backward()  # PG201
""",
    mend=(("-1.0", "1.0"), ("min=0.0", "min=0.5")),
)
