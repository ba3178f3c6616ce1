"""`moving_target`: least squares within a box whose measurements change twice. The truth of each phase is SciPy's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

from . import sentences
from .base import OURS, PROJECT, Outcome, Score, Settings, Task, Variant, Worlds
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


def _optimizer(world: str, x: Tensor) -> torch.optim.Optimizer:
    kind = torch.optim.Adam if world == "Adam" else torch.optim.SGD
    return kind([x], RATES[world])


def _run(world: str, variant: Variant, settings: Settings) -> Outcome:
    x = start().requires_grad_()
    optimizer = _optimizer(world, x)
    gaps = [phase.gap(descend_box(x, optimizer, STEPS, phase, variant)) for phase in phases()]
    kept_up = torch.stack([(gap[-LAST:] < NEAR).all(0) for gap in gaps[1:]]).all(0).double()
    steps = [float(arrivals(gap).double().median()) for gap in gaps]
    return Outcome(
        numbers={
            "kept_up": float(kept_up.mean()),
            **{f"steps_{number}": value for number, value in enumerate(steps, start=1)},
            "stray": float((x.detach() - x.detach().clamp(0, 1)).abs().max()),
        },
        seeds=tuple(kept_up.tolist()),
    )


def _context(settings: Settings) -> dict[str, object]:
    return {
        "problems": PROBLEMS,
        "columns": COLUMNS,
        "low": 0,
        "high": 1,
        "steps": STEPS,
        "twice": 2 * STEPS,
        "near": NEAR,
        "last": LAST,
        "plain": RATES["gradient descent"],
        "adam": RATES["Adam"],
        "test": sentences.test_of(f"{PROBLEMS} problems"),
    }


def _verdicts(worlds: Worlds, context: Mapping[str, object]) -> list[str]:
    out = []
    for world, rows in worlds.items():
        out += sentences.score_sentences(world, rows, SCORE)
        if {"identity", OURS} <= set(rows):
            strayed, ours = (rows[name].numbers["stray"] for name in ("identity", OURS))
            if strayed > 2 * ours:
                out.append(
                    f"{world}: at the end identity has values {strayed:.1f} outside the box, {OURS} {ours:.1f}; "
                    "they have to come back before anything is seen to move."
                )
    return out


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
    setting=_SETTING.format_map,
    context=_context,
    verdicts=_verdicts,
    simpler=lambda worlds: {"own_leaves": sentences.where_no_worse(worlds, PROJECT, SCORE)},
    order=160,
)
