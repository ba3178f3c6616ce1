"""`moving_target`: least squares within a box whose measurements change twice. The truth of each phase is SciPy's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

from . import sentences
from .base import OURS, Context, Outcome, Score, Settings, Task, Variant, World
from .least_squares import COLUMNS, NEAR, Problems, arrivals, batch, descend_box, matrix, measurements

PROBLEMS, CONDITION, SEED, SEED_OF_CHANGES, SEED_OF_STARTS = 20, 100, 0, 7, 1
PHASES, STEPS, LAST = 3, 300, 10
RATES = {"gradient descent": 1.0, "Adam": 0.03}
SCORE = Score("kept_up", "{} of the problems kept up with")
_SETTING = (
    "{problems} problems of {columns} unknowns between {low:g} and {high:g}, from starts inside; after {steps} and "
    "{twice} steps the measurements change, and with them the bounds that hold. Kept up with means within {near:g} of"
    " SciPy's loss, relative to that at the centre, for the last {last} steps of both later phases. Gradient descent "
    "at rate {plain:g}, Adam at {adam:g}. This tells what becomes of values that a rule let run away; with a target "
    "that stays they do no harm. {test}"
)


@cache
def phases() -> tuple[Problems, ...]:
    """Three batches of the same matrices, each with measurements of its own."""
    import numpy as np

    random, changes = np.random.default_rng(SEED), np.random.default_rng(SEED_OF_CHANGES)
    first = []
    for _ in range(PROBLEMS):
        a = matrix(random, CONDITION)
        first.append((a, measurements(random, a)))
    later = [[(a, measurements(changes, a)) for a, _ in first] for _ in range(PHASES - 1)]
    return tuple(batch(systems) for systems in (first, *later))


def start() -> Tensor:
    return torch.rand(PROBLEMS, COLUMNS, generator=torch.Generator().manual_seed(SEED_OF_STARTS), dtype=torch.float64)


def _run(world: str, variant: Variant, settings: Settings) -> Outcome:
    x = start().requires_grad_()
    optimizer = (torch.optim.Adam if world == "Adam" else torch.optim.SGD)([x], RATES[world])
    gaps = [phase.gap(descend_box(x, optimizer, STEPS, phase, variant)) for phase in phases()]
    kept_up = torch.stack([(gap[-LAST:] < NEAR).all(0) for gap in gaps[1:]]).all(0).double()
    steps = {f"steps_{number}": float(arrivals(gap).double().median()) for number, gap in enumerate(gaps, start=1)}
    stray = float((x.detach() - x.detach().clamp(0, 1)).abs().max())
    return Outcome({"kept_up": float(kept_up.mean()), **steps, "stray": stray}, seeds=tuple(kept_up.tolist()))


def _context(settings: Settings) -> dict[str, object]:
    return {
        **{"problems": PROBLEMS, "columns": COLUMNS, "low": 0, "high": 1, "steps": STEPS, "twice": 2 * STEPS},
        **{"near": NEAR, "last": LAST, "plain": RATES["gradient descent"], "adam": RATES["Adam"]},
        "test": sentences.test_of(f"{PROBLEMS} problems"),
    }


def _measure_stray_values(world: str, rows: World, context: Context) -> Iterator[str]:
    if {"identity", OURS} <= set(rows):
        strayed, ours = (rows[name].numbers["stray"] for name in ("identity", OURS))
        if strayed > 2 * ours:
            outside = f"at the end identity has values {strayed:.1f} outside the box, {OURS} {ours:.1f}"
            yield f"{outside}; they have to come back before anything is seen to move."


MOVING_TARGET = Task(
    name="moving_target",
    title="Least squares whose target moves",
    worlds=lambda settings: tuple(RATES),
    run=_run,
    columns={
        "kept_up": "share of the problems kept up with",
        **{f"steps_{number}": f"median steps, phase {number}" for number in range(1, PHASES + 1)},
        "stray": "largest distance outside at the end",
    },
    score=SCORE,
    headline=("kept_up", "kept up with"),
    has_leaves=True,
    setting=_SETTING,
    context=_context,
    each=_measure_stray_values,
    order=160,
)
