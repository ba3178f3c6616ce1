"""`ternary` and `four_bits`: a network for digits trained with its weights quantised, and with its activations quantised too.

The quantiser is clamp(round(w / scale), low, high) * scale, as in libraries, so rounded values lie exactly at the bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from pseudograd.ops.rounding import round as rounded

from . import digits as data
from . import sentences
from .base import Clamp, Outcome, Score, Settings, Task, Variant

ORDER = {"ternary": 120, "four_bits": 130}
SEEDS, SIZES, STEPS, RATE = tuple(range(10)), (64, 48, 32, 10), 400, 3e-3
STEPS_OF_GRID, LARGEST = 15, 2.0  # of an activation: 4 bits from 0 to 2
WORLD = "digits"
SCORE = Score("accuracy", "{} of the test digits right", tie=0.002)  # one picture of 497
_TRAINING = (
    "A network of {sizes} units for scikit-learn's digits, {steps} steps of Adam at rate {rate:g} falling to nothing;"
    " unquantised, the same training gets {full:.1%} right. The quantiser is clamp(round(w / scale), low, high) * "
    "scale, and rounding passes every gradient. "
)
_TERNARY = _TRAINING + (
    "Weights are the mean size of their layer, its negative, or nothing, so that {silent:.0%} of them start exactly "
    "at a bound or outside. This tells what an edge does to weights that are rounded before they are clamped; "
    "quantisers that clamp first, or detach the whole, do not have it. {test}"
)
_FOUR_BITS = _TRAINING + (
    "Weights have four bits, the largest of each row exactly at a bound; activations have four bits up to "
    "{largest:g}. This tells rules for activations apart, through which the gradient of every weight below has to "
    "pass. {test}"
)


class Quantiser(NamedTuple):
    """How weights of shape (seeds, out, in) are quantised. has_activations: are activations quantised, too?"""

    scale: Callable[[Tensor], Tensor]
    low: float
    high: float
    has_activations: bool


def _mean_size(weight: Tensor) -> Tensor:
    return weight.detach().abs().mean((1, 2), keepdim=True)


def _largest_of_each_row(weight: Tensor) -> Tensor:
    return weight.detach().abs().amax(2, keepdim=True) / 7


TERNARY_WEIGHTS = Quantiser(_mean_size, -1.0, 1.0, has_activations=False)
FOUR_BITS_EACH = Quantiser(_largest_of_each_row, -8.0, 7.0, has_activations=True)


def logits(x: Tensor, networks: data.Networks, quantiser: Quantiser, clamp: Clamp) -> Tensor:
    """(seeds, n, 10), of x (seeds, n, 64)."""
    for layer, (weight, bias) in enumerate(zip(networks.weights, networks.biases, strict=True)):
        if layer:
            x = torch.relu(x)
            if quantiser.has_activations:
                x = clamp(rounded(x * (STEPS_OF_GRID / LARGEST)), 0.0, float(STEPS_OF_GRID)) * (LARGEST / STEPS_OF_GRID)
        scale = quantiser.scale(weight)
        x = data.linear(x, clamp(rounded(weight / scale), quantiser.low, quantiser.high) * scale, bias)
    return x


def train_networks(forward: Callable[[Tensor, data.Networks], Tensor]) -> tuple[data.Networks, Tensor]:
    """The networks after training, and the share of weights (seeds,) that get no gradient in the first step."""
    networks = data.draw_networks(SEEDS, SIZES, STEPS)
    loss = partial(data.classification_loss, lambda x: forward(x, networks))
    silent = torch.zeros(len(SEEDS))
    for step in data.train(networks, RATE, loss, falls=True):
        if step == 0:
            silent = _silent_share(networks)
    return networks, silent


def _silent_share(networks: data.Networks) -> Tensor:
    grads = torch.cat([p.grad.flatten(1) for p in networks.weights if p.grad is not None], 1)
    return (grads == 0).double().mean(1)


@torch.no_grad()
def _accuracies(forward: Callable[[Tensor, data.Networks], Tensor], networks: data.Networks) -> Tensor:
    images = data.digits()
    return data.accuracy(forward(data.expand_seeds(len(SEEDS), images.test), networks), images.test_labels)


def _run(quantiser: Quantiser, world: str, variant: Variant, settings: Settings) -> Outcome:
    networks, silent = train_networks(partial(logits, quantiser=quantiser, clamp=variant.clamp))
    # Every variant is tested with torch.clamp. This changes only the values of "no clamp".
    right = _accuracies(partial(logits, quantiser=quantiser, clamp=torch.clamp), networks)
    return Outcome(
        numbers={"accuracy": float(right.mean()), "least": float(right.min()), "silent": float(silent.mean())},
        seeds=tuple(right.tolist()),
    )


@cache
def unquantised() -> float:
    networks, _ = train_networks(data.logits)
    return float(_accuracies(data.logits, networks).mean())


def _bound_share(quantiser: Quantiser) -> float:
    codes = [(weight / quantiser.scale(weight)).round() for weight in data.draw_networks(SEEDS, SIZES, 0).weights]
    flat = torch.cat([code.flatten() for code in codes])
    return float(((flat <= quantiser.low) | (flat >= quantiser.high)).double().mean())


def _context(quantiser: Quantiser, settings: Settings) -> dict[str, object]:
    return {
        **{"sizes": "-".join(map(str, SIZES)), "steps": STEPS, "rate": RATE, "largest": LARGEST},
        **{"full": unquantised(), "silent": _bound_share(quantiser)},
        "test": sentences.test_sentence(f"{len(SEEDS)} seeds"),
    }


def _task(name: str, title: str, setting: str, quantiser: Quantiser) -> Task:
    return Task(
        name=name,
        title=title,
        worlds=lambda settings: (WORLD,),
        run=partial(_run, quantiser),
        columns={
            "accuracy": "share of the test digits right",
            "least": "the same, worst seed",
            "silent": "share of weights without a gradient in the first step",
        },
        score=SCORE,
        headline=("accuracy", "right"),
        has_leaves=False,
        setting=setting,
        context=partial(_context, quantiser),
    )


TERNARY = _task("ternary", "A network with ternary weights", _TERNARY, TERNARY_WEIGHTS)
FOUR_BITS = _task("four_bits", "A network with 4-bit weights and activations", _FOUR_BITS, FOUR_BITS_EACH)
