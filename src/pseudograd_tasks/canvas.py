"""`canvas`: every pixel is a leaf, the picture is clamp(x, 0, 1), and the loss compares it, slightly blurred, with the blurred photo."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from . import sentences
from .base import Gallery, Outcome, Settings, Task, Variant, descend, make_leaf
from .photos import HEIGHT, WIDTH, photo, psnr

ORDER = {"canvas": 20}
STEPS, RATE, EXPOSURE = 200, 0.05, 4
BLUR_SIGMA, BLUR_RADIUS = 0.7, 3
BLACK, OVER_EXPOSED = "from black", "over-exposed"
_SETTING = (
    "Every pixel is a parameter; the loss compares a slightly blurred picture with the blurred photo. "
    "{steps} Adam steps, from black and from the photo at {exposure} times its contrast, "
    "which puts {outside_at_start:.0%} of the values outside the range of a picture."
)


@cache
def _make_blur_matrix(size: int) -> Tensor:
    """A matrix of shape (size, size): a product with it blurs along one axis, and reflects at the ends.

    Two such products are faster than convolutions here.
    """
    distance = torch.arange(-BLUR_RADIUS, BLUR_RADIUS + 1).float()
    weights = torch.exp(-(distance**2) / (2 * BLUR_SIGMA**2))
    # Row i of `wide` holds pixel i alone, with reflected ends. Its blur is column i of the matrix: hence the .T.
    wide = functional.pad(torch.eye(size)[None], (BLUR_RADIUS, BLUR_RADIUS), mode="reflect")[0]
    return functional.conv1d(wide[:, None], (weights / weights.sum())[None, None])[:, 0].T.contiguous()


def _blur(x: Tensor) -> Tensor:
    return _make_blur_matrix(HEIGHT) @ x @ _make_blur_matrix(WIDTH).T


def initial_picture(world: str) -> Tensor:
    """The picture that the training starts from."""
    target = photo("china")
    return torch.zeros_like(target) if world == BLACK else (target - 0.5) * EXPOSURE + 0.5


def _run(world: str, variant: Variant, settings: Settings) -> Outcome:
    target = photo("china")
    goal = _blur(target)
    x = make_leaf(variant, initial_picture(world))

    def loss(y: Tensor) -> Tensor:
        return 0.5 * (_blur(y) - goal).pow(2).sum()

    for _ in descend(variant, x, torch.optim.Adam([x], RATE), STEPS, loss):
        pass
    outside = ((x < 0) | (x > 1)).float().mean()
    return Outcome({"psnr": psnr(x, target), "outside": float(outside)}, {"picture": x.detach().clamp(0, 1)[0]})


def _context(settings: Settings) -> dict[str, object]:
    initial = initial_picture(OVER_EXPOSED)
    outside = ((initial < 0) | (initial > 1)).float().mean()
    return {"steps": STEPS, "rate": RATE, "exposure": EXPOSURE, "outside_at_start": float(outside)}


CANVAS = Task(
    name="canvas",
    title="A photo painted from black, and from an over-exposed photo",
    worlds=lambda settings: (BLACK, OVER_EXPOSED),
    run=_run,
    columns={"psnr": "PSNR, dB", "outside": "share of values left outside"},
    headline=("psnr", "dB"),
    score=sentences.PICTURES,
    has_leaves=True,
    setting=_SETTING,
    context=_context,
    figure=Gallery(
        "pictures",
        first={
            "the start": lambda world: initial_picture(world)[0],
            "the target, unblurred": lambda world: photo("china")[0],
        },
    ),
)
