"""`bounded_head`: the lower half of a digit from its upper half, through a clamp to [0, 1] at the end of a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import torch
from torch import Tensor

from pseudograd.wording import listed

from . import digits as data
from . import sentences
from .base import Context, Outcome, Score, Settings, Task, Variant, World

SEEDS, SIZES, STEPS, RATE = tuple(range(10)), (32, 96, 32), 600, 2e-3
GAINS = {"usual start": 1, "far start": 30}  # of the last layer's weights
VARIES = 0.05  # an output whose target's standard deviation is below this has nothing to learn
SCORE = Score("error", "test error {}", ".4f", better="lower", tie=0.001)
_SETTING = (
    "A network of {sizes} units predicts the lower half of a digit from the upper one; its outputs are clamped "
    "between black and white and compared with the pixels. {steps} steps of Adam at rate {rate:g}; the last layer is "
    "as usually drawn, or {gain} times as large. An output is dead if it ends at a bound or outside for every "
    "training picture while its pixel varies. The mean of the training pictures has an error of {mean:.4f}; a sigmoid"
    " in the clamp's place {sigmoid_1:.4f}, with the larger layer {sigmoid_2:.4f}. This tells which rules keep "
    "outputs alive, and by how much that matters here; nothing about losses that push outputs outwards. {test}"
)


def trained(world: str, bounded: Callable[[Tensor], Tensor]) -> data.Networks:
    networks = data.draw_networks(SEEDS, SIZES, STEPS, spread=1.0)
    networks.weights[-1].mul_(GAINS[world])
    upper, lower = _halves(data.digits().train)

    def loss(batch: Tensor) -> Tensor:
        shown = bounded(data.logits(data.pictures(upper, batch), networks))
        return (shown - data.pictures(lower, batch)).pow(2).sum().div(data.BATCH)

    for _ in data.train(networks, RATE, loss):
        pass
    return networks


def _halves(images: Tensor) -> tuple[Tensor, Tensor]:
    return images[..., :32], images[..., 32:]


@torch.no_grad()
def _error(networks: data.Networks, bounded: Callable[[Tensor], Tensor]) -> Tensor:
    """(seeds,), float64: mean squared error on the test digits."""
    upper, lower = _halves(data.digits().test)
    shown = bounded(data.logits(data.expand_seeds(len(SEEDS), upper), networks))
    return (shown - lower).double().pow(2).mean((1, 2))


@torch.no_grad()
def _dead(networks: data.Networks) -> Tensor:
    """(seeds,): how many outputs stand at a bound or outside for every training digit, though they have something to learn."""
    upper, lower = _halves(data.digits().train)
    outputs = data.logits(data.expand_seeds(len(SEEDS), upper), networks)
    stuck = ((outputs <= 0) | (outputs >= 1)).all(1)
    return (stuck & (lower.std(0) > VARIES)).double().sum(1)


def _run(world: str, variant: Variant, settings: Settings) -> Outcome:
    networks = trained(world, lambda x: variant.clamp(x, 0.0, 1.0))
    error = _error(networks, lambda x: x.clamp(0, 1))
    numbers = {"error": float(error.mean()), "dead": float(_dead(networks).mean())}
    return Outcome(numbers, seeds=tuple(error.tolist()))


@cache
def sigmoid_error(world: str) -> float:
    return float(_error(trained(world, torch.sigmoid), torch.sigmoid).mean())


def _context(settings: Settings) -> dict[str, object]:
    (_, train), (_, test) = (_halves(images) for images in (data.digits().train, data.digits().test))
    return {
        **{"sizes": "-".join(map(str, SIZES)), "steps": STEPS, "rate": RATE, "gain": max(GAINS.values())},
        "mean": float((test - train.mean(0)).pow(2).mean()),
        "test": sentences.test_of(f"{len(SEEDS)} seeds"),
        **{f"sigmoid_{number}": sigmoid_error(world) for number, world in enumerate(GAINS, start=1)},
    }


def _count_dead_outputs(world: str, rows: World, context: Context) -> Iterator[str]:
    dead: dict[float, list[str]] = {}
    for name, measured in rows.items():
        dead.setdefault(measured.numbers["dead"], []).append(name)
    for count, names in sorted(dead.items(), reverse=True):
        if count > 0:
            yield f"{count:.1f} of {SIZES[-1]} outputs dead, on average: {listed(names)}."
    sigmoid = context[f"sigmoid_{list(GAINS).index(world) + 1}"]
    better = [name for name, measured in rows.items() if measured.numbers["error"] < sigmoid]
    names_or_none = listed(better) if better else "nothing tried"
    yield f"a smaller mean error than a sigmoid ({sigmoid:.4f}): {names_or_none}."


BOUNDED_HEAD = Task(
    name="bounded_head",
    title="A network whose outputs are bounded",
    worlds=lambda settings: tuple(GAINS),
    run=_run,
    columns={"error": "mean squared error, test digits", "dead": "dead outputs of 32"},
    score=SCORE,
    headline=("error", "test error"),
    has_leaves=False,
    setting=_SETTING,
    context=_context,
    each=_count_dead_outputs,
    order=140,
)
