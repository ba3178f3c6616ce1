"""`splats`: a photo painted with Gaussian spots whose sum is clamped to [0, 1]. The pixels are no leaves and cannot be projected."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from . import sentences
from .base import OURS, Gallery, Outcome, Score, Settings, Task, Variant
from .photos import displayed, photo

ORDER = {"splats": 170}
SEEDS, SPOTS, STEPS = tuple(range(10)), 200, 150
HEIGHT, WIDTH = 48, 72
RATE, RATE_OF_PLACES, SIZE = 0.02, 0.004, 0.06  # the unit of sizes and places is the height of the picture
COLOURS = {"soft start": 0.5, "glaring start": 2.0}  # standard deviation of the spots' colours
SCORE = Score("psnr", "{} dB", ".2f", tie=0.1)
_SETTING = (
    "{spots} round Gaussian spots are added up and clamped between black and white; their places, sizes and "
    "colours are learned in {steps} steps of Adam at rate {rate:g}, and the picture is compared with the photo. "
    "Colours start with a standard deviation of {soft:g} or {glaring:g}, which puts {outside_soft:.0%} or "
    "{outside_glaring:.0%} of the values outside. The loss pulls every value outside back inside, so that identity, "
    "{ours} and elastic have the same gradient: this tells whether a rule lets gradients pass, not which way. {test}"
)


@cache
def target() -> Tensor:
    """(3, 48, 72): the photo."""
    return functional.interpolate(photo("china"), size=(HEIGHT, WIDTH), mode="area")[0]


@cache
def start(world: str) -> tuple[Tensor, Tensor, Tensor]:
    """Places (down, across), logarithms of sizes, and colours, each (seeds, spots, 2 or 1 or 3). Do not change them in place."""
    places, colours = [], []
    for seed in SEEDS:
        generator = torch.Generator().manual_seed(seed)
        places.append(torch.rand(SPOTS, 2, generator=generator) * torch.tensor([1.0, WIDTH / HEIGHT]))
        colours.append(COLOURS[world] * torch.randn(SPOTS, 3, generator=generator))
    sizes = torch.full((len(SEEDS), SPOTS, 1), SIZE).log()
    return torch.stack(places), sizes, torch.stack(colours)


def paint(places: Tensor, sizes: Tensor, colours: Tensor) -> Tensor:
    """(seeds, 3, 48, 72): the sum of the spots. A round Gaussian is the product of a vertical and a horizontal one."""
    down = _bell(places[..., :1], sizes, torch.linspace(0, 1, HEIGHT))
    across = _bell(places[..., 1:], sizes, torch.linspace(0, WIDTH / HEIGHT, WIDTH))
    coloured = colours.mT[..., None] * down[:, None]  # (seeds, 3, spots, 48)
    return coloured.mT @ across[:, None]


def _bell(place: Tensor, size: Tensor, x: Tensor) -> Tensor:
    """A Gaussian, cut to 0 below 1e-13: subnormal numbers would take five times the time of all others."""
    distance = ((x - place) / size.exp()) ** 2
    return torch.exp(-0.5 * distance.masked_fill(distance > 60, torch.inf))


def _run(world: str, variant: Variant, settings: Settings) -> Outcome:
    places, sizes, colours = (part.clone().requires_grad_() for part in start(world))
    groups = [{"params": [places], "lr": RATE_OF_PLACES}, {"params": [sizes, colours], "lr": RATE}]
    optimizer = torch.optim.Adam(groups)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (variant.clamp(paint(places, sizes, colours), 0.0, 1.0) - target()).pow(2).sum().backward()
        optimizer.step()
    pictures = displayed(paint(places, sizes, colours))
    psnr = -10 * torch.log10((pictures - target()).double().pow(2).mean((1, 2, 3)))
    numbers = {"psnr": float(psnr.mean()), "least": float(psnr.min())}
    return Outcome(numbers, {"picture": pictures[0]}, seeds=tuple(psnr.tolist()))


@torch.no_grad()
def outside(world: str) -> float:
    values = paint(*start(world))
    return float(((values < 0) | (values > 1)).float().mean())


def _context(settings: Settings) -> dict[str, object]:
    (soft, low), (glaring, high) = COLOURS.items()
    return {
        **{"spots": SPOTS, "steps": STEPS, "rate": RATE, "soft": low, "ours": OURS, "glaring": high},
        **{"outside_soft": outside(soft), "outside_glaring": outside(glaring)},
        "test": sentences.test_sentence(f"{len(SEEDS)} seeds"),
    }


SPLATS = Task(
    name="splats",
    title="A photo painted with Gaussian spots",
    worlds=lambda settings: tuple(COLOURS),
    run=_run,
    columns={"psnr": "PSNR, dB, mean over seeds", "least": "the same, worst seed"},
    score=SCORE,
    headline=("psnr", "dB"),
    has_leaves=False,
    setting=_SETTING,
    context=_context,
    figure=Gallery(
        "pictures",
        title="{world}; the picture is the first seed's, dB the mean",
        first={
            "the photo": lambda world: target(),
            "the start": lambda world: displayed(paint(*start(world)))[0],
        },
    ),
)
