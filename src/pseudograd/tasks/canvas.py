"""`canvas`: every pixel is a free number, the picture is clamp(x, 0, 1), the target is slightly blurred. Pixels are leaves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .base import Measured, Settings, Task, Variant
from .photos import photo, psnr

STEPS, RATE, EXPOSURE = 200, 0.05, 4
BLUR_SIGMA, BLUR_RADIUS = 0.7, 3
BLACK, OVER_EXPOSED = "from black", "over-exposed"


@cache
def _kernel() -> Tensor:
    """(3, 1, 2r + 1): one row of the Gaussian for each colour."""
    distance = torch.arange(-BLUR_RADIUS, BLUR_RADIUS + 1).float()
    row = torch.exp(-(distance**2) / (2 * BLUR_SIGMA**2))
    return (row / row.sum()).expand(3, 1, -1)


def _blurred(x: Tensor) -> Tensor:
    padded = functional.pad(x, (BLUR_RADIUS,) * 4, mode="reflect")
    rows = functional.conv2d(padded, _kernel()[:, :, None, :], groups=3)
    return functional.conv2d(rows, _kernel()[:, :, :, None], groups=3)


def start(world: str) -> Tensor:
    target = photo("china")
    return torch.zeros_like(target) if world == BLACK else (target - 0.5) * EXPOSURE + 0.5


def _worlds(settings: Settings) -> Sequence[str]:
    return (BLACK, OVER_EXPOSED)


def _run(world: str, variant: Variant, settings: Settings) -> Measured:
    target = photo("china")
    goal = _blurred(target)
    first = start(world)
    x = (first.clamp(0, 1) if variant.projects else first.clone()).requires_grad_()
    optimizer = torch.optim.Adam([x], RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (0.5 * (_blurred(variant.clamp(x, 0.0, 1.0)) - goal).pow(2).sum()).backward()
        optimizer.step()
        if variant.projects:
            with torch.no_grad():
                x.clamp_(0, 1)
    outside = ((x < 0) | (x > 1)).float().mean()
    return Measured(
        numbers={"psnr": psnr(x, target), "outside": float(outside)}, arrays={"picture": x.detach().clamp(0, 1)[0]}
    )


def _context(settings: Settings) -> dict[str, Any]:
    first = start(OVER_EXPOSED)
    outside = ((first < 0) | (first > 1)).float().mean()
    return {"steps": STEPS, "rate": RATE, "exposure": EXPOSURE, "outside_at_start": float(outside)}


CANVAS = Task(
    name="canvas",
    title="A photo from a black canvas, and from one over-exposed",
    worlds=_worlds,
    run=_run,
    columns={"psnr": "PSNR, dB", "outside": "share of pixels left outside"},
    headline=("psnr", "dB"),
    has_leaves=True,
    context=_context,
)
