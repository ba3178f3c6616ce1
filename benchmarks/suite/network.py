"""What a network keeps for backward: twelve times a 3 x 3 convolution of 32 channels and an activation, 4 images of 192 x 192.

Parameters and the images are there anyway and do not count.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

import pseudograd as pg

from .measure import Routes, saved_bytes
from .routes import _Snippet

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "no activation": lambda x: x,
    "relu": torch.relu,
    "native": lambda x: torch.clamp(x, -1.0, 1.0),
    "hardtanh": functional.hardtanh,
    "snippet": lambda x: _Snippet.apply(x, -1.0, 1.0),
    "inward": lambda x: pg.clamp(x, -1.0, 1.0),
    "zero/open": functools.partial(pg.clamp, min=-1.0, max=1.0, rule="zero", edge="open"),
}


def measure_network(names: tuple[str, ...], side: int = 192, layers: int = 12) -> Routes:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    images = torch.randn(4, 3, side, side)
    convolutions = nn.ModuleList(nn.Conv2d(3 if not layer else 32, 32, 3, padding=1) for layer in range(layers))

    def forward(activation: Callable[[Tensor], Tensor]) -> Tensor:
        x = images
        for convolution in convolutions:
            x = activation(convolution(x))
        return x

    exists = (images, *convolutions.parameters())
    return {name: {"saved_bytes": saved_bytes(functools.partial(forward, ACTIVATIONS[name]), exists)} for name in names}
