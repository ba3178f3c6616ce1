"""`basin`: plain gradient descent from 400 starts on a line. Where do they end, and how far do they stray?"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .base import Gallery, Loss, Outcome, Settings, Task, Variant, descend

ORDER = {"basin": 40}
STARTS, STEPS, RATE, LAST = 400, 400, 0.01, 20
_SETTING = (
    "{starts} starts on a line, {steps} steps of plain gradient descent at rate {rate:g}. The loss has its minimum on the range, "
    "{least:.2f}, at x = {best:.2f}."
)
NEAR = 0.01  # the largest distance to the minimum that counts as reached, as a share of half the range


def loss_of(settings: Settings) -> tuple[str, Loss]:
    """The name of the loss, and the loss."""
    if settings.loss is not None:
        return settings.loss_name, settings.loss
    return "sin(pi y) + 1", lambda y: torch.sin(math.pi * y) + 1


def starts(settings: Settings) -> Tensor:
    """400 starts from left to right, over the range and half of its width on both sides, without the right end."""
    low, high = settings.low, settings.high
    span = high - low
    return low - span / 2 + torch.arange(STARTS, dtype=torch.float32) * (2 * span / STARTS)


def minimum(loss: Loss, settings: Settings) -> tuple[float, float]:
    """(x, loss) of the minimum on the range, by a fine grid."""
    low, high = settings.low, settings.high
    grid = torch.linspace(low, high, 20001, dtype=torch.float64)
    values = loss(grid)
    return float(grid[values.argmin()]), float(values.min())


def _run(world: str, variant: Variant, settings: Settings) -> Outcome:
    low, high = settings.low, settings.high
    _, loss = loss_of(settings)
    x = starts(settings).requires_grad_()
    path = descend(variant, x, torch.optim.SGD([x], RATE), STEPS, lambda y: loss(y).sum(), low, high)
    positions = torch.stack([x.detach().clone(), *(step.clone() for step in path)])
    shown = positions.clamp(low, high)[-LAST:]
    return Outcome(
        numbers=_numbers(positions, shown, loss, settings),
        arrays={"range": torch.tensor([low, high], dtype=torch.float64), "path": positions},
    )


def _numbers(positions: Tensor, shown: Tensor, loss: Loss, settings: Settings) -> dict[str, float]:
    """shown: the clamped positions of the last steps. chatter: the mean excess loss of the starts that are held at the upper bound."""
    low, high = settings.low, settings.high
    best, _ = minimum(loss, settings)
    reached = ((shown - best).abs() < NEAR * (high - low) / 2).all(0)
    is_held = ~reached & ((shown[-1] - high).abs() < 0.1 * (high - low))
    excess = (loss(shown) - loss(torch.tensor([high])))[:, is_held].mean() if is_held.any() else torch.zeros(())
    return {"reached": float(reached.sum()), "stray": float(positions.abs().max()), "chatter": float(excess)}


def _context(settings: Settings) -> dict[str, object]:
    best, least = minimum(loss_of(settings)[1], settings)
    return {"starts": STARTS, "steps": STEPS, "rate": RATE, "best": best, "least": least}


BASIN = Task(
    name="basin",
    title="Where many starts end up",
    worlds=lambda settings: loss_of(settings)[:1],
    run=_run,
    columns={
        "reached": "starts that reach the minimum",
        "stray": "largest |x| on the way",
        "chatter": "mean excess loss of those held at max",
    },
    headline=("reached", "starts that arrive"),
    has_leaves=True,
    setting=_SETTING,
    context=_context,
    figure=Gallery("paths", title="starts that reach the minimum of {world}"),
)
