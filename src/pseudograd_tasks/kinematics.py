"""`kinematics`: the joints of a planar arm, each with limits, that bring its hand to a point. The truth is SciPy's L-BFGS-B."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from . import sentences
from .base import Context, Outcome, Score, Settings, Task, Variant, World, descend, make_leaf

if TYPE_CHECKING:
    import numpy as np

    Array = np.typing.NDArray[np.float64]

TARGETS, DRAWS, SEED, STEPS, LAST, NEAR, SPREAD = 200, 20, 0, 400, 10, 0.01, 3.0
RATES = {"Adam": 0.05, "gradient descent": 0.1}
_LIMITS = torch.tensor([1.2, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64)
_LINKS = torch.tensor([1.0, 0.8, 0.6, 0.4, 0.3], dtype=torch.float64)
SCORE = Score("reached", "{} of the targets reached")
_SETTING = (
    "An arm of {links} links, {length:g} long, whose joints are clamped to their limits. {targets} points that it can"
    " reach; {outside:.0%} of the joints start outside their limits. {steps} steps of Adam at rate {adam:g} or of "
    "gradient descent at {plain:g}. Reached means within {near:g} of the point for the last {last} steps. From the "
    "same starts, clipped, SciPy's L-BFGS-B reaches {scipy:.1%}. There are local minima, so this tells who gets out "
    "of a far start, not who is right; the joints are leaves, and project is the honest baseline. {test}"
)


def hand(z: Tensor) -> Tensor:
    """(..., 2): where the hand is when every joint stands at z (..., 5), from -1 to 1, of its limit."""
    angle = (_LIMITS * z).cumsum(-1)
    return torch.stack([(_LINKS * angle.cos()).sum(-1), (_LINKS * angle.sin()).sum(-1)], -1)


@cache
def targets_and_starts() -> tuple[Tensor, Tensor]:
    """(200, 2) points and (200, 5) joints. The starts of the inside, drawn between them, are not used here."""
    generator = torch.Generator().manual_seed(SEED)
    shape = (TARGETS, len(_LINKS))
    reachable = torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1
    torch.rand(shape, generator=generator, dtype=torch.float64)
    return hand(reachable), SPREAD * torch.randn(shape, generator=generator, dtype=torch.float64)


@cache
def scipy_reaches() -> Tensor:
    """(200,): does L-BFGS-B with bounds reach the point from the same start, clipped? Its gradient is written apart, in NumPy."""
    import numpy as np
    from scipy.optimize import minimize

    limits, links = _LIMITS.numpy(), _LINKS.numpy()

    def loss(z: Array, target: Array) -> tuple[float, Array]:
        angle = np.cumsum(limits * z)
        across, up = links * np.cos(angle), links * np.sin(angle)
        error = np.array([across.sum(), up.sum()]) - target
        # Joint i turns every link from i on: the tail sums.
        turned = -error[0] * np.cumsum(up[::-1])[::-1] + error[1] * np.cumsum(across[::-1])[::-1]
        return float(error @ error / 2), limits * turned

    targets, starts = (part.numpy() for part in targets_and_starts())
    bounds = [(-1, 1)] * len(links)
    losses = [
        minimize(loss, z.clip(-1, 1), (target,), "L-BFGS-B", jac=True, bounds=bounds).fun
        for target, z in zip(targets, starts, strict=True)
    ]
    return torch.tensor([(2 * least) ** 0.5 < NEAR for least in losses])


def _run(world: str, variant: Variant, settings: Settings) -> Outcome:
    targets, first = targets_and_starts()
    z = make_leaf(variant, first, -1.0, 1.0)
    optimizer = (torch.optim.Adam if world == "Adam" else torch.optim.SGD)([z], RATES[world])

    def loss(y: Tensor) -> Tensor:
        return 0.5 * (hand(y) - targets).pow(2).sum()

    shown = [step.clamp(-1, 1) for step in descend(variant, z, optimizer, STEPS, loss, -1.0, 1.0)]
    error = (hand(torch.stack(shown)) - targets).pow(2).sum(-1).sqrt()
    reached = (error[-LAST:] < NEAR).all(0).double()
    return Outcome(
        numbers={"reached": float(reached.mean()), "error": float(error[-1].quantile(0.9))},
        seeds=tuple(reached.view(DRAWS, -1).mean(1).tolist()),
    )


def _context(settings: Settings) -> dict[str, object]:
    _, first = targets_and_starts()
    return {
        **{"links": len(_LINKS), "targets": TARGETS, "steps": STEPS, "near": NEAR, "last": LAST},
        **{"adam": RATES["Adam"], "plain": RATES["gradient descent"]},
        "outside": float((first.abs() > 1).double().mean()),
        "length": float(_LINKS.sum()),
        "scipy": float(scipy_reaches().double().mean()),
        "test": sentences.test_of(f"{DRAWS} groups of {TARGETS // DRAWS} targets"),
    }


def _compare_scipy(world: str, rows: World, context: Context) -> Iterator[str]:
    best = max(measured.numbers["reached"] for measured in rows.values())
    who = "something tried does" if best > context["scipy"] else "nothing tried does"
    yield f"SciPy, with its bounds and its line search, reaches {context['scipy']:.1%}; {who} better."


KINEMATICS = Task(
    name="kinematics",
    title="An arm with joint limits, against SciPy",
    worlds=lambda settings: tuple(RATES),
    run=_run,
    columns={"reached": "share of the targets reached", "error": "error of the hand, 90th percentile"},
    score=SCORE,
    headline=("reached", "reached"),
    has_leaves=True,
    setting=_SETTING,
    context=_context,
    each=_compare_scipy,
    order=150,
)
