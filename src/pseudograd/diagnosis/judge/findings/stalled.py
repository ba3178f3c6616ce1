"""Steps of an optimiser that rounding swallows."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from ....wording import shortened
from ...count.swallowed import Watched
from ...records import Finding
from ..stalled import STALLED
from .kind import Evidence, Kind, percent


def _find(evidence: Evidence) -> Iterator[Finding]:
    some = []
    for one in evidence.stalls.counted():
        had, still = one.counts
        if had and not one.is_noise and not evidence.deliberate.parameter(one.leaf.name):
            some.append((one.leaf.name, one, still / had))
    for dtype in dict.fromkeys(one.dtype for _, one, _ in some):
        yield from _of(dtype, [row for row in some if row[1].dtype == dtype], evidence)


def _of(dtype: torch.dtype, some: list[tuple[str, Watched, float]], evidence: Evidence) -> Iterator[Finding]:
    total = sum(one.size for _, one, _ in some)
    share = sum(one.size * part for _, one, part in some) / total if total else 0.0
    if share <= STALLED:
        return
    stalled = [(name, one) for name, one, part in some if part > STALLED]
    first, place = stalled[0][1], evidence.stalls.place
    sizes = [size for _, one in stalled if not math.isnan(size := one.record.size)]
    kind = str(dtype).removeprefix("torch.")
    of_it = f": a step is {sorted(sizes)[len(sizes) // 2]:.2g} of that distance in the median" if sizes else ""
    yield KIND.at(
        place,
        f"{percent(share)} of the entries that have a gradient never moved in {max(one.steps for _, one, _ in some):,} steps: "
        f"{shortened([name for name, _ in stalled])}",
        f"the weights are {kind}: a step smaller than half the distance to the next number is rounded away{of_it}",
        _next(dtype, first, sizes),
        share=share,
        is_muted=evidence.deliberate.place(place),
    )


def _next(dtype: torch.dtype, first: Watched, sizes: list[float]) -> str:
    kind = str(dtype).removeprefix("torch.")
    larger = (
        f"a rate {0.5 / max(sorted(sizes)[len(sizes) // 2], 1e-9):,.0f} times as large" if sizes else "a larger rate"
    )
    if dtype in (torch.float32, torch.float64):
        return f"Give the optimizer {larger}."
    return (
        f"model.float()  # before the optimizer is made; then the forward under torch.autocast({first.device.type!r}, torch.{kind}). Or an "
        f"optimizer with compensated summation or stochastic rounding, or {larger}"
    )


KIND = Kind(
    code="stalled",
    number="PG208",
    order=80,
    find=_find,
    meaning="more than half of the entries of weights have a gradient and never move in ten steps or more, because rounding swallows the "
    "step. Not where an optimiser keeps what rounding takes, where something else holds the weights, or where gradients are noise",
    next_step="weights in float32 under `autocast`, compensated summation, or a larger rate",
    details="What weight decay alone moves counts as not moved. `d.stalled` has the share by parameter and step",
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
