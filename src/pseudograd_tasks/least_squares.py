"""`least_squares`: least squares within a box, from starts far outside it. The results are compared with SciPy's active-set solver."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pseudograd.wording import listed

from . import sentences
from .base import Outcome, Score, Settings, Task, Variant, descend, make_leaf

ORDER = {"least_squares": 30}
if TYPE_CHECKING:
    import numpy as np

    Array = np.typing.NDArray[np.float64]

CONDITIONS, EACH, SEED = (10, 100, 1000), 20, 0
ROWS, COLUMNS, NOISE = 60, 40, 0.01
STEPS, RATE, SPREAD = 500, 1.0, 3.0
LAST, NEAR = 20, 1e-3  # solved: in the last 20 steps the gap to SciPy's loss is below 1e-3
WORLD = "from far outside"
SCORE = Score("converged", "{} of the problems solved")
_SETTING = (
    "{problems} problems of {columns} unknowns between {low:g} and {high:g} and {rows} measurements, {each} at each "
    "of the condition numbers {conditions}. In SciPy's solutions (lsq_linear) {active:.0%} of the unknowns lie at a "
    "bound; {outside:.0%} of all unknowns start outside the box. {steps} steps of plain gradient descent at rate {rate:g}, the "
    "inverse of the largest curvature. Solved means: in the last {last} steps the loss lies above SciPy's by less than {near:g} times "
    "what the loss at the centre of the box lies above it. This tells which rules reach the solution of a convex problem and how soon, "
    "not what they do where a local minimum can trap. {test}"
)


@dataclass(frozen=True)
class Problems:
    """A batch of problems: minimise |matrix @ c - observed|² / 2 over c in [0, 1], and SciPy's answers."""

    matrix: Tensor  # (problems, 60, 40), float64
    observed: Tensor  # (problems, 60)
    best: Tensor  # (problems, 40)

    def loss(self, c: Tensor) -> Tensor:
        """The loss of each problem, of shape (..., problems), for c of shape (..., problems, 40)."""
        return (self.residual(c) ** 2).sum(-1) / 2

    def residual(self, c: Tensor) -> Tensor:
        return torch.einsum("pru,...pu->...pr", self.matrix, c) - self.observed

    def gap(self, c: Tensor) -> Tensor:
        """(loss(c) - SciPy's loss) / (loss at the centre of the box - SciPy's loss)."""
        least, centre = self.loss(self.best), self.loss(torch.full_like(self.best, 0.5))
        return (self.loss(c) - least) / (centre - least)


def matrix(random: np.random.Generator, condition: float) -> Array:
    """(60, 40): a matrix whose largest singular value is 1, so descent is stable up to rate 2.

    condition: the condition number of its Gram matrix.
    """
    import numpy as np

    left, _ = np.linalg.qr(random.normal(size=(ROWS, COLUMNS)))
    right, _ = np.linalg.qr(random.normal(size=(COLUMNS, COLUMNS)))
    return left * np.logspace(0, -np.log10(condition) / 2, COLUMNS) @ right


def measurements(random: np.random.Generator, a: Array) -> Array:
    """(60,): noisy measurements of unknowns of which two thirds lie outside the box."""
    return a @ random.uniform(-1, 2, size=COLUMNS) + NOISE * random.normal(size=ROWS)


@cache
def problems() -> Problems:
    """All problems and their solutions by an active-set method of SciPy, which uses no backward rule."""
    import numpy as np
    from scipy.optimize import lsq_linear

    systems = []
    for condition in CONDITIONS:
        random = np.random.default_rng(SEED)
        for _ in range(EACH):
            a = matrix(random, condition)
            systems.append((a, measurements(random, a)))
    best = [lsq_linear(a, b, (0, 1), tol=1e-14, method="bvls").x for a, b in systems]
    matrices, observed = zip(*systems, strict=True)
    return Problems(*(torch.from_numpy(np.stack(part)) for part in (matrices, observed, best)))


@cache
def start() -> Tensor:
    """(problems, 40): the same starts for each condition number."""
    far = torch.randn(EACH, COLUMNS, generator=torch.Generator().manual_seed(SEED + 10), dtype=torch.float64)
    return (0.5 + SPREAD * far).repeat(len(CONDITIONS), 1)


def arrivals(gap: Tensor) -> Tensor:
    """(..., problems): the first step with a small gap, counted from 1; the number of steps if no gap is small.

    gap: of shape (steps, ..., problems).
    """
    near = gap < NEAR
    return torch.where(near.any(0), near.double().argmax(0) + 1, len(gap))


def _run(world: str, variant: Variant, settings: Settings) -> Outcome:
    x = make_leaf(variant, start())
    path = descend(variant, x, torch.optim.SGD([x], RATE), STEPS, lambda c: problems().loss(c).sum())
    gap = problems().gap(torch.stack([c.clamp(0, 1) for c in path]))
    converged = (gap[-LAST:] < NEAR).all(0).double()
    # Each condition number has the same draws, so a draw counts once, with the share of the condition numbers at which it converged.
    shares = converged.view(len(CONDITIONS), EACH).mean(0)
    steps = float(arrivals(gap).double().median())
    numbers = {"converged": float(converged.mean()), "steps": steps, "gap": float(gap[-1].median())}
    return Outcome(numbers, seeds=tuple(shares.tolist()))


def _context(settings: Settings) -> dict[str, object]:
    best, first = problems().best, start()
    return {
        **{"problems": len(best), "columns": COLUMNS, "low": 0, "high": 1, "rows": ROWS, "each": EACH},
        **{"steps": STEPS, "rate": RATE, "near": NEAR, "last": LAST},
        "conditions": listed([str(condition) for condition in CONDITIONS]),
        "active": float(((best < 1e-9) | (best > 1 - 1e-9)).double().mean()),
        "outside": float(((first < 0) | (first > 1)).double().mean()),
        "test": sentences.test_sentence(f"{EACH} draws"),
    }


LEAST_SQUARES = Task(
    name="least_squares",
    title="Least squares within a box, against SciPy",
    worlds=lambda settings: (WORLD,),
    run=_run,
    columns={
        "converged": "share of the problems solved",
        "steps": "median steps until a problem is solved",
        "gap": "median gap to SciPy's loss at the end",
    },
    score=SCORE,
    headline=("converged", "solved"),
    has_leaves=True,
    setting=_SETTING,
    context=_context,
)
