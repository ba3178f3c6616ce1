"""Steps of an optimiser that rounding swallows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

import torch

from ....wording import percent, shortened
from ...count.stalls import ParameterSteps
from ...records import Finding
from .kind import Evidence, Kind

STALLED_SHARE = 0.5  # of the entries that have a gradient
_MIN_STEPS = 10  # steps: with fewer nobody can say that an entry never moves


def _find(evidence: Evidence) -> Iterator[Finding]:
    """A finding for each dtype."""
    judged: dict[torch.dtype, list[tuple[ParameterSteps, float]]] = {}
    for parameter in evidence.stalls.parameters():
        had, still = parameter.counts if parameter.steps >= _MIN_STEPS and not parameter.keeps_rest else (0, 0)
        if had and not parameter.is_noise and not evidence.deliberate.parameter(parameter.name):
            judged.setdefault(parameter.dtype, []).append((parameter, still / had))
    for dtype, rows in judged.items():
        share = sum(parameter.size * part for parameter, part in rows) / sum(parameter.size for parameter, _ in rows)
        if share > STALLED_SHARE:
            yield _report(dtype, rows, share, evidence)


def _report(dtype: torch.dtype, rows: list[tuple[ParameterSteps, float]], share: float, evidence: Evidence) -> Finding:
    stalled = [parameter for parameter, part in rows if part > STALLED_SHARE]
    sizes = [size for parameter in stalled if not math.isnan(size := parameter.record.size)]
    median = statistics.median_high(sizes) if sizes else None
    kind, place = str(dtype).removeprefix("torch."), evidence.stalls.place
    of_it = "" if median is None else f": a step is {median:.2g} of that distance in the median"
    larger = "a larger rate" if median is None else f"a rate {0.5 / max(median, 1e-9):,.0f} times as large"
    advised = f"Give the optimizer {larger}."
    if dtype not in (torch.float32, torch.float64):
        advised = (
            f"model.float()  # before the optimizer is made; then the forward under torch.autocast({stalled[0].device.type!r}, "
            f"torch.{kind}). Or an optimizer with compensated summation or stochastic rounding, or {larger}"
        )
    return KIND.call_finding(
        place,
        f"{percent(share)} of the entries that have a gradient never moved in {max(parameter.steps for parameter, _ in rows):,} steps: "
        f"{shortened([parameter.name for parameter in stalled])}",
        f"the weights are {kind}: a step smaller than half the distance to the next number is rounded away{of_it}",
        advised,
        share=share,
        is_muted=evidence.deliberate.place(place),
    )


KIND = Kind(
    code="stalled",
    number="PG208",
    order=80,
    find=_find,
    meaning="more than half of the entries of weights have a gradient and never move in ten steps or more, because rounding swallows the "
    "step. Not where an optimiser keeps what rounding takes, where something else holds the weights, or where gradients are noise",
    next_step="weights in float32 under `autocast`, compensated summation, or a larger rate",
    details="Weight decay alone is no move. `d.stalled` has the share by parameter and step",
    is_alone=True,
    bad="""\
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
    mend=(
        (".to(torch.bfloat16)", ""),
        (", dtype=torch.bfloat16", ""),
        (
            "        layer(x).sum().backward()\n",
            '        with torch.autocast("cpu", torch.bfloat16):\n            loss = layer(x).sum()\n        loss.backward()\n',
        ),
    ),
)
