"""`basin`: 400 starts on a line, plain gradient descent; where do they end, and how far do they stray?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from pseudograd.wording import listed

from .base import OURS, Gallery, Loss, Outcome, Settings, Task, Variant, Worlds, descend
from .curve import bounds, losses

STARTS, STEPS, RATE, LAST = 400, 400, 0.01, 20
_SETTING = (
    "{starts} starts on a line, {steps} steps of plain gradient descent at rate {rate:g}. The loss has its minimum on the range, "
    "{least:.2f}, at x = {best:.2f}."
)
NEAR = 0.01  # as a share of half the range: this close to the minimum counts as reached


def starts(settings: Settings) -> Tensor:
    """400 starts over the range and half of it to both sides, from the left, the right end left out."""
    low, high = bounds(settings)
    span = high - low
    return low - span / 2 + torch.arange(STARTS, dtype=torch.float32) * (2 * span / STARTS)


def minimum(loss: Loss, settings: Settings) -> tuple[float, float]:
    """(x, loss) of the minimum on the range, by a fine grid."""
    low, high = bounds(settings)
    grid = torch.linspace(low, high, 20001, dtype=torch.float64)
    values = loss(grid)
    return float(grid[values.argmin()]), float(values.min())


def _run(world: str, variant: Variant, settings: Settings) -> Outcome:
    low, high = bounds(settings)
    loss = losses(settings)[world]
    x = starts(settings).requires_grad_()
    path = descend(variant, x, torch.optim.SGD([x], RATE), STEPS, lambda y: loss(y).sum(), low, high)
    positions = torch.stack([x.detach().clone(), *(step.clone() for step in path)])
    shown = positions.clamp(low, high)[-LAST:]
    return Outcome(
        numbers=_numbers(positions, shown, loss, settings),
        arrays={"range": torch.tensor([low, high], dtype=torch.float64), "path": positions},
    )


def _numbers(positions: Tensor, shown: Tensor, loss: Loss, settings: Settings) -> dict[str, float]:
    low, high = bounds(settings)
    best, _ = minimum(loss, settings)
    reached = ((shown - best).abs() < NEAR * (high - low) / 2).all(0)
    # Starts that were drawn to the upper bound: the loss there is the best they can have, more is chatter.
    at_bound = ~reached & ((shown[-1] - high).abs() < 0.1 * (high - low))
    floor = loss(torch.tensor([high]))
    excess = (loss(shown) - floor)[:, at_bound].mean() if at_bound.any() else torch.zeros(())
    return {"reached": float(reached.sum()), "stray": float(positions.abs().max()), "chatter": float(excess)}


def _context(settings: Settings) -> dict[str, object]:
    best, least = minimum(next(iter(losses(settings).values())), settings)
    return {"starts": STARTS, "steps": STEPS, "rate": RATE, "best": best, "least": least}


def _verdicts(worlds: Worlds, context: Mapping[str, object]) -> list[str]:
    (rows,) = worlds.values()
    numbers = {name: measured.numbers for name, measured in rows.items()}
    counts: dict[float, list[str]] = {}
    for name, row in numbers.items():
        counts.setdefault(row["reached"], []).append(name)
    out = [
        f"{listed(counts[count])}: {count:.0f} of {context['starts']} starts reach the minimum."
        for count in sorted(counts, reverse=True)
    ]
    return [*out, *_compared(numbers, OURS)] if OURS in numbers else out


def _compared(numbers: Mapping[str, Mapping[str, float]], rule: str) -> Iterator[str]:
    """Who strays and who chatters, where that is more than `rule` does."""
    name = max(numbers, key=lambda name: numbers[name]["stray"])
    most, ours = numbers[name]["stray"], numbers[rule]["stray"]
    if most > 1.5 * ours:
        yield f"{name} strays furthest: to {most:.1f}, where {rule} stays within {ours:.1f}."
    name = max(numbers, key=lambda name: numbers[name]["chatter"])
    most, ours = numbers[name]["chatter"], numbers[rule]["chatter"]
    if most > ours + 1e-4:
        yield (
            f"Held at the upper bound, {name} chatters: {most:.4f} above the least loss it could have there; "
            f"{rule}: {ours:.4f}."
        )


BASIN = Task(
    name="basin",
    title="Where many starts end up",
    worlds=lambda settings: tuple(losses(settings))[:1],
    run=_run,
    columns={
        "reached": "starts that reach the minimum",
        "stray": "largest |x| on the way",
        "chatter": "mean excess loss of those held at max",
    },
    headline=("reached", "starts that arrive"),
    has_leaves=True,
    setting=_SETTING.format_map,
    context=_context,
    verdicts=_verdicts,
    figure=Gallery("paths", title="starts that reach the minimum of {world}"),
    order=40,
)
