"""`curve`: a loss on a line with each rule: y = clamp(x), the loss, dL/dy, dy/dx and dL/dx."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pseudograd.look.gradient import gradient, slope

from .base import Gallery, Loss, Outcome, Settings, Task, Variant

ORDER = {"curve": 50}
LOSSES: dict[str, Loss] = {
    "sin(pi y) + 1": lambda y: torch.sin(math.pi * y) + 1,
    "y²": lambda y: y**2,
}


def losses(settings: Settings) -> dict[str, Loss]:
    return {settings.loss_name: settings.loss} if settings.loss else LOSSES


def points(settings: Settings) -> Tensor:
    """801 points over the range and half of it to both sides; both bounds are among them."""
    low, high = settings.low, settings.high
    span = high - low
    grid = torch.linspace(low - span / 2, high + span / 2, 801, dtype=torch.float64)
    grid[200], grid[600] = low, high
    return grid


def _run(world: str, variant: Variant, settings: Settings) -> Outcome:
    low, high = settings.low, settings.high
    loss, x = losses(settings)[world], points(settings)

    def clamped(x: Tensor) -> Tensor:
        return variant.clamp(x, low, high)

    grad_y = gradient(loss, clamped(x))
    grad_x = gradient(lambda x: loss(clamped(x)), x)
    outside = (x < low) | (x > high)
    lost = outside & (grad_x == 0)
    return Outcome(
        numbers={
            "no_signal_outside": float(lost.sum() / outside.sum()),
            "at_low": float(grad_x[200]),
            "at_high": float(grad_x[600]),
        },
        arrays={
            "range": torch.tensor([low, high], dtype=torch.float64),
            "x": x,
            "y": clamped(x).detach(),
            "loss": loss(clamped(x)).detach(),
            "dL_dy": grad_y,
            "dy_dx": slope(clamped, x, grad_y),
            "dL_dx": grad_x,
        },
    )


CURVE = Task(
    name="curve",
    title="What each rule does to a loss on a line",
    worlds=lambda settings: tuple(losses(settings)),
    run=_run,
    columns={
        "no_signal_outside": "share of points outside without a gradient",
        "at_low": "dL/dx exactly at min",
        "at_high": "dL/dx exactly at max",
    },
    headline=("no_signal_outside", "outside, no gradient"),
    has_leaves=False,
    setting="Forward, loss and every gradient on the way, at the same points for each rule; dots are exactly at the bounds.",
    figure=Gallery("curves", title="loss = {world}"),
)
