"""A value that moves further and further outside its bounds."""

from __future__ import annotations

from collections.abc import Iterator

from ....listen.frames import named
from ...records import Finding
from .. import advice
from ..copied import inward_codes
from .kind import Evidence, Kind, expression_at


def _find(evidence: Evidence) -> Iterator[Finding]:
    cuts: dict[tuple[str, str], int] = {}
    for site in evidence.sites:
        if site.family == "clamp" or site.is_own:
            key = site.where, site.expression
            cuts[key] = cuts.get(key, 0) + site.cut
    inward = inward_codes(evidence.tallies)
    for one in evidence.values:
        if one.place.call is not None and one.place.call.code in inward:
            continue
        key, climb = (named(one.place.call), expression_at(one.place)), one.climb
        if not one.runs_away or cuts.get(key, 0) > 0.5 * int(one.outside):
            continue
        of = evidence.leaves.names.of
        names = [name for leaf in evidence.leaves.named(one.leaf or one.detached) if (name := of(leaf))]
        yield KIND.at(
            one.place,
            f"over {int(climb.longest) + 1:,} steps the values that enter moved further outside, from {float(climb.first):.3g} to "
            f"{float(climb.last):.3g} on average",
            "the gradient passes outside while the forward saturates, so nothing leads back",
            advice.inside(one, names),
            is_muted=evidence.deliberate.place(one.place),
        )


KIND = Kind(
    code="wind-up",
    number="PG207",
    order=70,
    find=_find,
    meaning="a value moved further outside its bound in ten steps or more, by half of all that it ever moved, because its gradient passes "
    "while the forward saturates",
    details="Also where it came back later",
    next_step="`project`, or `inward`",
    bad="""\
import torch
import pseudograd
from pseudograd import diagnose

p = torch.nn.Parameter(torch.tensor(0.9))
optimizer = torch.optim.SGD([p], lr=0.1)
with diagnose() as d:
    for step in range(30):
        optimizer.zero_grad()
        y = pseudograd.clamp(p, 0.0, 1.0, rule="identity")  # PG207
        (y - 2).pow(2).backward()
        optimizer.step()
""",
    good="""\
import torch
import pseudograd
from pseudograd import diagnose

p = torch.nn.Parameter(torch.tensor(0.9))
optimizer = torch.optim.SGD([p], lr=0.1)
pseudograd.optim.project(optimizer, {p: (0.0, 1.0)})
with diagnose() as d:
    for step in range(30):
        optimizer.zero_grad()
        y = pseudograd.clamp(p, 0.0, 1.0, rule="identity")
        (y - 2).pow(2).backward()
        optimizer.step()
""",
)
