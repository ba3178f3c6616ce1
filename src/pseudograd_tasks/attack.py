"""`attack`: change pictures of digits a little, by gradient ascent on the loss of a classifier, so that it gets them wrong."""

from __future__ import annotations

from functools import cache, partial

import torch
from torch import Tensor

from . import digits as data
from . import sentences
from .base import Outcome, Score, Settings, Task, Variant

ORDER = {"attack": 110}
SEEDS, SIZES, TRAINING_STEPS, RATE = tuple(range(10)), (64, 48, 32, 10), 400, 2e-3
LARGEST, STEPS, SEED_OF_STARTS = 0.2, 20, 0
FROM_PICTURE, FROM_CHANCE, NO_MAXIMIZE = "from the picture", "from chance", "no maximize"
SCORE = Score("right", "{} still right", better="lower", tie=0.005)
_SETTING = (
    "{seeds} classifiers of digits, {clean:.1%} right before the attack. Every pixel may change by at most "
    "{largest:g}, and the picture is clamped between black and white; {steps} steps of a quarter of that along the"
    " sign of the gradient of the loss, upwards. The fewer still right, the stronger the attack; a weak one makes a "
    "classifier look safe. {black:.0%} of the pixels are black and {white:.0%} white. An attack that starts from the "
    "picture itself starts with these pixels at the bounds, so the edge decides. One that starts from a random change "
    "starts with values outside of the bounds, so the rule decides. Rules are written for descent, and ascent asks for "
    "maximize=True; the last world leaves that out. The task compares gradients. It does not say how safe a "
    "classifier is. {test}"
)


@cache
@torch.enable_grad()
def classifiers() -> data.Networks:
    networks = data.draw_networks(SEEDS, SIZES, TRAINING_STEPS)
    for _ in data.train(networks, RATE, partial(data.classification_loss, partial(data.logits, networks=networks))):
        pass
    return networks


@torch.no_grad()
def right(pictures: Tensor) -> Tensor:
    """(seeds,): the share of the test digits that each classifier gets right. pictures: the digits, perhaps attacked."""
    return data.accuracy(data.logits(pictures, classifiers()), data.digits().test_labels)


@cache
def start(world: str) -> Tensor:
    """(seeds, 497, 64): the change of each picture at the start."""
    shape = (len(SEEDS), *data.digits().test.shape)
    if world == FROM_PICTURE:
        return torch.zeros(shape)
    return (torch.rand(shape, generator=torch.Generator().manual_seed(SEED_OF_STARTS)) * 2 - 1) * LARGEST


def attacked(world: str, variant: Variant) -> Tensor:
    """(seeds, 497, 64): the pictures after the attack, between black and white."""
    x, labels = data.digits().test, data.expand_seeds(len(SEEDS), data.digits().test_labels)
    clamp = variant.clamp if world == NO_MAXIMIZE else variant.ascending
    change = (x + start(world)).clamp(0, 1) - x if variant.projects else start(world).clone()
    for _ in range(STEPS):
        change.requires_grad_()
        loss = data.cross_entropy(data.logits(clamp(x + change, 0.0, 1.0), classifiers()), labels)
        (grad,) = torch.autograd.grad(loss, change)
        change = (change.detach() + LARGEST / 4 * grad.sign()).clamp(-LARGEST, LARGEST)
        if variant.projects:
            change = (x + change).clamp(0, 1) - x
    return (x + change).clamp(0, 1)


def _run(world: str, variant: Variant, settings: Settings) -> Outcome:
    share = right(attacked(world, variant))
    return Outcome({"right": float(share.mean()), "most": float(share.max())}, seeds=tuple(share.tolist()))


def _context(settings: Settings) -> dict[str, object]:
    test = data.digits().test
    return {
        **{"seeds": len(SEEDS), "largest": LARGEST, "steps": STEPS},
        "clean": float(right(data.expand_seeds(len(SEEDS), test)).mean()),
        "black": float((test == 0).float().mean()),
        "white": float((test == 1).float().mean()),
        "test": sentences.test_sentence(f"{len(SEEDS)} classifiers"),
    }


ATTACK = Task(
    name="attack",
    title="An attack on classifiers of digits",
    worlds=lambda settings: (FROM_PICTURE, FROM_CHANCE, NO_MAXIMIZE),
    run=_run,
    columns={"right": "share still right", "most": "the same, worst seed for the attacker"},
    score=SCORE,
    headline=("right", "still right"),
    has_leaves=True,
    setting=_SETTING,
    context=_context,
)
