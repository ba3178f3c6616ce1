"""Steps of an optimiser that rounding swallows."""

from __future__ import annotations

from collections.abc import Iterator

from ..records import Finding
from ..stalled import STALLED
from .kind import Evidence, Kind, listed, percent


def _find(evidence: Evidence) -> Iterator[Finding]:
    some = []
    for one in evidence.stalls.counted():
        had, still = one.counts
        name = one.leaf.name
        if had and not evidence.deliberate.parameter(name):
            some.append((name, one, still / had))
    total = sum(one.size for _, one, _ in some)
    share = sum(one.size * part for _, one, part in some) / total if total else 0.0
    if share <= STALLED:
        return
    first, place = some[0][1], evidence.stalls.place
    names = listed([name for name, _, part in some if part > STALLED])
    kind = str(first.dtype).removeprefix("torch.")
    yield KIND.at(
        place,
        f"{percent(share)} of the entries that have a gradient never moved in {max(one.steps for _, one, _ in some):,} steps: {names}",
        f"the weights are {kind}: a step smaller than half the distance to the next number is rounded away",
        f"model.float()  # before the optimizer is made; then the forward under torch.autocast({first.device.type!r}, torch.{kind})",
        share=share,
        is_muted=evidence.deliberate.place(place),
    )


KIND = Kind(
    code="stalled",
    number="PG208",
    order=80,
    find=_find,
    meaning="more than half of the entries of half-precision weights have a gradient and never move in ten steps or more, because rounding "
    "swallows the step",
    next_step="weights in float32 under `autocast`",
    is_alone=True,
    bad="""\
import torch
from pseudograd import diagnose

layer = torch.nn.Linear(4, 4).to(torch.bfloat16)
torch.nn.init.constant_(layer.weight, 2.0)
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-4)
x = torch.ones(1, 4, dtype=torch.bfloat16)
with diagnose(layer) as d:
    for step in range(12):
        optimizer.zero_grad()
        layer(x).sum().backward()
        optimizer.step()  # PG208
""",
    good="""\
import torch
from pseudograd import diagnose

layer = torch.nn.Linear(4, 4)
torch.nn.init.constant_(layer.weight, 2.0)
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-4)
x = torch.ones(1, 4)
with diagnose(layer) as d:
    for step in range(12):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = layer(x).sum()
        loss.backward()
        optimizer.step()
""",
)
